"""The engine: SimPy for decisions, array kernels for the mass of sub-tasks, one clock for both.

At one instant things happen in this order: rows settle, devices leave and join, the strategy hears of rows (by dispatch
serial), of devices that left or joined, and of timers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import simpy

from morphling.engine.battery import Batteries
from morphling.engine.calls import Call
from morphling.engine.checks import check_rows
from morphling.engine.closed_lane import ClosedLane, Trouble
from morphling.engine.event_lane import EventLane
from morphling.engine.faults import forsaken, given_up, never_finishes, nothing_left, pending, too_late
from morphling.engine.heat import heat_arrays, heat_record, watch
from morphling.engine.kernels.records import FAR
from morphling.engine.lanes import lane_of
from morphling.engine.orders import OrderByDispatch, begin_order
from morphling.engine.running import Notice, Running
from morphling.engine.view import EngineView
from morphling.errors import EngineError, RunError
from morphling.fleet import Fleet
from morphling.interfaces.executor import Executor
from morphling.interfaces.recording import DispatchRecord, Recording, events_sha256
from morphling.interfaces.strategy import (
    Cancel,
    Decision,
    Decisions,
    Dispatch,
    Done,
    IterationDone,
    Quorum,
    Sent,
    StandingOrder,
    Strategy,
    WakeAt,
)
from morphling.interfaces.tasks import TaskTable
from morphling.types import IntArray
from morphling.workload import Workload

__all__ = ["Engine"]

CHURN_FIRST, HOOKS, TIMERS = -1, 1 << 50, (1 << 50) + 1
"""Priorities at one instant; a dispatch's notices have its serial, which lies between."""

LARGE_FLEET = 1_000
"""Devices from which on the kernels run compiled from the start; smaller fleets start interpreted (see the lanes)."""

INFINITE = float("inf")

STANDSTILL = 100_000
"""Decisions at one instant after which the clock is said to stand still; and timers after which a run is given up in
which nobody is online, nobody comes any more, and virtual time has no limit."""


