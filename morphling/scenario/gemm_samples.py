"""Measured matrix products, as CSV: ``m,n,k,dtype,layout,ms`` with a header, and optional columns.

Lines ``# key: value`` before the header say where the numbers come from.  Several lines of one shape are rounds of the
same measurement.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from morphling.errors import InputError, ProfileError
from morphling.fleet.gemm import LAYOUTS, GemmSamples, stored_row
from morphling.scenario.data import suggestion
from morphling.scenario.files import read_text
from morphling.types import DType

__all__ = ["COLUMNS", "parse_samples", "read_samples"]

NEEDED: Final = ("m", "n", "k", "dtype", "layout", "ms")
OPTIONAL: Final = ("lda", "ldb", "batch", "cpu_share")
COLUMNS: Final = (*NEEDED, *OPTIONAL)
_FACT = re.compile(r"#\s*([\w -]+?)\s*:\s*(.+)")
_MOST = 2**31


def read_samples(path: Path) -> GemmSamples:
    """The samples in a file.  Raises `ProfileError` that names file, line and column of each fault (at most 20)."""
    try:
        return parse_samples(read_text(path), str(path))
    except ProfileError:
        raise
    except InputError as error:
        raise ProfileError(str(error)) from None


def parse_samples(text: str, origin: str) -> GemmSamples:
    """The samples in ``text``; ``origin`` is its name in errors."""
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith("#")), len(lines))
    facts = {found[1]: found[2].strip() for line in lines[:first] if (found := _FACT.match(line))}
    if first == len(lines):
        raise ProfileError(f"{origin}: no samples; a header is needed: {','.join(NEEDED)}")
    header = _header(lines[first], f"{origin}:{first + 1}")
    rows: list[dict[str, Any]] = []
    faults: list[str] = []
    for number, line in enumerate(lines[first + 1 :], first + 2):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            rows.append(_row(line, header))
        except ValueError as error:
            faults.append(f"{origin}:{number}: {error}")
    if faults:
        more = [f"{origin}: and {len(faults) - 20} more lines"] if len(faults) > 20 else []
        raise ProfileError("\n".join(faults[:20] + more))
    if not rows:
        raise ProfileError(f"{origin}:{first + 1}: no samples after the header")
    return GemmSamples.of_rows(rows, facts)


def _header(line: str, where: str) -> list[str]:
    names = [cell.strip() for cell in line.split(",")]
    for name in names:
        if name not in COLUMNS:
            hint = suggestion(name, [c for c in COLUMNS if c not in names]) or "leave it out"
            raise ProfileError(f"{where}: unknown column '{name}', {hint}")
    if twice := [name for name in COLUMNS if names.count(name) > 1]:
        raise ProfileError(f"{where}: column '{twice[0]}' is there twice")
    if lacking := [name for name in NEEDED if name not in names]:
        raise ProfileError(f"{where}: missing column '{lacking[0]}'; a header is needed: {','.join(NEEDED)}")
    return names


def _row(line: str, header: list[str]) -> dict[str, Any]:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(header):
        raise ValueError(f"{len(header)} values are needed ({','.join(header)}), found {len(cells)}")
    row = {name: _READ[name](cell, name) for name, cell in zip(header, cells, strict=True)}
    row.setdefault("batch", 1)
    for name, tall, wide, letter in (("lda", "m", "k", 0), ("ldb", "k", "n", 1)):
        least = stored_row(row[tall], row[wide], row["layout"][letter] == "t")
        if row.setdefault(name, least) < least:
            stored = "transposed" if row["layout"][letter] == "t" else "as it is"
            raise ValueError(
                f"{name}: {row[name]} is shorter than a stored row of {name[-1].upper()} ({stored}: {least} elements)"
            )
    return row


def _whole(cell: str, name: str) -> int:
    if not (cell.isascii() and cell.isdigit() and 0 < int(cell[:11]) < _MOST):
        raise ValueError(f"{name}: a whole number from 1 to {_MOST - 1} is needed, found '{cell}'")
    return int(cell)


def _dtype(cell: str, name: str) -> str:
    known = [d.label for d in DType]
    if cell not in known:
        raise ValueError(f"{name}: '{cell}' is not a number format, {suggestion(cell, known)}")
    return cell


def _layout(cell: str, name: str) -> str:
    if cell not in LAYOUTS:
        raise ValueError(
            f"{name}: must be one of {', '.join(LAYOUTS)} (A and B as they are or transposed), found '{cell}'"
        )
    return cell


def _above_zero(cell: str, name: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"{name}: a finite number above zero is needed, found '{cell}'")
    return value


_READ: Final[dict[str, Callable[[str, str], Any]]] = {
    **dict.fromkeys(("m", "n", "k", "lda", "ldb", "batch"), _whole),
    "dtype": _dtype,
    "layout": _layout,
    "ms": _above_zero,
    "cpu_share": _above_zero,
}
