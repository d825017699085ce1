"""Sessions of devices: when they are there, from a CSV file or listed in the scenario.

The CSV has the header ``device,start_s,end_s`` after ``#`` comments: index of the device in fleet order, decimal
seconds; an empty ``end_s`` means that the device stays.  Devices that are not listed are always there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TypeAlias

from morphling.errors import TraceError
from morphling.fleet import Availability
from morphling.scenario.schema import Sessions
from morphling.scenario.traces import exact_ns
from morphling.types import FAR_NS, ns_from_s

__all__ = ["Stay", "availability_of", "listed_stays", "parse_sessions"]

Stay: TypeAlias = tuple[int, int, int, str]
"""Device, start (ns), end (ns), and where it was written."""

_HEADER = "device,start_s,end_s"


def parse_sessions(text: str, origin: str) -> list[Stay]:
    """The stays in a CSV ``text``; ``origin`` is its name in errors.  Raises `TraceError` as file:line: reason."""
    stays: list[Stay] = []
    header = False
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"{origin}:{number}"
        if not header:
            if line.startswith("#"):
                continue
            if line.strip() != _HEADER:
                raise TraceError(f"{where}: the header must be '{_HEADER}', found '{line.strip()}'")
            header = True
            continue
        stays.append(_stay(line, where))
    if not header:
        raise TraceError(f"{origin}: no header; the first line after comments must be '{_HEADER}'")
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


def _stay(line: str, where: str) -> Stay:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != 3:
        raise TraceError(f"{where}: 3 values are needed ({_HEADER}), found {len(cells)}")
    if not (cells[0].isascii() and cells[0].isdigit()):
        raise TraceError(f"{where}: device: '{cells[0]}' is not an index, 0 or more")
    try:
        start, end = exact_ns(cells[1]), exact_ns(cells[2]) if cells[2] else FAR_NS
    except ValueError as error:
        raise TraceError(f"{where}: {error}") from None
    if end <= start:
        raise TraceError(f"{where}: the session ends before it starts")
    return int(cells[0]), start, end, where
