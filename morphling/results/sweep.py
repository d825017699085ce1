"""A sweep over time: the peak memory of each device.

It looks at intervals per device.  The engine's stages are first in, first out, so rows in table order are nearly
always in order of time too and nothing has to be sorted; where they are not, they are sorted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from morphling.interfaces.recording import DispatchRecord, TaskColumns
from morphling.results.accounting import blocks, gather
from morphling.types import Int32Array, IntArray

__all__ = ["peak_level", "sweep"]

LIMIT = (1 << 63) - 1


@dataclass(frozen=True, eq=False)
class _Order:
    """Rows of a block by device: ``rows`` (None = as they are), the devices, where each one's rows begin, how many."""

    rows: IntArray | None
    devices: Int32Array
    first: IntArray
    counts: IntArray

    @classmethod
    def of(cls, device: Int32Array, size: int) -> _Order:
        # Stable sorting of 16-bit keys is a radix sort, four times as fast.
        keys = device.astype(np.uint16) if size < 65_535 else device
        rows: IntArray | None = None
        if len(keys) > 1 and np.any(keys[1:] < keys[:-1]):
            rows = np.argsort(keys, kind="stable")
        ordered = device if rows is None else device[rows]
        first = (
            np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(ordered) else np.zeros(0, int)
        )
        return cls(rows, ordered[first], first, np.diff(np.append(first, len(ordered))))

    def take(self, column: NDArray[np.int64]) -> IntArray:
        return column if self.rows is None else column[self.rows]


def sweep(dispatches: Sequence[DispatchRecord], size: int) -> IntArray:
    """Peak resident bytes of each of ``size`` devices and of the coordinator, int64[size + 1].

    A row holds its ``resident_bytes`` from the start of its download (of its computing, if nothing is downloaded) until
    it is settled; at one instant, what leaves goes before what comes.
    """
    peak = np.zeros(size + 1, np.int64)
    known: dict[int, tuple[TaskColumns, _Order]] = {}
    for block in blocks(dispatches, quiet=True):
        order = _order(block, size, known)
        settled = gather(block, "settled_ns")
        held_from = gather(block, "download_start_ns")
        instant = gather(block, "bytes_in") == 0
        if instant.any():
            held_from = np.where(instant, gather(block, "compute_start_ns"), held_from)
        _peak(order, held_from, settled, gather(block, "resident_bytes"), peak)
    return peak


def _order(block: Sequence[DispatchRecord], size: int, known: dict[int, tuple[TaskColumns, _Order]]) -> _Order:
    if len(block) > 1:
        return _Order.of(gather(block, "device"), size)
    tasks = block[0].tasks
    if id(tasks) not in known:
        known[id(tasks)] = tasks, _Order.of(tasks.device, size)
    return known[id(tasks)][1]


def _peak(order: _Order, start: IntArray, end: IntArray, weight: IntArray, peak: IntArray) -> None:
    """Raise ``peak`` to what this block reaches."""
    held = order.take(weight)
    # A device cannot hold more than all its rows at once: where that is no news, there is nothing to sweep.
    news = np.add.reduceat(held, order.first) > peak[order.devices]
    if not news.any():
        return
    s, e = order.take(start), order.take(end)
    counts, devices = order.counts, order.devices
    pick = np.repeat(news, counts) & (s >= 0) if not news.all() or s.min() < 0 else None
    if pick is not None:
        ranks = np.repeat(np.arange(len(counts)), counts)[pick]
        s, e, held = s[pick], e[pick], held[pick]
        kept, counts = np.unique(ranks, return_counts=True)
        devices = devices[kept]
    if len(s) == 0:
        return
    top = peak_level(counts, s, e, held)
    np.maximum.at(peak, devices, top)


def peak_level(counts: IntArray, start: IntArray, end: IntArray, weight: IntArray) -> IntArray:
    """Highest sum of the weights of the half-open intervals ``[start, end)`` that overlap, for each group.

    Rows are grouped: the first ``counts[0]`` belong to group 0, and so on; each count is at least 1.  An empty interval
    holds nothing.
    """
    full = end > start
    if counts.max() == 1:
        return np.where(full, weight, 0)
    tops: list[IntArray] = []
    for groups, rows in _portions(counts, start, end):
        s, e, w = _keys(counts[groups], start[rows], end[rows], np.where(full, weight, 0)[rows])
        enter = _ascending(s)
        leave = _ascending(e)
        s, rise = (s, w) if enter is None else (s[enter], w[enter])
        e, fall = (e, w) if leave is None else (e[leave], w[leave])
        gone = np.concatenate([[0], np.cumsum(fall)])
        level = np.cumsum(rise) - gone[np.searchsorted(e, s, side="right")]
        first = np.cumsum(counts[groups]) - counts[groups]
        tops.append(np.maximum.reduceat(level, first))
    return np.concatenate(tops)


def _portions(counts: IntArray, start: IntArray, end: IntArray) -> list[tuple[slice, slice]]:
    """Groups and their rows, cut so that (group, time) fits one int64."""
    span = int(end.max()) - int(start.min()) + 1
    many = max(1, LIMIT // span - 1)
    ends = np.concatenate([[0], np.cumsum(counts)])
    cuts = range(0, len(counts), many)
    return [(slice(c, c + many), slice(int(ends[c]), int(ends[min(c + many, len(counts))]))) for c in cuts]


def _keys(counts: IntArray, start: IntArray, end: IntArray, weight: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    zero = int(start.min())
    base = np.repeat(np.arange(len(counts)) * (int(end.max()) - zero + 1), counts) - zero
    return start + base, end + base, weight


def _ascending(keys: IntArray) -> IntArray | None:
    """The order that sorts ``keys``; None if they are sorted."""
    return None if np.all(keys[1:] >= keys[:-1]) else np.argsort(keys, kind="stable")
