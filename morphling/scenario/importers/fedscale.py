"""FedScale's capacity and behaviour files, JSON or pickle (read by an unpickler that refuses every global).

The schema is that of FedScale's ``client_device_capacity`` and ``client_behave_trace``.  Links are imported; behaviour
becomes sessions, or is replayed by a scenario with ``availability: {model: fedscale}``.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, Never

from morphling.errors import TraceError
from morphling.scenario.importers.reading import json_items, json_number, rate
from morphling.scenario.importers.record import Options, Report, Session
from morphling.scenario.importers.speedtests import constant
from morphling.scenario.importers.steps import Readings
from morphling.types import FAR_NS, SECOND_NS

__all__ = ["Behaviour", "read_behaviour", "read_fedscale"]

_BROKEN = (
    pickle.UnpicklingError, EOFError, ValueError, KeyError, IndexError, AttributeError, TypeError, OverflowError,
    MemoryError, struct.error, RecursionError,
)  # fmt: skip


_LEAST = Decimal("1e-12")
"""Seconds below which a fraction is not worked out: its exponent may be beyond all measure."""

_HUGE = 1e300


class _Plain(pickle.Unpickler):
    """Builtin containers, numbers and text; nothing that a pickle could name is looked up, let alone called."""

    def find_class(self, module: str, name: str, /) -> Never:
        raise TraceError(f"the pickle asks for {module}.{name}; only plain numbers, texts, lists and mappings are read")

    def persistent_load(self, pid: Any, /) -> Never:  # noqa: ARG002
        raise TraceError("the pickle refers to objects outside itself")


@dataclass(frozen=True)
class Behaviour:
    """When one client is there, over one period.

    key : the client's name in the file
    where : its place there, as ``file:line: client key``; the line of a pickle is the number of the entry
    sessions : ``(start_ns, end_ns, where)`` in the order of the file, each within the period and none ending before it
        starts; they may be empty, touch, or overlap
    period_ns : time after which all starts again, 0 or more
    """

    line: int
    key: str
    where: str
    sessions: list[tuple[int, int, str]]
    period_ns: int


def read_behaviour(path: Path, report: Report | None = None) -> Iterator[Behaviour]:
    """The clients of a behaviour file ``{client: {active: [s, …], inactive: [s, …], finish_time: s}}``, in its order.

    Times finer than a nanosecond are rounded to the nearest.

    Raises
    ------
    TraceError
        As file:line: client: reason; also for a pickle that asks for anything but plain values.
    """
    report = Report("fedscale", [str(path)], "s", "") if report is None else report
    for line, key, item in _entries(path, report):
        yield _behaviour(item, path, line, key)


def read_fedscale(paths: Sequence[Path], report: Report, options: Options) -> dict[str, Readings] | list[Session]:
    """``communication`` (kbit/s) of each entry as its downlink, or ``dl_kbps`` and ``ul_kbps`` where they are given.

    A behaviour file (``active``, ``inactive``, ``finish_time``) gives sessions instead: one period of them, the
    devices numbered in the order of the file.
    """
    found: dict[str, Readings] = {}
    sessions: list[Session] = []
    devices = 0
    for path in paths:
        for line, key, item in _entries(path, report):
            report.read += 1
            if isinstance(item, Mapping) and "active" not in item:
                _link(found, item, path, line, key, report, options)
                continue
            stays = _stays(_behaviour(item, path, line, key), path, report)
            sessions += [(devices, start, end) for start, end in stays]
            devices += bool(stays)
    if found and sessions:
        raise TraceError(f"{paths[0]}: holds links and sessions; import them one after the other")
    if sessions:
        report.unit, report.direction = "s", "none: times at which devices are there"
        report.note("times are those of one period of each device; what comes after it is not repeated")
    return sessions or found


def _entries(path: Path, report: Report) -> Iterator[tuple[int, str, Any]]:
    """(line, key, entry); the line of a pickle is the number of the entry."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    if raw[:1] != b"\x80":
        for line, name, item in json_items(path, report, exact=True):
            if name is None:
                raise TraceError(f"{path}:{line}: a JSON object is needed, one key a client; this is a list")
            yield line, name, item
        return
    try:
        entries = _Plain(io.BytesIO(raw)).load()
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
    except _BROKEN as error:
        raise TraceError(f"{path}: not a pickle that can be read: {error}") from None
    if not isinstance(entries, Mapping) or not entries:
        raise TraceError(f"{path}: a mapping of entries is needed, found {type(entries).__name__}")
    names: set[str] = set()
    for number, (key, item) in enumerate(entries.items(), start=1):
        if isinstance(key, bool) or not (isinstance(key, str) or (isinstance(key, int) and abs(key) < 1 << 63)):
            raise TraceError(f"{path}:{number}: a client's key is a text or a whole number, not {type(key).__name__}")
        if str(key) in names:
            raise TraceError(f"{path}:{number}: duplicate key '{key}'")
        names.add(str(key))
        yield number, str(key), item


