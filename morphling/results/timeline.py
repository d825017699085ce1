"""The timeline: a Chrome trace of a few devices, which Perfetto and chrome://tracing open.

One process per device with three tracks (download, compute, upload), and one for the coordinator.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from morphling.interfaces.recording import DispatchRecord, Recording
from morphling.results.accounting import blocks, gather
from morphling.types import BoolArray, IntArray

__all__ = ["choose_devices", "write_timeline"]

STAGES = ("download", "compute", "upload")
SIZE_COLUMNS = {"download": ("bytes_in",), "compute": ("m", "n", "k"), "upload": ("bytes_out",)}
CHUNK = 20_000

# A span's text: when and how long in microseconds, the prepared name and dispatch, its row and its sizes.  `json.dumps`
# of a million dicts takes ten times as long as templates whose constant parts are filled in once per track.
_SPAN = '{"ph":"X","pid":PID,"tid":TID,"ts":%d.%03d,"dur":%d.%03d,%s"row":%d,SIZESEXTRA}}'
_SIZES = {"download": '"bytes":%d', "compute": '"m":%d,"n":%d,"k":%d', "upload": '"bytes":%d'}
_EXTRA = ',"end_ns":%d,"state":"%s"'
_NOTE = (
    "A span ends where the next one on its track begins, if that is earlier (a transfer's last bits may be under way "
    "when the next transfer starts).  Such spans, and those of lost rows, have args.end_ns, the recorded end (-1 if "
    "the stage was cut short, which is then drawn until the row was lost), and args.state."
)


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of the chosen devices, in table order."""

    columns: dict[str, NDArray[Any]]
    head: IntArray
    heads: list[tuple[str, int]]
    complete_until_ns: int | None


def choose_devices(load_ns: IntArray, rows: IntArray, limit: int = 32) -> IntArray:
    """Up to ``limit`` of the devices that had rows, evenly spread from the least to the most loaded, both included.

    ``load_ns`` and ``rows`` int64[N]: stage time and number of rows of each device.
    """
    used = np.flatnonzero(rows)
    ranked = used[np.argsort(load_ns[used], kind="stable")]
    if len(ranked) > limit:
        ranked = ranked[np.linspace(0, len(ranked) - 1, limit).round().astype(np.int64)]
    return np.sort(ranked)


def write_timeline(
    path: Path,
    recording: Recording,
    names: Sequence[str],
    sums: Mapping[str, IntArray],
    *,
    devices: Sequence[int] | None = None,
    max_devices: int = 32,
    max_spans: int = 2_000_000,
) -> dict[str, Any]:
    """Write the trace and return what is in it and what is not.

    names : of the N devices
    sums : sums by device, int64[N + 1], as `morphling.results.accounting.account` makes them
    devices : which to draw; left out, `choose_devices` picks ``max_devices`` of those used
    max_spans : dispatches are drawn in order until there are about this many spans

    The summary has ``devices``, ``devices_used``, ``devices_total``, ``spans``, ``spans_total`` and
    ``complete_until_ns`` (None: the whole run); it is also in the file, under ``otherData``.
    """
    size = len(names)
    load = sum(sums[f"{stage}_ns"][:size] for stage in STAGES) + np.zeros(size, np.int64)
    picked = (
        choose_devices(load, sums["rows"][:size], max_devices) if devices is None else np.asarray(devices, np.int64)
    )
    shown = np.zeros(size + 1, np.bool_)
    shown[picked] = True
    shown[size] = sums["rows"][size] > 0
    rows = _chosen(recording.dispatches, shown, max_spans)
    summary: dict[str, Any] = {
        "devices": len(picked),
        "devices_used": int(np.count_nonzero(sums["rows"][:size])),
        "devices_total": size,
        "spans": 0,
        "spans_total": _count(recording.dispatches),
        "complete_until_ns": rows.complete_until_ns,
    }
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write('{"traceEvents":[\n')
        file.write(",\n".join(_names(picked, names, central=bool(shown[size]))))
        for many, text in _spans(rows):
            file.write(",\n")
            file.write(text)
            summary["spans"] += many
        about = {**summary, "virtual_end_ns": recording.end_ns, "note": _NOTE}
        file.write(f'\n],"displayTimeUnit":"ms","otherData":{json.dumps(about)}}}\n')
    return summary


def _count(dispatches: Sequence[DispatchRecord]) -> int:
    total = 0
    for block in blocks(dispatches):
        total += int(np.count_nonzero(gather(block, "compute_start_ns") >= 0))
        for stage, size in (("download", "bytes_in"), ("upload", "bytes_out")):
            begun = gather(block, f"{stage}_start_ns") >= 0
            total += int(np.count_nonzero(begun & (gather(block, size) > 0)))
    return total


