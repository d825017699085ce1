"""Tables with named columns and one row a reading: plain CSV, UCC 4G/5G logs, 5Gophers, Lumos5G."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from morphling import units
from morphling.errors import TraceError, UnitError
from morphling.scenario.importers.clocks import Clock, dated_ns
from morphling.scenario.importers.reading import number, rate, table
from morphling.scenario.importers.record import Options, Report
from morphling.scenario.importers.steps import Readings
from morphling.types import SECOND_NS

__all__ = ["column_at", "read_csv", "read_gophers", "read_lumos", "read_ucc"]

_KBPS, _MBPS = 1e3, 1e6
_RATE_SUFFIXES: Final = {"_bps": 1.0, "_kbps": _KBPS, "_mbps": _MBPS, "_gbps": 1e9}
_NAMES: Final = {"_bps": "bit/s", "_kbps": "kbit/s", "_mbps": "Mbit/s", "_gbps": "Gbit/s"}
_TIME_SUFFIXES: Final = {"_ms": "ms", "_us": "us", "_s": "s"}
_TIME_COLUMNS: Final = frozenset(f"time{end}" for end in _TIME_SUFFIXES)
_DOWN_COLUMNS: Final = frozenset(f"down{end}" for end in _RATE_SUFFIXES)
_UP_COLUMNS: Final = frozenset(f"up{end}" for end in _RATE_SUFFIXES)
_UCC_TIMES: Final = ("%Y.%m.%d_%H.%M.%S", "%Y-%m-%d %H:%M:%S")


def column_at(names: list[str], wanted: str, path: Path) -> int:
    """Position of a column; capitals do not matter.  Raises `TraceError` with the names that there are."""
    for i, name in enumerate(names):
        if name.lower() == wanted.lower():
            return i
    raise TraceError(f"{path}:1: there is no column '{wanted}'; found: {', '.join(names)}")


def read_csv(paths: Sequence[Path], report: Report, options: Options) -> dict[str, Readings]:
    """Columns by name, units by option or by the end of the name (``time_s``, ``down_mbps``)."""
    found: dict[str, Readings] = {}
    said: dict[tuple[str, str], list[str]] = {}
    for path in paths:
        names, rows = table(path, report, options)
        columns = [options.time_column or _only(names, _TIME_COLUMNS, "time", path)]
        columns.append(options.down_column or _only(names, _DOWN_COLUMNS, "down", path))
        up = options.up_column or _one_of(names, _UP_COLUMNS, "up", path)
        if up is not None and options.given() & {"up", "up_file", "up_ratio"}:
            report.note(f"column {up} is left out: the uplink is stated")
        elif up is not None:
            columns.append(up)
        places = [column_at(names, c, path) for c in columns]
        clock = Clock(path, columns[0], _time_unit(columns[0], options), options, report)
        factors = [
            _unit(c, unit, path, counter=options.counter)
            for c, unit in zip(columns[1:], (options.down_unit, options.up_unit), strict=False)
        ]
        read = _units(columns, clock.unit, options), " and up = ".join([f"down = {columns[1]}", *columns[2:]])
        said.setdefault(read, []).append(path.name)
        readings = found[_new(found, path.stem, path)] = Readings(path)
        before: tuple[int, list[float]] | None = None
        for line, cells in rows:
            report.read += 1
            at = clock.ns(cells[places[0]], line)
            if at is None:
                continue
            values = [
                number(cells[p], path, line, c, decimal_comma=options.decimal_comma)
                for p, c in zip(places[1:], columns[1:], strict=True)
            ]
            if options.counter:
                now = at, values
                if before is not None:
                    rates = _counted(before, now, factors, columns[1:], report, path, line)
                    # What a counter gained between two rows was moved from the first of them on.
                    readings.add(before[0], rates[0], rates[1] if len(rates) > 1 else None, line)
                before = now
            else:
                rates = [
                    rate(v, f, report, path, line, c) for v, f, c in zip(values, factors, columns[1:], strict=True)
                ]
                readings.add(at, rates[0], rates[1] if len(rates) > 1 else None, line)
        clock.check(readings)
        if options.counter and before is not None:
            readings.period_ns = before[0]
    several = len(said) > 1
    report.unit, report.direction = (
        " | ".join(f"{', '.join(files)}: {read[i]}" if several else read[i] for read, files in said.items())
        for i in (0, 1)
    )
    return found


def _counted(
    before: tuple[int, list[float]],
    now: tuple[int, list[float]],
    factors: list[float],
    columns: list[str],
    report: Report,
    path: Path,
    line: int,
) -> list[float]:
    seconds = (now[0] - before[0]) / SECOND_NS
    if seconds <= 0:
        raise TraceError(f"{path}:{line}: the time does not grow, and a counter needs it to")
    rates = []
    for old, new, factor, column in zip(before[1], now[1], factors, columns, strict=True):
        if new < old:
            report.repair(f"counter {column} was reset, reading taken as missing", path, line)
            rates.append(math.nan)
        else:
            rates.append(rate((new - old) / seconds, factor, report, path, line, column))
    return rates


def _only(names: list[str], usual: frozenset[str], what: str, path: Path) -> str:
    found = _one_of(names, usual, what, path)
    if found is not None:
        return found
    raise TraceError(f"{path}:1: name the {what} column (option {what}_column); found: {', '.join(names)}")


def _one_of(names: list[str], usual: frozenset[str], what: str, path: Path) -> str | None:
    found = [name for name in names if name.lower() in usual]
    if len(found) > 1:
        raise TraceError(f"{path}:1: {' and '.join(found)} could each be the {what} column; name it ({what}_column)")
    return found[0] if found else None


def _time_unit(column: str, options: Options) -> str:
    if options.time_unit is not None:
        return options.time_unit
    if options.clock is not None:
        return "s"
    for suffix, unit in _TIME_SUFFIXES.items():
        if column.lower().endswith(suffix):
            return unit
    raise TraceError(f"time column '{column}' does not name its unit; give time_unit (s, ms, us)")


def _units(columns: list[str], time_unit: str, options: Options) -> str:
    """The columns that are read, and the unit of each."""
    words = [f"{columns[0]} in {time_unit}"]
    for column, unit in zip(columns[1:], (options.down_unit, options.up_unit), strict=False):
        end = next((e for e in _RATE_SUFFIXES if column.lower().endswith(e)), "")
        words.append(f"{column} in {unit or _NAMES[end]}{', counted up' if options.counter else ''}")
    return "; ".join(words)


def _unit(column: str, unit: str | None, path: Path, *, counter: bool) -> float:
    """bit/s (or bits, for a counter) of 1 in a column."""
    try:
        if unit is not None:
            return units.parse(f"1 {unit}", "bytes") * 8 if counter else units.parse(f"1 {unit}", "rate")
    except UnitError as error:
        raise TraceError(f"unit of column '{column}': {error}") from None
    if not counter:
        for suffix, bps in _RATE_SUFFIXES.items():
            if column.lower().endswith(suffix):
                return bps
    raise TraceError(f"{path}:1: column '{column}' does not name its unit; give it (such as --down-unit Mbit/s)")


def read_ucc(paths: Sequence[Path], report: Report, options: Options) -> dict[str, Readings]:
    """G-NetTrack logs: Timestamp, DL_bitrate and, if it is asked for, UL_bitrate."""
    found: dict[str, Readings] = {}
    for path in paths:
        names, rows = table(path, report, options)
        at, down = column_at(names, "Timestamp", path), column_at(names, "DL_bitrate", path)
        up = None if options.up_column is None else column_at(names, options.up_column, path)
        readings = found[_new(found, path.stem, path)] = Readings(path)
        for line, cells in rows:
            report.read += 1
            time = dated_ns(cells[at], _UCC_TIMES, path, line, "Timestamp")
            values = [
                rate(number(cells[c], path, line, names[c]), _KBPS, report, path, line, names[c])
                for c in (down, up)
                if c is not None
            ]
            readings.add(time, values[0], values[1] if up is not None else None, line)
    if options.up_column is not None:
        report.note("the uplink of these logs is what was sent during downloads, mostly acknowledgements: no capacity")
    return found


def read_gophers(paths: Sequence[Path], report: Report, options: Options) -> dict[str, Readings]:
    """One row a second, a column of Mbit/s for each operator; seq_num counts the seconds."""
    found: dict[str, Readings] = {}
    for path in paths:
        names, rows = table(path, report, options)
        at = column_at(names, "seq_num", path)
        rates = [i for i, n in enumerate(names) if n.lower().endswith("throughput_mbps")]
        if not rates:
            raise TraceError(f"{path}:1: there is no column *throughput_mbps; found: {', '.join(names)}")
        runs = {i: _Runs(path, report) for i in rates}
        for line, cells in rows:
            report.read += 1
            second = _whole(cells[at], path, line, "seq_num")
            for i in rates:
                value = rate(number(cells[i], path, line, names[i]), _MBPS, report, path, line, names[i])
                runs[i].add(second, value, line)
        for i in rates:
            operator = names[i][: -len("throughput_mbps")].rstrip("_")
            name = f"{path.stem}-{operator}" if operator else path.stem
            for count, readings in enumerate(runs[i].all):
                found[_new(found, name if count == 0 else f"{name}-run{count + 1}", path)] = readings
    return found


def read_lumos(paths: Sequence[Path], report: Report, options: Options) -> dict[str, Readings]:
    """One row a second, Throughput in Mbit/s; run_num tells the runs apart and seq_num counts their seconds."""
    found: dict[str, Readings] = {}
    for path in paths:
        names, rows = table(path, report, options)
        run, at, down = (column_at(names, c, path) for c in ("run_num", "seq_num", "Throughput"))
        for line, cells in rows:
            report.read += 1
            name = f"{path.stem}-run{_whole(cells[run], path, line, 'run_num')}"
            value = rate(number(cells[down], path, line, "Throughput"), _MBPS, report, path, line, "Throughput")
            readings = found.get(name)
            if readings is None:
                readings = found[name] = Readings(path)
            elif readings.path != path:
                raise TraceError(f"{path}:{line}: {name} is in {readings.path} already")
            readings.add(_whole(cells[at], path, line, "seq_num") * SECOND_NS, value, None, line)
    return found


class _Runs:
    """Seconds counted by a column that starts again with each run."""

    def __init__(self, path: Path, report: Report) -> None:
        self.path, self.report, self.all = path, report, [Readings(path)]

    def add(self, second: int, value: float, line: int) -> None:
        now = self.all[-1]
        if len(now.time_ns) > 1 and second * SECOND_NS <= now.time_ns[0]:
            self.report.note(f"seq_num starts again at {self.path.name}:{line}: a new trace begins there")
            now = Readings(self.path)
            self.all.append(now)
        now.add(second * SECOND_NS, value, None, line)


def _whole(cell: str, path: Path, line: int, column: str) -> int:
    if not (cell.isascii() and cell.isdigit() and len(cell) < 10):
        raise TraceError(f"{path}:{line}: {column}: '{cell}' is not a whole number, 0 or more")
    return int(cell)


def _new(found: dict[str, Readings], name: str, path: Path) -> str:
    if name in found:
        raise TraceError(f"{path}: another file gives a trace named '{name}' already")
    return name
