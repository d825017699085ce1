"""Logs of temperatures, clock, load and power of one device, read from CSV."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from morphling import units
from morphling.errors import TraceError
from morphling.fleet.thermal_log import ThermalLog
from morphling.scenario.data import suggestion
from morphling.scenario.importers.reading import number, table
from morphling.scenario.importers.record import Options, Report
from morphling.types import FloatArray

__all__ = ["LogColumns", "read_thermal_log"]

_GAP: Final = 10
_MOST_GAPS: Final = 10
_TEMPERATURES: Final = ("case", "junction")
_DEFAULTS: Final = {
    "time": "time_s", "case": "case_c", "junction": "junction_c", "clock": "clock", "load": "load", "power": "power_w",
}  # fmt: skip


@dataclass(frozen=True)
class LogColumns:
    """Names of the columns, and what else a file does not say of itself.

    None is the usual name: ``time_s``, ``case_c``, ``junction_c``, ``clock``, ``load``, ``power_w``; all but the first
    two only if the file has them.

    time_unit : str          ``s`` or ``ms``
    full_clock_hz : float    the full clock, if the column holds MHz instead of shares of it
    constant_load : float    the load throughout, if no column has it
    start_s, end_s : float   only the samples from and up to these times
    """

    time: str | None = None
    case: str | None = None
    junction: str | None = None
    clock: str | None = None
    load: str | None = None
    power: str | None = None
    time_unit: str = "s"
    full_clock_hz: float | None = None
    constant_load: float | None = None
    start_s: float = -math.inf
    end_s: float = math.inf


@dataclass
class _Rows:
    """What has been read, column by column, and where each row stood."""

    columns: dict[str, list[float]]
    lines: list[int] = field(default_factory=list)


def read_thermal_log(
    path: Path, columns: LogColumns | None = None, *, strict: bool = False
) -> tuple[ThermalLog, Report]:
    """The log in a CSV file, and the report of what was read, dropped and repaired.

    Temperatures are in degC, power in W, the load in [0, 1], the clock a share of the full one (or MHz, see
    `LogColumns`).  A temperature that is missing is left out of comparisons; a clock, load or power that is missing is
    the last one, and rows before the first one are dropped.  A step of more than 10 times the median one is a gap: a
    new stretch begins after it.  All of that is counted; ``strict`` refuses it instead.

    Raises
    ------
    TraceError
        As ``file:line: column: reason``: an unknown column, what is not a number or out of range, times that do not
        increase, more than 10 gaps; or what the report would count, if ``strict``.
    """
    columns = columns or LogColumns()
    report = Report("thermal log", [path.name], "degC", "one device", strict)
    names, rows = table(path, report, Options())
    places = _places(names, columns, path)
    readers = _readers(columns)
    found = _Rows({what: [] for what in places})
    last: dict[str, float] = {}
    before = -math.inf
    scale = {"s": 1.0, "ms": 1e-3}[columns.time_unit]
    for line, cells in rows:
        report.read += 1
        now = number(cells[places["time"]], path, line, names[places["time"]]) * scale
        if math.isnan(now):
            raise TraceError(f"{path}:{line}: {names[places['time']]}: a time is missing")
        if now <= before:
            raise TraceError(f"{path}:{line}: {names[places['time']]}: {now:g} s is not after {before:g} s")
        before = now
        if not columns.start_s <= now <= columns.end_s:
            report.note("samples outside the times asked for were left out")
            continue
        row = {"time": now}
        for what, place in places.items():
            if what != "time":
                value = number(cells[place], path, line, names[place])
                row[what] = _checked(what, value, names[place], readers, last, report, path, line)
        _add(found, row, report, path, line)
    unused = [n for i, n in enumerate(names) if i not in places.values()]
    if unused:
        report.note(f"columns not used: {', '.join(unused)}")
    return _log(found, columns, report, path), report


def _places(names: list[str], columns: LogColumns, path: Path) -> dict[str, int]:
    found = {}
    for what, usual in _DEFAULTS.items():
        asked = getattr(columns, what)
        name = asked or usual
        if name in names:
            found[what] = names.index(name)
        elif asked is not None or what in {"time", "case"}:
            near = suggestion(name, names)
            say = "" if asked is not None else f"; name the right one with --{what}-column"
            raise TraceError(f"{path}:1: there is no column '{name}', {near}{say}")
    if len(set(found.values())) < len(found):
        raise TraceError(f"{path}:1: one column cannot be two things at once: {', '.join(found)}")
    if columns.constant_load is not None and "load" in found:
        raise TraceError(f"{path}:1: the log has a column '{names[found['load']]}'; a load is not to be given as well")
    return found


def _readers(columns: LogColumns) -> dict[str, Callable[[float], tuple[float, str]]]:
    """For each column what a number in it means, and what is wrong with it."""

    def temperature(value: float) -> tuple[float, str]:
        hint = "; is it in thousandths of a degree?" if value > 1000 else "; is it in kelvins?" if value > 200 else ""
        return value, "" if -100 <= value <= 200 else f"{value:g} degC is no temperature of a device{hint}"

    def load(value: float) -> tuple[float, str]:
        hint = "; is it in percent?" if 1 < value <= 100 else ""
        return value, "" if 0 <= value <= 1 else f"a load in [0, 1] is needed, found {value:g}{hint}"

    def clock(value: float) -> tuple[float, str]:
        if columns.full_clock_hz is None:
            hint = "; give the full clock if these are MHz" if value > 1 else ""
            return value, "" if 0 <= value <= 1 else f"a share of the full clock is needed, found {value:g}{hint}"
        share = value * 1e6 / columns.full_clock_hz
        full = units.format_frequency(columns.full_clock_hz, 4)
        return share, "" if 0 <= share <= 1 else f"{value:g} MHz is not between 0 and the full clock of {full}"

    def power(value: float) -> tuple[float, str]:
        hint = "; is it in milliwatts?" if value >= 10_000 else ""
        return value, "" if 0 <= value < 10_000 else f"{value:g} W is no power of a device{hint}"

    return {"case": temperature, "junction": temperature, "clock": clock, "load": load, "power": power}


def _checked(
    what: str,
    value: float,
    name: str,
    readers: dict[str, Callable[[float], tuple[float, str]]],
    last: dict[str, float],
    report: Report,
    path: Path,
    line: int,
) -> float:
    if not math.isnan(value):
        value, fault = readers[what](value)
        if fault:
            raise TraceError(f"{path}:{line}: {name}: {fault}")
        last[what] = value
        return value
    if what in _TEMPERATURES:
        report.drop(f"missing reading of {name}, not compared", path, line)
    elif what in last:
        report.repair(f"missing reading of {name}, the last one held", path, line)
        return last[what]
    return math.nan


def _add(found: _Rows, row: dict[str, float], report: Report, path: Path, line: int) -> None:
    unknown = [w for w, v in row.items() if math.isnan(v) and (w not in _TEMPERATURES or not found.lines)]
    if unknown:  # nothing can be simulated from there
        report.drop(f"row before the first reading of {' and '.join(unknown)}", path, line)
        return
    for what, value in row.items():
        found.columns[what].append(value)
    found.lines.append(line)


def _log(found: _Rows, columns: LogColumns, report: Report, path: Path) -> ThermalLog:
    values: dict[str, FloatArray] = {what: np.array(column) for what, column in found.columns.items()}
    time = values["time"]
    if len(time) < 2:
        raise TraceError(f"{path}: has {len(time)} samples that can be used")
    steps = np.diff(time)
    holes = np.flatnonzero(steps > _GAP * np.median(steps)) + 1
    if len(holes) > _MOST_GAPS:
        where = f"{path}:{found.lines[holes[0]]}"
        raise TraceError(f"{where}: the first of {len(holes)} gaps; a log may have {_MOST_GAPS} at most")
    for at in holes.tolist():
        report.repair(f"gap of more than {_GAP} usual steps, a new stretch begins after it", path, found.lines[at])
    keep, starts = np.ones(len(time), bool), [0]
    for first, end in itertools.pairwise([*holes.tolist(), len(time)]):
        there = ~np.isnan(values["case"][first:end])
        if "junction" in values:
            there &= ~np.isnan(values["junction"][first:end])
        begin = first + int(np.argmax(there)) if there.any() else end
        for skipped in found.lines[first:begin]:
            report.drop("row after a gap, before the first temperature", path, skipped)
        keep[first:begin] = False
        if begin < end:
            starts.append(int(keep[:begin].sum()))
    values = {what: column[keep] for what, column in values.items()}
    load = values.get("load")
    if columns.constant_load is not None:
        load = np.full(len(values["time"]), columns.constant_load)
    return ThermalLog(
        values["time"], values["case"], values.get("junction"), values.get("clock"), load, values.get("power"),
        np.array(starts, dtype=np.int64),
    )  # fmt: skip
