"""Standing orders: rows that the engine starts by itself, each when one before it is done.

Two ways with the same rows, draws and instants.  `OrderByDispatch` sends each row as a dispatch of its own, through
whichever lane the run has.  `OrderInKernel` leaves it all to one kernel, joins and leaves among it: in the closed lane,
where the executor says how long a row takes whenever it starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from morphling.engine.closed_lane import ClosedLane
from morphling.engine.running import Running
from morphling.errors import EngineError
from morphling.interfaces.recording import DispatchRecord
from morphling.interfaces.strategy import All, Decisions, Dispatch, Each, Progress, Sent, StandingOrder
from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import View
from morphling.planning.idle import IdlePool
from morphling.types import BoolArray, IntArray

if TYPE_CHECKING:
    from morphling.engine.engine import Engine

__all__ = ["OrderByDispatch", "begin_order", "recorded", "refuse_order"]

EACH = Each()


def refuse_order(engine: Engine, order: StandingOrder) -> None:
    """``EngineError`` if an order cannot be carried out as written."""
    tasks, what = order.tasks, f"standing order {order.label!r}"
    if engine.order is not None or engine.running:
        raise EngineError(f"{what}: rows are under way; a standing order stands alone")
    if order.at_once < 1 or order.every < 1:
        raise EngineError(f"{what}: at_once and every are at least 1, not {order.at_once} and {order.every}")
    if not len(tasks) or len(np.unique(tasks.device)) < len(tasks) or tasks.device.max() >= engine.fleet.size:
        raise EngineError(f"{what}: it needs rows, each on a device of its own, none on the coordinator")
    if len(tasks.dep_idx) or tasks.release_ns.any() or (tasks.peer >= 0).any():
        raise EngineError(f"{what}: its rows wait for nothing: no dependencies, no release_ns, no peers")


def begin_order(engine: Engine, order: StandingOrder) -> OrderByDispatch:
    """Take an order on, in the faster way where that can serve."""
    from morphling.engine.orders_kernel import OrderInKernel  # noqa: PLC0415 - it is a kind of the other

    refuse_order(engine, order)
    engine.check(order.tasks, order.label)
    sent = Sent(engine.serial, order.tag, order.tasks, engine.now_ns / 1e9, order.label)
    engine.executor.sent(engine.serial, Dispatch(order.tasks, All(), order.tag, order.label), engine.strategy)
    engine.serial += 1
    fast = isinstance(engine.lane, ClosedLane) and engine.executor.stationary
    return (OrderInKernel if fast else OrderByDispatch)(engine, order, sent)


def recorded(sent: Sent, time_ns: int, rows: IntArray, times: tuple[IntArray, ...], lost: BoolArray) -> DispatchRecord:
    """What the results keep of an order: the rows that were started, in that order."""
    settled = int(times[6].max()) if len(rows) else time_ns
    return DispatchRecord(sent.serial, time_ns, sent.label, settled, sent.tasks.take(rows), times, lost)


class OrderByDispatch:
    """Each row that is started is a dispatch; their notices come here instead of to the strategy."""

    def __init__(self, engine: Engine, order: StandingOrder, sent: Sent) -> None:
        self.engine, self.order, self.sent = engine, order, sent
        self.time_ns = engine.now_ns
        self.row_of = np.full(engine.fleet.size, -1, np.int64)
        self.row_of[order.tasks.device] = np.arange(len(order.tasks))
        self.durations = engine.duration(order.tasks) if engine.executor.stationary else None
        self.tables: dict[int, TaskTable] = {}
        self.pool = IdlePool(engine.fleet.size)
        self.busy: set[int] = set()
        self.began: list[tuple[int, int]] = []  # device of each start, and how many had been done by then
        self.settled: dict[int, Running] = {}
        self.done_ever = 0
        self.done: list[int] = []
        self.lost: list[tuple[int, int]] = []

    def start(self) -> None:
        """Fill all places."""
        order = self.order.tasks.device
        self.pool.add(order[self.engine.online[order]].tolist())
        self.fill()

    def advance(self, until_ns: int) -> bool:  # noqa: ARG002 - as the other kind
        """Nothing to do: the lane brings the rows on.  Returns whether there is news before ``until_ns``."""
        return False

    @property
    def on_the_way(self) -> bool:
        """Whether anything of it is still to come that nobody else knows of."""
        return False

    def words(self) -> str:
        """What is under way and not in the engine's list of dispatches."""
        return ""

    # ---------------------------------------------------------------------------------------------- notices of a row

    def on_done(self, dispatch: Sent, rows: IntArray, view: View) -> Decisions:  # noqa: ARG002 - one row
        """A row is done: its device is idle, and another one starts."""
        device = self.began[dispatch.tag][0]
        self.busy.discard(device)
        self.done.append(dispatch.tag)
        self.done_ever += 1
        if len(self.done) == self.order.every:
            self.tell()
            if self.engine.end_reason is not None or self.engine.order is not self:
                return ()
        self.pool.put(device)
        self.fill()
        return ()

    def on_lost(self, dispatch: Sent, rows: IntArray, view: View) -> Decisions:  # noqa: ARG002 - one row
        """A device left: another one starts."""
        device = self.began[dispatch.tag][0]
        self.busy.discard(device)
        self.lost.append((dispatch.tag, view.now_ns))
        if view.online[device]:
            self.pool.put(device)
        self.fill()
        return ()

    def on_joined(self, devices: IntArray, view: View) -> Decisions:  # noqa: ARG002 - the order is told
        """They are idle."""
        self.pool.add(d for d in devices.tolist() if self.row_of[d] >= 0 and d not in self.busy)
        self.fill()
        return ()

    def on_left(self, devices: IntArray, view: View) -> Decisions:  # noqa: ARG002 - the order is told
        """They are not idle."""
        self.pool.remove(devices.tolist())
        return ()

    # -------------------------------------------------------------------------------------------------------- pieces

    def fill(self) -> None:
        """Start rows until enough are under way."""
        while len(self.busy) < self.order.at_once and (drawn := self.pool.draw(1, self.engine.view)):
            row = int(self.row_of[drawn[0]])
            tasks = self.tables.setdefault(row, self.order.tasks.take([row]))
            if self.durations is not None:
                full, clocked = self.durations
                part = slice(row, row + 1)
                self.engine.durations[id(tasks)] = tasks, full[part], None if clocked is None else clocked[part]
            self.busy.add(drawn[0])
            self.began.append((drawn[0], self.done_ever))
            self.engine.dispatch(Dispatch(tasks, EACH, len(self.began) - 1, self.order.label), self)

    def tell(self) -> None:
        """Tell the strategy how far it is."""
        row, after = (np.array(x, np.int64).reshape(-1) for x in zip(*(self.began[i] for i in self.done), strict=True))
        gone = [self.row_of[self.began[i][0]] for i, _ in self.lost]
        when = [t for _, t in self.lost]
        news = Progress(
            self.row_of[row], after, np.array(gone, np.int64), np.array(when, np.int64), len(self.began), len(self.busy)
        )
        self.done, self.lost = [], []
        self.engine.decide(self.engine.strategy.on_progress(self.sent, news, self.engine.view))

    def keep(self, running: Running) -> None:
        """A row is settled or withdrawn."""
        self.settled[running.sent.tag] = running

    def end(self) -> None:
        """Withdraw what is under way; record all that was started."""
        self.engine.withdraw([x for x in self.engine.running.values() if x.hears is self])
        n = len(self.began)
        each = [self.settled[i] for i in range(n)]
        times = np.concatenate([np.zeros((8, 0), np.int64), *(np.vstack([x.times, x.worked]) for x in each)], axis=1)
        lost = np.array([x.lost[0] for x in each], bool)
        rows = self.row_of[[device for device, _ in self.began]] if n else np.zeros(0, np.int64)
        self.engine.records.append(recorded(self.sent, self.time_ns, rows, tuple(times), lost))
