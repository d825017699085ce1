"""`LevelStrategy`: level by level, each GEMM cut into rectangles; blocks that are lost are cut again.

Authors write `tile`, how one GEMM is cut.  What belongs here is the order of things in time, and where each row lies;
who gets which rectangle is decided in their files.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypedDict

import numpy as np

from morphling.errors import Infeasible
from morphling.interfaces.strategy import (
    Decision,
    Decisions,
    Dispatch,
    Done,
    IterationDone,
    Placement,
    Sent,
    Strategy,
    WakeAt,
)
from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import View
from morphling.planning.costs import Gemm, Rates
from morphling.planning.delays import check_delay, delay_range, recovery_assumptions
from morphling.planning.losses import Losses
from morphling.planning.rectangles import Tiling
from morphling.planning.rows import (
    central_rows,
    joined_places,
    placed_blocks,
    renumbered,
    tiling_places,
    tiling_rows,
)
from morphling.planning.speed import central_seconds, device_speed
from morphling.planning.steps import Step, one_by_one, steps_of
from morphling.types import BoolArray, FloatArray, IntArray, Kind, Overlap, item_bytes

__all__ = ["LevelConfig", "LevelStrategy", "Limits", "StepPlan"]

BOUNDS = ("uplink", "download", "compute", "coordinator")
CENTRAL = "attention products, normalisation, activation functions and the optimizer run on the coordinator"


@dataclass(frozen=True)
class LevelConfig:
    """How rows overlap with their transfers, and how losses are noticed.

    overlap : how a sub-task's download, compute and upload overlap: ``none``, ``pipelined`` in ``tiles`` pieces with
        fill and drain, or ``perfect`` (the longest of the three)
    tiles : pieces of a pipelined sub-task
    detection_s : seconds until the coordinator notices that a device left; or ``[lowest, highest]``, of which one is
        drawn, uniformly, for each instant at which devices leave.  The default is the heartbeat timeout of Cleave.
    planning_s : seconds charged for each plan of lost blocks, or ``measured``: the wall time that it took (two runs
        then differ).  Plans of the steps themselves are not charged.
    """

    overlap: Literal["none", "pipelined", "perfect"] = "pipelined"
    tiles: int = 4
    detection_s: float | list[float] = field(default_factory=lambda: [0.05, 0.2])
    planning_s: float | Literal["measured"] = 0.0

    def __post_init__(self) -> None:
        """Refuse tile counts that mean nothing, and delays that are none."""
        if not 1 <= self.tiles <= 1024:
            raise ValueError(f"tiles: from 1 to 1024, not {self.tiles}")
        check_delay("detection_s", self.detection_s)
        if self.planning_s != "measured":
            check_delay("planning_s", self.planning_s)

    @property
    def pieces(self) -> int:
        """The overlap as a task table writes it."""
        return {"none": Overlap.NONE.value, "perfect": Overlap.PERFECT.value}.get(self.overlap, self.tiles)


class Limits(TypedDict):
    """What else bounds a tiling, as keywords of `morphling.planning.uniform.priced` and of the planners.

    tiles : pieces of a pipelined sub-task; None: perfect overlap
    egress, ingress : bytes/s of the coordinator's links; None: unlimited
    """

    tiles: int | None
    egress: float | None
    ingress: float | None


@dataclass(frozen=True, eq=False)
class StepPlan:
    """A step's rows, and what is known of them before they run.

    time_s : when all are done;  imbalance : (max - mean) / mean of the devices' times
    bounds : name → seconds that no plan beats
    tag : goes with the dispatch; a `Placement` counts the GEMMs of the step from 0 (a plan is of all steps alike)
    """

    tasks: TaskTable
    time_s: float
    imbalance: float
    bounds: Mapping[str, float]
    tag: Any = None


@dataclass(eq=False)
class Summary:
    """Sums over the steps of the first iteration, for the report."""

    time_s: float = 0.0
    bounds: Counter[str] = field(default_factory=Counter)
    imbalance: float = 0.0

    def add(self, plan: StepPlan) -> None:
        """One step more."""
        self.time_s += plan.time_s
        self.bounds.update(plan.bounds)
        self.imbalance = max(self.imbalance, plan.imbalance)


class LevelStrategy(Strategy):
    """Levels of the GEMM DAG are barriers; a step is planned when the one before it is done.

    The devices' GEMMs are cut as `tile` says; all else is the coordinator's.  A device that left is noticed after
    ``detection_s`` and counts as here until then; its blocks are then cut again for those who are left, after
    ``planning_s``.  Devices that come take part from the next step on.  If not all groups of a level fit memory
    together, they go one after another.
    """

    Config: ClassVar[type] = LevelConfig
    restarts: ClassVar[bool] = True
    config: Any

    def __init__(self, config: Any = None) -> None:
        super().__init__(self.Config() if config is None else config)
        self.iteration = 0
        self.open = 0
        self.next_step = 0
        self.fleet_version = 0
        self.steps: list[Step] = []
        self.central: set[Kind] = set()
        self.plans: dict[Any, StepPlan] = {}
        self.tilings: dict[Any, Tiling] = {}
        self.summary = Summary()
        self.losses = Losses([])
        self.again: Dispatch | None = None
        self.used: BoolArray = np.zeros(0, np.bool_)

    # ------------------------------------------------------------------------------------------- what authors write

    @abstractmethod
    def tile(self, gemm: Gemm, rates: Rates, here: IntArray, view: View) -> Tiling:
        """Rectangles that cover C of ``gemm`` exactly once, at most one a device, within ``rates.memory_bytes``.

        Devices count from 0 in ``rates``; ``here`` int64[N] are their numbers in the fleet.  `limits` has what the
        planners ask for besides.  ``Infeasible`` if there is no such tiling.
        """

    def speed(self, view: View, here: IntArray, gemm: Gemm) -> tuple[FloatArray, FloatArray]:
        """FLOP/s and launch cost (s) of the devices ``here`` that plans reckon with; by default their profiles'."""
        return device_speed(view, here, gemm, by_shape=False)

    def prepare(self, view: View, *, kept: bool) -> None:
        """A run begins: forget the one before.  ``kept``: plans made for these devices still hold."""

    def list_steps(self, view: View) -> Iterable[Step]:
        """The steps of an iteration; by default the levels of the workload's DAG."""
        return steps_of(view.workload.dag)

    def plan_step(self, step: Step, view: View) -> StepPlan:
        """Rows of a step; kept for steps that are alike, as long as the same devices are taken to be here."""
        dag, dtype, pieces = view.workload.dag, view.workload.dtype, self.config.pieces
        tables: list[TaskTable] = []
        places: list[Placement] = []
        first = 0
        time_s, bounds, imbalance = 0.0, Counter[str](), 0.0
        for group, tiling in self.tilings_of(step, view):
            ends = np.cumsum(dag.n[list(group)])
            tables.append(tiling_rows(tiling, ends, dtype, pieces))
            places.append(tiling_places(tiling, ends, list(range(first, first + len(group)))))
            first += len(group)
            time_s += tiling.time_s
            bounds.update({k: tiling.bounds[k] for k in BOUNDS if k in tiling.bounds})
            imbalance = max(imbalance, tiling.imbalance)
        if step.central:
            rows = list(step.central)
            central = central_rows(dag, rows, view.fleet.size, dtype)
            tables.append(central)
            places.append(Placement(*(np.full(len(rows), x) for x in (-1, 0, 0))))
            time_s = max(time_s, central_seconds(central, view))
        return StepPlan(TaskTable.concat(tables), time_s, imbalance, dict(bounds), joined_places(places))

    def adjust(self, step: Step, view: View, plan: StepPlan) -> StepPlan:  # noqa: ARG002 - for those who change it
        """The plan as it is dispatched now; by default as it is."""
        return plan

    def orphans(self, dispatch: Sent, rows: IntArray) -> list[Any]:
        """The blocks of C behind rows that were lost, for `plan_again`."""
        return list(placed_blocks(dispatch.tasks, dispatch.tag, rows))

    def plan_again(self, blocks: list[Any], view: View) -> tuple[TaskTable, Any]:
        """Rows for blocks that were lost, and the tag of their dispatch."""
        dtype = view.workload.dtype
        tables: list[TaskTable] = []
        places: list[Placement] = []
        for m, n, k, node, row, column in blocks:
            tiling = self.tiling(Gemm(m, n, k, item_bytes(dtype)), view, len(blocks))
            tables.append(tiling_rows(tiling, np.array([n]), dtype, self.config.pieces))
            places.append(tiling_places(tiling, np.array([n]), [node], row=row, column=column))
        return TaskTable.concat(tables), joined_places(places)

    def iteration_ended(self) -> None:
        """The weights have changed, and the next batch has other activations."""

    def fleet_changed(self, devices: IntArray, view: View) -> None:
        """These devices are known to be gone, or are back; they hold nothing."""

    def left_out(self) -> dict[str, int]:
        """Why devices had no part → how many."""
        return {"no part, or not online when a step was planned": int((~self.used).sum())}

    def assumptions(self) -> list[str]:
        """Sentences for the report."""
        return []

    # ------------------------------------------------------------------------------------------- what they may call

    def on_the_coordinator(self) -> list[str]:
        """A sentence on what runs on the coordinator; none if nothing does."""
        if self.central == {Kind.GEMM}:
            return ["products with a batch (attention) run on the coordinator"]
        return [CENTRAL] if self.central else []

    def limits(self, view: View) -> Limits:
        """What bounds tilings besides the devices' rates."""
        c = view.fleet.coordinator
        return {
            "tiles": None if self.config.overlap == "perfect" else self.config.pieces,
            "egress": None if c.uplink_bps is None else c.uplink_bps / 8,
            "ingress": None if c.downlink_bps is None else c.downlink_bps / 8,
        }

    def tiling(self, gemm: Gemm, view: View, share: int) -> Tiling:
        """The tiling of one shape, made once for the devices taken to be here; device numbers are the fleet's.

        share : how many rectangles must fit a device's memory together
        """
        key = (self.fleet_version, gemm, share)
        if key not in self.tilings:
            fleet, here = view.fleet, np.flatnonzero(self.losses.present)
            flops, launch = self.speed(view, here, gemm)
            rates = Rates.of(
                flops,
                view.downlink_bps[here] / 8,
                view.uplink_bps[here] / 8,
                latency_s=fleet.links.latency_ns[here] / 1e9,
                launch_s=launch,
                memory_bytes=np.floor(fleet.memory_bytes[here] / share),
            )
            self.tilings[key] = renumbered(self.tile(gemm, rates, here, view), here)
            self.used[self.tilings[key].device] = True
        return self.tilings[key]

    def tilings_of(self, step: Step, view: View) -> Iterator[tuple[tuple[int, ...], Tiling]]:
        """Each group of a step, and the tiling of its GEMMs side by side."""
        dag, width = view.workload.dag, item_bytes(view.workload.dtype)
        for group in step.groups:
            gemm = Gemm(int(dag.m[group[0]]), int(dag.n[list(group)].sum()), int(dag.k[group[0]]), width)
            yield group, self.tiling(gemm, view, len(step.groups))

    # ---------------------------------------------------------------------------------------------------------- hooks

    def start(self, view: View) -> Decisions:
        """Plan the iteration's steps and dispatch the first; called again, plans for the same devices hold."""
        kept = bool(self.steps) and np.array_equal(self.losses.present, view.online)
        self.iteration = self.next_step = self.open = 0
        self.summary, self.losses, self.again = Summary(), Losses(view.online), None
        if not kept:
            self.fleet_version += 1
            self.plans.clear()
            self.tilings.clear()
            self.used = np.zeros(view.fleet.size, np.bool_)
            self.steps = list(self.list_steps(view))
            rows = [node for step in self.steps for node in step.central]
            self.central = {Kind(kind) for kind in view.workload.dag.kind[rows].tolist()} if rows else set()
        self.prepare(view, kept=kept)
        return self._proceed(view)

    def on_done(self, dispatch: Sent, rows: IntArray, view: View) -> Decisions:  # noqa: ARG002 - counted, not read
        """A dispatch is settled; when all of the step are, go on."""
        self.open -= 1
        return self._proceed(view)

    def on_lost(self, dispatch: Sent, rows: IntArray, view: View) -> Decisions:
        """Remember the orphaned blocks of C; they are planned again once their loss is noticed."""
        blocks = self.orphans(dispatch, rows)
        new = self.losses.lost(dispatch.tasks.device[rows], blocks, view.now_ns)
        return [*self._watch(new, view), *self._recover(view)]

    def on_left(self, devices: IntArray, view: View) -> Decisions:
        """The coordinator does not know it yet."""
        return self._watch(self.losses.left(devices, view.now_ns), view)

    def on_joined(self, devices: IntArray, view: View) -> Decisions:
        """The next steps are planned with them; work that waited for somebody goes out."""
        self.losses.joined(devices)
        self._changed(devices, view)
        return [*self._recover(view), *self._proceed(view)]

    def on_timer(self, tag: Any, view: View) -> Decisions:
        """Devices are noticed to be gone (the number of their alarm), or a plan of lost blocks is made (None)."""
        if tag is None:
            return self._send_again(view)
        gone = self.losses.noticed(tag, view.now_ns)
        if len(gone):
            self._changed(gone, view)
        return self._recover(view)

    def places(self, dispatch: Dispatch) -> Placement | None:
        """Where the blocks of C lie, unless the strategy has a tag of its own."""
        return dispatch.tag if isinstance(dispatch.tag, Placement) else None

    def report(self) -> dict[str, Any]:
        """Estimate, bounds, balance, devices without a part, recoveries, and what was assumed."""
        out: dict[str, Any] = {
            "strategy": self.name or type(self).__name__,
            "estimate_s": self.summary.time_s,
            "load_imbalance": self.summary.imbalance,
            "devices_used": int(self.used.sum()),
            "devices_left_out": self.left_out(),
            "steps_per_iteration": len(self.steps),
            "assumptions": list(self.assumptions()),
            "recoveries": [loss.record() for loss in self.losses.all],
        }
        if self.summary.bounds:
            out["lower_bounds"] = {k: float(v) for k, v in self.summary.bounds.items()}
        if self.losses.alarms:
            out["assumptions"] += recovery_assumptions(self.config.detection_s, self.config.planning_s)
        if self.losses.all:
            out["rows_planned_again"] = sum(x.rows for x in self.losses.all if x.planned_ns is not None)
        return out

    # ---------------------------------------------------------------------------------------------------------- steps

    def _proceed(self, view: View) -> list[Decision]:
        """Dispatch the next step once nothing of the current one is open."""
        if self.open or not self.losses.settled:
            return []
        out: list[Decision] = []
        if self.next_step == len(self.steps):
            self.iteration += 1
            out.append(IterationDone())
            if self.iteration >= view.iterations:
                return [*out, Done(f"{self.iteration} iterations")]
            self.next_step = 0
            self.iteration_ended()
        step = self.steps[self.next_step]
        if step.groups and not self.losses.present.any():
            return out  # a pause: whoever joins first takes it up
        try:
            plan = self._plan(step, view)
        except Infeasible:
            if len(step.groups) < 2:
                raise
            # not all of the level's blocks fit a device together: one group after another then
            self.steps[self.next_step : self.next_step + 1] = one_by_one(view.workload.dag, step)
            step = self.steps[self.next_step]
            plan = self._plan(step, view)
        self.next_step += 1
        if self.iteration == 0:
            self.summary.add(plan)
        self.open += 1
        tag = plan.tag
        if isinstance(tag, Placement):
            nodes = np.array([*(i for group in step.groups for i in group), -1])
            tag = tag._replace(node=nodes[tag.node])
        return [*out, Dispatch(plan.tasks, tag=tag, label=step.label)]

    def _plan(self, step: Step, view: View) -> StepPlan:
        """Rows of a step; steps that are alike share one table while the fleet stays the same."""
        key = (self.fleet_version, step.key)
        if key not in self.plans:
            self.plans[key] = self.plan_step(step, view)
        return self.adjust(step, view, self.plans[key])

    # ------------------------------------------------------------------------------------------------------- recovery

    def _watch(self, alarms: list[int], view: View) -> list[Decision]:
        """Set the time at which departures of this instant are noticed."""
        low, high = delay_range(self.config.detection_s)
        draw = view.random("detection").uniform
        return [WakeAt(view.now_s + (draw(low, high) if low < high else low), alarm) for alarm in alarms]

    def _changed(self, devices: IntArray, view: View) -> None:
        """Plans are for the devices taken to be here."""
        self.fleet_version += 1
        self.fleet_changed(devices, view)

    def _recover(self, view: View) -> list[Decision]:
        """Plan only the orphaned blocks again, on the devices taken to be here; with nobody there they wait."""
        if not self.losses.plannable:
            return []
        began = time.perf_counter()
        tasks, tag = self.plan_again(self.losses.plan(view.now_ns), view)
        self.again = Dispatch(tasks, tag=tag, label="recovery/orphaned blocks")
        charged = self.config.planning_s
        took = time.perf_counter() - began if charged == "measured" else charged
        return [WakeAt(view.now_s + took)] if took else self._send_again(view)

    def _send_again(self, view: View) -> list[Decision]:
        """Dispatch the plan of lost blocks, and plan what was noticed meanwhile."""
        assert self.again is not None  # noqa: S101 - set where planning began
        again, self.again = self.again, None
        self.losses.sent(view.now_ns)
        self.open += 1
        return [again, *self._recover(view)]
