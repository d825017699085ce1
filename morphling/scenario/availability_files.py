"""Recordings of availability: FedScale's behaviour files, sessions by client as in FLASH, counts of spot machines.

Nothing is repaired unless the scenario says so, and what is repaired is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TypeAlias

import numpy as np

from morphling import units
from morphling.errors import TraceError
from morphling.fleet import Availability
from morphling.fleet.churn import FITS, Diurnal, Lengths, Renewal, Spans, laid_out, periodic, renewal, spot
from morphling.fleet.streams import stream
from morphling.scenario.availability_schema import (
    AvailabilityModel,
    Behaviour,
    Exponential,
    Fit,
    Length,
    Renewing,
    SpotCounts,
    Weibull,
)
from morphling.scenario.files import read_text
from morphling.scenario.schema import SessionFile
from morphling.scenario.sessions import Row, availability_of, parse_sessions, stays_of
from morphling.types import FAR_NS, SECOND_NS, IntArray, ns_from_s

__all__ = [
    "Cleaned",
    "Record",
    "assigned",
    "availability_from",
    "behaviour_records",
    "client_records",
    "file_availability",
    "parse_counts",
    "shifted",
]

Record: TypeAlias = tuple[IntArray, IntArray, int]
"""Starts (ns), ends (ns) and period (ns; ``FAR_NS`` = never again) of one client."""

_COUNT_UNITS = {"s": 1, "min": 60, "h": 3600}


@dataclass
class Cleaned:
    """What was repaired, for the notes of a run."""

    origin: str
    repair: bool
    empty: int = 0
    touching: int = 0
    first: list[str] = field(default_factory=list)

    def notes(self) -> list[str]:
        """One line, if anything was repaired."""
        if not self.empty and not self.touching:
            return []
        counts = f"{self.empty:,} empty sessions left out, {self.touching:,} joined to the one that they touch"
        return [f"{self.origin}: {counts} (repair: true); the first at {', '.join(self.first)}"]

    def sessions(self, who: str, spans: Iterable[tuple[int, int, str]]) -> list[tuple[int, int]]:
        """Checked spans ``(start_ns, end_ns, where)`` of one client, in the order of the file.

        ``who`` begins what is said of them.  Raises `TraceError`.
        """
        out: list[tuple[int, int]] = []
        for start, end, where in spans:
            if end < start:
                raise TraceError(f"{where}: {who}the session ends before it starts")
            if out and start < out[-1][1]:
                raise TraceError(f"{where}: {who}the session starts before the one before it has ended")
            if end == start:
                self._note(where, f"{who}the session is empty")
                self.empty += 1
            elif out and start == out[-1][1]:
                self._note(where, f"{who}the session touches the one before it")
                self.touching += 1
                out[-1] = (out[-1][0], end)
            else:
                out.append((start, end))
        return out

    def _note(self, where: str, what: str) -> None:
        if not self.repair:
            raise TraceError(f"{where}: {what} (repair: true leaves out empty sessions and joins touching ones)")
        if len(self.first) < 3:
            self.first.append(where)


def availability_from(
    model: AvailabilityModel, size: int, seed: int, max_time_s: float | None, seen: Callable[[Path], Path]
) -> tuple[Availability, list[str]]:
    """Arrays for ``size`` devices, and notes for whoever reads the results.

    ``seen`` is told of each file before it is read.  Raises `InputError`; about lines of a file, as file:line: reason.
    """
    until = None if max_time_s is None else ns_from_s(max_time_s)
    horizon = FAR_NS if model.horizon is None else ns_from_s(model.horizon)
    notes: list[str] = []
    match model:
        case Behaviour():
            cleaned = Cleaned(model.path, model.repair)
            found = behaviour_records(seen(Path(model.path)), cleaned)
            records = [shifted(record, ns_from_s(model.start)) for record in found]
            spans = periodic(
                [records[i] for i in assigned(len(records), size, model.assign, seed, model.path)], horizon
            )
            notes += cleaned.notes()
        case SpotCounts():
            times, counts = parse_counts(read_text(seen(Path(model.path))), model.path, model.time_unit)
            horizon = min(horizon, int(times[-1])) if model.horizon is None else horizon
            if horizon <= 0:
                raise TraceError(f"{model.path}: the recording has no length; give a horizon")
            spans = spot(times, counts, size, seed)
        case Renewing():
            spans = renewal(_renewal(model), size, seed, horizon)
        case Fit():
            spans = renewal(_fit(model), size, seed, horizon)
            notes += [f"availability {model.model}: {line}" for line in FITS[model.model].sources]
    here = laid_out(spans, size, model.model, horizon, model.past_horizon, until)
    if model.past_horizon != "error":
        said = "repeats" if model.past_horizon == "repeat" else "stays as it is"
        notes.append(f"availability {said} after {units.format_time(horizon / SECOND_NS)}")
    return here, notes


def assigned(clients: int, size: int, how: str, seed: int, origin: str) -> list[int]:
    """The client of each device; drawn from the stream ``availability/clients``.  Raises `TraceError`."""
    if how == "draw":
        if not clients:
            raise TraceError(f"{origin}: no clients to draw from")
        return [int(i) for i in stream(seed, "availability/clients").integers(0, clients, size)]
    if clients < size:
        raise TraceError(
            f"{origin}: {clients} clients for {size} devices; with 'assign: draw', several may behave like one client"
        )
    return list(range(size))


def behaviour_records(path: Path, cleaned: Cleaned) -> list[Record]:
    """Clients of a FedScale behaviour file (JSON or pickle), in the order of the file; raises `TraceError`.

    FedScale counts a client as active where ``active[i] <= t mod finish_time <= inactive[i]``.  Here time is whole
    nanoseconds and a session ends where it says: it is ``[active[i], inactive[i])``.
    """
    from morphling.scenario.importers.fedscale import read_behaviour  # noqa: PLC0415 - most scenarios name no such file

    out: list[Record] = []
    for client in read_behaviour(path):
        if client.period_ns == 0:
            raise TraceError(f"{client.where}: finish_time is 0: a period must be longer")
        out.append((*_columns(cleaned.sessions("", client.sessions)), client.period_ns))
    return out


def client_records(rows: Iterable[Row], cleaned: Cleaned) -> list[Record]:
    """Clients of a CSV with header ``client,start_s,end_s``, in order of their first lines; raises `TraceError`."""
    found: dict[str, list[tuple[int, int, str]]] = {}
    for who, start, end, where in rows:
        found.setdefault(who, []).append((start, end, where))
    return [(*_columns(cleaned.sessions(f"client {who}: ", spans)), FAR_NS) for who, spans in found.items()]


def file_availability(file: SessionFile, text: str, size: int, seed: int) -> tuple[Availability, list[str]]:
    """Arrays for ``size`` devices of a CSV by device or by client, and notes; raises `TraceError`."""
    by, rows = parse_sessions(text, file.path)
    if by == "device":
        if file.assign is not None or file.repair or file.start:
            raise TraceError(f"{file.path}: assign, repair and start are for files with header 'client,start_s,end_s'")
        return availability_of(stays_of(rows), size), []
    cleaned = Cleaned(file.path, file.repair)
    records = client_records(rows, cleaned)
    clients = assigned(len(records), size, file.assign or "in_order", seed, file.path)
    own = [shifted(records[i], ns_from_s(file.start)) for i in clients]
    device = np.repeat(np.arange(size, dtype=np.int64), [len(r[0]) for r in own])
    starts, ends = (np.concatenate([r[k] for r in own]) for k in (0, 1))
    return laid_out(Spans(device, starts, ends), size, "sessions"), cleaned.notes()


def parse_counts(text: str, origin: str, time_unit: str) -> tuple[IntArray, IntArray]:
    """Times (ns) and counts of a CSV without header, ``time,count`` a line after ``#`` comments.

    A step is often written as two lines with one time, of which the second holds.  Times that are finer than a
    nanosecond, as decimals of hours are, are rounded to the nearest.  Raises `TraceError` as file:line: reason.
    """
    times, counts = [], []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("#"):
            continue
        where = f"{origin}:{number}"
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 2:
            raise TraceError(f"{where}: 2 values are needed (time,count), found {len(cells)}")
        time = _exact(cells[0])
        if time is None or time < 0 or time * _COUNT_UNITS[time_unit] * SECOND_NS >= FAR_NS:
            raise TraceError(f"{where}: time: '{cells[0]}' is not a time of 0 {time_unit} or more")
        if not (cells[1].isascii() and cells[1].isdigit() and len(cells[1]) < 10):
            raise TraceError(f"{where}: count: '{cells[1]}' is not a whole number, 0 or more")
        times.append(round(time * _COUNT_UNITS[time_unit] * SECOND_NS))
        counts.append(int(cells[1]))
        if len(times) > 1 and times[-1] < times[-2]:
            raise TraceError(f"{where}: time goes back from line to line")
    if not times:
        raise TraceError(f"{origin}: no lines")
    return np.array(times, np.int64), np.array(counts, np.int64)


def shifted(record: Record, start_ns: int) -> Record:
    """The record as seen from ``start_ns`` of it on: shifted, and turned where it repeats."""
    start, end, period = record
    if period == FAR_NS:
        kept = end > start_ns
        end = np.where(end[kept] == FAR_NS, FAR_NS, end[kept] - start_ns)
        return np.maximum(start[kept] - start_ns, 0), end, period
    shift = start_ns % period
    if not shift:
        return record
    early, late = end <= shift, start >= shift
    across = ~early & ~late
    starts = [np.zeros(int(across.sum()), np.int64), start[late] - shift]
    ends = [end[across] - shift, end[late] - shift]
    # What lies before the turn comes at the end of the turned period; a session across it comes in two parts.
    starts += [start[early] + period - shift, start[across] + period - shift]
    ends += [end[early] + period - shift, np.full(int(across.sum()), period, np.int64)]
    return np.concatenate(starts), np.concatenate(ends), period


def _columns(spans: list[tuple[int, int]]) -> tuple[IntArray, IntArray]:
    return np.array([s[0] for s in spans], np.int64), np.array([s[1] for s in spans], np.int64)


def _exact(cell: str) -> Fraction | None:
    if not cell.isascii() or "_" in cell or "/" in cell or len(cell) > 40:
        return None
    try:
        value = Decimal(cell)
        return Fraction(value) if value.is_finite() and abs(value.adjusted()) < 30 else None
    except ArithmeticError:
        return None


def _renewal(model: Renewing) -> Renewal:
    named = {"stationary": None, "online": 1.0, "offline": 0.0}
    return Renewal(
        on=_lengths(model.on),
        off=_lengths(model.off),
        share=None if model.share is None else (float(model.share.beta.alpha), float(model.share.beta.beta)),
        diurnal=None if model.diurnal is None else Diurnal(**model.diurnal.model_dump()),
        initial=named[model.initial] if isinstance(model.initial, str) else float(model.initial),
    )


def _fit(model: Fit) -> Renewal:
    fit = FITS[model.model]
    diurnal = fit.diurnal and Diurnal(fit.diurnal.ratio, fit.diurnal.peak_hour, float(model.start_hour))
    return Renewal(fit.on, fit.off, fit.share, diurnal, fit.initial, fit.sources)


def _lengths(length: Length) -> Lengths:
    match length:
        case Weibull(weibull=w):
            return Lengths("weibull", float(w.shape), w.scale, w.min or 0.0, _or_far(w.max))
        case Exponential(exponential=e):
            return Lengths("weibull", 1.0, e.mean, e.min or 0.0, _or_far(e.max))
        case _:
            body = length.lognormal
            return Lengths("lognormal", body.sigma, body.median, body.min or 0.0, _or_far(body.max))


def _or_far(bound: float | None) -> float:
    return float("inf") if bound is None else bound
