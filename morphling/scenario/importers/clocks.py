"""Clocks of foreign files: which one a column of times seems to be from, and whole nanoseconds of its cells."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np

from morphling.errors import TraceError
from morphling.scenario.importers.record import Options, Report
from morphling.scenario.importers.steps import Readings
from morphling.types import SECOND_NS

__all__ = ["Clock", "dated_ns"]

_UNITS: Final = {"s": SECOND_NS, "ms": 1_000_000, "us": 1000}
_CONFIRMED: Final = {"seconds": "s", "milliseconds": "ms", "epoch-s": "s", "epoch-ms": "ms"}
_EPOCH_S, _EPOCH_MS = 10**8, 10**11
_LONG_STEP_S = 500
_MISSING: Final = frozenset({"", "-", "nan", "na", "null"})


class Clock:
    """Reads one column of numeric times.

    A first time of 10⁸ or more seconds is a date, and steps of 500 s or more are milliseconds, more likely than not:
    both are refused until ``options.clock`` says what they are.
    """

    def __init__(self, path: Path, column: str, unit: str, options: Options, report: Report) -> None:
        self.path, self.column, self.report = path, column, report
        self.confirmed = options.clock is not None
        self.unit = unit if options.clock is None else _CONFIRMED[options.clock]
        self.decimal_comma = options.decimal_comma
        self.fresh = True

    def ns(self, cell: str, line: int) -> int | None:
        """Whole nanoseconds, or None (counted) where there is no time."""
        text = cell.replace(",", ".") if self.decimal_comma else cell
        if text.lower() in _MISSING:
            self.report.drop(f"row without a {self.column}", self.path, line)
            return None
        try:
            value = Decimal(text) if text.isascii() and "_" not in text else Decimal("nan")
        except InvalidOperation:
            value = Decimal("nan")
        if not value.is_finite() or value.adjusted() > 20:
            hint = "; if it is a decimal comma, declare it" if "," in cell else ""
            raise TraceError(f"{self.path}:{line}: {self.column}: '{cell}' is not a time{hint}")
        if self.fresh and not self.confirmed:
            self._first(value, cell, line)
        self.fresh = False
        return round(value * _UNITS[self.unit])

    def check(self, readings: Readings) -> None:
        """Refuse steps that are milliseconds, more likely than not.  Raises `TraceError`."""
        if self.confirmed or self.unit != "s" or len(readings.time_ns) < 2:
            return
        step = float(np.median(np.diff(np.frombuffer(readings.time_ns, np.int64)))) / SECOND_NS
        if step >= _LONG_STEP_S:
            raise TraceError(
                f"{self.path}:{readings.line[1]}: {self.column}: a step of {step:g} looks like milliseconds; confirm "
                "with clock milliseconds, or clock seconds"
            )

    def _first(self, value: Decimal, cell: str, line: int) -> None:
        seconds = value * _UNITS[self.unit] / SECOND_NS
        if seconds >= _EPOCH_S:
            kind = "epoch-ms" if self.unit == "ms" or value >= _EPOCH_MS else "epoch-s"
            raise TraceError(
                f"{self.path}:{line}: {self.column}: '{cell}' looks like a date as "
                f"{'milliseconds' if kind == 'epoch-ms' else 'seconds'} since 1970; confirm with clock {kind}"
            )


def dated_ns(cell: str, layouts: tuple[str, ...], path: Path, line: int, column: str) -> int:
    """Nanoseconds since 1970 of a date and time in one of ``layouts`` (of `datetime.strptime`, read as UTC)."""
    # Logs have a row a second, and `strptime` is what takes the time: a minute is read once.
    seconds = cell[-2:]
    if len(seconds) == 2 and seconds.isascii() and seconds.isdigit() and seconds < "60":
        minute = _moment_ns(f"{cell[:-2]}00", layouts)
        if minute is not None:
            return minute + int(seconds) * SECOND_NS
    moment = _moment_ns(cell, layouts)
    if moment is None:
        raise TraceError(f"{path}:{line}: {column}: '{cell}' is not a date and time as {layouts[0]} writes it")
    return moment


@lru_cache(maxsize=256)
def _moment_ns(cell: str, layouts: tuple[str, ...]) -> int | None:
    for layout in layouts:
        try:
            moment = datetime.strptime(cell, layout).replace(tzinfo=UTC)
        except ValueError:
            continue
        delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
        return (delta.days * 86_400 + delta.seconds) * SECOND_NS + delta.microseconds * 1000
    return None
