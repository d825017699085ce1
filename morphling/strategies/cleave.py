"""Cleave: selective hybrid tensor parallelism around a parameter server.

Each linear layer's GEMM C = A B is cut in two dimensions: a device receives rows of A and columns of B and returns its
block
of C; the inner dimension is never split, so nothing has to be summed.  Weights, optimizer and all that is no GEMM of a
linear layer stay on the coordinator.  Levels of the GEMM DAG are barriers (arXiv 2512.22142).

``model: physical`` plans real rectangles under memory, latency and the coordinator's link; ``model: paper`` replays the
published cost model, area by area, as `morphling.planning.areas` restates it (one long file: they share the hooks).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from morphling.errors import Infeasible, PlanError
from morphling.interfaces.strategy import Decision, Decisions, Dispatch, Done, IterationDone, Sent, Strategy
from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import View
from morphling.planning.areas import AreaPlan, solve_areas
from morphling.planning.cache import ShardCache
from morphling.planning.costs import Gemm, Rates
from morphling.planning.gemms import ListedGemm, artifact_gemms, linear_gemms
from morphling.planning.rectangles import LeftOut, Tiling, split_columns
from morphling.planning.tiling import plan_tiling
from morphling.types import BoolArray, DType, IntArray, Kind, Overlap, Phase, item_bytes
from morphling.workload import GemmDag, Place

__all__ = ["Cleave", "CleaveConfig"]

_Shard: TypeAlias = tuple[int, int, tuple[int, ...]]
"""(tensor, axis, placement)."""

BOUNDS = ("uplink", "download", "compute", "coordinator")


@dataclass(frozen=True)
class CleaveConfig:
    """Configuration of Cleave.

    model : ``physical`` (rectangles, memory, latency, the coordinator's link) or ``paper`` (the published cost model)
    overlap : how a sub-task's download, compute and upload overlap: ``none``, ``pipelined`` in ``tiles`` pieces with
        fill
        and drain, or ``perfect`` (the longest of the three; what ``model: paper`` always assumes)
    tiles : pieces of a pipelined sub-task
    cache : keep shards that a later level reads again, least recently used first out (physical only)
    gemms : for ``model: paper``: ``linear`` (linear layers, batch merged) or ``artifact`` (the artifact's list, quirks
        kept)
    """

    model: Literal["physical", "paper"] = "physical"
    overlap: Literal["none", "pipelined", "perfect"] = "pipelined"
    tiles: int = 4
    cache: bool = True
    gemms: Literal["linear", "artifact"] = "linear"

    def __post_init__(self) -> None:
        """Refuse tile counts that mean nothing, and choices that the model would pass over."""
        if not 1 <= self.tiles <= 1024:
            raise ValueError(f"tiles: from 1 to 1024, not {self.tiles}")
        if self.model == "paper" and self.overlap == "none":
            raise ValueError("overlap: model: paper assumes perfect overlap; leave it out, or use model: physical")
        if self.model == "physical" and self.gemms != "linear":
            raise ValueError(f"gemms: {self.gemms} is a list of model: paper; model: physical takes the model's own")

    @property
    def pieces(self) -> int:
        """The overlap as a task table writes it."""
        return {"none": Overlap.NONE.value, "perfect": Overlap.PERFECT.value}.get(self.overlap, self.tiles)


@dataclass(frozen=True, eq=False)
class _Step:
    """One dispatch of an iteration: DAG nodes for the devices (in groups that share A) and for the coordinator."""

    label: str
    groups: tuple[tuple[int, ...], ...]
    central: tuple[int, ...]
    key: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class _Planned:
    """A step's rows, and what is known of them before they run."""

    tasks: TaskTable
    time_s: float
    bounds: dict[str, float]
    imbalance: float


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
    """See the module."""

    Config: ClassVar[type] = CleaveConfig
    name: ClassVar[str] = "cleave"
    config: CleaveConfig

    def __init__(self, config: CleaveConfig | None = None) -> None:
        super().__init__(config or CleaveConfig())
        self.iteration = 0
        self.open = 0
        self.next_step = 0
        self.fleet_version = 0
        self.steps: list[_Step] = []
        self.plans: dict[Any, _Planned] = {}
        self.tilings: dict[Any, Tiling] = {}
        self.shapes: dict[str, dict[str, Any]] = {}
        self.summary = _Summary()
        self.orphans: list[tuple[int, int, int]] = []
        self.used: np.ndarray[Any, np.dtype[np.bool_]] = np.zeros(0, bool)
        self.reasons: IntArray = np.zeros(0, np.int64)
        self.cache: ShardCache | None = None
        self.reused: set[_Shard] = set()
        self.placements: dict[Any, int] = {}
        self.recovered_rows = 0

    @property
    def enforces_memory(self) -> bool:
        """The published model has no memory limit."""
        return self.config.model == "physical"

    # ---------------------------------------------------------------------------------------------------------- hooks

    def start(self, view: View) -> Decisions:
        """Plan the iteration's steps and dispatch the first."""
        self.used = np.zeros(view.fleet.size, bool)
        self.reasons = np.zeros(view.fleet.size, np.int64)
        if self.config.model == "paper":
            self.steps = list(self._paper_steps(view))
        else:
            self.steps = list(_steps(view.workload.dag))
            self.reused = _read_again(view.workload.dag, self.steps) if self.config.cache else set()
            if self.reused:
                self.cache = ShardCache(view.fleet.memory_bytes)
        return self._proceed(view)

    def on_done(self, dispatch: Sent, rows: IntArray, view: View) -> Decisions:  # noqa: ARG002 - counted, not read
        """A dispatch is settled; when all of the step are, go on."""
        self.open -= 1
        return self._proceed(view)

    def on_lost(self, dispatch: Sent, rows: IntArray, view: View) -> Decisions:
        """Plan only the orphaned blocks of C again, on the devices that are left."""
        t = dispatch.tasks
        self.orphans += list(zip(t.m[rows].tolist(), t.n[rows].tolist(), t.k[rows].tolist(), strict=True))
        return self._recover(view)

    def on_left(self, devices: IntArray, view: View) -> Decisions:
        """The next steps are planned without them."""
        self.fleet_version += 1
        if self.cache is not None:
            self.cache.drop(np.isin(np.arange(view.fleet.size), devices))
        return ()

    def on_joined(self, devices: IntArray, view: View) -> Decisions:  # noqa: ARG002 - whoever is online counts
        """The next steps are planned with them; work that waited for somebody goes out."""
        self.fleet_version += 1
        return [*self._recover(view), *self._proceed(view)]

    def report(self) -> dict[str, Any]:
        """Estimate, bounds, balance, devices left out and why, the distinct shapes, and what was assumed."""
        unused = ~self.used
        counts = Counter(LeftOut(r).label if r else "never needed" for r in self.reasons[unused].tolist())
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
            "assumptions": PAPER_ASSUMPTIONS if self.config.model == "paper" else PHYSICAL_ASSUMPTIONS,
        }
        if self.cache is not None:
            out["shard_cache"] = {
                "hits": self.cache.hits,
                "misses": self.cache.misses,
                "evictions": self.cache.evictions,
                "refusals": self.cache.refusals,
            }
        if self.recovered_rows:
            out["rows_planned_again"] = self.recovered_rows
        return out

    # ---------------------------------------------------------------------------------------------------------- steps

    def _proceed(self, view: View) -> list[Decision]:
        """Dispatch the next step once nothing of the current one is open."""
        if self.open or self.orphans:
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
        if step.groups and not view.online.any():
            return out  # a pause: whoever joins first takes it up
        try:
            plan = self._plan(step, view)
        except Infeasible:
            if len(step.groups) < 2:
                raise
            # not all of the level's blocks fit a device together: one group after another then
            self.steps[self.next_step : self.next_step + 1] = _one_by_one(view.workload.dag, step)
            step = self.steps[self.next_step]
            plan = self._plan(step, view)
        self.next_step += 1
        if self.iteration == 0:
            self.summary.add(plan)
        self.open += 1
        return [*out, Dispatch(plan.tasks, label=step.label)]

    def _plan(self, step: _Step, view: View) -> _Planned:
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

    def _rates(self, view: View, share: int) -> tuple[Rates, IntArray]:
        """Rates of the devices that are online, and who they are; ``share`` rectangles must fit memory together."""
        fleet = view.fleet
        here = np.flatnonzero(view.online)
        rates = Rates.of(
            fleet.compute_flops(view.workload.dtype)[here],
            view.downlink_bps[here] / 8,
            view.uplink_bps[here] / 8,
            latency_s=fleet.links.latency_ns[here] / 1e9,
            launch_s=fleet.launch_s[here],
            memory_bytes=np.floor(fleet.memory_bytes[here] / share),
        )
        return rates, here

    def _tile(self, gemm: Gemm, view: View, share: int) -> Tiling:
        """The tiling of one shape; each distinct shape is solved once for a fleet."""
        key = (self.fleet_version, gemm, share)
        if key not in self.tilings:
            rates, here = self._rates(view, share)
            c = view.fleet.coordinator
            tiling = plan_tiling(
                gemm,
                rates,
                tiles=None if self.config.overlap == "perfect" else self.config.pieces,
                egress=None if c.uplink_bps is None else c.uplink_bps / 8,
                ingress=None if c.downlink_bps is None else c.downlink_bps / 8,
            )
            self.tilings[key] = _renumbered(tiling, here)
            self.used[here[tiling.device]] = True
            self.reasons[here] = tiling.left_out
        return self.tilings[key]

    def _physical_plan(self, step: _Step, view: View) -> _Planned:
        dag, dtype = view.workload.dag, view.workload.dtype
        tables: list[TaskTable] = []
        time_s, bounds, imbalance = 0.0, Counter[str](), 0.0
        share = len(step.groups)
        for group in step.groups:
            ends = np.cumsum(dag.n[list(group)])
            gemm = Gemm(int(dag.m[group[0]]), int(ends[-1]), int(dag.k[group[0]]), item_bytes(dtype))
            tiling = self._tile(gemm, view, share)
            tables.append(_rows(tiling, ends, dtype, self.config.pieces))
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
            central = _central_rows(dag, rows, view.fleet.size, dtype)
            tables.append(central)
            time_s = max(time_s, _central_time(central, view)) if step.groups else _central_time(central, view)
        return _Planned(TaskTable.concat(tables), time_s, dict(bounds), imbalance)

    def _with_cache(self, step: _Step, view: View, plan: _Planned) -> _Planned:
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
        return _Planned(TaskTable(**columns), plan.time_s, plan.bounds, plan.imbalance)

    def _recover(self, view: View) -> list[Decision]:
        """Dispatch orphaned blocks to the devices that are online; with nobody there they wait."""
        if not self.orphans or not view.online.any():
            return []
        dtype = view.workload.dtype
        tables = []
        share = len(self.orphans)
        for m, n, k in self.orphans:
            tiling = self._tile(Gemm(m, n, k, item_bytes(dtype)), view, share)
            tables.append(_rows(tiling, np.array([n]), dtype, self.config.pieces))
        self.recovered_rows += share
        self.orphans = []
        self.open += 1
        return [Dispatch(TaskTable.concat(tables), label="recovery/orphaned blocks")]

    # ---------------------------------------------------------------------------------------------------------- paper

    def _paper_steps(self, view: View) -> Iterator[_Step]:
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
                        yield _Step(f"{word}/layer {layer}/{g.name}", ((0,),), (), (g,))

    def _paper_plan(self, step: _Step, view: View) -> _Planned:
        g: ListedGemm = step.key[0]
        here = np.flatnonzero(view.online)
        flops = view.fleet.compute_flops(view.workload.dtype)[here]
        if np.isnan(flops).any():
            raise PlanError(f"model: paper needs a {view.workload.dtype.label} rate of every device")
        width = item_bytes(view.workload.dtype)
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
        tasks = _paper_rows(g, plan, here, view.workload.dtype, width)
        return _Planned(tasks, plan.time_s * g.count, bounds, plan.imbalance)


