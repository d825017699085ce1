"""Step traces of links, as CSV: ``time_s,down_bps,up_bps`` after ``#`` comments.

Times are exact decimals of seconds and become whole nanoseconds; rates are whole bits per second, seen from the device.
``# duration_s: 600`` says where the last step ends; without it, it lasts as long as the step before it.
"""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np

from morphling.errors import InputError, TraceError
from morphling.fleet import LinkTrace, PastEnd
from morphling.scenario.data import find_file, shipped_names
from morphling.scenario.files import read_text
from morphling.types import FAR_NS, SECOND_NS

__all__ = ["exact_ns", "list_traces", "load_trace", "parse_trace"]

_HEADER = "time_s,down_bps,up_bps"
_DURATION = re.compile(r"#\s*duration_s\s*[:=]\s*(?P<seconds>.*?)\s*")
_NEARLY_DURATION = re.compile(r"\s*#+\s*duration(_?s)?\s*([:=]|\s[0-9.])", re.IGNORECASE)
"""A comment that means to say where the trace ends, and would be passed over."""
_PLAIN = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,9}))?")
_SECONDS = re.compile(r"([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,2})?")
_SLOWEST_PEAK_BPS = 1000
"""No real trace peaks below this; one that does was written in Mbit/s."""


def list_traces() -> list[str]:
    """Names of the shipped traces, sorted."""
    return shipped_names("network_traces")


def load_trace(
    reference: str,
    past_end: PastEnd | Literal["repeat", "hold", "error"] = PastEnd.REPEAT,
    folder: Path | None = None,
) -> LinkTrace:
    """The trace of that name, or at that path (relative to ``folder``).

    Raises
    ------
    TraceError
        There is none, or a line of it is wrong (as file:line: reason), or a direction never moves and repeats for ever.
    """
    try:
        path = find_file("network_traces", reference, folder)
        return parse_trace(read_text(path), path.stem, past_end, str(path))
    except TraceError:
        raise
    except InputError as error:
        raise TraceError(str(error)) from None


def parse_trace(
    text: str, name: str, past_end: PastEnd | Literal["repeat", "hold", "error"], origin: str | None = None
) -> LinkTrace:
    """The trace in ``text``; ``origin`` is its name in errors (``name``, if left out).  Raises `TraceError`."""
    origin = name if origin is None else origin
    after = past_end if isinstance(past_end, PastEnd) else PastEnd[past_end.upper()]
    lines = text.splitlines()
    first, duration = _preamble(lines, origin)
    rows = [
        _row(line, f"{origin}:{number}")
        for number, line in enumerate(lines[first:], start=first + 1)
        if line.strip() or number < len(lines)
    ]
    if not rows:
        raise TraceError(f"{origin}:{first}: no steps after the header")
    start, down, up = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    _check_times(start, origin, first)
    _check_rates(down, up, origin, after)
    return LinkTrace(name, start, down, up, _period(start, duration, origin), after)


def exact_ns(text: str) -> int:
    """Whole nanoseconds of ``text``, decimal seconds; ``ValueError`` says what is wrong with it."""
    # The usual spelling needs no fractions; churn files have hundreds of thousands of such cells.
    plain = _PLAIN.fullmatch(text)
    if plain is not None:
        ns: int | Fraction = int(plain[1]) * SECOND_NS + int((plain[2] or "").ljust(9, "0"))
    elif _SECONDS.fullmatch(text):
        ns = Fraction(text) * SECOND_NS
    else:
        raise ValueError(f"'{text}' is not a number of seconds, 0 or more")
    if ns >= FAR_NS:
        raise ValueError(f"'{text}' is out of range: no time is beyond {FAR_NS // SECOND_NS} s")
    if ns.denominator != 1:
        raise ValueError(f"'{text}' is finer than a nanosecond")
    return int(ns)


def _preamble(lines: list[str], origin: str) -> tuple[int, tuple[int, int] | None]:
    """Number of lines before the steps, and the duration (ns) with the line that gives it."""
    duration: tuple[int, int] | None = None
    for number, line in enumerate(lines, start=1):
        if line.startswith("#"):
            match = _DURATION.fullmatch(line)
            if match is not None:
                if duration is not None:
                    raise TraceError(f"{origin}:{number}: duration_s is given twice, first in line {duration[1]}")
                try:
                    duration = exact_ns(match["seconds"]), number
                except ValueError as error:
                    raise TraceError(f"{origin}:{number}: duration_s: {error}") from None
            elif _NEARLY_DURATION.match(line):
                raise TraceError(
                    f"{origin}:{number}: a duration is written '# duration_s: 600', found '{line.strip()}'"
                )
            continue
        if line.strip() != _HEADER:
            raise TraceError(f"{origin}:{number}: the header must be '{_HEADER}', found '{line.strip()}'")
        return number, duration
    raise TraceError(f"{origin}: no header; the first line after comments must be '{_HEADER}'")


def _row(line: str, where: str) -> tuple[int, int, int]:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != 3:
        raise TraceError(f"{where}: 3 values are needed ({_HEADER}), found {len(cells)}")
    try:
        return exact_ns(cells[0]), _bps(cells[1], "down_bps"), _bps(cells[2], "up_bps")
    except ValueError as error:
        message = str(error)
        raise TraceError(
            f"{where}: {message if message.startswith(('down', 'up')) else f'time_s: {message}'}"
        ) from None


def _bps(cell: str, column: str) -> int:
    if not (cell.isascii() and cell.isdigit()):
        raise ValueError(f"{column}: '{cell}' is not a whole number of bit/s, 0 or more")
    if len(cell) > 18:
        raise ValueError(f"{column}: '{cell}' is out of range")
    return int(cell)


def _check_times(start: np.ndarray, origin: str, first: int) -> None:
    if start[0] != 0:
        raise TraceError(f"{origin}:{first + 1}: the first step must start at 0 s, found {start[0] / SECOND_NS} s")
    back = np.flatnonzero(np.diff(start) <= 0)
    if len(back):
        line = first + 2 + int(back[0])
        raise TraceError(f"{origin}:{line}: time_s must grow from line to line")


def _check_rates(down: np.ndarray, up: np.ndarray, origin: str, past_end: PastEnd) -> None:
    for column, rates in (("down_bps", down), ("up_bps", up)):
        if past_end is PastEnd.REPEAT and not rates.any():
            raise TraceError(f"{origin}: {column} is 0 in every step, and the trace repeats: nothing would ever arrive")
    peak = int(max(down.max(), up.max()))
    if 0 < peak < _SLOWEST_PEAK_BPS:
        raise TraceError(f"{origin}: the highest rate is {peak} bit/s; the columns are in bit/s, not kbit/s or Mbit/s")


def _period(start: np.ndarray, duration: tuple[int, int] | None, origin: str) -> int:
    if duration is not None:
        if duration[0] <= start[-1]:
            raise TraceError(f"{origin}:{duration[1]}: duration_s ends before the last step starts")
        return duration[0]
    # A single step has no step before it: it is a constant, and any period will do.
    return int(2 * start[-1] - start[-2]) if len(start) > 1 else SECOND_NS
