"""The event lane: device queues and an event heap, for links that share a capacity or a channel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from morphling.engine.closed_lane import NEVER_ENDS, TRACE_ENDED, Trouble, views
from morphling.engine.compiled import is_loaded, kernels
from morphling.engine.kernels import records as K  # noqa: N812 - a table of column names
from morphling.engine.kernels.records import FAR, Heat, LinkArrays, Net, Pool, Shared
from morphling.engine.links import millibits
from morphling.engine.running import Notice, Running
from morphling.interfaces.strategy import Each, Quorum
from morphling.types import BoolArray, IntArray

__all__ = ["EventLane"]

COMPILE_AFTER = 5_000
"""Tiles after which compiling pays: an interpreted tile costs about 100 µs here."""

QUEUES = slice(K.Q_DOWN, K.Q_HEAD + 1)


@dataclass(eq=False)
class _Slot:
    running: Running
    place: int
    first: int
    last: int
    fresh: list[IntArray] = field(default_factory=list)


class EventLane:
    """Holds the pool of rows in flight and drives the event loop over it."""

    def __init__(
        self,
        links: LinkArrays,
        size: int,
        half_duplex: BoolArray,
        capacity_out: float | None,
        capacity_in: float | None,
        *,
        net: Net | None,
        heat: Heat | None = None,
        compiled: bool | None,
    ) -> None:
        self.size = size
        self.force = compiled
        self.seen = 0
        self.links = links
        self.off = np.full(size + 1, FAR, np.int64)
        caps = [-1 if c is None else int(millibits(np.array([c]))[0]) for c in (capacity_out, capacity_in)]
        slot = np.zeros((2 * size, 10), np.int64)
        slot[:, K.NEXT_STEP] = -1
        self.net = net
        self.shared = Shared(
            capacity=np.array(caps, np.int64),
            count=np.zeros(4, np.int64),
            cap_sum=np.zeros(2, np.int64),
            level=np.full(2, -1.0),
            virtual=np.zeros(2),
            moment=np.zeros(2, np.int64),
            slot=slot,
            real=np.zeros((2 * size, 3)),
        )
        self.row = np.zeros((16, K.ROW_COLUMNS), np.int64)
        self.dev = np.zeros((size + 1, K.DEV_COLUMNS), np.int64)
        self.dev[:, QUEUES] = -1
        self.dev[:-1, K.HALF_DUPLEX] = half_duplex
        self.disp = np.zeros((16, 4), np.int64)
        self.heap = np.zeros((256, 5), np.int64)
        self.edge = np.zeros(16, np.int64)
        self.counter = np.zeros(8, np.int64)
        self.answer = np.zeros(3, np.int64)
        self.edges = 0
        self.slots: dict[int, _Slot] = {}
        self.at_place: dict[int, _Slot] = {}
        self.logged = 0
        # The kernels take either what one capacity shares or a network; the other is None, and not compiled.
        self.arrays = (links, self.shared, None, heat) if net is None else (links, None, net, heat)
        self.fixed: tuple[Any, ...] = tuple(None if x is None else views(x) for x in self.arrays)
        self.fixed += tuple(memoryview(x) for x in (self.off, self.answer))  # type: ignore[arg-type]
        self.rebuild()

    # ------------------------------------------------------------------------------------------------------- room

    def rebuild(self) -> None:
        """Make the record of arrays again after one of them was replaced."""
        self.pool = Pool(self.row, self.dev, self.disp, self.heap, self.edge, self.counter)
        self.pool_views = views(self.pool)

    def run(self, name: str, *args: int, tail: bool = False, off: bool = False) -> Any:
        """Run a kernel in the way that suits the amount of work."""
        compiled = self.force if self.force is not None else is_loaded() or self.seen > COMPILE_AFTER
        *arrays, off_at, answer = self.fixed
        if compiled:
            arrays, off_at, answer = list(self.arrays), self.off, self.answer
        pool = self.pool if compiled else self.pool_views
        middle = (off_at,) if off else ()
        end = (answer,) if tail else ()
        return getattr(kernels(compiled=compiled), name)(*arrays, pool, self.size, *middle, *args, *end)

    def unsettled(self, running: Running, now_ns: int) -> IntArray:  # noqa: ARG002 - both lanes have it
        """Rows of a dispatch that are not settled."""
        x = self.slots.get(running.serial)
        return np.zeros(0, np.int64) if x is None else np.flatnonzero(self.row[x.first : x.last, K.STATE] == K.WAITING)

    def stop(self) -> None:
        """Nothing to end: this lane has no threads."""

    def grown(self, old: IntArray, size: int) -> IntArray:
        """The array with room for at least ``size`` entries."""
        if len(old) >= size:
            return old
        fresh = np.zeros((max(size, 2 * len(old)), *old.shape[1:]), np.int64)
        fresh[: len(old)] = old
        return fresh

    def room(self, more: int) -> None:
        """Room for ``more`` events."""
        self.heap = self.grown(self.heap, int(self.counter[0]) + int(self.counter[6]) + more + 64)
        self.rebuild()

    @property
    def rows(self) -> int:
        """Rows in the pool."""
        return int(self.counter[2])

    @property
    def pending(self) -> int:
        """Rows not settled."""
        return int(self.counter[4])

    # ------------------------------------------------------------------------------------------------------ submit

    def submit(self, running: Running) -> Trouble | None:
        """Queue the rows of a dispatch now."""
        if self.pending == 0 and not self.slots:
            self.reset()
        elif self.rows > 65_536 and self.rows > 4 * self.pending:
            self.compact()
        tasks, n = running.tasks, len(running.tasks)
        first, last = self.rows, self.rows + n
        self.seen += int(np.maximum(tasks.overlap, 1).sum())
        self.row = self.grown(self.row, last + self.edges + len(tasks.dep_idx) + 16)
        self.edge = self.grown(self.edge, self.edges + len(tasks.dep_idx))
        place = next(i for i in range(len(self.at_place) + 1) if i not in self.at_place)
        self.slots[running.serial] = self.at_place[place] = _Slot(running, place, first, last)
        self.disp = self.grown(self.disp, len(self.slots) + 16)
        rows = self.row[first:last]
        log, stack = rows[:, K.LOG].copy(), rows[:, K.STACK].copy()
        rows[:] = 0
        rows[:, K.LOG], rows[:, K.STACK] = log, stack
        rows[:, K.ON_DEVICE] = tasks.device
        rows[:, K.BITS_IN] = tasks.bytes_in * K.MILLIBITS
        rows[:, K.BITS_OUT] = tasks.bytes_out * K.MILLIBITS
        rows[:, K.TILES] = np.where(tasks.device == self.size, 1, tasks.overlap)
        rows[:, K.DURATION] = running.durations
        rows[:, K.OF_DISPATCH] = place
        rows[:, K.PEER] = tasks.peer
        rows[:, K.CLOCKED] = running.durations if running.clocked is None else running.clocked
        rows[:, K.FOLLOWS] = -1
        rows[:, K.WAITS] = np.diff(tasks.dep_ptr) + 1
        rows[:, K.READY] = running.time_ns + tasks.release_ns
        rows[:, K.DOWN_START : K.SETTLED + 1] = -1
        widest = self.edges_of(tasks.dep_ptr, tasks.dep_idx, first)
        notify = running.notify
        how = notify.k if isinstance(notify, Quorum) else K.NOTIFY_EACH if isinstance(notify, Each) else K.NOTIFY_ALL
        self.disp[place] = how, n, 0, 0
        self.counter[4] += n
        self.counter[2] = last
        each = 6 if self.net is None else 16  # events that one row may add
        self.counter[6] = max(int(self.counter[6]), each * widest + 64)
        self.room(each * n)
        bad = self.run("submit", first, last, running.time_ns, off=True)
        if bad >= 0:
            return Trouble(running, int(bad) - first, f"{NEVER_ENDS}, or {TRACE_ENDED}")
        return None

    def edges_of(self, ptr: IntArray, idx: IntArray, first: int) -> int:
        """Turn 'waits for' into 'is waited for by'; returns the widest fan-out."""
        if not len(idx):
            return 0
        rows = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
        order = np.argsort(idx, kind="stable")
        count = np.bincount(idx, minlength=len(ptr) - 1)
        self.edge[self.edges : self.edges + len(idx)] = rows[order] + first
        self.row[first : first + len(count), K.OUT_LEN] = count
        self.row[first : first + len(count), K.OUT_PTR] = self.edges + np.cumsum(np.r_[0, count[:-1]])
        self.edges += len(idx)
        return int(count.max())

    def reset(self) -> None:
        """Nothing is in flight: forget all rows and stale events."""
        self.dev[:, QUEUES] = -1
        self.dev[:, K.PICKING] = 0
        if self.net is not None:
            self.net.link[:, K.NEXT_AT] = -1
        for i in (0, 2, 3, 5, 6):
            self.counter[i] = 0
        self.edges = self.logged = 0

    def compact(self) -> None:
        """Forget the rows of dispatches that are over; rows keep their order."""
        n = self.rows
        keep = np.zeros(n + 1, bool)
        for x in self.slots.values():
            keep[x.first : x.last] = True
        kept = np.flatnonzero(keep[:n])
        number = np.full(n + 1, -1, np.int64)
        number[kept] = np.arange(len(kept))
        follows = np.append(self.row[:n, K.FOLLOWS], n)
        follows[follows < 0] = n
        while True:  # step over rows that go
            skip = (follows < n) & ~keep[follows]
            if not skip.any():
                break
            follows[skip] = follows[follows[skip]]
        queues = self.dev[:, QUEUES].copy()
        queues[queues < 0] = n
        gone = (queues < n) & ~keep[queues]
        queues[gone] = follows[queues[gone]]
        self.dev[:, QUEUES] = number[queues]
        tail = np.full(self.size + 1, -1, np.int64)
        tail[self.row[kept, K.ON_DEVICE]] = number[kept]
        self.dev[:, K.Q_TAIL] = tail
        self.row[:n, K.FOLLOWS] = number[follows[:n]]
        events = self.heap[: int(self.counter[0])]
        named = np.flatnonzero(np.isin(events[:, K.HEAP_WHAT], (K.RELEASE, K.ARRIVE_DOWN, K.ARRIVE_UP)))
        ids = number[events[named, K.HEAP_ID]]
        events[named, K.HEAP_ID] = ids
        events[named[ids < 0], K.HEAP_WHAT] = K.NOTHING
        edge = self.edge[: self.edges]
        edge[:] = number[edge]
        self.row[: len(kept), : K.LOG] = self.row[kept, : K.LOG]
        for x in self.slots.values():
            length = x.last - x.first
            x.first = int(number[x.first])
            x.last = x.first + length
        self.counter[2], self.counter[3] = len(kept), 0
        self.logged = 0

    # ----------------------------------------------------------------------------------------------------- advance

    def advance(self, until_ns: int) -> list[tuple[Running, Notice]] | Trouble:
        """Run to the next instant with something to tell, at most to ``until_ns``; returns what to tell, or trouble."""
        while True:
            self.run("advance", min(until_ns, FAR - 1), tail=True)
            why, at, device = (int(x) for x in self.answer)
            if why == K.GROW:
                self.room(len(self.heap))
                continue
            if why == K.STUCK:
                return self.stuck(device)
            return self.collect(at) if why == K.NOTICE else []

    def stuck(self, device: int) -> Trouble:
        """Name the row whose transfer can never end."""
        rows = self.row[: self.rows]
        i = int(np.flatnonzero((rows[:, K.ON_DEVICE] == device) & (rows[:, K.STATE] == K.WAITING))[0])
        x = next(x for x in self.slots.values() if x.first <= i < x.last)
        return Trouble(x.running, i - x.first, f"{NEVER_ENDS}, or {TRACE_ENDED}")

    def collect(self, now_ns: int) -> list[tuple[Running, Notice]]:
        """Notices of all dispatches that have something to tell now, by serial."""
        told: list[tuple[Running, Notice]] = []
        fresh = np.sort(self.row[self.logged : int(self.counter[3]), K.LOG])
        self.logged = int(self.counter[3])
        if not len(fresh) and not self.counter[5]:
            return told
        owner = self.row[fresh, K.OF_DISPATCH]
        touched = [self.at_place[place] for place in set(owner.tolist())]  # only rows that settled set a flag
        for x in sorted(touched, key=lambda x: x.running.serial):
            x.fresh.append(fresh[owner == x.place] - x.first)
            if not self.disp[x.place, K.D_FLAG]:
                continue
            self.disp[x.place, K.D_FLAG] = 0
            self.counter[5] -= 1
            new = np.sort(np.concatenate(x.fresh))
            x.fresh = []
            state = self.row[x.first : x.last, K.STATE]
            last = int(self.disp[x.place, K.D_LEFT]) == 0
            done_new, lost_new = new[state[new] == K.DONE], new[state[new] == K.LOST]
            done_all = int(self.disp[x.place, K.D_DONE])
            done: IntArray | None = None
            tell = x.running.tell(done_all - len(done_new), done_all, last=last)
            if tell == "these" and len(done_new):
                done = done_new
            elif tell == "all":
                done = np.flatnonzero(state == K.DONE)
            told.append((x.running, Notice(now_ns, done, lost_new if len(lost_new) else None, last=last)))
            if last:
                x.running.times[:] = self.row[x.first : x.last, K.DOWN_START : K.SETTLED + 1].T
                x.running.lost[:] = state == K.LOST
                if x.running.clocked is not None:
                    x.running.worked[:] = self.row[x.first : x.last, K.WORKED]
                for start in (0, 2, 4):  # what would have begun at the very instant of the loss did not
                    never = (x.running.lost == 1) & (x.running.times[start] >= x.running.times[6])
                    x.running.times[start : start + 2, never] = -1
                del self.slots[x.running.serial], self.at_place[x.place]
        return told

    # ------------------------------------------------------------------------------------------------------- churn

    def leave(self, devices: IntArray, now_ns: int) -> list[tuple[Running, Notice]]:
        """Devices leave: what they have not finished is lost.  Returns what has to be told."""
        self.off[devices] = now_ns
        if not self.pending:
            return []
        self.room(16 * self.pending + 64)
        for d in devices.tolist():
            self.run("drop_device", d, now_ns)
        for d in np.intersect1d(devices, self.row[: self.rows, K.PEER]).tolist():
            self.run("withdraw", 0, self.rows, d, now_ns)
        return self.collect(now_ns)

    def join(self, devices: IntArray, now_ns: int, off_ns: IntArray) -> None:  # noqa: ARG002 - both lanes have it
        """Devices are back with empty queues."""
        self.off[devices] = off_ns

    def withdraw(self, running: Running, now_ns: int) -> list[tuple[Running, Notice]]:
        """Withdraw a dispatch now.  Returns what has to be told."""
        x = self.slots.get(running.serial)
        if x is None:  # every row has settled at this very instant
            return []
        self.room(16 * self.pending + 64)
        self.run("withdraw", x.first, x.last, -1, now_ns)
        return self.collect(now_ns)
