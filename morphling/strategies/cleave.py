"""Cleave: selective hybrid tensor parallelism around a parameter server.

Each linear layer's GEMM C = A B is cut in two dimensions: a device receives rows of A and columns of B and returns its
block of C; the inner dimension is never split, so nothing has to be summed.  Weights, optimizer and all that is no GEMM
of a linear layer stay on the coordinator.  Levels of the GEMM DAG are barriers (arXiv 2512.22142).

``model: physical`` plans real rectangles under memory, latency and the coordinator's link, and keeps shards that are
read again; ``model: paper`` replays the published cost model, area by area, as `morphling.planning.areas` restates it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from morphling.errors import PlanError
from morphling.interfaces.strategy import Sent
from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import View
from morphling.planning.areas import AreaPlan, solve_areas
from morphling.planning.cache import ShardCache
from morphling.planning.costs import Gemm, Rates
from morphling.planning.gemms import ListedGemm, artifact_gemms, linear_gemms
from morphling.planning.levels import LevelConfig, LevelStrategy, StepPlan
from morphling.planning.rectangles import LeftOut, Tiling, split_columns
from morphling.planning.rows import paper_orphans, paper_rows
from morphling.planning.speed import device_speed
from morphling.planning.steps import SUFFIX, Shard, Step, read_again, shards_of
from morphling.planning.tiling import plan_tiling
from morphling.types import BoolArray, FloatArray, IntArray, item_bytes
from morphling.workload import Place

__all__ = ["Cleave", "CleaveConfig"]

IDLE = ("never needed", "not online when a step was planned")


@dataclass(frozen=True)
class CleaveConfig(LevelConfig):
    """Configuration of Cleave.

    overlap : how a sub-task's download, compute and upload overlap: ``none``, ``pipelined`` in ``tiles`` pieces with
        fill and drain, or ``perfect`` (the longest of the three; what ``model: paper`` always assumes)
    planning_s : seconds charged for each plan of lost blocks, or ``measured``: the wall time that the solver took (two
        runs then differ).  Plans of the steps themselves are not charged.
    model : ``physical`` (rectangles, memory, latency, the coordinator's link) or ``paper`` (the published cost model)
    cache : keep shards that a later level reads again, least recently used first out (physical only)
    compute : plan with the profile's rates of large GEMMs, or with what the ``executor`` says of a share's shape
    gemms : for ``model: paper``: ``linear`` (linear layers, batch merged) or ``artifact`` (the published list as it is)
    """

    model: Literal["physical", "paper"] = "physical"
    cache: bool = True
    compute: Literal["profile", "executor"] = "profile"
    gemms: Literal["linear", "artifact"] = "linear"

    def __post_init__(self) -> None:
        """Refuse, besides, choices that the model would pass over."""
        super().__post_init__()
        if self.model == "paper" and self.overlap == "none":
            raise ValueError("overlap: model: paper assumes perfect overlap; leave it out, or use model: physical")
        if self.model == "physical" and self.gemms != "linear":
            raise ValueError(f"gemms: {self.gemms} is a list of model: paper; model: physical takes the model's own")


class Cleave(LevelStrategy):
    """Blocks of the linear layers' GEMMs on the devices, all else on the coordinator; see the module."""

    Config: ClassVar[type] = CleaveConfig
    name: ClassVar[str] = "cleave"
    config: CleaveConfig

    def __init__(self, config: CleaveConfig | None = None) -> None:
        super().__init__(config)
        self.shapes: dict[str, dict[str, Any]] = {}
        self.reasons: IntArray = np.zeros(0, np.int64)
        self.cache: ShardCache | None = None
        self.reused: set[Shard] = set()
        self.placements: dict[Any, int] = {}

    @property
    def is_paper(self) -> bool:
        """Whether the published cost model is replayed."""
        return self.config.model == "paper"

    @property
    def enforces_memory(self) -> bool:
        """The published model has no memory limit."""
        return not self.is_paper

    @property
    def covers(self) -> Literal["gemms", "flops"]:
        """The published model splits areas, not GEMMs."""
        return "flops" if self.is_paper else "gemms"

    # ---------------------------------------------------------------------------------------------------------- plans

    def prepare(self, view: View, *, kept: bool) -> None:
        """Nobody holds a shard yet."""
        if not kept:
            self.shapes.clear()
            self.reasons = np.full(view.fleet.size, -1)
            self.reused = set()
            if self.config.cache and not self.is_paper:
                self.reused = read_again(view.workload.dag, self.steps)
        self.cache = ShardCache(view.fleet.memory_bytes) if self.reused else None

    def list_steps(self, view: View) -> Iterator[Step]:
        """Levels, or the published list of GEMMs, one after another."""
        return self._paper_steps(view) if self.is_paper else iter(super().list_steps(view))

    def speed(self, view: View, here: IntArray, gemm: Gemm) -> tuple[FloatArray, FloatArray]:
        """By the profile, or as the executor says."""
        return device_speed(view, here, gemm, by_shape=self.config.compute == "executor")

    def tile(self, gemm: Gemm, rates: Rates, here: IntArray, view: View) -> Tiling:
        """The solver's rectangles, and whom it left out."""
        tiling = plan_tiling(gemm, rates, **self.limits(view))
        self.reasons[here] = tiling.left_out
        return tiling

    def plan_step(self, step: Step, view: View) -> StepPlan:
        """Rows of a step; its shapes are noted for the report."""
        if self.is_paper:
            return self._paper_plan(step, view)
        plan, dag = super().plan_step(step, view), view.workload.dag
        for group, tiling in self.tilings_of(step, view):
            name = "+".join(dag.op_names[dag.op[i]] + SUFFIX[dag.phase[i]] for i in group)
            self.shapes[name] = {
                "m": tiling.gemm.m,
                "n": tiling.gemm.n,
                "k": tiling.gemm.k,
                "time_s": tiling.time_s,
                "lower_bound_s": tiling.bounds["relaxed"],
                "rectangles": len(tiling),
                "load_imbalance": tiling.imbalance,
                "left_out": tiling.left_out_counts(),
            }
        return plan

    def orphans(self, dispatch: Sent, rows: IntArray) -> list[Any]:
        """Blocks of C, or areas of it."""
        return list(paper_orphans(dispatch.tag, rows)) if self.is_paper else super().orphans(dispatch, rows)

    def plan_again(self, blocks: list[Any], view: View) -> tuple[TaskTable, Any]:
        """Each block is a problem of its own."""
        if not self.is_paper:
            return super().plan_again(blocks, view)
        tables, parts = [TaskTable.build(device=[])], []
        for block in blocks:
            if block is not None:  # a row without area
                plan, tasks = self._areas(block, view)
                tables.append(tasks)
                parts.append((block, plan))
        return TaskTable.concat(tables), parts

    def report(self) -> dict[str, Any]:
        """Besides: the distinct shapes, and what the cache saved."""
        out = super().report()
        out |= {"model": self.config.model, "distinct_plans": len(self.shapes), "plans": self.shapes}
        if self.cache is not None:
            out["shard_cache"] = {x: getattr(self.cache, x) for x in ("hits", "misses", "evictions", "refusals")}
        return out

    def left_out(self) -> dict[str, int]:
        """As the solver said."""
        counts = Counter(LeftOut(r).label if r > 0 else IDLE[-r] for r in self.reasons[~self.used].tolist())
        return dict(sorted(counts.items()))

    def assumptions(self) -> list[str]:
        """Of the model, and what holds of these steps."""
        if self.is_paper:
            return PAPER_ASSUMPTIONS
        out = list(PHYSICAL_ASSUMPTIONS)
        out[2:2] = self.on_the_coordinator()
        if any(len(step.groups) > 1 for step in self.steps):
            out.append(SUMMED)
        return out

    # ---------------------------------------------------------------------------------------------------------- cache

    def iteration_ended(self) -> None:
        """The optimizer changed the weights, and the next batch has other activations: no shard holds any more."""
        if self.cache is not None:
            self.cache.forget({shard[0] for shard in self.reused})

    def fleet_changed(self, devices: IntArray, view: View) -> None:
        """Who is gone or back holds no shards."""
        if self.cache is not None:
            self.cache.drop(np.isin(np.arange(view.fleet.size), devices))

    def adjust(self, step: Step, view: View, plan: StepPlan) -> StepPlan:
        """The same rows without the bytes of shards that their devices still hold from an earlier level."""
        cache, t = self.cache, plan.tasks
        if cache is None or not step.groups:
            return plan
        width = item_bytes(view.workload.dtype)
        size = view.fleet.size
        held = np.bincount(t.device, t.resident_bytes, minlength=size + 1)[:size].astype(np.int64)
        bytes_in = t.bytes_in.copy()
        resident = t.resident_bytes.copy()
        mine = np.zeros(size, np.int64)
        for rows, (shard_a, shard_b), first in self._rows_of(step, view, plan):
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
        return replace(plan, tasks=TaskTable(**columns))

    def _rows_of(
        self, step: Step, view: View, plan: StepPlan
    ) -> Iterator[tuple[IntArray, tuple[Shard, Shard], BoolArray]]:
        """For each GEMM of a step: its rows in the step's table, its shards of A and B, and which rows bring A."""
        dag, at = view.workload.dag, 0
        for group, tiling in self.tilings_of(step, view):
            parts = split_columns(tiling, np.cumsum(dag.n[list(group)]))
            for j, shards in enumerate(shards_of(dag, group, len(step.groups))):
                rows = np.flatnonzero(parts.gemm == j)
                yield rows + at, shards, parts.first[rows]
            at += len(parts)
        if at > len(plan.tasks):
            raise PlanError("a plan and its rows disagree")

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

    def _paper_plan(self, step: Step, view: View) -> StepPlan:
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
        return StepPlan(tasks, plan.time_s * g.count, plan.imbalance, bounds, [(g, plan)])


PHYSICAL_ASSUMPTIONS = [
    "levels of the GEMM DAG are barriers",
    "link rates are planned at their nominal value until transfers have been observed",
    "the coordinator has memory for weights, optimizer states and activations (not checked)",
    "each device receives its own copy of its rows and columns (no multicast)",
]
SUMMED = "estimate_s adds up the shapes of a level; their rows overlap on a device, so the replay may be faster"

PAPER_ASSUMPTIONS = [
    "areas, not rectangles: the sum of alpha beta is m n, continuous alpha and beta (m and n of rows are rounded)",
    "perfect overlap of download, compute and upload; levels and GEMMs strictly one after another",
    "no latency in the plan (the fleet's latency is still charged when replayed), no memory limit",
    "the coordinator's compute is free, its memory not checked and its link unlimited in the plan",
    "rows of A count as already on the devices where the published rule says so",
    "four square projections a layer: grouped key and value heads count as full ones",
]
