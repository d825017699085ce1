"""Files without a header and one reading a line: Pensieve's two columns, NYU-METS, Mahimahi."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from morphling import units
from morphling.errors import TraceError, UnitError
from morphling.scenario.importers.clocks import Clock
from morphling.scenario.importers.reading import lines, number, rate, table
from morphling.scenario.importers.record import Options, Report
from morphling.scenario.importers.steps import Readings
from morphling.types import SECOND_NS

__all__ = ["read_mahimahi", "read_nyu", "read_pensieve"]

_NYU_UNITS: Final = {"gbits/sec": 1e9, "mbits/sec": 1e6, "kbits/sec": 1e3, "bits/sec": 1.0}
_PACKET_BITS = 1500 * 8
_MOST_STEPS = 10_000_000


def read_pensieve(paths: Sequence[Path], report: Report, options: Options) -> dict[str, Readings]:
    """Time in s and Mbit/s, with blanks or a tab between them."""
    found = {}
    for path in paths:
        readings = found[path.stem] = Readings(path)
        clock = Clock(path, "time", "s", options, report)
        for line, text in lines(path, report):
            cells = text.split()
            if len(cells) != 2:
                raise TraceError(f"{path}:{line}: 2 values are needed (time in s, Mbit/s), found {len(cells)}")
            report.read += 1
            at = clock.ns(cells[0], line)
            if at is not None:
                value = number(cells[1], path, line, "rate", decimal_comma=options.decimal_comma)
                readings.add(at, rate(value, 1e6, report, path, line, "rate"), None, line)
        clock.check(readings)
    return found


def read_nyu(paths: Sequence[Path], report: Report, options: Options) -> dict[str, Readings]:
    """``value,unit``, one row a second."""
    found = {}
    for path in paths:
        readings = found[path.stem] = Readings(path)
        _, rows = table(path, report, options, header=("value", "unit"))
        for second, (line, (value, unit)) in enumerate(rows):
            report.read += 1
            bps = _NYU_UNITS.get(unit.lower())
            if bps is None:
                raise TraceError(f"{path}:{line}: unit: '{unit}' is none of Gbits/sec, Mbits/sec, Kbits/sec, bits/sec")
            read = rate(number(value, path, line, "value"), bps, report, path, line, "value")
            readings.add(second * SECOND_NS, read, None, line)
    return found


def read_mahimahi(paths: Sequence[Path], report: Report, options: Options) -> dict[str, Readings]:
    """Milliseconds of delivery opportunities, summed to steps; an ``.up`` beside a ``.down`` is its uplink.

    A line is an opportunity for 1,500 bytes.  Mahimahi loses one that finds nothing to send; here it is capacity, which
    what is sent within the step can use.  The last time is where the file ends, as in Mahimahi.
    """
    try:
        step_ns = round(units.parse(options.step or "1 s", "time", zero=False) * SECOND_NS)
    except UnitError as error:
        raise TraceError(f"step: {error}") from None
    if step_ns % 1_000_000:
        raise TraceError(f"step: whole milliseconds are needed, found '{options.step}'")
    found = {}
    for path in paths:
        found[path.name] = _opportunities(path, step_ns // 1_000_000, report)
    report.note("an opportunity that nothing uses is lost in Mahimahi; it is replayed as capacity of its step here")
    return found


def _opportunities(path: Path, step_ms: int, report: Report) -> Readings:
    counts: list[int] = []
    last = before = line = 0
    for line, text in lines(path, report):
        cell = text.strip()
        if not (cell.isascii() and cell.isdigit()):
            raise TraceError(f"{path}:{line}: '{cell[:40]}' is not a whole number of milliseconds, 0 or more")
        at = int(cell) if len(cell) < 19 else 1 << 62
        if at < before:
            report.repair("time out of order, sorted", path, line)
        before, last = at, max(at, last)
        bin_ = at // step_ms
        if bin_ >= _MOST_STEPS:
            raise TraceError(f"{path}:{line}: {cell[:40]} ms makes more than {_MOST_STEPS} steps; give a longer step")
        if bin_ >= len(counts):
            counts.extend([0] * (bin_ + 1 - len(counts)))
        counts[bin_] += 1
        report.read += 1
    if line == 0:
        raise TraceError(f"{path}: is empty")
    if last == 0:
        raise TraceError(f"{path}:{line}: the last time is 0 ms, so that no time passes")
    steps = -(-last // step_ms)
    if len(counts) > steps:  # what comes at the very end belongs to the step that ends there
        counts[steps - 1] += counts.pop()
    readings = Readings(path, period_ns=last * 1_000_000)
    for i, count in enumerate(counts):
        length_ms = min(step_ms, last - i * step_ms)
        readings.add(i * step_ms * 1_000_000, count * _PACKET_BITS * 1000 / length_ms, None, line)
    return readings
