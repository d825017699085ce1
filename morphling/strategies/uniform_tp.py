"""Uniform tensor parallelism around a parameter server: what is left of Cleave without its solver.

Each linear layer's GEMM is cut into equal rectangles for all devices, regardless of their speed, links and memory.
Weights, optimizer and all that is no GEMM of a linear layer stay on the coordinator; levels of the GEMM DAG are
barriers; no shard is kept from one level to the next.  Blocks that are lost are cut again for those who are left.
Source: the uniform split that the authors of Cleave put beside their own (arXiv 2512.22142).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

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
from morphling.planning.rows import central_rows, joined_places, placed_blocks, renumbered, tiling_places, tiling_rows
from morphling.planning.speed import central_seconds
from morphling.planning.steps import Step, one_by_one, steps_of
from morphling.planning.uniform import uniform_tiling
from morphling.types import BoolArray, IntArray, Overlap, item_bytes

__all__ = ["UniformTp", "UniformTpConfig"]


@dataclass(frozen=True)
class UniformTpConfig:
    """Configuration of uniform tensor parallelism.

    overlap : how a sub-task's download, compute and upload overlap: ``none``, ``pipelined`` in ``tiles`` pieces with
        fill and drain, or ``perfect`` (the longest of the three)
    tiles : pieces of a pipelined sub-task
    detection_s : seconds until the coordinator notices that a device left; or ``[lowest, highest]``, of which one is
        drawn, uniformly, for each instant at which devices leave
    planning_s : seconds charged for each plan of lost blocks, or ``measured``: the wall time that it took (two runs
        then differ).  Plans of the steps themselves are not charged.
    """

    overlap: Literal["none", "pipelined", "perfect"] = "pipelined"
    tiles: int = 4
    detection_s: float | list[float] = field(default_factory=lambda: [0.05, 0.2])
    planning_s: float | Literal["measured"] = 0.0

    def __post_init__(self) -> None:
        """Refuse tile counts that mean nothing."""
        if not 1 <= self.tiles <= 1024:
            raise ValueError(f"tiles: from 1 to 1024, not {self.tiles}")
        check_delay("detection_s", self.detection_s)
        if self.planning_s != "measured":
            check_delay("planning_s", self.planning_s)

    @property
    def pieces(self) -> int:
        """The overlap as a task table writes it."""
        return {"none": Overlap.NONE.value, "perfect": Overlap.PERFECT.value}.get(self.overlap, self.tiles)


class UniformTp(Strategy):
    """Equal blocks of the linear layers' GEMMs on all devices, all else on the coordinator; see the module."""

    Config: ClassVar[type] = UniformTpConfig
    name: ClassVar[str] = "uniform-tp"
    restarts: ClassVar[bool] = True
    config: UniformTpConfig

    def __init__(self, config: UniformTpConfig | None = None) -> None:
        super().__init__(config or UniformTpConfig())
        self.iteration = 0
        self.open = 0
        self.next_step = 0
        self.fleet_version = 0
        self.steps: list[Step] = []
        self.plans: dict[Any, tuple[TaskTable, float, Placement]] = {}
        self.tilings: dict[Any, Tiling] = {}
        self.estimated_s = 0.0
        self.imbalance = 0.0
        self.grids: dict[str, int] = {}
        self.losses = Losses([])
        self.again: Dispatch | None = None
        self.used: BoolArray = np.zeros(0, np.bool_)

    # ---------------------------------------------------------------------------------------------------------- hooks

    def start(self, view: View) -> Decisions:
        """Plan the iteration's steps and dispatch the first."""
        self.iteration = self.next_step = self.open = 0
        if self.steps and np.array_equal(self.losses.present, view.online):
            self.losses = Losses(view.online)
            return self._proceed(view)  # called again: plans for the same devices hold
        self.fleet_version += 1
        self.plans.clear()
        self.tilings.clear()
        self.used = np.zeros(view.fleet.size, np.bool_)
        self.losses = Losses(view.online)
        self.steps = list(steps_of(view.workload.dag))
        return self._proceed(view)

    def on_done(self, dispatch: Sent, rows: IntArray, view: View) -> Decisions:  # noqa: ARG002 - counted, not read
        """A dispatch is settled; when all of the step are, go on."""
        self.open -= 1
        return self._proceed(view)

    def on_lost(self, dispatch: Sent, rows: IntArray, view: View) -> Decisions:
        """Remember the orphaned blocks of C; they are cut again once their loss is noticed."""
        t = dispatch.tasks
        blocks = placed_blocks(t, dispatch.tag, rows)
        new = self.losses.lost(t.device[rows], blocks, view.now_ns)
        return [*self._watch(new, view), *self._recover(view)]

    def on_left(self, devices: IntArray, view: View) -> Decisions:
        """The coordinator does not know it yet."""
        return self._watch(self.losses.left(devices, view.now_ns), view)

    def on_joined(self, devices: IntArray, view: View) -> Decisions:
        """The next steps are cut for them too; work that waited for somebody goes out."""
        self.losses.joined(devices)
        self.fleet_version += 1
        return [*self._recover(view), *self._proceed(view)]

    def on_timer(self, tag: Any, view: View) -> Decisions:
        """Devices are noticed to be gone (the number of their alarm), or a plan of lost blocks is made (None)."""
        if tag is None:
            return self._send_again(view)
        if len(self.losses.noticed(tag, view.now_ns)):
            self.fleet_version += 1
        return self._recover(view)

    def places(self, dispatch: Dispatch) -> Placement | None:
        """Where the blocks of C lie."""
        return dispatch.tag if isinstance(dispatch.tag, Placement) else None

    def report(self) -> dict[str, Any]:
        """Estimate, balance, devices without a part, recoveries, and what was assumed."""
        out: dict[str, Any] = {
            "strategy": self.name,
            "estimate_s": self.estimated_s,
            "load_imbalance": self.imbalance,
            "devices_used": int(self.used.sum()),
            "devices_left_out": {"no part, or not online when a step was planned": int((~self.used).sum())},
            "steps_per_iteration": len(self.steps),
            "rectangles": dict(self.grids),
            "assumptions": list(ASSUMPTIONS),
            "recoveries": [loss.record() for loss in self.losses.all],
        }
        if self.losses.alarms:
            out["assumptions"] += recovery_assumptions(self.config.detection_s, self.config.planning_s)
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
        if self.steps[self.next_step].groups and not self.losses.present.any():
            return out  # a pause: whoever joins first takes it up
        try:
            tasks, time_s, places = self._plan(self.steps[self.next_step], view)
        except Infeasible:
            if len(self.steps[self.next_step].groups) < 2:
                raise
            # not all of the level's blocks fit a device together: one group after another then
            parts = list(one_by_one(view.workload.dag, self.steps[self.next_step]))
            self.steps[self.next_step : self.next_step + 1] = parts
            tasks, time_s, places = self._plan(parts[0], view)
        step = self.steps[self.next_step]
        nodes = np.array([*(i for group in step.groups for i in group), -1])
        self.next_step += 1
        if self.iteration == 0:
            self.estimated_s += time_s
        self.open += 1
        return [*out, Dispatch(tasks, tag=places._replace(node=nodes[places.node]), label=step.label)]

    def _plan(self, step: Step, view: View) -> tuple[TaskTable, float, Placement]:
        """Rows of a step, its seconds, and where the rows lie, by the number of the GEMM in the step.

        Steps that are alike share one table while the fleet stays the same.
        """
        key = (self.fleet_version, step.key)
        if key in self.plans:
            return self.plans[key]
        dag, dtype = view.workload.dag, view.workload.dtype
        tables, places, time_s, first = [], [], 0.0, 0
        for group in step.groups:
            ends = np.cumsum(dag.n[list(group)])
            gemm = Gemm(int(dag.m[group[0]]), int(ends[-1]), int(dag.k[group[0]]), item_bytes(dtype))
            tiling = self._tile(gemm, view, len(step.groups))
            tables.append(tiling_rows(tiling, ends, dtype, self.config.pieces))
            places.append(tiling_places(tiling, ends, list(range(first, first + len(group)))))
            first += len(group)
            time_s += tiling.time_s
        if step.central:
            central = central_rows(dag, list(step.central), view.fleet.size, dtype)
            tables.append(central)
            places.append(Placement(*(np.full(len(central), x) for x in (-1, 0, 0))))
            time_s = max(time_s, central_seconds(central, view))
        self.plans[key] = TaskTable.concat(tables), time_s, joined_places(places)
        return self.plans[key]

    def _tile(self, gemm: Gemm, view: View, share: int) -> Tiling:
        """The tiling of one shape for the devices taken to be here; ``share`` rectangles must fit memory together."""
        key = (self.fleet_version, gemm, share)
        if key not in self.tilings:
            fleet, here = view.fleet, np.flatnonzero(self.losses.present)
            c, names = fleet.coordinator, fleet.names()
            tiling = uniform_tiling(
                gemm,
                Rates.of(
                    fleet.compute_flops(view.workload.dtype)[here],
                    view.downlink_bps[here] / 8,
                    view.uplink_bps[here] / 8,
                    latency_s=fleet.links.latency_ns[here] / 1e9,
                    launch_s=fleet.launch_s[here],
                    memory_bytes=np.floor(fleet.memory_bytes[here] / share),
                ),
                tiles=None if self.config.overlap == "perfect" else self.config.pieces,
                egress=None if c.uplink_bps is None else c.uplink_bps / 8,
                ingress=None if c.downlink_bps is None else c.downlink_bps / 8,
                names=[names[i] for i in here.tolist()],
            )
            self.tilings[key] = renumbered(tiling, here)
            self.used[self.tilings[key].device] = True
            self.imbalance = max(self.imbalance, tiling.imbalance)
            self.grids[f"{gemm.m} x {gemm.n} x {gemm.k}"] = len(tiling)
        return self.tilings[key]

    # ------------------------------------------------------------------------------------------------------- recovery

    def _watch(self, alarms: list[int], view: View) -> list[Decision]:
        """Set the time at which departures of this instant are noticed."""
        low, high = delay_range(self.config.detection_s)
        draw = view.random("detection").uniform
        return [WakeAt(view.now_s + (draw(low, high) if low < high else low), alarm) for alarm in alarms]

    def _recover(self, view: View) -> list[Decision]:
        """Cut only the orphaned blocks again, for the devices taken to be here; with nobody there they wait."""
        if not self.losses.plannable:
            return []
        began = time.perf_counter()
        blocks = self.losses.plan(view.now_ns)
        width = item_bytes(view.workload.dtype)
        tables = [TaskTable.build(device=[])]
        places = []
        for m, n, k, node, row, column in blocks:
            tiling = self._tile(Gemm(m, n, k, width), view, len(blocks))
            tables.append(tiling_rows(tiling, np.array([n]), view.workload.dtype, self.config.pieces))
            places.append(tiling_places(tiling, np.array([n]), [node], row=row, column=column))
        again = TaskTable.concat(tables)
        self.again = Dispatch(again, tag=joined_places(places), label="recovery/orphaned blocks")
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


ASSUMPTIONS = [
    "every GEMM is cut into equal rectangles for all devices that are online, in their order",
    "levels of the GEMM DAG are barriers; no shard is kept from one level to the next",
    "attention products, normalisation, activation functions and the optimizer run on the coordinator",
    "the coordinator has memory for weights, optimizer states and activations (not checked)",
    "each device receives its own copy of its rows and columns (no multicast)",
]
