"""FedScale's capacity and behaviour files, JSON or pickle (read by an unpickler that refuses every global)."""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Never

from morphling.errors import TraceError
from morphling.scenario.importers.reading import json_items, json_number, rate
from morphling.scenario.importers.record import Options, Report, Session
from morphling.scenario.importers.speedtests import constant
from morphling.scenario.importers.steps import Readings
from morphling.types import FAR_NS, SECOND_NS

__all__ = ["read_fedscale"]

_BROKEN = (
    pickle.UnpicklingError, EOFError, ValueError, KeyError, IndexError, AttributeError, TypeError, OverflowError,
    MemoryError, struct.error, RecursionError,
)  # fmt: skip


class _Plain(pickle.Unpickler):
    """Builtin containers, numbers and text; nothing that a pickle could name is looked up, let alone called."""

    def find_class(self, module: str, name: str, /) -> Never:
        raise TraceError(f"the pickle asks for {module}.{name}; only plain numbers, texts, lists and mappings are read")

    def persistent_load(self, pid: Any, /) -> Never:  # noqa: ARG002
        raise TraceError("the pickle refers to objects outside itself")


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
            if not isinstance(item, Mapping):
                raise TraceError(f"{path}:{line}: entry '{key}': a mapping is needed, found {type(item).__name__}")
            if "active" in item:
                stays = _stays(item, path, line, str(key), report)
                if stays:
                    sessions += [(devices, start, end) for start, end in stays]
                    devices += 1
                else:
                    report.drop("device that is never there", path, line)
            else:
                _link(found, item, path, line, str(key), report, options)
    if found and sessions:
        raise TraceError(f"{paths[0]}: holds links and sessions; import them one after the other")
    if sessions:
        report.note("times are those of one period of each device; what comes after it is not repeated")
    return sessions or found


def _entries(path: Path, report: Report) -> Iterator[tuple[int, object, Any]]:
    """(line, key, entry); the line of a pickle is the number of the entry."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    if raw[:1] != b"\x80":
        yield from json_items(path, report)
        return
    try:
        entries = _Plain(io.BytesIO(raw)).load()
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
    except _BROKEN as error:
        raise TraceError(f"{path}: not a pickle that can be read: {error}") from None
    if not isinstance(entries, Mapping) or not entries:
        raise TraceError(f"{path}: a mapping of entries is needed, found {type(entries).__name__}")
    for number, (key, item) in enumerate(entries.items(), start=1):
        yield number, key, item


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


def _stays(item: Mapping[str, Any], path: Path, line: int, key: str, report: Report) -> list[tuple[int, int]]:
    active, inactive = item.get("active"), item.get("inactive")
    if not (isinstance(active, list) and isinstance(inactive, list) and len(active) == len(inactive)):
        raise TraceError(f"{path}:{line}: entry '{key}': active and inactive must be lists of the same length")
    finish = json_number(item.get("finish_time"), path, line, "finish_time")
    spans = []
    for start_s, end_s in zip(active, inactive, strict=True):
        start, end = json_number(start_s, path, line, "active"), json_number(end_s, path, line, "inactive")
        if not 0 <= start <= end <= finish < FAR_NS / SECOND_NS:
            raise TraceError(
                f"{path}:{line}: entry '{key}': 0 <= active <= inactive <= finish_time does not hold for "
                f"{start:g}, {end:g}, {finish:g}"
            )
        if start == end:
            report.drop("session of no length", path, line)
        else:
            spans.append((round(start * SECOND_NS), round(end * SECOND_NS)))
    if any(b[0] < a[0] for a, b in pairwise(spans)):
        report.repair("sessions out of order, sorted", path, line)
    merged: list[tuple[int, int]] = []
    for start_ns, end_ns in sorted(spans):
        if merged and start_ns <= merged[-1][1]:
            report.repair("sessions that touch, joined", path, line)
            merged[-1] = merged[-1][0], max(merged[-1][1], end_ns)
        else:
            merged.append((start_ns, end_ns))
    return merged