def _chosen(dispatches: Sequence[DispatchRecord], shown: NDArray[np.bool_], max_spans: int) -> _Rows:
    names = ["device", "m", "n", "k", "bytes_in", "bytes_out", "settled_ns", "lost"]
    names += [f"{stage}_{end}_ns" for stage in STAGES for end in ("start", "end")]
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in (*names, "row", "head")}
    heads: list[tuple[str, int]] = []
    budget = max(1, max_spans // len(STAGES))
    masks: dict[int, IntArray] = {}
    until: int | None = None
    for dispatch in dispatches:
        key = id(dispatch.tasks)  # the dispatches hold their tables, so ids stay theirs
        if key not in masks:
            masks[key] = np.flatnonzero(shown[dispatch.tasks.device])
        pick = masks[key]
        if len(pick) == 0:
            continue
        if budget == 0:
            until = dispatch.time_ns
            break
        if len(pick) > budget:
            until = dispatch.time_ns
            pick = pick[:budget]
        budget -= len(pick)
        for name in names:
            parts[name].append(dispatch.column(name)[pick])
        parts["row"].append(pick)
        parts["head"].append(np.full(len(pick), len(heads)))
        heads.append((dispatch.label, dispatch.serial))
        if until is not None:
            break
    columns = {
        name: np.concatenate([np.zeros(0, np.int64), *pieces]).astype(np.int64) for name, pieces in parts.items()
    }
    return _Rows(columns, columns["head"], heads, until)


def _names(picked: IntArray, names: Sequence[str], *, central: bool) -> Iterator[str]:
    processes: list[tuple[int, str, tuple[str, ...]]] = [(int(i) + 1, names[i], STAGES) for i in picked]
    if central:
        processes.append((len(names) + 1, "coordinator", ("", "compute")))
    if not processes:
        yield json.dumps({"ph": "M", "pid": 0, "name": "process_name", "args": {"name": "no device had a row"}})
    for pid, name, tracks in processes:
        yield json.dumps({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}})
        yield json.dumps({"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}})
        for tid, track in enumerate(tracks, start=1):
            if track:
                yield json.dumps({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": track}})


def _spans(rows: _Rows) -> Iterator[tuple[int, str]]:
    """How many spans, and their text; in chunks."""
    heads = np.array(
        [f'"name":{json.dumps(label or "row")},"args":{{"dispatch":{n},' for label, n in rows.heads], object
    )
    for tid, stage in enumerate(STAGES, start=1):
        at, start, drawn_end, special = _track(rows, stage)
        device = rows.columns["device"][at]
        cuts = np.flatnonzero(np.diff(device)) + 1
        for track in np.split(np.arange(len(at)), cuts):
            for first in range(0, len(track), CHUNK):
                here = track[first : first + CHUNK]
                frame = _SPAN.replace("PID", str(device[here[0]] + 1)).replace("TID", str(tid))
                frame = frame.replace("SIZES", _SIZES[stage])
                for odd in (False, True):
                    pick = here[special[here] == odd]
                    if len(pick):
                        spans = at[pick], start[pick], drawn_end[pick]
                        yield _render(rows, stage, frame, heads, spans, odd=odd)


def _render(
    rows: _Rows, stage: str, frame: str, heads: NDArray[Any], spans: tuple[IntArray, IntArray, IntArray], *, odd: bool
) -> tuple[int, str]:
    at, start, end = spans
    columns, long = rows.columns, end - start
    fields = [start // 1000, start % 1000, long // 1000, long % 1000, heads[rows.head[at]], columns["row"][at]]
    fields += [columns[name][at] for name in SIZE_COLUMNS[stage]]
    if odd:
        fields += [columns[f"{stage}_end_ns"][at], np.where(columns["lost"][at] > 0, "lost", "done")]
    template = frame.replace("EXTRA", _EXTRA if odd else "")
    # One formatting of many spans is half as long again as fast as one at a time.
    values = tuple(chain.from_iterable(zip(*(f.tolist() for f in fields), strict=True)))
    return len(at), ",\n".join([template] * len(at)) % values


def _track(rows: _Rows, stage: str) -> tuple[IntArray, IntArray, IntArray, BoolArray]:
    """Which rows have a span of this stage, by device and time; where it starts, is drawn to end, and needs a word."""
    columns = rows.columns
    begun = columns[f"{stage}_start_ns"] >= 0
    if stage != "compute":
        begun &= columns[SIZE_COLUMNS[stage][0]] > 0
    at = np.flatnonzero(begun)
    at = at[np.lexsort((columns[f"{stage}_start_ns"][at], columns["device"][at]))]
    start, recorded = columns[f"{stage}_start_ns"][at], columns[f"{stage}_end_ns"][at]
    end = np.where(recorded < 0, columns["settled_ns"][at], recorded)
    device = columns["device"][at]
    if len(at) > 1:
        same = device[1:] == device[:-1]
        end[:-1] = np.where(same, np.minimum(end[:-1], start[1:]), end[:-1])
    return at, start, end, (end != recorded) | (columns["lost"][at] > 0)