SUFFIX = {Phase.FORWARD: "", Phase.BACKWARD_INPUT: " dX", Phase.BACKWARD_WEIGHT: " dW", Phase.RECOMPUTE: " again"}

PHYSICAL_ASSUMPTIONS = [
    "levels of the GEMM DAG are barriers",
    "link rates are planned at their nominal value until transfers have been observed",
    "attention products, normalisation, activation functions and the optimizer run on the coordinator",
    "the coordinator has memory for weights, optimizer states and activations (not checked)",
    "each device receives its own copy of its rows and columns (no multicast)",
    "estimate_s adds up the shapes of a level; their rows overlap on a device, so the replay may be faster",
]

PAPER_ASSUMPTIONS = [
    "areas, not rectangles: the sum of alpha beta is m n, continuous alpha and beta (m and n of rows are rounded)",
    "perfect overlap of download, compute and upload; levels and GEMMs strictly one after another",
    "no latency in the plan (the fleet's latency is still charged when replayed), no memory limit",
    "the coordinator's compute is free, its memory not checked and its link unlimited in the plan",
    "rows of A count as already on the devices where the published rule says so",
    "four square projections a layer: grouped key and value heads count as full ones",
]


def _steps(dag: GemmDag) -> Iterator[_Step]:
    """Levels as dispatches; runs of levels that only the coordinator works on become one."""
    waiting: list[int] = []
    for level in dag.levels():
        mine = [i for i in level.tolist() if dag.kind[i] == Kind.GEMM and dag.place[i] == Place.DEVICES]
        central = [i for i in level.tolist() if not (dag.kind[i] == Kind.GEMM and dag.place[i] == Place.DEVICES)]
        if not mine:
            waiting += central
            continue
        if waiting:
            yield _step(dag, [], waiting)
            waiting = []
        yield _step(dag, mine, central)
    if waiting:
        yield _step(dag, [], waiting)