def _link(
    found: dict[str, Readings],
    item: Mapping[str, Any],
    path: Path,
    line: int,
    key: str,
    report: Report,
    options: Options,
) -> None:
    pair = "dl_kbps" in item and "ul_kbps" in item and options.up is None and options.up_ratio is None
    fields = ("dl_kbps", "ul_kbps") if pair else ("communication",)
    for field in fields:
        if field not in item:
            raise TraceError(f"{path}:{line}: entry '{key}' has no '{field}'")
    rates = [rate(json_number(item[f], path, line, f), 1e3, report, path, line, f, alone=True) for f in fields]
    constant(found, f"device-{key}", rates[0], rates[1] if pair else None, report, path, line)


def _behaviour(item: object, path: Path, line: int, key: str) -> Behaviour:
    where = f"{path}:{line}: client {key}"
    if not isinstance(item, Mapping):
        raise TraceError(f"{where}: a mapping is needed, found {type(item).__name__}")
    for name in ("active", "inactive", "finish_time"):
        if name not in item:
            hint = "; this is a capacity file, not one of behaviour" if "communication" in item else ""
            raise TraceError(f"{where}: missing key '{name}'{hint}")
    active, inactive = _times(item, "active", where), _times(item, "inactive", where)
    if len(active) != len(inactive):
        raise TraceError(f"{where}: {len(active)} times in active, but {len(inactive)} in inactive")
    period = _ns(item["finish_time"], f"{where}: finish_time")
    sessions = [(a, z, f"{where}, session {i}") for i, (a, z) in enumerate(zip(active, inactive, strict=True))]
    for start, end, place in sessions:
        if end < start:
            raise TraceError(f"{place}: the session ends before it starts")
        if end > period:
            raise TraceError(f"{place}: the session ends after finish_time")
    return Behaviour(line, key, where, sessions, period)


def _times(item: Mapping[str, Any], name: str, where: str) -> list[int]:
    if not isinstance(item[name], list):
        raise TraceError(f"{where}: '{name}' must be a list of seconds")
    return [_ns(value, f"{where}: {name}[{i}]") for i, value in enumerate(item[name])]


def _ns(value: object, where: str) -> int:
    """Whole nanoseconds of a number of seconds, the nearest."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        shown = repr(value) if isinstance(value, str | bool | None) else f"a {type(value).__name__}"
        raise TraceError(f"{where}: a number of seconds is needed, found {shown:.60}")
    if not 0 <= value < FAR_NS / SECOND_NS:
        shown = "a number of that size" if isinstance(value, int) and abs(value) >= _HUGE else f"'{value:.10g}'"
        raise TraceError(f"{where}: {shown} is not a number of seconds, 0 or more and below 146 years")
    if isinstance(value, Decimal):
        return round(Fraction(value) * SECOND_NS) if value > _LEAST else 0
    return round(value * SECOND_NS)


def _stays(client: Behaviour, path: Path, report: Report) -> list[tuple[int, int]]:
    """Sessions in order and apart, and what was done to them into the report."""
    spans = [(start, end) for start, end, _ in client.sessions if end > start]
    if len(spans) < len(client.sessions):
        report.drop("session of no length", path, client.line, len(client.sessions) - len(spans))
    if any(b[0] < a[0] for a, b in pairwise(spans)):
        report.repair("sessions out of order, sorted", path, client.line)
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            report.repair("sessions that touch, joined", path, client.line)
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    if not merged:
        report.drop("device that is never there", path, client.line)
    return merged
