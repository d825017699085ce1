"""What the Gantt chart shows, without drawing it: a few devices, their spans, merged to what a page can hold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from morphling.errors import InputError
from morphling.types import FloatArray, IntArray

__all__ = ["STAGES", "Lane", "merge", "pick_lanes", "read_lanes"]

STAGES = ("download", "compute", "upload")


@dataclass(frozen=True, eq=False)
class Lane:
    """One line of the chart: a name and, by stage, merged spans as (start, length) in ns, int64[n, 2]."""

    name: str
    spans: dict[str, IntArray]
    merged: int


def pick_lanes(load_s: FloatArray, rows: IntArray) -> list[tuple[int, str]]:
    """The least busy, median and busiest of the devices that had rows (fewer if there are fewer): (index, what)."""
    used = np.flatnonzero(rows)
    ranked = used[np.argsort(load_s[used], kind="stable")]
    if len(ranked) <= 2:
        return [(int(i), what) for i, what in zip(ranked, ("least busy", "busiest"), strict=False)]
    return [(int(ranked[0]), "least busy"), (int(ranked[len(ranked) // 2]), "median"), (int(ranked[-1]), "busiest")]


def merge(start: IntArray, end: IntArray, gap: int) -> IntArray:
    """Unions of the spans ``[start, end)`` with less than ``gap`` between them, as (start, length), int64[n, 2]."""
    if len(start) == 0:
        return np.zeros((0, 2), np.int64)
    order = np.argsort(start, kind="stable")
    s, reach = start[order], np.maximum.accumulate(end[order])
    breaks = np.flatnonzero(s[1:] - reach[:-1] >= max(gap, 1)) + 1
    first = np.concatenate([[0], breaks])
    last = np.concatenate([breaks - 1, [len(s) - 1]])
    return np.column_stack([s[first], reach[last] - s[first]])


def read_lanes(folder: Path, picked: list[tuple[int, str]], end_ns: int, pixels: int = 1500) -> list[Lane]:
    """The lanes of some devices (index, name), in that order; gaps below one of ``pixels`` of the run are not shown."""
    gap = end_ns // pixels
    rows = _rows_of(folder / "events.parquet", np.array([index for index, _ in picked], np.int32))
    lanes = []
    for index, name in picked:
        mine = {key: column[rows["device"] == index] for key, column in rows.items()}
        spans: dict[str, IntArray] = {}
        merged = 0
        for stage, size in zip(STAGES, ("bytes_in", None, "bytes_out"), strict=True):
            begun = mine[f"{stage}_start_ns"] >= 0
            if size is not None:
                begun &= mine[size] > 0
            start, end = mine[f"{stage}_start_ns"][begun], mine[f"{stage}_end_ns"][begun]
            spans[stage] = merge(start, np.where(end < 0, mine["settled_ns"][begun], end), gap)
            merged += len(start) - len(spans[stage])
        lanes.append(Lane(name, spans, merged))
    return lanes


def _rows_of(path: Path, devices: np.ndarray[Any, np.dtype[np.int32]]) -> dict[str, IntArray]:
    columns = ["device", "bytes_in", "bytes_out", "settled_ns"]
    columns += [f"{stage}_{side}_ns" for stage in STAGES for side in ("start", "end")]
    parts: dict[str, list[IntArray]] = {name: [np.zeros(0, np.int64)] for name in columns}
    try:
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            where = file.read_row_group(group, columns=["device"])["device"].to_numpy()
            pick = np.flatnonzero(np.isin(where, devices))
            if len(pick):
                table = file.read_row_group(group, columns=columns).take(pick)
                for name in columns:
                    parts[name].append(table[name].to_numpy())
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read as Parquet: {error}") from error
    return {name: np.concatenate(pieces) for name, pieces in parts.items()}