def _step(dag: GemmDag, mine: list[int], central: list[int]) -> _Step:
    """Group the GEMMs of a level that read the same A: they are planned as one, with their columns side by side."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for i in mine:
        groups.setdefault((int(dag.a[i]), int(dag.a_transposed[i]), int(dag.m[i]), int(dag.k[i])), []).append(i)
    nodes = mine or central
    phases = {int(dag.phase[i]) for i in nodes}
    word = (
        "forward" if phases == {int(Phase.FORWARD)} else "recompute" if phases == {int(Phase.RECOMPUTE)} else "backward"
    )
    if not mine:
        word = "optimizer" if any(dag.kind[i] == Kind.OPTIMIZER for i in central) else "coordinator"
    layers = sorted({int(dag.layer[i]) for i in nodes})
    where = (
        f"layer {layers[0]}" if len(layers) == 1 and layers[0] >= 0 else "between layers" if layers[0] >= 0 else "ends"
    )
    listed = [dag.op_names[dag.op[i]] + (SUFFIX[Phase(int(dag.phase[i]))] if mine else "") for i in nodes]
    what = "+".join(dict.fromkeys(listed))
    facts = (dag.op, dag.kind, dag.phase, dag.m, dag.n, dag.k, dag.count, dag.flops, dag.memory_bytes)
    key = tuple(
        (len(group), *(tuple(x[i].item() for x in facts) for i in group))
        for group in (*groups.values(), central)
        if group
    )
    return _Step(f"{word}/{where}/{what}", tuple(tuple(g) for g in groups.values()), tuple(central), key)


def _one_by_one(dag: GemmDag, step: _Step) -> Iterator[_Step]:
    """A step's groups as steps of their own; the coordinator's nodes go with the last."""
    for group in step.groups:
        yield _step(dag, list(group), list(step.central) if group is step.groups[-1] else [])


def _shards(dag: GemmDag, group: tuple[int, ...], share: int) -> Iterator[tuple[_Shard, _Shard]]:
    """What each GEMM of a group reads: a tensor, cut along an axis, as one tiling places it."""
    gemm = (int(dag.m[group[0]]), int(dag.n[list(group)].sum()), int(dag.k[group[0]]), share)
    for j, i in enumerate(group):
        a = (int(dag.a[i]), int(dag.a_transposed[i]), gemm)
        yield a, (int(dag.b[i]), 1 - int(dag.b_transposed[i]), (*gemm, j))


def _read_again(dag: GemmDag, steps: list[_Step]) -> set[_Shard]:
    """Shards that more than one step reads as they are: only those are worth keeping on a device."""
    seen: Counter[_Shard] = Counter()
    for step in steps:
        seen.update({shard for g in step.groups for pair in _shards(dag, g, len(step.groups)) for shard in pair})
    return {shard for shard, times in seen.items() if times > 1}


def _renumbered(tiling: Tiling, here: IntArray) -> Tiling:
    """The tiling with device numbers of the whole fleet."""
    columns = {name: getattr(tiling, name) for name in tiling.__dataclass_fields__}
    return Tiling(**{**columns, "device": here[tiling.device].astype(np.int32)})


def _rows(tiling: Tiling, ends: IntArray, dtype: DType, pieces: int) -> TaskTable:
    """Sub-tasks of a tiling, cut where one GEMM of the group ends; the first part brings the rows of A."""
    parts = split_columns(tiling, ends)
    k, width = tiling.gemm.k, item_bytes(dtype)
    alpha, beta = parts.row1 - parts.row0, parts.col1 - parts.col0
    own = np.where(parts.first, alpha * k * width, 0)
    return TaskTable.build(
        device=parts.device,
        m=alpha,
        n=beta,
        k=k,
        dtype=dtype,
        bytes_in=own + beta * k * width,
        bytes_out=alpha * beta * width,
        resident_bytes=own + (beta * k + alpha * beta) * width,
        overlap=pieces,
    )


def _rows_of(
    step: _Step, dag: GemmDag, plan: _Planned, tilings: dict[Any, Tiling], version: int, view: View
) -> Iterator[tuple[IntArray, tuple[_Shard, _Shard], BoolArray]]:
    """For each GEMM of a step: its rows in the step's table, its shards of A and B, and which rows bring A."""
    at = 0
    for group in step.groups:
        ends = np.cumsum(dag.n[list(group)])
        gemm = Gemm(int(dag.m[group[0]]), int(ends[-1]), int(dag.k[group[0]]), item_bytes(view.workload.dtype))
        parts = split_columns(tilings[version, gemm, len(step.groups)], ends)
        for j, shards in enumerate(_shards(dag, group, len(step.groups))):
            rows = np.flatnonzero(parts.gemm == j)
            yield rows + at, shards, parts.first[rows]
        at += len(parts)
    if at > len(plan.tasks):
        raise PlanError("a plan and its rows disagree")


