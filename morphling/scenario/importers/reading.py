"""Lines, tables and JSON records of foreign files, streamed; and the numbers in their cells.

A fault is a `TraceError` as ``file:line: reason``.  A missing reading is NaN here, never 0.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from morphling.errors import TraceError
from morphling.scenario.importers.record import Options, Report

__all__ = ["json_items", "json_number", "lines", "number", "rate", "table"]

_LONGEST_LINE = 1 << 20
_WATCHED = 1 << 22
_SEPARATORS: Final = {"comma": ",", "semicolon": ";", "tab": "\t"}
_MISSING: Final = frozenset({"", "-", "--", "nan", "na", "n/a", "null", "none"})
_LARGEST_BPS = 1e12
"""The engine counts in millibits and takes no rate beyond 1.1 Tbit/s."""


def lines(path: Path, report: Report) -> Iterator[tuple[int, str]]:
    """Number and text of each line that is not blank, without its end and without a byte-order mark."""
    blank = unseen = 0
    try:
        with path.open("rb") as file:
            number = 0
            while raw := file.readline(_LONGEST_LINE):
                number += 1
                if len(raw) == _LONGEST_LINE:
                    raise TraceError(
                        f"{path}:{number}: a line longer than {_LONGEST_LINE} bytes is not that of a trace"
                    )
                unseen += len(raw)
                if report.watch is not None and unseen >= _WATCHED:
                    report.watch(unseen)
                    unseen = 0
                text = _decoded(raw, path, number)
                if not text.strip():
                    blank = blank or number
                    continue
                if blank:  # only blank lines inside are worth a word; those at the end are not
                    report.drop("blank line", path, blank)
                    blank = 0
                yield number, text
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    if report.watch is not None:
        report.watch(unseen)


def _decoded(raw: bytes, path: Path, number: int) -> str:
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}:{number}: is not UTF-8 text (byte {error.start} of the line)") from None
    if "\0" in text:
        raise TraceError(f"{path}:{number}: has a zero byte; this is not UTF-8 text")
    text = text.rstrip("\n").removesuffix("\r")
    if "\r" in text:
        raise TraceError(f"{path}:{number}: has a carriage return inside the line; lines end in LF or CRLF")
    return text


def table(
    path: Path, report: Report, options: Options, header: Sequence[str] | None = None
) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Names of the columns, and (line, cells) of each row; as many cells as names, or it is a fault.

    The names are those of the first line that is no comment (``#``), unless ``header`` gives them.  The separator is
    the one of comma, semicolon and tab that cuts the first line into most cells, unless declared.
    """
    source = lines(path, report)
    first = next(((n, text) for n, text in source if not text.startswith("#")), None)
    if first is None:
        raise TraceError(f"{path}: is empty")
    separator = _SEPARATORS[options.separator] if options.separator is not None else max(",;\t", key=first[1].count)
    cells = _cells(first[1], separator, path, first[0])
    names = cells if header is None else list(header)
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise TraceError(f"{path}:{first[0]}: column '{twice[0]}' appears twice")

    def rows() -> Iterator[tuple[int, list[str]]]:
        if header is not None:
            yield first[0], _fitting(cells, names, path, first[0])
        for number, text in source:
            yield number, _fitting(_cells(text, separator, path, number), names, path, number)

    return names, rows()


def _cells(text: str, separator: str, path: Path, number: int) -> list[str]:
    if '"' not in text:
        return [cell.strip() for cell in text.split(separator)]
    try:
        return [cell.strip() for cell in next(csv.reader([text], delimiter=separator, strict=True))]
    except csv.Error as error:
        raise TraceError(f"{path}:{number}: not a row of a table: {error}") from None


def _fitting(cells: list[str], names: list[str], path: Path, number: int) -> list[str]:
    if len(cells) != len(names):
        hint = "" if len(cells) < len(names) else "; is there a comma inside a number, or another separator?"
        raise TraceError(f"{path}:{number}: {len(names)} values are needed, found {len(cells)}{hint}")
    return cells


def number(cell: str, path: Path, line: int, column: str, *, decimal_comma: bool = False) -> float:
    """The number in a cell; NaN where nothing was measured (blank, ``-``, ``NaN``)."""
    text = cell.strip()
    if text.lower() in _MISSING:
        return math.nan
    if "," in text and not decimal_comma:
        raise TraceError(f"{path}:{line}: {column}: '{cell}' has a comma; if it is a decimal comma, declare it")
    if decimal_comma:
        if "." in text:
            raise TraceError(f"{path}:{line}: {column}: '{cell}' has a point, and a decimal comma was declared")
        text = text.replace(",", ".")
    try:
        value = float(text) if text.isascii() and "_" not in text else math.inf
    except ValueError:
        value = math.inf
    if not math.isfinite(value):
        raise TraceError(f"{path}:{line}: {column}: '{cell}' is not a finite number")
    return value


