"""Cleave: selective hybrid tensor parallelism around a parameter server.

Each linear layer's GEMM C = A B is cut in two dimensions: a device receives rows of A and columns of B and returns its
block of C; the inner dimension is never split, so nothing has to be summed.  Weights, optimizer and all that is no GEMM
of a linear layer stay on the coordinator.  Levels of the GEMM DAG are barriers (arXiv 2512.22142).

``model: physical`` plans real rectangles under memory, latency and the coordinator's link; ``model: paper`` replays the
published cost model, area by area, as `morphling.planning.areas` restates it (one long file: they share the hooks).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from morphling.errors import Infeasible, PlanError
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
from morphling.planning.areas import AreaPlan, solve_areas
from morphling.planning.cache import ShardCache
from morphling.planning.costs import Gemm, Rates
from morphling.planning.delays import check_delay, delay_range, recovery_assumptions
from morphling.planning.gemms import ListedGemm, artifact_gemms, linear_gemms
from morphling.planning.losses import Losses
from morphling.planning.rectangles import LeftOut, Tiling, split_columns
from morphling.planning.rows import (
    central_rows,
    joined_places,
    paper_orphans,
    paper_rows,
    placed_blocks,
    renumbered,
    tiling_places,
    tiling_rows,
)
from morphling.planning.speed import central_seconds, device_speed
from morphling.planning.steps import SUFFIX, Shard, Step, one_by_one, read_again, shards_of, steps_of
from morphling.planning.tiling import plan_tiling
from morphling.types import BoolArray, IntArray, Overlap, item_bytes
from morphling.workload import GemmDag, Place

__all__ = ["Cleave", "CleaveConfig"]

BOUNDS = ("uplink", "download", "compute", "coordinator")
IDLE = ("never needed", "not online when a step was planned")


@dataclass(frozen=True)
class CleaveConfig:
    """Configuration of Cleave.

    model : ``physical`` (rectangles, memory, latency, the coordinator's link) or ``paper`` (the published cost model)
    overlap : how a sub-task's download, compute and upload overlap: ``none``, ``pipelined`` in ``tiles`` pieces with
        fill and drain, or ``perfect`` (the longest of the three; what ``model: paper`` always assumes)
    tiles : pieces of a pipelined sub-task
    cache : keep shards that a later level reads again, least recently used first out (physical only)
    compute : plan with the profile's rates of large GEMMs, or with what the ``executor`` says of a share's shape
    gemms : for ``model: paper``: ``linear`` (linear layers, batch merged) or ``artifact`` (the published list as it is)
    detection_s : seconds until the coordinator notices that a device left; or ``[lowest, highest]``, of which one is
        drawn, uniformly, for each instant at which devices leave.  The default is the published heartbeat timeout.
    planning_s : seconds charged for each plan of lost blocks, or ``measured``: the wall time that the solver took (two
        runs then differ).  Plans of the steps themselves are not charged.
    """

    model: Literal["physical", "paper"] = "physical"
    overlap: Literal["none", "pipelined", "perfect"] = "pipelined"
    tiles: int = 4
    cache: bool = True
    compute: Literal["profile", "executor"] = "profile"
    gemms: Literal["linear", "artifact"] = "linear"
    detection_s: float | list[float] = field(default_factory=lambda: [0.05, 0.2])
    planning_s: float | Literal["measured"] = 0.0

    def __post_init__(self) -> None:
        """Refuse tile counts that mean nothing, and choices that the model would pass over."""
        if not 1 <= self.tiles <= 1024:
            raise ValueError(f"tiles: from 1 to 1024, not {self.tiles}")
        if self.model == "paper" and self.overlap == "none":
            raise ValueError("overlap: model: paper assumes perfect overlap; leave it out, or use model: physical")
        if self.model == "physical" and self.gemms != "linear":
            raise ValueError(f"gemms: {self.gemms} is a list of model: paper; model: physical takes the model's own")
        check_delay("detection_s", self.detection_s)
        if self.planning_s != "measured":
            check_delay("planning_s", self.planning_s)

    @property
    def pieces(self) -> int:
        """The overlap as a task table writes it."""
        return {"none": Overlap.NONE.value, "perfect": Overlap.PERFECT.value}.get(self.overlap, self.tiles)


@dataclass(frozen=True, eq=False)
class _Planned:
    """A step's rows, and what is known of them before they run."""

    tasks: TaskTable
    time_s: float
    bounds: dict[str, float]
    imbalance: float
    parts: list[tuple[ListedGemm, AreaPlan]] | Placement | None = None  # what the rows are of (model: paper), or where


@dataclass(eq=False)
class _Summary:
    """Sums over the steps of one iteration, for the report."""

    time_s: float = 0.0
    bounds: Counter[str] = field(default_factory=Counter)
    imbalance: float = 0.0
    steps: int = 0

    def add(self, plan: _Planned) -> None:
        self.time_s += plan.time_s
        self.bounds.update(plan.bounds)
        self.imbalance = max(self.imbalance, plan.imbalance)
        self.steps += 1


class Cleave(Strategy):
    """Blocks of the linear layers' GEMMs on the devices, all else on the coordinator; see the module."""

    Config: ClassVar[type] = CleaveConfig
    name: ClassVar[str] = "cleave"
    restarts: ClassVar[bool] = True
    config: CleaveConfig

    def __init__(self, config: CleaveConfig | None = None) -> None:
        super().__init__(config or CleaveConfig())
        self.iteration = 0
        self.open = 0
        self.next_step = 0
        self.fleet_version = 0
        self.steps: list[Step] = []
        self.plans: dict[Any, _Planned] = {}
        self.tilings: dict[Any, Tiling] = {}
        self.shapes: dict[str, dict[str, Any]] = {}
        self.summary = _Summary()
        self.losses = Losses([])
        self.again: Dispatch | None = None
        self.used: np.ndarray[Any, np.dtype[np.bool_]] = np.zeros(0, bool)
        self.reasons: IntArray = np.zeros(0, np.int64)
        self.cache: ShardCache | None = None
        self.reused: set[Shard] = set()
        self.placements: dict[Any, int] = {}

    @property
    def enforces_memory(self) -> bool:
        """The published model has no memory limit."""
        return self.config.model == "physical"

    @property
    def covers(self) -> Literal["gemms", "flops"]:
        """The published model splits areas, not GEMMs."""
        return "gemms" if self.config.model == "physical" else "flops"

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
        self.used = np.zeros(view.fleet.size, bool)
        self.reasons = np.full(view.fleet.size, -1)
        self.losses = Losses(view.online)
        if self.config.model == "paper":
            self.steps = list(self._paper_steps(view))
        else:
            self.steps = list(steps_of(view.workload.dag))
            self.reused = read_again(view.workload.dag, self.steps) if self.config.cache else set()
            if self.reused:
                self.cache = ShardCache(view.fleet.memory_bytes)
        return self._proceed(view)

    def on_done(self, dispatch: Sent, rows: IntArray, view: View) -> Decisions:  # noqa: ARG002 - counted, not read
        """A dispatch is settled; when all of the step are, go on."""
        self.open -= 1
        return self._proceed(view)

    def on_lost(self, dispatch: Sent, rows: IntArray, view: View) -> Decisions:
        """Remember the orphaned blocks of C; they are planned again once their loss is noticed."""
        t = dispatch.tasks
        if self.config.model == "paper":
            blocks: list[Any] = paper_orphans(dispatch.tag, rows)
        else:
            blocks = placed_blocks(t, dispatch.tag, rows)
        new = self.losses.lost(t.device[rows], blocks, view.now_ns)
        return [*self._watch(new, view), *self._recover(view)]

    def on_left(self, devices: IntArray, view: View) -> Decisions:
        """The coordinator does not know it yet."""
        return self._watch(self.losses.left(devices, view.now_ns), view)

    def on_joined(self, devices: IntArray, view: View) -> Decisions:
        """The next steps are planned with them; work that waited for somebody goes out."""
        self.losses.joined(devices)
        self._fleet_changed(devices, view)
        return [*self._recover(view), *self._proceed(view)]

    def on_timer(self, tag: Any, view: View) -> Decisions:
        """Devices are noticed to be gone (the number of their alarm), or a plan of lost blocks is made (None)."""
        if tag is None:
            return self._send_again(view)
        gone = self.losses.noticed(tag, view.now_ns)
        if len(gone):
            self._fleet_changed(gone, view)
        return self._recover(view)

    def places(self, dispatch: Dispatch) -> Placement | None:
        """Where the blocks of C lie; the published model has areas, which lie nowhere."""
        return dispatch.tag if isinstance(dispatch.tag, Placement) else None

    def report(self) -> dict[str, Any]:
        """Estimate, bounds, balance, devices left out and why, the distinct shapes, and what was assumed."""
        unused = ~self.used
        counts = Counter(LeftOut(r).label if r > 0 else IDLE[-r] for r in self.reasons[unused].tolist())
        out: dict[str, Any] = {
            "strategy": "cleave",
            "model": self.config.model,
            "estimate_s": self.summary.time_s,
            "lower_bounds": {k: float(v) for k, v in self.summary.bounds.items()},
            "load_imbalance": self.summary.imbalance,
            "devices_used": int(self.used.sum()),
            "devices_left_out": dict(sorted(counts.items())),
            "steps_per_iteration": len(self.steps),
            "distinct_plans": len(self.shapes),
            "plans": self.shapes,
            "assumptions": list(PAPER_ASSUMPTIONS if self.config.model == "paper" else PHYSICAL_ASSUMPTIONS),
            "recoveries": [loss.record() for loss in self.losses.all],
        }
        if self.config.model == "physical":  # what holds of these steps
            if any(step.central for step in self.steps):
                out["assumptions"].insert(2, CENTRAL)
            if any(len(step.groups) > 1 for step in self.steps):
                out["assumptions"].append(SUMMED)
        if self.losses.alarms:
            out["assumptions"] += recovery_assumptions(self.config.detection_s, self.config.planning_s)
        if self.cache is not None:
            out["shard_cache"] = {x: getattr(self.cache, x) for x in ("hits", "misses", "evictions", "refusals")}
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
            if self.cache is not None:  # the optimizer changed the weights, and the next batch has other activations
                self.cache.forget({shard[0] for shard in self.reused})
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
        tag = plan.parts
        if isinstance(tag, Placement):
            nodes = np.array([*(i for group in step.groups for i in group), -1])
            tag = tag._replace(node=nodes[tag.node])
        return [*out, Dispatch(plan.tasks, tag=tag, label=step.label)]

    def _plan(self, step: Step, view: View) -> _Planned:
        """Rows of a step; steps that are alike share one table while the fleet stays the same."""
        key = (self.fleet_version, step.key)
        if key not in self.plans:
            if self.config.model == "paper":
                self.plans[key] = self._paper_plan(step, view)
            else:
                self.plans[key] = self._physical_plan(step, view)
        plan = self.plans[key]
        if self.cache is not None and step.groups:
            return self._with_cache(step, view, plan)
        return plan

    # ------------------------------------------------------------------------------------------------------- physical

    def _rates(self, view: View, share: int, gemm: Gemm) -> tuple[Rates, IntArray]:
        """Rates of the devices taken to be here, and who they are; ``share`` rectangles must fit memory together."""
        fleet, here = view.fleet, np.flatnonzero(self.losses.present)
        flops, launch = device_speed(view, here, gemm, by_shape=self.config.compute == "executor")
        rates = Rates.of(
            flops,
            view.downlink_bps[here] / 8,
            view.uplink_bps[here] / 8,
            latency_s=fleet.links.latency_ns[here] / 1e9,
            launch_s=launch,
            memory_bytes=np.floor(fleet.memory_bytes[here] / share),
        )
        return rates, here

    def _tile(self, gemm: Gemm, view: View, share: int) -> Tiling:
        """The tiling of one shape; each distinct shape is solved once for a fleet."""
        key = (self.fleet_version, gemm, share)
        if key not in self.tilings:
            rates, here = self._rates(view, share, gemm)
            c = view.fleet.coordinator
            tiling = plan_tiling(
                gemm,
                rates,
                tiles=None if self.config.overlap == "perfect" else self.config.pieces,
                egress=None if c.uplink_bps is None else c.uplink_bps / 8,
                ingress=None if c.downlink_bps is None else c.downlink_bps / 8,
            )
            self.tilings[key] = renumbered(tiling, here)
            self.used[here[tiling.device]] = True
            self.reasons[here] = tiling.left_out
        return self.tilings[key]

    def _physical_plan(self, step: Step, view: View) -> _Planned:
        dag, dtype = view.workload.dag, view.workload.dtype
        tables: list[TaskTable] = []
        places: list[Placement] = []
        first = 0  # a plan is of steps that are alike: it says which of a step's GEMMs, not which node
        time_s, bounds, imbalance = 0.0, Counter[str](), 0.0
        share = len(step.groups)
        for group in step.groups:
            ends = np.cumsum(dag.n[list(group)])
            gemm = Gemm(int(dag.m[group[0]]), int(ends[-1]), int(dag.k[group[0]]), item_bytes(dtype))
            tiling = self._tile(gemm, view, share)
            tables.append(tiling_rows(tiling, ends, dtype, self.config.pieces))
            places.append(tiling_places(tiling, ends, list(range(first, first + len(group)))))
            first += len(group)
            time_s += tiling.time_s
            bounds.update({k: tiling.bounds[k] for k in BOUNDS})
            imbalance = max(imbalance, tiling.imbalance)
            name = "+".join(dag.op_names[dag.op[i]] + SUFFIX[dag.phase[i]] for i in group)
            self.shapes[name] = {
                "m": gemm.m,
                "n": gemm.n,
                "k": gemm.k,
                "time_s": tiling.time_s,
                "lower_bound_s": tiling.bounds["relaxed"],
                "rectangles": len(tiling),
                "load_imbalance": tiling.imbalance,
                "left_out": tiling.left_out_counts(),
            }
        if step.central:
            rows = list(step.central)
            central = central_rows(dag, rows, view.fleet.size, dtype)
            tables.append(central)
            places.append(Placement(*(np.full(len(rows), x) for x in (-1, 0, 0))))
            time_s = max(time_s, central_seconds(central, view)) if step.groups else central_seconds(central, view)
        return _Planned(TaskTable.concat(tables), time_s, dict(bounds), imbalance, joined_places(places))

    def _with_cache(self, step: Step, view: View, plan: _Planned) -> _Planned:
        """The same rows without the bytes of shards that their devices still hold from an earlier level."""
        cache, dag, t = self.cache, view.workload.dag, plan.tasks
        assert cache is not None  # noqa: S101 - the only caller has checked
        width = item_bytes(view.workload.dtype)
        size = view.fleet.size
        held = np.bincount(t.device, t.resident_bytes, minlength=size + 1)[:size].astype(np.int64)
        bytes_in = t.bytes_in.copy()
        resident = t.resident_bytes.copy()
        mine = np.zeros(size, np.int64)
        for rows, (shard_a, shard_b), first in _rows_of(step, dag, plan, self.tilings, self.fleet_version, view):
            device = t.device[rows]
            for shard, lines, pays in ((shard_a, t.m[rows], first), (shard_b, t.n[rows], np.ones(len(rows), bool))):
                if shard not in self.reused or not pays.any():
                    continue
                size_of = np.zeros(size, np.int64)
                size_of[device[pays]] = (lines * t.k[rows] * width)[pays]
                placement = self.placements.setdefault((self.fleet_version, shard[2]), len(self.placements))
                key = (shard[0], shard[1], placement)
                hit = cache.use(key, size_of, held - size_of)
                mine += np.where(cache.holds(key), size_of, 0)
                free = pays & hit[device]
                bytes_in[rows[free]] -= size_of[device[free]]
        cache.reserve(np.maximum(held - mine, 0))
        once = np.unique(t.device, return_index=True)
        on_device = once[0] < size
        resident[once[1][on_device]] += np.maximum(cache.cached_bytes - mine, 0)[once[0][on_device]]
        changed = {"bytes_in": bytes_in, "resident_bytes": resident}
        columns = {name: changed.get(name, getattr(t, name)) for name in t.__dataclass_fields__}
        return _Planned(TaskTable(**columns), plan.time_s, plan.bounds, plan.imbalance, plan.parts)

    # ------------------------------------------------------------------------------------------------------- recovery

    def _watch(self, alarms: list[int], view: View) -> list[Decision]:
        """Set the time at which departures of this instant are noticed."""
        low, high = delay_range(self.config.detection_s)
        draw = view.random("detection").uniform
        return [WakeAt(view.now_s + (draw(low, high) if low < high else low), alarm) for alarm in alarms]

    def _fleet_changed(self, devices: IntArray, view: View) -> None:
        """Plans are for the devices taken to be here; who is gone or back holds no shards."""
        self.fleet_version += 1
        if self.cache is not None:
            self.cache.drop(np.isin(np.arange(view.fleet.size), devices))

    def _recover(self, view: View) -> list[Decision]:
        """Plan only the orphaned blocks again, on the devices taken to be here; with nobody there they wait."""
        if not self.losses.plannable:
            return []
        began = time.perf_counter()
        blocks = self.losses.plan(view.now_ns)
        tables, parts, places = [TaskTable.build(device=[])], [], []
        for block in blocks:
            if self.config.model == "physical":
                m, n, k, *at = block
                tiling = self._tile(Gemm(m, n, k, item_bytes(view.workload.dtype)), view, len(blocks))
                tables.append(tiling_rows(tiling, np.array([n]), view.workload.dtype, self.config.pieces))
                places.append(tiling_places(tiling, np.array([n]), at[:1], row=at[1], column=at[2]))
            elif block is not None:
                plan, tasks = self._areas(block, view)
                tables.append(tasks)
                parts.append((block, plan))
        tag = joined_places(places) if places else parts
        self.again = Dispatch(TaskTable.concat(tables), tag=tag, label="recovery/orphaned blocks")
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

    # ---------------------------------------------------------------------------------------------------------- paper

    def _paper_steps(self, view: View) -> Iterator[Step]:
        model, work = view.workload.model, view.workload
        for key, asked in (
            ("lm_head: devices", work.lm_head == Place.DEVICES),
            ("fused_projections: true", work.fused_projections),
            (f"recompute: {work.recompute}", work.recompute != "none"),
        ):
            if asked:
                raise PlanError(
                    f"workload.{key} is not in the list of model: paper; leave it out, or use model: physical"
                )
        if self.config.gemms == "linear":
            listed = linear_gemms(model.hidden_size, model.ffn_size, work.tokens, gated=model.gated_mlp)
        else:
            listed = artifact_gemms(
                model.hidden_size,
                model.ffn_size,
                model.heads,
                work.batch_size,
                work.sequence_length,
                gated=model.gated_mlp,
            )
        for backward in (False, True):
            for layer in range(model.layers):
                for g in listed:
                    if g.name.startswith(("bi_", "bw_", "bk_")) == backward:
                        word = "backward" if backward else "forward"
                        yield Step(f"{word}/layer {layer}/{g.name}", ((0,),), (), (g,))

    def _areas(self, g: ListedGemm, view: View) -> tuple[AreaPlan, TaskTable]:
        """The published problem solved for one GEMM, and its rows."""
        here = np.flatnonzero(self.losses.present)
        dtype = view.workload.dtype
        flops = view.fleet.compute_flops(dtype)[here]
        if np.isnan(flops).any():
            raise PlanError(f"model: paper needs a {dtype.label} rate of every device")
        width = item_bytes(dtype)
        plan = solve_areas(
            g.m,
            g.n,
            g.k,
            flops=flops,
            down=view.downlink_bps[here] / 8,
            up=view.uplink_bps[here] / 8,
            item_bytes=width,
            cached=g.cached,
        )
        self.used[here] = True
        return plan, paper_rows(g, plan, here, dtype, width)

    def _paper_plan(self, step: Step, view: View) -> _Planned:
        g: ListedGemm = step.key[0]
        plan, tasks = self._areas(g, view)
        self.shapes[g.name] = {
            "m": g.m,
            "n": g.n,
            "k": g.k,
            "count": g.count,
            "a_cached": g.cached,
            "time_s": plan.time_s,
            "load_imbalance": plan.imbalance,
        }
        bounds = {k: v * g.count for k, v in plan.bounds.items()}
        return _Planned(tasks, plan.time_s * g.count, bounds, plan.imbalance, [(g, plan)])


PHYSICAL_ASSUMPTIONS = [
    "levels of the GEMM DAG are barriers",
    "link rates are planned at their nominal value until transfers have been observed",
    "the coordinator has memory for weights, optimizer states and activations (not checked)",
    "each device receives its own copy of its rows and columns (no multicast)",
]
CENTRAL = "attention products, normalisation, activation functions and the optimizer run on the coordinator"
SUMMED = "estimate_s adds up the shapes of a level; their rows overlap on a device, so the replay may be faster"

PAPER_ASSUMPTIONS = [
    "areas, not rectangles: the sum of alpha beta is m n, continuous alpha and beta (m and n of rows are rounded)",
    "perfect overlap of download, compute and upload; levels and GEMMs strictly one after another",
    "no latency in the plan (the fleet's latency is still charged when replayed), no memory limit",
    "the coordinator's compute is free, its memory not checked and its link unlimited in the plan",
    "rows of A count as already on the devices where the published rule says so",
    "four square projections a layer: grouped key and value heads count as full ones",
]


def _rows_of(
    step: Step, dag: GemmDag, plan: _Planned, tilings: dict[Any, Tiling], version: int, view: View
) -> Iterator[tuple[IntArray, tuple[Shard, Shard], BoolArray]]:
    """For each GEMM of a step: its rows in the step's table, its shards of A and B, and which rows bring A."""
    at = 0
    for group in step.groups:
        ends = np.cumsum(dag.n[list(group)])
        gemm = Gemm(int(dag.m[group[0]]), int(ends[-1]), int(dag.k[group[0]]), item_bytes(view.workload.dtype))
        parts = split_columns(tilings[version, gemm, len(step.groups)], ends)
        for j, shards in enumerate(shards_of(dag, group, len(step.groups))):
            rows = np.flatnonzero(parts.gemm == j)
            yield rows + at, shards, parts.first[rows]
        at += len(parts)
    if at > len(plan.tasks):
        raise PlanError("a plan and its rows disagree")
