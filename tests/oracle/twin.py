"""The slow twin of the engine: textbook discrete-event simulation, a SimPy process for each stage of each row.

Queues are FIFO resources, links are walked in big integers, sharing is recomputed naively at every change.  Where
transfers are coupled by more than the coordinator (cells, peers, TCP) they all go through one naive network.  It serves
the same `Strategy` and `Executor` promises as the engine and is written from what they promise, not from the engine.

At one instant: rows settle, a half-duplex channel picks who goes next, devices leave and join, notices (by dispatch),
`on_left` and `on_joined`, timers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from morphling.fleet import Fleet
from morphling.interfaces.executor import Executor
from morphling.interfaces.strategy import (
    Cancel,
    Decisions,
    Dispatch,
    Done,
    Each,
    IterationDone,
    Quorum,
    Sent,
    Strategy,
    WakeAt,
)
from morphling.types import FAR_NS
from tests.oracle.exact_link import DOWN, UP, Link, SharedSide
from tests.oracle.network import Network, next_step
from tests.oracle.stages import END, SETTLED, STAGES, START, Batch, Channel, Place, Row, Stages

__all__ = ["Twin", "TwinDispatch", "TwinRecording"]

CHANNEL, CHURN, NOTICES, HOOKS, TIMERS = 2, 3, 10, 1 << 50, (1 << 50) + 1
"""Priorities at one instant; SimPy itself uses 0 and 1, and a dispatch's notices have NOTICES plus its serial."""


@dataclass
class TwinDispatch:
    """A settled dispatch: ``times`` int64[7, n], ``lost`` bool[n]."""

    serial: int
    time_ns: int
    label: str
    times: np.ndarray[Any, Any]
    lost: np.ndarray[Any, Any]


@dataclass
class TwinRecording:
    """What a run left behind."""

    dispatches: list[TwinDispatch]
    end_ns: int
    iteration_ends_ns: list[int]


class TwinView:
    """The part of the view that test strategies use."""

    def __init__(self, twin: Twin) -> None:
        self._twin = twin
        self.fleet = twin.fleet
        self.workload = None
        self.iterations = 1

    @property
    def now_s(self) -> float:
        """Virtual time, seconds."""
        return self._twin.now / 1e9

    @property
    def now_ns(self) -> int:
        """Virtual time, nanoseconds."""
        return self._twin.now

    @property
    def online(self) -> np.ndarray[Any, Any]:
        """Which devices are here now."""
        return self._twin.online.copy()


