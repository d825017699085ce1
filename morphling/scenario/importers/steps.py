"""From readings in the order of a file to the steps of a link trace: the rules of cleaning, in one place.

* times out of order are sorted; readings with one time become their mean;
* where a direction was not measured, its last reading goes on (``hold``) or nothing moves (``pause``); what comes
  before its first reading is left out;
* a hole of more than ten median steps is a gap: the last reading goes on, or the link pauses after one median step;
* the first time becomes 0, and the last step is as long as the median step;
* two directions from two files are laid over each other from their first readings on, and cut to the shorter.

Each use is counted in the report, and refused if it is strict.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from morphling import units
from morphling.errors import TraceError, UnitError
from morphling.fleet import LinkTrace
from morphling.scenario.importers.record import Options, Report
from morphling.types import FAR_NS, SECOND_NS, FloatArray, IntArray

__all__ = ["Readings", "laid_over", "trace_of", "with_uplink"]

_GAP = 10
_BLOCK = 1 << 20
"""Readings looked at together where that saves room."""
_LOWEST_PEAK_BPS = 1000
"""No real trace peaks below this; one that does was read in the wrong unit."""


@dataclass
class Readings:
    """Readings of one link in the order of the file, in flat arrays (28 bytes a reading); NaN is no reading.

    ``up`` stays empty if the source has one direction.  ``period_ns`` is where the last step ends, if the format says.
    """

    path: Path
    time_ns: array[int] = field(default_factory=lambda: array("q"))
    down: array[float] = field(default_factory=lambda: array("d"))
    up: array[float] = field(default_factory=lambda: array("d"))
    line: array[int] = field(default_factory=lambda: array("I"))
    period_ns: int | None = None

    def add(self, time_ns: int, down: float, up: float | None, line: int) -> None:
        """One reading; rates in bit/s."""
        if not -FAR_NS < time_ns < FAR_NS:
            raise TraceError(f"{self.path}:{line}: the time is out of range")
        self.time_ns.append(time_ns)
        self.down.append(down)
        if up is not None:
            self.up.append(up)
        self.line.append(line)


def trace_of(name: str, readings: Readings, report: Report, options: Options) -> tuple[LinkTrace, bool]:
    """The trace, and whether it has an uplink of its own; without one, its uplink repeats the downlink.

    The readings are used up.
    """
    path = readings.path
    if not readings.time_ns:
        raise TraceError(f"{path}: no readings for '{name}'")
    start = np.frombuffer(readings.time_ns, np.int64)
    both = bool(readings.up)
    rates = [np.frombuffer(x, np.float64) for x in ((readings.down, readings.up) if both else (readings.down,))]
    line = np.frombuffer(readings.line, np.uint32)
    if int(start.max()) - int(start.min()) >= FAR_NS // 2:
        raise TraceError(f"{path}:{line[int(start.argmax())]}: the times lie further apart than 73 years")
    start, rates, line = _sorted(start, rates, line, path, report)
    known = [_first(r, d, path) for r, d in zip(rates, ("downlink", "uplink"), strict=False)]
    first = max(known)
    if first:
        report.drop("reading before the first of its direction", path, int(line[0]), first)
        start, rates, line = start[first:], [r[first:] for r in rates], line[first:]
    rates = [_filled(r, pause=options.missing == "pause") for r in rates]
    step = int(np.median(np.diff(start), overwrite_input=True)) if len(start) > 1 else SECOND_NS
    start, rates = _gaps(start, rates, line, step, path, report, pause=options.gaps == "pause")
    period = step + int(start[-1]) if readings.period_ns is None else readings.period_ns
    whole: list[IntArray] = []
    while rates:  # one direction after the other, each let go of when it is whole: a trace may be as large as memory
        whole.append(np.rint(rates.pop(0)).astype(np.int64))
    readings.down, readings.up, readings.line = array("d"), array("d"), array("I")
    if whole[0].max() > 0 and max(int(w.max()) for w in whole) < _LOWEST_PEAK_BPS:
        peak = max(int(w.max()) for w in whole)
        raise TraceError(f"{path}: the highest rate is {peak} bit/s; is the unit right?")
    for w, direction in zip(whole, ("downlink", "uplink"), strict=False):
        if not w.any():
            raise TraceError(f"{path}: the {direction} of '{name}' is 0 in every reading: nothing would ever arrive")
    zero = int(start[0])
    start -= zero
    return LinkTrace(name, start, whole[0], whole[-1], period - zero), both


def _sorted(
    start: IntArray, rates: list[FloatArray], line: np.ndarray, path: Path, report: Report
) -> tuple[IntArray, list[FloatArray], np.ndarray]:
    back = np.flatnonzero(start[1:] < start[:-1]) + 1  # no differences: they would take as much room as the times
    if len(back):
        _tell(report.repair, "time out of order, sorted", path, line[back])
        order = np.argsort(start, kind="stable")
        start, rates, line = start[order], [r[order] for r in rates], line[order]
    same = np.flatnonzero(start[1:] == start[:-1]) + 1
    if len(same):
        _tell(report.repair, "time given twice, mean taken", path, line[same])
        heads = np.flatnonzero(np.diff(start, prepend=start[0] - 1) != 0)
        rates = [_means(r, heads) for r in rates]
        start, line = start[heads], line[heads]
    return start, rates, line


def _tell(count: object, what: str, path: Path, places: np.ndarray) -> None:
    """Count many places; only the first few are named one by one."""
    for i, place in enumerate(places[:5]):
        rest = len(places) - 4 if i == 4 else 1
        count(what, path, int(place), rest)  # type: ignore[operator]


def _means(rate: FloatArray, heads: IntArray) -> FloatArray:
    there = ~np.isnan(rate)
    total = np.add.reduceat(np.where(there, rate, 0.0), heads)
    count = np.add.reduceat(there.astype(np.int64), heads)
    return np.where(count > 0, total / np.maximum(count, 1), math.nan)


def _first(rate: FloatArray, direction: str, path: Path) -> int:
    there = ~np.isnan(rate)
    if not there.any():
        raise TraceError(f"{path}: no reading of the {direction} at all")
    return int(there.argmax())


def _filled(rate: FloatArray, *, pause: bool) -> FloatArray:
    missing = np.isnan(rate)
    if not missing.any():
        return rate
    if pause:
        return np.where(missing, 0.0, rate)
    last = np.maximum.accumulate(np.where(missing, 0, np.arange(len(rate))))
    return rate[last]


def _gaps(
    start: IntArray, rates: list[FloatArray], line: np.ndarray, step: int, path: Path, report: Report, *, pause: bool
) -> tuple[IntArray, list[FloatArray]]:
    blocks = range(0, len(start) - 1, _BLOCK)
    found = [np.flatnonzero(np.diff(start[at : at + _BLOCK + 1]) > _GAP * step) + at for at in blocks]
    wide = np.concatenate([np.zeros(0, np.int64), *found])
    if not len(wide):
        return start, rates
    done = "the link pauses in it" if pause else "the last reading goes on"
    _tell(report.repair, f"gap of more than {_GAP} steps, {done}", path, line[wide + 1])
    if not pause:
        return start, rates
    return (
        np.insert(start, wide + 1, start[wide] + step),
        [np.insert(r, wide + 1, 0.0) for r in rates],
    )


def with_uplink(trace: LinkTrace, options: Options) -> LinkTrace:
    """The trace with the uplink that ``up`` or ``up_ratio`` states."""
    down = trace.down_bps
    if options.up is not None:
        try:
            constant = round(units.parse(options.up, "rate", zero=False))
        except UnitError as error:
            raise TraceError(f"up: {error}") from None
        up = np.full(len(down), constant, np.int64)
    else:
        ratio = options.up_ratio  # the largest rate read is 1e12 bit/s, and the engine takes little more
        if ratio is None or not math.isfinite(ratio) or not 0 < ratio <= 1e12 / float(down.max()):
            raise TraceError(
                f"up_ratio: a share of the downlink above 0 is needed, and no rate above 1 Tbit/s; found {ratio}"
            )
        up = np.rint(down * ratio).astype(np.int64)
        if not up.any():
            raise TraceError(f"up_ratio: {ratio:g} x the downlink of '{trace.name}' is 0 bit/s throughout")
    return LinkTrace(trace.name, trace.start_ns, down, up, trace.period_ns, trace.past_end)


def laid_over(down: LinkTrace, up: LinkTrace, path: Path, report: Report) -> LinkTrace:
    """The downlink of one trace and the downlink of another as its uplink, cut to the shorter of the two."""
    end = min(down.period_ns, up.period_ns)
    if down.period_ns != up.period_ns:
        longer = max(down.period_ns, up.period_ns)
        report.drop(f"end of the longer direction ({(longer - end) / SECOND_NS:g} s)", path, 1)
    start = np.union1d(down.start_ns, up.start_ns)
    start = start[start < end]
    rates = [t.down_bps[np.searchsorted(t.start_ns, start, side="right") - 1] for t in (down, up)]
    return LinkTrace(down.name, start, rates[0], rates[1], end)
