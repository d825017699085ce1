"""Sessions of devices: when they are there, from a CSV file or listed in the scenario.

The CSV has the header ``device,start_s,end_s`` after ``#`` comments: index of the device in fleet order, decimal
seconds; an empty ``end_s`` means that the device stays.  Devices that are not listed are always there.  With the header
``client,start_s,end_s`` the first column is any name, and which device behaves like which client is for the scenario.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Literal, TypeAlias

from morphling.errors import TraceError
from morphling.fleet import Availability
from morphling.scenario.schema import Sessions
from morphling.scenario.traces import exact_ns
from morphling.types import FAR_NS, ns_from_s

__all__ = ["SESSION_HEADERS", "By", "Row", "Stay", "availability_of", "listed_stays", "parse_sessions", "stays_of"]

By: TypeAlias = Literal["device", "client"]

Row: TypeAlias = tuple[str, int, int, str]
"""Device or client as written, start (ns), end (ns; not before the start), and where it was written."""

Stay: TypeAlias = tuple[int, int, int, str]
"""Device, start (ns), end (ns), and where it was written."""

SESSION_HEADERS: dict[str, By] = {"device,start_s,end_s": "device", "client,start_s,end_s": "client"}
"""What the first column names, by the header of the file."""


def parse_sessions(text: str, origin: str) -> tuple[By, list[Row]]:
    """What the first column of a CSV ``text`` names, and its rows; ``origin`` is its name in errors.

    Raises `TraceError` as file:line: reason.
    """
    rows: list[Row] = []
    header = ""
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"{origin}:{number}"
        if header:
            rows.append(_row(line, header, where))
        elif not line.startswith("#"):
            header = line.strip()
            if header not in SESSION_HEADERS:
                raise TraceError(f"{where}: the header must be {_HEADERS}, found '{header}'")
    if not header:
        raise TraceError(f"{origin}: no header; the first line after comments must be {_HEADERS}")
    return SESSION_HEADERS[header], rows


def stays_of(rows: Iterable[Row]) -> list[Stay]:
    """The stays in rows of a CSV by device; `TraceError` if one is empty or its device is no index."""
    stays = []
    for device, start, end, where in rows:
        if not (device.isascii() and device.isdigit() and len(device) < 10):
            raise TraceError(f"{where}: device: '{device}' is not an index, 0 or more")
        if end == start:
            raise TraceError(f"{where}: device {device}: the session is empty")
        stays.append((int(device), start, end, where))
    return stays


def listed_stays(sessions: Sessions) -> list[Stay]:
    """The stays listed in a scenario."""
    return [
        (s.device, ns_from_s(s.start), FAR_NS if s.end is None else ns_from_s(s.end), f"availability.sessions.{i}")
        for i, s in enumerate(sessions.sessions)
    ]


def availability_of(stays: Iterable[Stay], size: int) -> Availability:
    """Arrays for ``size`` devices; a device without a stay is always there.

    Raises
    ------
    TraceError
        A device beyond the fleet, or two stays of a device that overlap or touch.
    """
    spans: dict[int, list[Stay]] = {}
    for stay in stays:
        if stay[0] >= size:
            raise TraceError(f"{stay[3]}: there is no device {stay[0]}: the fleet has devices 0 to {size - 1}")
        spans.setdefault(stay[0], []).append(stay)
    for device, own in spans.items():
        own.sort(key=lambda stay: stay[1:3])
        for before, after in itertools.pairwise(own):
            if after[1] <= before[2]:
                raise TraceError(f"{after[3]}: device {device} is there already: this session touches {before[3]}")
    always = [(0, FAR_NS)]
    return Availability.of([[s[1:3] for s in spans[d]] if d in spans else always for d in range(size)])


_HEADERS = " or ".join(f"'{header}'" for header in SESSION_HEADERS)


def _row(line: str, header: str, where: str) -> Row:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != 3 or not cells[0]:
        found = len(cells) if len(cells) != 3 else f"no {SESSION_HEADERS[header]}"
        raise TraceError(f"{where}: 3 values are needed ({header}), found {found}")
    times = []
    for name, cell in zip(("start_s", "end_s"), cells[1:], strict=True):
        try:
            times.append(FAR_NS if name == "end_s" and not cell else exact_ns(cell))
        except ValueError as error:
            raise TraceError(f"{where}: {name}: {error}") from None
    start, end = times
    if end < start:
        raise TraceError(f"{where}: {SESSION_HEADERS[header]} {cells[0]}: the session ends before it starts")
    return cells[0], start, end, where
