"""The closed lane: private full-duplex links, a whole dispatch resolved in one pass over its rows."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from morphling.engine.compiled import is_loaded, kernels
from morphling.engine.kernels.records import FAR, ClosedRows, Devices, Heat, LinkArrays, Times
from morphling.engine.running import Notice, Running
from morphling.interfaces.tasks import TaskTable
from morphling.types import BoolArray, FloatArray, Int32Array, IntArray

__all__ = ["NEVER_ENDS", "TRACE_ENDED", "ClosedLane", "Trouble", "views"]

COMPILE_AFTER = 40_000
"""Tiles after which compiling pays: an interpreted tile costs about 10 µs, loading numba and its cache about half a
second."""


ROWS_A_THREAD = 2_000
"""Rows of a table for each thread below which handing out the parts costs more than it saves."""

MOST_THREADS = 8

_Warm: TypeAlias = tuple[FloatArray, IntArray]

TRACE_ENDED = "its link trace has ended (past_end: error)"
NEVER_ENDS = "its link delivers nothing more, or not within the 146 years that virtual time can hold"


@dataclass(frozen=True)
class Trouble:
    """A row that can never settle."""

    running: Running
    row: int
    why: str


@dataclass(frozen=True, eq=False)
class _Held:
    """A table's columns as the kernel reads them, and the devices that it names."""

    tasks: TaskTable
    rows: ClosedRows
    devices: Int32Array
    part_of: NDArray[np.uint8]
    parts: int

    @cached_property
    def row_views(self) -> Any:
        """``rows`` for the interpreted kernel."""
        return views(self.rows)