class Twin(Stages):
    """One run of a strategy on a fleet, the slow way."""

    def __init__(self, fleet: Fleet, strategy: Strategy, executor: Executor) -> None:
        self.fleet, self.strategy, self.executor = fleet, strategy, executor
        self.env = simpy.Environment()
        self.links = [Link(fleet.links, d) for d in range(fleet.size)]
        self.places = [Place(self.env) for _ in range(fleet.size + 1)]
        self.channels: list[Channel | None] = [Channel(self) if link.half_duplex else None for link in self.links]
        self.online = np.zeros(fleet.size, bool)
        self.batches: dict[int, Batch] = {}
        self.finished: list[TwinDispatch] = []
        self.iteration_ends: list[int] = []
        self.serial = 0
        self.ended = False
        self.view: Any = TwinView(self)
        self.shared: dict[int, SharedSide] = {}
        self.network: Network | None = None
        if strategy.uses_peers or fleet.links.cells is not None or fleet.links.tcp is not None:
            self.network = Network(self.env, fleet.links, fleet.coordinator)
        for side, capacity in ((DOWN, fleet.coordinator.uplink_bps), (UP, fleet.coordinator.downlink_bps)):
            peaks = sum(max(rates[side] for rates in link.rates) for link in self.links)
            if capacity is not None and peaks > capacity * 1000:
                self.shared[side] = SharedSide(self.env, side, capacity)

    # ------------------------------------------------------------------------------------------------------ the run

    @property
    def now(self) -> int:
        """Virtual time, nanoseconds."""
        return int(self.env.now)

    def at(self, time_ns: int, priority: int, call: Callable[..., None], *args: Any) -> None:
        """Call at a time, after everything of a lower priority at that instant."""
        event: Any = simpy.Event(self.env)
        event.callbacks.append(lambda _: call(*args))
        event._ok, event._value = True, None
        self.env.schedule(event, priority=priority, delay=time_ns - self.now)  # type: ignore[arg-type]

    def when_quiet(self, call: Callable[[], None]) -> None:
        """Call once everything else at this instant has happened to the rows."""
        self.at(self.now, CHANNEL, call)

    def run(self) -> TwinRecording:
        """Replay until the strategy says `Done`."""
        self.start_churn()
        self.decide(self.strategy.start(self.view))
        while not self.ended:
            next_step(self.env)
        self.withdraw(list(self.batches))
        finished = sorted(self.finished, key=lambda d: d.serial)
        return TwinRecording(finished, self.now, self.iteration_ends)

    def decide(self, decisions: Decisions | None) -> None:
        """Carry out what a hook returned."""
        listed: Iterable[Any] = decisions if isinstance(decisions, Iterable) else (decisions,)
        for decision in listed:
            if self.ended:
                return
            match decision:
                case None:
                    pass
                case Dispatch():
                    self.submit(decision)
                case Cancel(dispatch=serial):
                    self.withdraw([serial])
                case WakeAt(time_s=time_s, tag=tag):
                    self.at(round(time_s * 1e9), TIMERS, self.ring, tag)
                case IterationDone():
                    self.iteration_ends.append(self.now)
                case Done():
                    self.ended = True
                case _:
                    raise TypeError(decision)

    def ring(self, tag: Any) -> None:
        """A timer came due."""
        self.decide(self.strategy.on_timer(tag, self.view))

    def submit(self, decision: Dispatch) -> None:
        """Rows take their places in the queues, in table order."""
        table = decision.tasks
        sent = Sent(self.serial, decision.tag, table, self.now / 1e9, decision.label)
        batch = Batch(self.env, sent, decision.notify, self.executor.durations(table, self.now))
        self.batches[self.serial] = batch
        self.serial += 1
        self.lose([row for row in batch.rows if self.hopeless(row)])
        for row in batch.rows:
            if not row.over:
                if row.device == self.fleet.size:
                    row.tiles = 1
                self.enter(row)
                self.at(self.now + int(table.release_ns[row.index]), 1, self.loosen, row)
        if not batch.rows:
            self.notice(batch)

    def hopeless(self, row: Row) -> bool:
        """Whether the row's device is away, or the peer that its bits come from or go to."""
        away = row.device < self.fleet.size and not self.online[row.device]
        return bool(away or (row.needs_peer and not self.online[row.peer]))

    # ------------------------------------------------------------------------------------------- settling and notices

    def settle(self, row: Row) -> None:
        """The row is done."""
        row.batch.done += 1
        row.times[SETTLED] = self.now
        self.places[row.device].rows.remove(row)
        self.fresh(row)
        for follower in row.followers:
            self.loosen(follower)

    def lose(self, rows: list[Row]) -> None:
        """Rows are lost now, and with them all that wait for them."""
        cut = []
        while rows:
            row = rows.pop()
            if row.over:
                continue
            row.times[SETTLED] = self.now
            row.lost = True
            for stage in STAGES:  # what would have begun at this very instant did not
                if row.times[START[stage]] in {-1, self.now}:
                    row.times[START[stage]] = row.times[END[stage]] = -1
            cut.append(row)
            rows += row.followers
        for row in cut:  # nobody moves up before all of them are out
            self.free(row)
            self.fresh(row)

    def fresh(self, row: Row) -> None:
        """The row's dispatch may have something to tell at this instant."""
        row.batch.left -= 1
        row.batch.fresh.append(row)
        self.notice(row.batch)

    def notice(self, batch: Batch) -> None:
        """Look at the dispatch when its turn comes, still at this instant."""
        if not batch.noticed:
            batch.noticed = True
            self.at(self.now, NOTICES + batch.sent.serial, self.tell, batch)

    def tell(self, batch: Batch) -> None:
        """Tell the strategy what happened to a dispatch."""
        batch.noticed = False
        if batch.withdrawn:
            return
        fresh, batch.fresh = batch.fresh, []
        lost = sorted(row.index for row in fresh if row.lost)
        told = self.owed(batch, sorted(row.index for row in fresh if not row.lost))
        if batch.over:
            self.record(batch)
        if lost:
            self.decide(self.strategy.on_lost(batch.sent, np.array(lost, np.int64), self.view))
        if told is not None and not self.ended and not batch.withdrawn:
            self.decide(self.strategy.on_done(batch.sent, np.array(told, np.int64), self.view))

    def owed(self, batch: Batch, fresh: list[int]) -> list[int] | None:
        """The done rows that ``notify`` asks to hear of at this instant, if any."""
        if isinstance(batch.notify, Each):
            return fresh or None
        due = batch.done >= batch.notify.k if isinstance(batch.notify, Quorum) else batch.over
        if batch.told or not due:
            return None
        batch.told = True
        return [row.index for row in batch.rows if row.over and not row.lost]

    def withdraw(self, serials: list[int]) -> None:
        """The strategy does not want these rows any more."""
        batches = [self.batches[serial] for serial in serials if serial in self.batches]
        for batch in batches:
            batch.withdrawn = True
        self.lose([row for batch in batches for row in batch.rows])
        for batch in batches:
            self.record(batch)

    def record(self, batch: Batch) -> None:
        """A dispatch is over; cancelling it again would do nothing."""
        if self.batches.pop(batch.sent.serial, None) is not None:
            times = np.array([row.times for row in batch.rows], np.int64).reshape(-1, 7).T
            lost = np.array([row.lost for row in batch.rows], bool)
            self.finished.append(TwinDispatch(batch.sent.serial, batch.time_ns, batch.sent.label, times, lost))

    # -------------------------------------------------------------------------------------------------------- churn

    def start_churn(self) -> None:
        """Who is here, and who comes and goes."""
        availability = self.fleet.availability
        changes: dict[int, tuple[list[int], list[int]]] = {}
        for device in range(self.fleet.size):
            for j in range(int(availability.ptr[device]), int(availability.ptr[device + 1])):
                start, end = int(availability.start_ns[j]), int(availability.end_ns[j])
                if start <= 0 < end:
                    self.online[device] = True
                if start > 0:
                    changes.setdefault(start, ([], []))[1].append(device)
                if end < FAR_NS:
                    changes.setdefault(end, ([], []))[0].append(device)
        for time, (left, joined) in changes.items():
            self.at(time, CHURN, self.change, sorted(left), sorted(joined))

    def change(self, left: list[int], joined: list[int]) -> None:
        """Devices leave and join now."""
        self.online[left] = False
        self.online[joined] = True
        rows = [row for place in self.places for row in place.rows]
        self.lose([row for row in rows if row.device in left or (row.needs_peer and row.peer in left)])
        for device in joined:
            self.places[device] = Place(self.env)
            if self.network is not None:
                self.network.forget(device)
        self.at(self.now, HOOKS, self.announce, left, joined)

    def announce(self, left: list[int], joined: list[int]) -> None:
        """Tell the strategy who left and who joined."""
        if left:
            self.decide(self.strategy.on_left(np.array(left, np.int64), self.view))
        if joined and not self.ended:
            self.decide(self.strategy.on_joined(np.array(joined, np.int64), self.view))
