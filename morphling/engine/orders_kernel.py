"""Standing orders that one kernel carries out, joins and leaves among it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from morphling.engine.closed_lane import NEVER_ENDS, TRACE_ENDED, ClosedLane, Trouble, views
from morphling.engine.compiled import is_loaded, kernels
from morphling.engine.faults import never_finishes
from morphling.engine.heat import watch
from morphling.engine.kernels import records as K  # noqa: N812 - a table of column names
from morphling.engine.kernels.records import ClosedRows, Heat, Order, Times
from morphling.engine.orders import OrderByDispatch, recorded
from morphling.engine.running import Running
from morphling.interfaces.strategy import All, Decisions, Progress, Sent, StandingOrder
from morphling.interfaces.view import View
from morphling.planning.idle import BLOCK
from morphling.types import IntArray

if TYPE_CHECKING:
    from morphling.engine.engine import Engine

__all__ = ["OrderInKernel"]

COMPILE_AFTER = 5_000
"""Starts after which compiling pays."""

ROOM = 1_024
NOBODY = np.zeros(0, np.int64)


class OrderInKernel(OrderByDispatch):
    """The state of an order as the kernel has it; it runs ahead to the next news, which is then told at its instant."""

    def __init__(self, engine: Engine, order: StandingOrder, sent: Sent) -> None:
        super().__init__(engine, order, sent)
        assert isinstance(engine.lane, ClosedLane)  # noqa: S101 - the caller's condition
        assert self.durations is not None  # noqa: S101 - likewise
        self.lane, tasks, n = engine.lane, order.tasks, len(order.tasks)
        full, clocked = self.durations
        self.rows = ClosedRows(
            tasks.device,
            tasks.bytes_in,
            tasks.bytes_out,
            tasks.overlap,
            tasks.release_ns,
            tasks.dep_ptr,
            tasks.dep_idx,
            full,
            full if clocked is None else clocked,
        )
        time, who, until = engine.agenda
        limit = min(order.at_once, n)
        warm = 0 if engine.heat is None else n
        state = np.zeros(K.ORDER_STATES, np.int64)
        state[K.AT_ONCE], state[K.REPLACED], state[K.MOMENT_NOW] = limit, -1, engine.now_ns
        self.synced = int(np.searchsorted(time, engine.now_ns, "right"))  # until now the engine has done it
        state[K.AGENDA_AT] = state[K.HEARD] = self.synced
        self.state = state
        self.order_arrays = Order(
            state,
            self.row_of,
            np.zeros(n, np.int64),
            np.full(n, K.IS_AWAY, np.int64),
            np.zeros((limit + 1, 2), np.int64),
            np.zeros(ROOM, np.int64),
            np.zeros(ROOM, np.int64),
            np.zeros(order.every, np.int64),
            np.zeros(ROOM, np.int64),
            np.zeros(BLOCK),
            engine.online.view(np.uint8),
            time,
            who,
            until,
            np.zeros((warm, K.STATES)),
            np.zeros((warm, 2), np.int64),
        )
        self.times = Times._make(
            (*np.full((7, ROOM), -1, np.int64), np.zeros(ROOM, np.uint8), np.zeros(ROOM, np.int64))
        )
        self.untold = False
        self.rebuild()

    def rebuild(self) -> None:
        """Make the arguments of both kernels again after an array was replaced."""
        out, part = self.times, self.lane.one_part
        self.compiled_args = (self.lane.links, self.lane.devices, self.rows, out, self.order_arrays)
        self.fixed = (
            self.lane.link_views,
            self.lane.device_views,
            views(self.rows),
            views(out),
            views(self.order_arrays),
        )
        self.parts: Any = part, memoryview(part)  # type: ignore[arg-type] # numpy arrays are buffers
        self.heats: Any = self.lane.heat, self.lane.heat_views

    # ------------------------------------------------------------------------------------------------------- the order

    def start(self) -> None:
        """Whoever is here is idle; the places are filled when the kernel runs next, which is at this instant."""
        o, here = self.order_arrays, np.flatnonzero(self.engine.online[self.order.tasks.device])
        o.idle[: len(here)] = here
        o.place[here] = np.arange(len(here))
        self.state[K.IDLE], self.state[K.FILLING] = len(here), 1
        self.engine.agenda_turn += 1  # from now on joins and leaves are done here
        self.draw()
        if self.engine.heat is not None:
            self.follow(here.tolist(), self.engine.heat)

    def draw(self) -> None:
        """Random numbers for the next draws."""
        self.order_arrays.number[:] = self.engine.view.random("selection").random(BLOCK)
        self.state[K.DRAWS] = BLOCK

    def follow(self, idle: list[int], heat: Heat) -> None:
        """Follow the heat of the first of each group to be drawn now: the table has many who never are."""
        for number in self.order_arrays.number[::-1][: min(int(self.state[K.AT_ONCE]), len(idle), BLOCK)]:
            at = int(number * len(idle))
            row, idle[at] = idle[at], idle[-1]
            idle.pop()
            watch(heat, self.engine.fleet, self.order.tasks.take([row]))
        watch(heat, self.engine.fleet, self.order.tasks)  # groups of which nobody is drawn now

    def advance(self, until_ns: int) -> bool:
        """Run to the next news, at most to ``until_ns``; returns whether there are any, to be told at their instant."""
        if self.untold:
            return False
        state, lane = self.state, self.lane
        while True:
            started = int(state[K.STARTED])
            compiled = lane.force if lane.force is not None else is_loaded() or started > COMPILE_AFTER
            args = self.compiled_args if compiled else self.fixed
            run = kernels(compiled=compiled).order_run
            why = run(*args, lane.size, self.parts[not compiled], until_ns, self.heats[not compiled])
            if why == K.DRAW:
                self.draw()
            elif why == K.GROW:
                self.grow()
            else:
                break
        if why == K.STUCK:
            raise self.stuck()
        if why == K.NOTICE:
            self.untold = True
            self.engine.at(int(state[K.MOMENT_NOW]), self.sent.serial, self.tell)
            return True
        self.sync()
        moment = int(state[K.MOMENT_NOW])
        if moment > self.engine.now_ns:  # the clock goes on to the last join or leave, even if nothing comes of it
            self.untold = True
            self.engine.at(moment, self.sent.serial, self.arrive)
            return True
        return False

    def arrive(self) -> None:
        """The clock is where the order is."""
        self.untold = False

    def grow(self) -> None:
        """Room for more starts, or for more rows that are lost before the next news."""
        o = self.order_arrays
        if self.state[K.STARTED] == len(o.row):
            self.times = Times._make(np.concatenate([x, x]) for x in self.times)
            o = o._replace(row=np.concatenate([o.row, o.row]), after=np.concatenate([o.after, o.after]))
        if self.state[K.LOST_NEW] == len(o.lost):
            o = o._replace(lost=np.concatenate([o.lost, o.lost]))
        self.order_arrays = o
        self.rebuild()

    def tell(self) -> None:
        """Tell the strategy how far the order is."""
        state, o, engine = self.state, self.order_arrays, self.engine
        if engine.order is not self:
            return
        self.untold = False
        done, lost = o.done, o.lost[: state[K.LOST_NEW]]
        gone, when = (o.row[lost], self.times.settled[lost]) if len(lost) else (NOBODY, NOBODY)
        news = Progress(o.row[done], o.after[done], gone, when, int(state[K.STARTED]), int(state[K.UNDER_WAY]))
        state[K.DONE_NEW] = state[K.LOST_NEW] = 0
        engine.rows_settled += len(news.done) + len(news.lost)
        if engine.progress is not None:
            engine.progress(engine.now_ns / 1e9, engine.rows_settled)
        engine.decide(engine.strategy.on_progress(self.sent, news, engine.view))

    def sync(self) -> None:
        """Enter joins and leaves that the kernel has carried out into the engine's list of them."""
        time, who, until = self.engine.agenda
        at = int(self.state[K.AGENDA_AT])
        if at > self.synced:
            new = slice(self.synced, at)
            self.engine.churn.extend(
                zip(time[new].tolist(), who[new].tolist(), (until[new] >= 0).tolist(), strict=True)
            )
            self.synced, self.engine.alone = at, 0

    def end(self) -> None:
        """Withdraw what is under way; record all that was started; joins and leaves are the engine's again."""
        state, now, times = self.state, self.engine.now_ns, self.times
        self.sync()
        n = int(state[K.STARTED])
        cut = self.under_way()
        if self.lane.heat is not None:
            for start in cut.tolist():
                self.cool_back(start, self.lane.heat)
        for begun, ended in zip(times[0:6:2], times[1:6:2], strict=True):
            late = cut[ended[cut] > now]
            ended[late] = -1
            never = cut[begun[cut] >= now]
            begun[never] = ended[never] = -1
        times.settled[cut] = now
        times.lost[cut] = 1
        rows = self.order_arrays.row[:n].copy()
        for column in self.lane.devices[:3]:
            column[self.rows.device[rows[cut]]] = now
        worked = self.rows.duration[rows] if self.lane.heat is None else times.worked[:n].copy()
        kept = (*(x[:n].copy() for x in times[:7]), worked)
        self.engine.records.append(recorded(self.sent, self.time_ns, rows, kept, times.lost[:n].astype(bool)))
        self.engine.rows_settled += len(cut)
        self.engine.serial += n
        self.engine.turn(int(state[K.AGENDA_AT]))

    def cool_back(self, start: int, heat: Heat) -> None:
        """A row that is withdrawn has warmed its device until now and no longer; play it again up to now."""
        row = int(self.order_arrays.row[start])
        device, began = int(self.rows.device[row]), int(self.times.down_start[start])
        heat.state[device, : K.STATES] = self.order_arrays.warm[row]
        heat.clock[device, [K.SINCE, K.ACTS_AT]] = self.order_arrays.warm_at[row]
        for column in self.lane.devices[:3]:
            column[device] = began
        part, tasks = slice(row, row + 1), self.order.tasks.take([row])
        again = Running(
            self.sent.serial,
            replace(self.sent, tasks=tasks),
            All(),
            began,
            self.rows.duration[part],
            clocked=self.rows.clocked[part],
            cut_ns=self.engine.now_ns,
        )
        self.lane.resolve(again)
        self.times.worked[start] = again.worked[0]

    def on_joined(self, devices: IntArray, view: View) -> Decisions:  # noqa: ARG002 - the order is told
        """They came at the instant at which the order was given, which knew of them."""
        return ()

    def on_left(self, devices: IntArray, view: View) -> Decisions:  # noqa: ARG002 - the order is told
        """They left at the instant at which the order was given, which knew of it."""
        return ()

    # ------------------------------------------------------------------------------------------------- for error texts

    def under_way(self) -> IntArray:
        """Which starts are not settled by now."""
        numbers = self.order_arrays.due[: int(self.state[K.UNDER_WAY]), 1]
        return np.sort(numbers[self.times.settled[numbers] > self.engine.now_ns])

    @property
    def on_the_way(self) -> bool:
        """Whether rows settle, or devices join or leave, some time."""
        return bool(self.state[K.UNDER_WAY] > 0 or self.state[K.AGENDA_AT] < len(self.order_arrays.agenda_time))

    def words(self) -> str:
        """Which rows are under way."""
        rows = self.under_way()
        if not len(rows):
            return ""
        device = self.rows.device[self.order_arrays.row[rows[0]]]
        return f"standing order {self.sent.label!r}: {len(rows)} rows, such as one on device {device}"

    def stuck(self) -> Exception:
        """The row just started can never settle."""
        row, why = int(self.order_arrays.row[self.state[K.STARTED] - 1]), int(self.state[K.TROUBLE]) % 4
        running = Running(self.sent.serial, self.sent, All(), self.time_ns, self.rows.duration)
        return never_finishes(self.engine, Trouble(running, row, NEVER_ENDS if why == 1 else TRACE_ENDED))