def _distinct(devices: Int32Array) -> Int32Array:
    """The devices once each, in order: `numpy.unique`, which takes five times as long on a handful."""
    ordered = np.sort(devices)
    first = np.ones(len(ordered), np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def views(record: Any) -> Any:
    """The same named tuple over memoryviews, whose elements are Python numbers (several times faster to index)."""
    return type(record)(*(views(x) if isinstance(x, tuple) else memoryview(x) for x in record))


class ClosedLane:
    """Resolves dispatches at once; keeps when each stage of each device is next free."""

    def __init__(self, links: LinkArrays, size: int, *, heat: Heat | None = None, compiled: bool | None) -> None:
        self.size = size
        self.force = compiled
        self.tiles = 0
        self.links = links
        self.link_views = views(links)
        free = [np.zeros(size + 1, np.int64) for _ in range(3)]
        self.devices = Devices(free[0], free[1], free[2], off=np.full(size + 1, FAR, np.int64))
        self.device_views = views(self.devices)
        self.heat = heat
        self.heat_views = None if heat is None else views(heat)
        self.tables: dict[int, _Held] = {}
        self.open: list[tuple[Running, Int32Array, IntArray, _Warm | None]] = []
        self.closed: set[int] = set()
        self.threads: ThreadPoolExecutor | None = None
        self.one_part = np.zeros(size + 1, np.uint8)

    def pick(self, tasks: TaskTable) -> bool:
        """Whether to run the rows of a table compiled."""
        if self.force is not None:
            return self.force
        if is_loaded():
            return True
        self.tiles += int(np.maximum(tasks.overlap, 1).sum())
        return self.tiles > COMPILE_AFTER

    def columns(self, running: Running) -> _Held:
        """The table's columns for the kernel, kept for tables that are dispatched again."""
        tasks, durations = running.tasks, running.durations
        held = self.tables.get(id(tasks))
        if held is not None and held.tasks is tasks and held.rows.duration is durations:
            return held
        overlap = tasks.overlap
        if np.any(tasks.device == self.size):  # overlap means nothing without a link
            overlap = np.where(tasks.device == self.size, np.int32(1), overlap)
        rows = ClosedRows(
            tasks.device,
            tasks.bytes_in,
            tasks.bytes_out,
            overlap,
            tasks.release_ns,
            tasks.dep_ptr,
            tasks.dep_idx,
            durations,
            durations if running.clocked is None else running.clocked,
        )
        if len(self.tables) >= 512:
            self.tables.pop(next(iter(self.tables)))
        held = _Held(tasks, rows, _distinct(tasks.device), *self.parts_of(tasks))
        self.tables[id(tasks)] = held
        return held

    def parts_of(self, tasks: TaskTable) -> tuple[NDArray[np.uint8], int]:
        """Which part of the table each device belongs to, and how many parts may run side by side.

        Large tables without dependencies are cut by where a device first appears, so that threads write far apart.
        """
        if len(tasks) < 2 * ROWS_A_THREAD or len(tasks.dep_idx):
            return self.one_part, 1
        parts = min(os.cpu_count() or 1, MOST_THREADS)
        if parts < 2 or len(tasks) < ROWS_A_THREAD * parts:
            return self.one_part, 1
        part_of = np.zeros(self.size + 1, np.uint8)
        first = np.full(self.size + 1, len(tasks))
        np.minimum.at(first, tasks.device, np.arange(len(tasks)))
        rank = np.zeros(self.size + 1, np.int64)
        rank[np.argsort(first, kind="stable")] = np.arange(self.size + 1)
        used = int(np.count_nonzero(first < len(tasks)))
        part_of[:] = np.minimum(rank * parts // used, parts - 1)
        return part_of, parts

    def submit(self, running: Running) -> Trouble | None:
        """Resolve every row of a dispatch."""
        devices = self.columns(running).devices
        before = np.stack([x[devices] for x in self.devices])
        self.open.append((running, devices, before, self.warmth(devices)))
        return self.resolve(running)

    def resolve(self, running: Running) -> Trouble | None:
        """One pass of the kernel."""
        compiled = self.pick(running.tasks)
        held = self.columns(running)
        out = Times._make((*running.times, running.lost, running.worked))
        cut = FAR if running.cut_ns is None else running.cut_ns
        run = kernels(compiled=compiled).run_closed
        place = (running.time_ns, cut, self.size)
        if not compiled:
            part_of = memoryview(held.part_of)  # type: ignore[arg-type] # numpy arrays are buffers
            code = run(
                self.link_views, self.device_views, held.row_views, views(out), *place, part_of, -1, self.heat_views
            )
        elif held.parts == 1:
            code = run(self.links, self.devices, held.rows, out, *place, held.part_of, -1, self.heat)
        else:
            if self.threads is None:
                self.threads = ThreadPoolExecutor(MOST_THREADS, "morphling-rows")
            each = [
                self.threads.submit(
                    run, self.links, self.devices, held.rows, out, *place, held.part_of, part, self.heat
                )
                for part in range(held.parts)
            ]
            codes = [x.result() for x in each]
            code = min((c for c in codes if c), default=0)
        if not code:
            return None
        return Trouble(running, code // 4, NEVER_ENDS if code % 4 == 1 else TRACE_ENDED)

    def unsettled(self, running: Running, now_ns: int) -> IntArray:
        """Rows of a dispatch that are not settled by ``now_ns``."""
        return np.flatnonzero(running.times[6] > now_ns)

    def stop(self) -> None:
        """End the threads, if there are any."""
        if self.threads is not None:
            self.threads.shutdown()
            self.threads = None

    def close(self, running: Running) -> None:
        """A dispatch is settled: it can no longer be withdrawn."""
        self.closed.add(running.serial)
        done = 0  # one behind a dispatch in flight is kept: if that is withdrawn, its devices are played again
        while done < len(self.open) and self.open[done][0].serial in self.closed:
            self.closed.remove(self.open[done][0].serial)
            done += 1
        del self.open[:done]

    def withdraw(self, withdrawn: list[Running], now_ns: int) -> list[Running]:
        """Cut dispatches short at ``now_ns``; resolve again them and all later ones; returns those in flight."""
        for running in withdrawn:
            running.cut_ns = now_ns
        first = min(running.serial for running in withdrawn)
        again = [x for x in self.open if x[0].serial >= first]
        present = np.stack(self.devices)
        warm_now = self.warmth(np.arange(self.size, dtype=np.int32))
        for _, devices, before, warm in reversed(again):
            for column, saved in zip(self.devices, before, strict=True):
                column[devices] = saved
            self.cool_back(devices, warm)
        for running, devices, before, warm in again:
            # a device that left and came back in between starts over with the queues that it had then
            later = self.devices.off[devices] != before[-1]
            for saved, column in zip(before, self.devices, strict=True):
                column[devices[later]] = saved[later]
                saved[:] = column[devices]
            self.cool_back(devices, warm, later)
            if self.heat is not None and warm is not None:
                warm[0][:], warm[1][:] = self.heat.state[devices], self.heat.clock[devices]
            self.resolve_cut(running)
        over = self.devices.off != present[-1]
        for column, saved in zip(self.devices, present, strict=True):
            column[over] = saved[over]
        everyone = np.arange(self.size, dtype=np.int32)
        self.cool_back(everyone, warm_now, over[: self.size])
        return [x[0] for x in again if x[0].serial not in self.closed]

    def warmth(self, devices: Int32Array) -> _Warm | None:
        """A copy of the heat of some devices."""
        return None if self.heat is None else (self.heat.state[devices].copy(), self.heat.clock[devices].copy())

    def cool_back(self, devices: Int32Array, warm: _Warm | None, which: BoolArray | None = None) -> None:
        """Give devices, or those of them that ``which`` marks, the heat of a copy."""
        if self.heat is None or warm is None:
            return
        pick = np.ones(len(devices), bool) if which is None else which
        for now, copy in zip((self.heat.state, self.heat.clock), warm, strict=True):
            now[devices[pick]] = copy[pick]

    def resolve_cut(self, running: Running) -> None:
        """Resolve again; a row that takes no time is not done only because the row before it was withdrawn."""
        if running.cut_ns is None:
            self.resolve(running)
            return
        undone = (running.times[6] > running.cut_ns) | (running.lost == 1)
        self.resolve(running)
        rows = np.flatnonzero(undone & (running.lost == 0))
        running.lost[rows] = 1
        for start in (0, 2, 4):
            never = rows[running.times[start, rows] >= running.cut_ns]
            running.times[start : start + 2, never] = -1

    def leave(self, devices: IntArray, now_ns: int) -> list[tuple[Running, Notice]]:
        """Devices are away: whatever is sent to them now is lost at once (what they held was known to be lost)."""
        self.devices.off[devices] = now_ns
        return []

    def join(self, devices: IntArray, now_ns: int, off_ns: IntArray) -> None:
        """Devices are back with empty queues."""
        for column in self.devices[:3]:
            column[devices] = now_ns
        self.devices.off[devices] = off_ns