class Engine:
    """One run of a strategy on a fleet.

    Parameters
    ----------
    iterations : training iterations the strategy is asked for
    horizon_s : virtual time after which the run is refused as endless, seconds (None: no limit)
    compiled : run the kernels compiled (True), interpreted (False) or as the amount of work suggests (None)
    lane : ``closed`` or ``events`` to force a lane (``closed`` is refused where something is shared); None chooses
    heat : whether devices whose profile says how they warm do so
    progress : called now and then with (virtual seconds, rows settled)
    """

    def __init__(
        self,
        fleet: Fleet,
        workload: Workload,
        strategy: Strategy,
        executor: Executor,
        *,
        seed: int = 0,
        iterations: int = 1,
        horizon_s: float | None = None,
        compiled: bool | None = None,
        lane: str | None = None,
        heat: bool = True,
        progress: Callable[[float, int], None] | None = None,
    ) -> None:
        self.fleet, self.workload, self.strategy, self.executor = fleet, workload, strategy, executor
        self.seed, self.iterations, self.progress = seed, iterations, progress
        self.max_ns = FAR - 1 if horizon_s is None else round(horizon_s * 1e9)
        self.horizon_ns = min(self.max_ns, fleet.availability.limit_ns)
        self.env = simpy.Environment()
        self.online = np.zeros(fleet.size, bool)
        self.view = EngineView(self)
        self.running: dict[int, Running] = {}
        self.records: list[DispatchRecord] = []
        self.durations: dict[int, tuple[TaskTable, IntArray, IntArray | None]] = {}
        self.checked: dict[int, TaskTable] = {}
        self.iteration_ends: list[int] = []
        self.churn: list[tuple[int, int, bool]] = []
        self.timers = self.serial = 0
        self.rows_settled = 0
        self.standing = self.alone = 0
        self.end_reason: str | None = None
        if compiled is None and fleet.size >= LARGE_FLEET:
            compiled = True
        self.battery = None if fleet.battery is None else Batteries(self, fleet.battery)
        self.heat = heat_arrays(fleet) if heat and fleet.thermal is not None and fleet.thermal.slows.any() else None
        peers, batteries = strategy.uses_peers, self.battery is not None
        self.lane = lane_of(fleet, lane, peers=peers, batteries=batteries, heat=self.heat, compiled=compiled)
        self.order: OrderByDispatch | None = None
        self.agenda_turn = 0

    @property
    def now_ns(self) -> int:
        """Virtual time, nanoseconds."""
        return int(self.env.now)

    # --------------------------------------------------------------------------------------------------------- run

    def run(self) -> Recording:
        """Replay until the strategy says `Done`.  Raises ``EngineError`` where going on would give a wrong number."""
        if self.fleet.size == 0:
            raise EngineError("the fleet has no devices")
        try:
            self.start_churn()
            self.proceed(self.strategy.start(self.view))
            return self.recording()
        finally:
            self.lane.stop()

    def proceed(self, decisions: Decisions | None) -> None:
        """The main loop: carry out decisions, and what follows from them until the strategy says `Done`."""
        self.end_reason = None
        self.decide(decisions)
        events = self.lane if isinstance(self.lane, EventLane) else None
        while self.end_reason is None:
            peeked = self.env.peek()
            upcoming = FAR if peeked == INFINITE else int(peeked)
            if events is not None and events.pending:
                told = events.advance(min(upcoming, self.horizon_ns))
                if isinstance(told, Trouble):
                    raise never_finishes(self, told)
                if told:
                    self.schedule(told)
                    continue
            if self.order is not None and self.order.advance(min(upcoming, self.horizon_ns)):
                continue
            if upcoming >= FAR:
                raise self.no_more()
            if upcoming > self.horizon_ns:
                raise too_late(self)
            self.standing = self.standing + 1 if upcoming == self.env.now else 0
            if self.standing > STANDSTILL:
                raise EngineError(
                    f"the clock stands still at {self.now_ns / 1e9:.9g} s for {STANDSTILL} decisions; {pending(self)}"
                )
            self.env.step()

    def recording(self) -> Recording:
        """What happened until now; rows still in flight are withdrawn."""
        end = self.now_ns
        self.withdraw(list(self.running.values()))
        self.end_order()
        self.records.sort(key=lambda r: r.serial)
        churn = np.array(self.churn, np.int64).reshape(-1, 3)
        return Recording(
            dispatches=self.records,
            end_ns=end,
            iteration_ends_ns=self.iteration_ends,
            churn=(churn[:, 0].copy(), churn[:, 1].astype(np.int32), churn[:, 2].astype(bool)),
            events_sha256=events_sha256(self.records),
            heat=None if self.heat is None else heat_record(self.heat, self.fleet),
            battery=None if self.battery is None else self.battery.record(),
        )

    def no_more(self) -> RunError:
        """Nothing comes before the limit: rows are still on their way when it passes, or nothing ever comes."""
        late = too_late(self)
        on_the_way = isinstance(self.lane, EventLane) and self.lane.pending and self.lane.advance(FAR)
        ordered = self.order is not None and self.order.on_the_way
        return late if on_the_way or ordered else nothing_left(self)

    def at(self, time_ns: int, priority: int, call: Callable[..., None], *args: Any) -> None:
        """Have SimPy make a call at ``time_ns``."""
        self.env.schedule(Call(self.env, call, args), priority=priority, delay=time_ns - self.env.now)  # type: ignore[arg-type] # any int

    # --------------------------------------------------------------------------------------------------- decisions

    def decide(self, decisions: Decisions | None) -> None:
        """Carry out what a hook returned."""
        if not decisions:  # None, or none of them; a decision itself is never false
            return
        listed: Iterable[Decision] = decisions if isinstance(decisions, list | Iterable) else (decisions,)
        for decision in listed:
            if self.end_reason is not None:
                return
            match decision:
                case Dispatch():
                    self.dispatch(decision)
                case StandingOrder():
                    self.order = begin_order(self, decision)
                    self.order.start()
                case Cancel(dispatch=serial):
                    self.cancel(serial)
                case WakeAt(time_s=time_s, tag=tag):
                    when = round(time_s * 1e9)
                    if when < self.now_ns and time_s < self.view.now_s:  # after weeks a float is coarser than 1 ns
                        raise EngineError(f"WakeAt({time_s!r}): that time is past, it is {self.now_ns / 1e9:.9g} s")
                    self.timers += 1
                    self.at(max(when, self.now_ns), TIMERS, self.ring, tag)
                case IterationDone():
                    self.iteration_ends.append(self.now_ns)
                case Done(reason=reason):
                    self.end_reason = reason
                case _:
                    raise EngineError(
                        f"{type(self.strategy).__name__} returned {decision!r}, "
                        "which is no Dispatch, StandingOrder, Cancel, WakeAt, IterationDone or Done"
                    )

    def dispatch(self, decision: Dispatch, order: OrderByDispatch | None = None) -> None:
        """Send rows, of a standing order if one is named."""
        tasks = decision.tasks
        if order is not self.order:
            raise EngineError(f"dispatch {decision.label!r}: a standing order is in force, which stands alone")
        self.check(tasks, decision.label)
        if isinstance(decision.notify, Quorum) and not 1 <= decision.notify.k <= len(tasks):
            raise EngineError(f"dispatch {decision.label!r}: a quorum of {decision.notify.k} of {len(tasks)} rows")
        sent = Sent(self.serial, decision.tag, tasks, self.now_ns / 1e9, decision.label)
        if order is None:
            self.executor.sent(self.serial, decision, self.strategy)
        durations, clocked = self.duration(tasks)
        running = Running(self.serial, sent, decision.notify, self.now_ns, durations, clocked=clocked, hears=order)
        if self.heat is not None:
            watch(self.heat, self.fleet, tasks)
        self.running[self.serial] = running
        self.serial += 1
        if len(tasks) == 0:
            notice = Notice(self.now_ns, np.zeros(0, np.int64), None, last=True)
            self.at(self.now_ns, running.serial, self.tell, running, notice, running.version)
            return
        if self.battery is not None:
            self.battery.sent(running)
        trouble = self.lane.submit(running)
        if trouble is not None:
            raise never_finishes(self, trouble)
        if isinstance(self.lane, ClosedLane):
            self.follow(running, running.notices())
        else:
            self.schedule(self.lane.collect(self.now_ns))

    def schedule(self, told: list[tuple[Running, Notice]]) -> None:
        """Have notices told at their instant, by dispatch serial; of one instant and dispatch, in one go."""
        for running, notice in told:
            if running.untold is None:
                running.untold = notice
                self.at(notice.time_ns, running.serial, self.tell_untold, running, running.version)
            else:
                running.untold = running.untold.and_then(notice)

    def tell_untold(self, running: Running, version: int) -> None:
        """Tell what has come together at this instant."""
        notice, running.untold = running.untold, None
        if notice is not None:
            self.tell(running, notice, version)

    def follow(self, running: Running, notices: Iterator[Notice]) -> None:
        """Schedule the next notice of a dispatch whose times are known."""
        notice = next(notices, None)
        if notice is not None:
            self.at(notice.time_ns, running.serial, self.tell, running, notice, running.version, notices)

    def tell(self, running: Running, notice: Notice, version: int, notices: Iterator[Notice] | None = None) -> None:
        """Tell the strategy what happened to a dispatch."""
        if version != running.version:
            return  # the dispatch was resolved again since
        if notices is not None:
            running.telling(notice)
            self.follow(running, notices)
        if notice.last:
            self.finish(running)
        hears = running.hears or self.strategy
        if notice.lost is not None:
            self.decide(hears.on_lost(running.sent, notice.lost, self.view))
        heard_out = notice.last or running.serial in self.running  # unless on_lost has just cancelled it
        if notice.done is not None and self.end_reason is None and heard_out:
            self.decide(hears.on_done(running.sent, notice.done, self.view))

    def finish(self, running: Running) -> None:
        """Every row of a dispatch is settled: record it."""
        if self.running.pop(running.serial, None) is None:
            return
        if isinstance(self.lane, ClosedLane):
            self.lane.close(running)
        if self.battery is not None:
            self.battery.settled(running)
        if running.hears is not None:
            running.hears.keep(running)
        else:
            self.records.append(running.record())
            self.view.observe(running)
        self.rows_settled += len(running.tasks)
        if self.progress is not None:
            self.progress(self.now_ns / 1e9, self.rows_settled)

    def ring(self, tag: Any) -> None:
        """A timer came due."""
        self.timers -= 1
        self.alone += 1
        if self.alone > STANDSTILL and self.horizon_ns >= FAR - 1 and forsaken(self):
            raise given_up(self, self.alone)
        self.decide(self.strategy.on_timer(tag, self.view))

    def cancel(self, serial: int) -> None:
        """Withdraw a dispatch."""
        running = self.running.get(serial)
        if running is None:
            if self.order is not None and serial == self.order.sent.serial:
                self.end_order()
                return
            if 0 <= serial < self.serial:
                return  # already settled: nothing to withdraw
            raise EngineError(f"Cancel({serial}): there is no such dispatch")
        self.withdraw([running])

    def end_order(self) -> None:
        """The standing order ends now, if there is one."""
        if self.order is not None:
            self.order.end()
            self.order = None

    def withdraw(self, withdrawn: list[Running]) -> None:
        """End dispatches now; their strategy asked for it, so it hears no more of them."""
        if not withdrawn:
            return
        for running in withdrawn:
            running.version += 1
        if isinstance(self.lane, EventLane):
            told = []
            for running in withdrawn:
                told += self.lane.withdraw(running, self.now_ns)
            self.schedule([x for x in told if x[0] not in withdrawn])
        else:
            for again in self.lane.withdraw(withdrawn, self.now_ns):
                if again not in withdrawn:  # rows behind the withdrawn ones start earlier now
                    again.version += 1
                    self.follow(again, again.notices())
        for running in withdrawn:
            self.finish(running)

    # ------------------------------------------------------------------------------------------------------- checks

    def duration(self, tasks: TaskTable) -> tuple[IntArray, IntArray | None]:
        """Ask the executor; once per table where durations depend on nothing else.

        Durations at full clock, and with heat the part that a lower clock stretches.
        """
        held = self.durations.get(id(tasks))
        if held is not None and held[0] is tasks:
            return held[1], held[2]
        durations = np.ascontiguousarray(self.executor.durations(tasks, self.now_ns), np.int64)
        if durations.shape != (len(tasks),) or (len(tasks) and durations.min() < 0):
            raise EngineError(
                f"executor {type(self.executor).__name__} gave durations of shape {durations.shape} or below 0"
            )
        clocked = None
        if self.heat is not None:
            clocked = np.ascontiguousarray(self.executor.clocked(tasks, durations), np.int64)
            if clocked.shape != durations.shape or np.any((clocked < 0) | (clocked > durations)):
                raise EngineError(f"executor {type(self.executor).__name__}: clocked parts outside 0 … duration")
        if self.executor.stationary:
            if len(self.durations) >= 512:
                self.durations.pop(next(iter(self.durations)))
            self.durations[id(tasks)] = (tasks, durations, clocked)
        return durations, clocked

    def check(self, tasks: TaskTable, label: str) -> None:
        """Refuse rows that no device could run as written; a table is looked at once."""
        if self.checked.get(id(tasks)) is tasks or not len(tasks):
            return
        check_rows(self.fleet, self.strategy, tasks, label)
        if len(self.checked) >= 512:
            self.checked.pop(next(iter(self.checked)))
        self.checked[id(tasks)] = tasks

    # -------------------------------------------------------------------------------------------------------- churn

    def start_churn(self) -> None:
        """Who is here at time 0, and the list of all later joins and leaves."""
        a = self.fleet.availability
        device = np.repeat(np.arange(a.size), np.diff(a.ptr))
        off = np.zeros(a.size, np.int64)
        here = (a.start_ns <= 0) & (a.end_ns > 0)
        self.online[device[here]] = True
        off[device[here]] = a.end_ns[here]
        if self.battery is not None:
            self.battery.start(off)
        everyone = np.arange(a.size)
        self.lane.leave(everyone[~self.online], 0)
        self.lane.join(everyone[self.online], 0, off[self.online])
        joins = a.start_ns > 0
        leaves = a.end_ns < FAR
        time = np.concatenate([a.start_ns[joins], a.end_ns[leaves]])
        who = np.concatenate([device[joins], device[leaves]])
        until = np.concatenate([a.end_ns[joins], np.full(int(leaves.sum()), -1)])
        order = np.lexsort((who, until >= 0, time))  # leaves before joins
        self.agenda = (time[order], who[order], until[order])
        self.turn(0)

    def turn(self, at: int) -> None:
        """Schedule the next instant of the agenda, starting at entry ``at``."""
        time = self.agenda[0]
        if at < len(time):
            stop = int(np.searchsorted(time, time[at], "right"))
            self.at(int(time[at]), CHURN_FIRST, self.change, at, stop, self.agenda_turn)

    def change(self, start: int, stop: int, turn: int) -> None:
        """Devices leave and join now, unless somebody else has taken the agenda over since."""
        if turn != self.agenda_turn:
            return
        who, until = self.agenda[1][start:stop], self.agenda[2][start:stop]
        left, joined, until = who[until < 0], who[until >= 0], until[until >= 0]
        if self.battery is not None:
            left, joined, until = self.battery.sessions(left, joined, until)
        self.move(left, joined, until)
        self.turn(stop)

    def move(self, left: IntArray, joined: IntArray, until: IntArray) -> None:
        """Devices leave now, and others come, for as long as ``until`` says."""
        now, self.alone = self.now_ns, 0
        if len(left):
            self.online[left] = False
            self.schedule(self.lane.leave(left, now))
            self.churn.extend((now, int(d), False) for d in left)
        if len(joined):
            self.online[joined] = True
            self.lane.join(joined, now, until)
            self.churn.extend((now, int(d), True) for d in joined)
        self.at(now, HOOKS, self.announce, left, joined)

    def announce(self, left: IntArray, joined: IntArray) -> None:
        """Tell the strategy who left and who joined."""
        if len(left):
            self.decide((self.order or self.strategy).on_left(left, self.view))
        if len(joined) and self.end_reason is None:
            self.decide((self.order or self.strategy).on_joined(joined, self.view))
