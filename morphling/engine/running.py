"""A dispatch in flight, and the notices it owes its strategy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from morphling.interfaces.recording import DispatchRecord
from morphling.interfaces.strategy import All, Each, Quorum, Sent
from morphling.interfaces.tasks import TaskTable
from morphling.types import IntArray

if TYPE_CHECKING:
    from morphling.engine.orders import OrderByDispatch

__all__ = ["Notice", "Running"]


class Notice(NamedTuple):
    """At one instant: rows done and rows lost to tell, and whether the dispatch is over.

    ``settled`` : all rows that settled then, told or not (closed lane).
    """

    time_ns: int
    done: IntArray | None
    lost: IntArray | None
    last: bool
    settled: IntArray | None = None

    def and_then(self, later: Notice) -> Notice:
        """Both as one: what rows did at an instant, and what the devices that left at it did to them."""
        return Notice(self.time_ns, _union(self.done, later.done), _union(self.lost, later.lost), last=later.last)


@dataclass(eq=False)
class Running:
    """One dispatch: its table, its times as they become known, and what has been told.

    ``durations`` are those at full clock; with heat, ``clocked`` is the part that a lower clock stretches and
    ``worked`` how long computing really took.  ``hears`` is the standing order that it belongs to, which hears of it
    instead of the strategy.
    """

    serial: int
    sent: Sent
    notify: All | Each | Quorum
    time_ns: int
    durations: IntArray
    times: IntArray = field(init=False)  # int64[7, n], the TIME_COLUMNS
    lost: np.ndarray[Any, np.dtype[np.uint8]] = field(init=False)
    clocked: IntArray | None = None
    worked: IntArray = field(init=False)
    cut_ns: int | None = None
    told_done: bool = False
    version: int = 0
    told_ns: int = -1
    untold: Notice | None = None
    hears: OrderByDispatch | None = None
    told_rows: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        n = len(self.sent.tasks)
        self.times = np.full((7, n), -1, np.int64)
        self.lost = np.zeros(n, np.uint8)
        self.worked = self.durations if self.clocked is None else np.zeros(n, np.int64)

    @property
    def tasks(self) -> TaskTable:
        """The dispatched rows."""
        return self.sent.tasks

    def telling(self, notice: Notice) -> None:
        """A notice is being told: remember how far the strategy has heard."""
        rows = np.zeros(0, np.int64) if notice.settled is None else notice.settled
        self.told_rows = np.concatenate([self.told_rows, rows]) if notice.time_ns == self.told_ns else rows
        self.told_ns = notice.time_ns

    def notices(self) -> Iterator[Notice]:
        """What has still to be told, in order, once all times are known (closed lane).

        Rows may settle at an instant of which some rows have been told already, where a withdrawal made room for them.
        """
        settled = self.times[6]
        if not len(settled):
            yield Notice(self.time_ns, np.zeros(0, np.int64), None, last=True)
            return
        end = int(settled.max())
        gone = self.lost.astype(bool)
        if len(settled) == 1 and self.told_ns < 0 and not gone[0]:
            every = np.zeros(1, np.int64)
            done = every if not isinstance(self.notify, Quorum) or self.notify.k == 1 else None
            yield Notice(end, done, None, last=True, settled=every)
            return
        whole = not gone.any()
        if isinstance(self.notify, All) and whole:
            yield Notice(end, np.arange(len(settled)), None, last=True, settled=np.flatnonzero(settled == end))
            return
        fresh = settled >= self.told_ns
        fresh[self.told_rows] = False
        order = np.argsort(settled, kind="stable")  # rows of one instant stay in order
        order = order[fresh[order]]
        at = settled[order]
        starts = np.flatnonzero(np.r_[True, at[1:] != at[:-1]]) if len(at) else np.zeros(0, np.int64)
        stops = np.r_[starts[1:], len(at)]
        groups = zip(starts.tolist(), stops.tolist(), at[starts].tolist(), strict=True)
        if whole and isinstance(self.notify, Each):
            for a, z, moment in groups:
                yield Notice(moment, order[a:z], None, moment == end, order[a:z])
            return
        done_so_far = int(np.count_nonzero(~gone & ~fresh))
        for a, z, moment in groups:
            rows = order[a:z]
            lost_rows = rows[gone[rows]]
            done_rows = rows[~gone[rows]]
            before, done_so_far = done_so_far, done_so_far + len(done_rows)
            last = moment == end
            tell = self.tell(before, done_so_far, last=last)
            if tell == "these":
                done = done_rows if len(done_rows) else None
            else:
                done = np.flatnonzero(~gone & (settled <= moment)) if tell == "all" else None
            if done is not None or len(lost_rows) or last:
                yield Notice(moment, done, lost_rows if len(lost_rows) else None, last=last, settled=rows)

    def tell(self, before: int, now: int, *, last: bool) -> str:
        """Which done rows an instant tells: ``these`` that finished now, ``all`` so far, or ``none``."""
        if isinstance(self.notify, Each):
            return "these"
        if isinstance(self.notify, Quorum):
            return "all" if before < self.notify.k <= now else "none"
        return "all" if last else "none"

    def record(self) -> DispatchRecord:
        """What the results keep of it, once it is settled."""
        return DispatchRecord(
            serial=self.serial,
            time_ns=self.time_ns,
            label=self.sent.label,
            settled_ns=int(self.times[6].max()) if len(self.tasks) else self.time_ns,
            tasks=self.tasks,
            times=(*self.times, self.worked),
            lost=self.lost.astype(bool),
        )


def _union(first: IntArray | None, second: IntArray | None) -> IntArray | None:
    if first is None or second is None:
        return second if first is None else first
    return np.union1d(first, second)