def _central_rows(dag: GemmDag, nodes: list[int], coordinator: int, dtype: DType) -> TaskTable:
    """Rows of the coordinator itself, one after another."""
    shape = dag.count[nodes] == 1
    return TaskTable.build(
        device=np.full(len(nodes), coordinator),
        kind=dag.kind[nodes],
        m=np.where(shape, dag.m[nodes], 0),
        n=np.where(shape, dag.n[nodes], 0),
        k=np.where(shape, dag.k[nodes], 0),
        dtype=dtype,
        flops=dag.flops[nodes],
        memory_bytes=dag.memory_bytes[nodes],
        resident_bytes=0,
    )


def _central_time(rows: TaskTable, view: View) -> float:
    """Seconds that the coordinator needs by its profile."""
    c = view.fleet.coordinator
    rate = c.compute_flops(view.workload.dtype)
    if np.isnan(rate) and (rows.flops > 0).any():
        raise Infeasible(f"the coordinator ({c.name}) has no {view.workload.dtype.label} rate")
    return float(np.sum(c.launch_s + np.maximum(rows.flops / rate, rows.memory_bytes / c.memory_bandwidth)))


def _paper_rows(g: ListedGemm, plan: AreaPlan, here: IntArray, dtype: DType, width: int) -> TaskTable:
    """One row a device for all ``count`` products: a multiple of the row takes the same multiple of its time."""
    alpha, beta, area = plan.rows, plan.cols, plan.area
    travels = (0.0 if g.cached else alpha) + beta
    return TaskTable.build(
        device=here,
        m=np.rint(alpha),
        n=np.rint(beta),
        k=g.k,
        dtype=dtype,
        flops=2.0 * area * g.k * g.count,
        bytes_in=np.ceil(width * g.k * travels * g.count),
        bytes_out=np.ceil(width * area * g.count),
        memory_bytes=0,
        resident_bytes=np.ceil(width * (alpha * g.k + beta * g.k + area)),
        overlap=Overlap.PERFECT,
    )