def json_number(value: object, path: Path, line: int, field: str) -> float:
    """The number in a JSON field, which may be written as text; NaN where nothing was measured."""
    if value is None:
        return math.nan
    if isinstance(value, str):
        return number(value, path, line, field)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise TraceError(f"{path}:{line}: {field}: a number is needed, found {type(value).__name__}")
    if isinstance(value, float) and math.isinf(value):
        raise TraceError(f"{path}:{line}: {field}: is not a finite number")
    return float(value) if -1e300 < value < 1e300 else math.inf


def rate(value: float, bps: float, report: Report, path: Path, line: int, field: str, *, alone: bool = False) -> float:
    """A reading in bit/s; ``bps`` is one unit of it.

    Missing and negative readings are NaN, and counted as repaired; not so where a measurement stands ``alone``, which
    is then dropped, and counted so, by the reader.
    """
    if alone and not value >= 0:
        return math.nan
    if math.isnan(value):
        report.repair(f"missing reading of {field}", path, line)
        return math.nan
    if value < 0:
        report.repair(f"negative reading of {field}, taken as missing", path, line)
        return math.nan
    if value * bps > _LARGEST_BPS:
        raise TraceError(f"{path}:{line}: {field}: {value:g} is out of range; is the unit right?")
    return value * bps


def json_items(path: Path, report: Report, *, exact: bool = False) -> Iterator[tuple[int, str | None, Any]]:
    """(line, key, value) of each item of the list or object that a JSON file holds; the key is None in a list.

    exact : fractions are read as `decimal.Decimal`, and a key that comes twice inside an item is a fault too
    """
    source = _Json(path, report, _EXACT if exact else json.JSONDecoder())
    kind = source.expect("[{")
    end = "]" if kind == "[" else "}"
    if source.peek() == end:
        raise TraceError(f"{path}: holds no records")
    seen: set[str] = set()
    while True:
        line, key = source.line(), None
        if kind == "{":
            key = source.key()
            if key in seen:
                raise TraceError(f"{path}:{line}: duplicate key '{key}'")
            seen.add(key)
            source.expect(":")
        yield line, key, source.value()
        if source.expect("," + end) == end:
            break
    if source.peek():
        raise TraceError(f"{path}:{source.line()}: not JSON: something follows the end")


def _once(items: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(items)
    if len(keys) < len(items):
        names = [name for name, _ in items]
        raise ValueError(f"duplicate key '{next(n for n in names if names.count(n) > 1)}'")
    return keys


_EXACT: Final = json.JSONDecoder(parse_float=Decimal, object_pairs_hook=_once)


class _Json:
    """The text of a JSON file and how far it has been read."""

    def __init__(self, path: Path, report: Report, decoder: json.JSONDecoder) -> None:
        try:
            self.text = path.read_bytes().decode("utf-8-sig")
        except OSError as error:
            raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise TraceError(f"{path}: is not UTF-8 text (byte {error.start})") from None
        if report.watch is not None:
            report.watch(len(self.text))
        self.path = path
        self.at = 0
        self.decoder = decoder
        self._line, self._counted = 1, 0

    def line(self) -> int:
        """Number of the line that comes next."""
        self.peek()
        self._line, self._counted = self._line + self.text.count("\n", self._counted, self.at), self.at
        return self._line

    def peek(self) -> str:
        """The next mark that is no blank; empty at the end."""
        while self.at < len(self.text) and self.text[self.at] in " \t\r\n":
            self.at += 1
        return self.text[self.at : self.at + 1]

    def expect(self, marks: str) -> str:
        """The next mark, which must be one of ``marks``."""
        found = self.peek()
        if not found or found not in marks:
            raise TraceError(
                f"{self.path}:{self.line()}: not JSON: '{marks[0]}' is needed, found '{found or 'the end'}'"
            )
        self.at += 1
        return found

    def value(self) -> Any:
        """The next value."""
        line = self.line()
        try:
            value, self.at = self.decoder.raw_decode(self.text, self.at)
        except json.JSONDecodeError as error:
            raise TraceError(f"{self.path}:{error.lineno}: not JSON: {error.msg}") from None
        except (RecursionError, ValueError) as error:
            raise TraceError(f"{self.path}:{line}: not JSON that can be read: {error}") from None
        return value

    def key(self) -> str:
        """The next value, which must be text."""
        line, value = self.line(), self.value()
        if not isinstance(value, str):
            raise TraceError(f"{self.path}:{line}: not JSON: a key is needed, found {value!r:.40}")
        return value
