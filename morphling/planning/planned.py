"""`PlannedStrategy`: one placement, each iteration as one table, and a recovery that stops, plans, moves and goes on.

Authors write `plan` and `tasks`; a recovery of their own goes into `recover`.  Which device does what is decided in
their files; what belongs here is the order of things in time.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

from morphling.errors import Infeasible, PlanError
from morphling.interfaces.strategy import (
    Cancel,
    Covers,
    Decision,
    Decisions,
    Dispatch,
    Done,
    IterationDone,
    Sent,
    Strategy,
    WakeAt,
)
from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import View
from morphling.planning.delays import delay_range
from morphling.planning.group_costs import GroupCost
from morphling.planning.interruptions import Interruption
from morphling.planning.lacking import require_fit
from morphling.planning.moves import moved_bytes, restored, saved
from morphling.planning.placement import Placement, PlannedConfig, Recovery, assumed, holding
from morphling.planning.upkeep import Due, expected_s, now_and_then
from morphling.types import BoolArray, FloatArray, IntArray

__all__ = ["Placement", "PlannedConfig", "PlannedStrategy", "Recovery"]


class PlannedStrategy(Strategy):
    """A placement is made once, replayed for each iteration, and made again when devices of it leave.

    Each iteration is one dispatch of one table, in which rows may wait for each other.  When a device of the placement
    leaves, the iteration is given up once that is noticed; a new placement is made of who is here, states move over the
    links, and the iteration (or all since the last checkpoint) is done again.  If no placement exists for who is here,
    it waits for devices to come.
    """

    uses_peers: ClassVar[bool] = True
    repeats_work: ClassVar[bool] = True
    grows: ClassVar[bool] = False
    """Whether devices that come are taken in at the end of an iteration; otherwise only a new plan takes them in."""
    config: Any

    def __init__(self, config: Any = None) -> None:
        super().__init__(self.Config() if config is None else config)
        self.present: BoolArray = np.zeros(0, np.bool_)
        self.placement: Placement | None = None
        self.coming: Placement | None = None
        self.table: TaskTable | None = None
        self.cost: GroupCost | None = None
        self.estimated_s: float | None = None
        self.finished = self.reached = self.saved = 0
        self.began_ns = 0
        self.under_way = False
        self.hit = False
        self.serials = 0
        self.open: dict[int, Any] = {}
        self.done_serials: dict[int, int] = {}
        self.alarms: dict[int, tuple[int, IntArray]] = {}
        self.stateless: set[int] = set()
        self.newcomers: set[int] = set()
        self.lost_rows = 0
        self.loss_instants: list[int] = []
        self.interruptions: list[Interruption] = []
        self.attempt = 0
        self.last_iteration = self.owed = -1

    # ------------------------------------------------------------------------------------------- what authors write

    @abstractmethod
    def plan(self, view: View, here: IntArray) -> Placement:
        """A placement on some of the devices ``here`` (int64, ascending); ``Infeasible`` with the reason if none."""

    @abstractmethod
    def tasks(self, placement: Placement, view: View) -> TaskTable:
        """All rows of one iteration.  What devices hold is written into their first rows afterwards."""

    def estimate(self, placement: Placement, view: View) -> float | None:  # noqa: ARG002 - for those who can
        """Seconds of an iteration by a closed form, with nothing sent beside it; None if there is none."""
        return None

    def beside(self, placement: Placement, busy_s: FloatArray, view: View) -> float:
        """The same with uplinks that are taken at first, float64[D], seconds; by default it waits for all of them."""
        return (self.estimate(placement, view) or 0.0) + float(busy_s.max(initial=0.0))

    def paper(self, view: View, here: IntArray) -> GroupCost:  # noqa: ARG002 - for those who have one
        """The published formula, for ``model: paper``."""
        raise PlanError(f"{self.name} has no published model; use model: physical")

    def recover(self, view: View, old: Placement, new: Placement, gone: IntArray) -> Recovery:  # noqa: ARG002 - for others
        """By default all restart from the last checkpoint: every device of ``new`` fetches its states.

        old : the placement that was interrupted;  gone : its devices that no longer have their states
        """
        return Recovery(restored(new.devices, new.restored_bytes), from_checkpoint=True)

    def admit(self, view: View, old: Placement, new: Placement) -> TaskTable:
        """Moves when newcomers are taken in without an interruption (for those that grow)."""
        return self.recover(view, old, new, np.zeros(0, np.int64)).moves

    def handed_over(self, view: View) -> tuple[Placement, TaskTable, int] | None:  # noqa: ARG002 - for those who can
        """Between iterations: a placement without a device that has announced its exit, moves to it, and when it did.

        Instants in ns.  None if nobody has, or if there is no such placement.
        """
        return None

    def due(self, placement: Placement, finished: int) -> Due:  # noqa: ARG002 - the same for all plans
        """How many copies are to be sent beside the next iteration: by default a checkpoint now and then."""
        return now_and_then(self.config.checkpoint_every, finished)

    def upkeep(self, placement: Placement, due: Due, view: View) -> TaskTable:  # noqa: ARG002 - for copies elsewhere
        """Their rows, which only send."""
        return saved(placement.devices, due[1] * placement.saved_bytes)

    def kept(self, placement: Placement, finished: int) -> None:  # noqa: ARG002 - as above
        """What was due after ``finished`` iterations has all arrived: by default a checkpoint."""
        self.saved = max(self.saved, finished)

    def detection_range(self) -> tuple[float, float]:
        """The shortest and the longest time until a departure is noticed, seconds."""
        return delay_range(self.config.detection_s)

    def assumptions(self) -> list[str]:
        """Sentences for the report."""
        return []

    # ------------------------------------------------------------------------------------------------------- promises

    @property
    def is_paper(self) -> bool:
        """Whether a published formula stands for the run."""
        return getattr(self.config, "model", "physical") == "paper"

    @property
    def enforces_memory(self) -> bool:
        """A published formula has no rows."""
        return not self.is_paper

    @property
    def covers(self) -> Covers:
        """Whole layers of samples; a published formula covers nothing, because it has no rows."""
        return "none" if self.is_paper else "flops"

    # ---------------------------------------------------------------------------------------------------------- hooks

    def start(self, view: View) -> Decisions:
        """Plan on who is here, and begin."""
        self.present = np.array(view.online)
        if self.is_paper:
            here = np.flatnonzero(self.present)
            if len(here) < view.fleet.size:
                raise PlanError("model: paper knows no devices that come and go; use model: physical")
            self.cost = self.paper(view, here)
            self.estimated_s = self.cost.total_s
            return self._paper_iteration(view)
        everyone = np.arange(view.fleet.size)
        if not self.present.all():
            try:
                self._made(view, np.flatnonzero(self.present))
            except Infeasible as reason:
                self._made(view, everyone)  # if even that is infeasible, say so at once
                self.waiting_for = str(reason)
                return ()
        self._use(self._made(view, np.flatnonzero(self.present)), view)
        return self._iteration(view)

    def on_lost(self, dispatch: Sent, rows: IntArray, view: View) -> Decisions:  # noqa: ARG002 - counted, not read
        """Rows did not finish: the dispatch can no longer be completed.  Why is noticed later."""
        self.lost_rows += len(rows)
        self.loss_instants.append(view.now_ns)
        self.hit = True
        return ()

    def on_left(self, devices: IntArray, view: View) -> Decisions:
        """Whoever took part is missed after a while; nobody else is."""
        if self.is_paper:
            raise PlanError("model: paper knows no devices that come and go; use model: physical")
        self.newcomers -= set(devices.tolist())
        parts = [p.devices for p in (self.placement, self.coming) if p is not None]
        used = devices[np.isin(devices, np.concatenate(parts))] if parts else devices[:0]
        self.present[devices[~np.isin(devices, used)]] = False
        if not len(used):
            return ()
        alarm = len(self.alarms)
        self.alarms[alarm] = view.now_ns, used
        low, high = self.detection_range()
        delay = view.random("detection").uniform(low, high) if low < high else low
        return WakeAt(view.now_s + delay, ("notice", alarm))

    def on_joined(self, devices: IntArray, view: View) -> Decisions:
        """Newcomers wait for the next plan; if a plan waits for them, it is made."""
        self.present[devices] = True
        self.newcomers |= set(devices.tolist())
        if not self.waiting_for:
            return ()
        return self._replan(view)

    def on_timer(self, tag: Any, view: View) -> Decisions:
        """A departure is noticed, a plan is made, a set-up works, or a published iteration has passed."""
        what, number = tag
        if what == "notice":
            return self._noticed(number, view)
        if what == "paper":
            return self._paper_iteration(view)
        if number != self.attempt:
            return ()  # overtaken by another departure
        return self._planned(view) if what == "planned" else self._ready(view)

    def on_done(self, dispatch: Sent, rows: IntArray, view: View) -> Decisions:
        """An iteration, a checkpoint or the moves of a recovery are over."""
        what, number = dispatch.tag
        self.open.pop(dispatch.serial, None)
        if len(rows) < len(dispatch.tasks):
            return ()  # to be noticed
        if what == "upkeep":
            self.kept(*number)
            return self._finish(view)
        if what == "move":
            return self._moved(view)
        self.done_serials[number] = dispatch.serial
        return self._iteration_done(view)

    def report(self) -> dict[str, Any]:
        """Plan, estimate, memory, who was left out, recoveries, and what was assumed."""
        said = self.assumptions() if self.cost is None else self.cost.assumptions()
        out: dict[str, Any] = {"strategy": self.name, "assumptions": list(said)}
        if self.estimated_s is not None:
            out["estimate_s"] = float(self.estimated_s)
        if self.cost is not None:
            c = self.cost
            out |= {"model": "paper", "parts_s": dict(c.parts), "stages": c.stages, "micro_batches": c.micro_batches}
            out["not_replayed"] = "model: paper is a formula for the time of an iteration; nothing else is known of it"
        if self.placement is not None:
            out |= self.placement.record(len(self.present))
            out["assumptions"] += assumed(self.config, self.detection_range())
        out["recoveries"] = [x.record() for x in self.interruptions]
        return out

    # ------------------------------------------------------------------------------------------------------ iterations

    def _made(self, view: View, here: IntArray) -> Placement:
        """A placement that fits the devices' memory."""
        if not len(here):
            raise Infeasible("no device is online")
        placement = self.plan(view, here)
        names = view.fleet.names()
        require_fit(
            placement.memory,
            view.fleet.memory_bytes[placement.devices],
            what="device",
            names=[names[d] for d in placement.devices.tolist()],
        )
        return placement

    def _use(self, placement: Placement, view: View) -> None:
        self.placement, self.coming, self.waiting_for = placement, None, ""
        self.newcomers -= set(placement.devices.tolist())  # who was left out may be taken in later
        self.stateless.clear()
        self.table = holding(self.tasks(placement, view), placement)
        if self.estimated_s is None:
            self.estimated_s = expected_s(self, placement, view)

    def _send(self, tasks: TaskTable, tag: Any, label: str) -> Dispatch:
        self.open[self.serials] = tag
        self.serials += 1
        return Dispatch(tasks, tag=tag, label=label)

    def _iteration(self, view: View) -> list[Decision]:
        """Begin the next iteration, or one that has to be done again."""
        assert self.table is not None  # noqa: S101 - a placement is in use
        self.began_ns, self.under_way, self.hit = view.now_ns, True, False
        self.last_iteration = self.serials
        again = "recovery/replay " if self.finished < self.reached or self._interrupted() else ""
        return [self._send(self.table, ("iteration", self.finished), f"{again}iteration {self.finished + 1}")]

    def _interrupted(self) -> list[Interruption]:
        return [x for x in self.interruptions if x.replayed_ns is None]

    def _iteration_done(self, view: View) -> list[Decision]:
        out: list[Decision] = []
        self.under_way = False
        for x in self._interrupted():
            if x.ready_ns is not None and x.iteration <= self.finished:
                x.replayed_ns = min(view.now_ns, max(self.began_ns, x.ready_ns) + x.elapsed_ns)
        self.finished += 1
        if self.finished > self.reached:
            self.reached = self.finished
            out.append(IterationDone())
        if self.finished >= view.iterations:
            return [*out, *self._finish(view)]
        self.owed = self.finished
        moves = (self._grow(view) if self.grows and self.newcomers else []) or self._hand_over(view)
        return [*out, *(moves or self._go_on(view))]

    def _go_on(self, view: View) -> list[Decision]:
        """The next iteration, behind what is saved of the last one.

        Where states move in between, they are saved from where they have arrived: moves do not wait for them.
        """
        assert self.placement is not None  # noqa: S101 - it is in use
        out: list[Decision] = []
        what = self.placement, self.finished
        due = self.due(*what) if self.owed == self.finished else (0, 0)
        self.owed = -1
        tasks = self.upkeep(self.placement, due, view)
        if len(tasks):
            out.append(self._send(tasks, ("upkeep", what), f"upkeep/after iteration {self.finished}"))
        elif any(due):
            self.kept(*what)
        return [*out, *self._iteration(view)]

    def _finish(self, view: View) -> list[Decision]:
        """The run is over once the last iteration is done and nothing is being saved."""
        if self.finished < view.iterations or self.under_way or self.open:
            return []
        return [Done(f"{self.reached} iterations")]

    def _grow(self, view: View) -> list[Decision]:
        """Take newcomers in, if a placement with them is possible; they fetch what they need first.  Empty if not."""
        assert self.placement is not None  # noqa: S101 - an iteration of it is done
        self.newcomers.clear()
        try:
            new = self._made(view, np.flatnonzero(self.present))
        except Infeasible:
            return []
        moves = self.admit(view, self.placement, new)
        self.coming, self.attempt = new, self.attempt + 1
        return [self._send(moves, ("move", self.attempt), "join/states")]

    def _hand_over(self, view: View) -> list[Decision]:
        """Nobody left yet: states move to the new placement, and the next iteration begins there."""
        handed, now = self.handed_over(view), view.now_ns
        if handed is None:
            return []
        new, moves, announced_ns = handed
        x = Interruption(announced_ns, announced_ns, 0, self.finished, 0, planning_ns=now, planned_ns=now)
        x.moved_bytes, x.announced = moved_bytes(moves), True
        self.interruptions.append(x)
        self.coming, self.attempt = new, self.attempt + 1
        return [self._send(moves, ("move", self.attempt), "recovery/hand-over")]

    def _paper_iteration(self, view: View) -> list[Decision]:
        assert self.cost is not None  # noqa: S101 - made at the start
        out: list[Decision] = []
        if self.under_way:
            self.finished += 1
            out.append(IterationDone())
        self.under_way = True
        if self.finished >= view.iterations:
            return [*out, Done(f"{self.finished} iterations")]
        return [*out, WakeAt(self.cost.total_s * (self.finished + 1), ("paper", 0))]

    # -------------------------------------------------------------------------------------------------------- recovery

    def _noticed(self, alarm: int, view: View) -> list[Decision]:
        """A departure is noticed: what is under way is given up."""
        lost_ns, devices = self.alarms[alarm]
        back = np.array([d in self.newcomers for d in devices.tolist()], np.bool_)
        self.present[devices[~back]] = False
        self.stateless |= set(devices.tolist())
        parts = [p.devices for p in (self.placement, self.coming) if p is not None]
        if not parts or not np.isin(devices, np.concatenate(parts)).any():
            return []
        now = view.now_ns
        x = Interruption(lost_ns, now, self.lost_rows, self.finished, max(0, lost_ns - self.began_ns))
        if not self.under_way:
            x.elapsed_ns = 0
        x.further_ns = [*self.loss_instants, now]
        x.abandoned = [serial for serial, tag in self.open.items() if tag[0] == "iteration"]
        if self.hit and not x.abandoned and self.under_way:
            x.abandoned = [self.last_iteration]
        self.lost_rows, self.loss_instants = 0, []
        self.interruptions.append(x)
        if self.finished >= view.iterations:  # only checkpoints were under way
            x.absorbed = True
            return [*(Cancel(serial) for serial in self.open), Done(f"{self.reached} iterations")]
        withdrawn: list[Decision] = [Cancel(serial) for serial in self.open]
        self.open.clear()
        self.under_way = self.hit = False
        return [*withdrawn, *self._replan(view)]

    def _replan(self, view: View) -> list[Decision]:
        """Make a new placement, or wait for somebody to come."""
        self.attempt += 1
        self.coming = None
        now = view.now_ns
        began = time.perf_counter()
        try:
            new = self._made(view, np.flatnonzero(self.present))
        except Infeasible as reason:
            self.waiting_for = str(reason)
            return []
        self.waiting_for = ""
        if self.placement is None:
            self._use(new, view)
            return self._iteration(view)
        for x in self._interrupted():
            x.planning_ns = now
        self.coming = new
        charged = self.config.planning_s
        took = time.perf_counter() - began if charged == "measured" else charged
        return [WakeAt(view.now_s + took, ("planned", self.attempt))] if took else self._planned(view)

    def _planned(self, view: View) -> list[Decision]:
        """The new placement is made: states move."""
        assert self.placement is not None and self.coming is not None  # noqa: S101, PT018 - being replaced
        gone = np.array(sorted(self.stateless), np.int64)
        recovery = self.recover(view, self.placement, self.coming, gone)
        back_to = self.saved if recovery.from_checkpoint else self.finished
        for x in self._interrupted():
            x.planned_ns = view.now_ns
            x.moved_bytes = moved_bytes(recovery.moves)
            x.redone = max(x.redone, self.finished - back_to)
            x.abandoned += [self.done_serials[i] for i in range(back_to, self.finished) if i in self.done_serials]
        self.finished = back_to
        return [self._send(recovery.moves, ("move", self.attempt), "recovery/states")]

    def _moved(self, view: View) -> list[Decision]:
        interrupted = self._interrupted()
        for x in interrupted:
            x.moved_ns = view.now_ns
        if not interrupted or not self.config.setup_s:
            return self._ready(view)
        return [WakeAt(view.now_s + self.config.setup_s, ("ready", self.attempt))]

    def _ready(self, view: View) -> list[Decision]:
        assert self.coming is not None  # noqa: S101 - its states have arrived
        for x in self._interrupted():
            x.ready_ns = view.now_ns
            x.replayed_ns = view.now_ns if x.announced else None
        self._use(self.coming, view)
        return self._go_on(view)
