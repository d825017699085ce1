"""DT-FM: data-parallel groups as pipeline stages, placed for the network (Yuan et al., NeurIPS 2022, arXiv 2206.01288).

The search for groups, pairs and the order of the stages is in `morphling.planning.dtfm`; it takes devices as equally
fast.  The runtime is that of the repository DS3Lab/DT-FM: all forward passes, then all backward passes, every layer
computed again, and the groups sum their gradients behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from morphling.errors import Infeasible
from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import View
from morphling.planning import group_costs
from morphling.planning.dtfm import DtfmCosts, DtfmPlan, plan_dtfm
from morphling.planning.group_costs import GroupCost
from morphling.planning.lacking import too_little_memory, with_rate
from morphling.planning.lines import Line, Reduction, iteration_rows, iteration_s
from morphling.planning.partition import even_partition
from morphling.planning.pipelines import (
    PIPELINE_ASSUMPTIONS,
    RecomputeChoice,
    chosen_recompute,
    line_placement,
    micro_batch_of,
    view_rates,
)
from morphling.planning.placement import Placement, PlannedConfig
from morphling.planning.planned import PlannedStrategy
from morphling.planning.schedules import gpipe
from morphling.planning.stages import SharedTable, Stages
from morphling.planning.training_memory import DeviceMemory
from morphling.types import FloatArray, IntArray, item_bytes
from morphling.workload.counts import Optimizer

__all__ = ["Dtfm", "DtfmConfig"]


@dataclass(frozen=True)
class DtfmConfig(PlannedConfig):
    """Configuration of DT-FM.

    model : ``physical``, or ``paper``: the published comparison's closed form of one batch, without rows or recovery
    stages : stages of a pipeline; ``fastest``: the number with the shortest iteration in closed form, on devices in
        their order, before the search; ``fewest``: as few as the memory of all devices allows
    micro_batch : sequences of a micro-batch, a divisor of the batch; ``auto``: 1, or the next larger divisor with
        which an iteration has at most 300,000 passes
    reduction : how a stage's gradients are summed: ``sharded``, each member is the server of a share (the published
        cost model), or ``ring``
    recompute : which activations are computed twice; the published runtime does so for all
    optimizer : which states a device holds
    table : of a table that the model uses for both embedding and LM head: ``summed``, the first and the last stage sum
        its gradients (Megatron-LM), or ``separate``, as if the model had two tables
    population : partitions that the search starts with (published: 100)
    offspring : candidates after those (published: 4,900)
    time_limit_s : seconds after which the search ends early; the plan then depends on the machine, and the report says
        so; null: no limit
    planning_s : seconds charged for each new plan, or ``measured``: the wall time of the planner (two runs then
        differ); by default what the published search takes
    """

    model: Literal["physical", "paper"] = "physical"
    stages: int | Literal["fastest", "fewest"] = "fastest"
    micro_batch: int | Literal["auto"] = "auto"
    reduction: Reduction = "sharded"
    recompute: RecomputeChoice = "full"
    optimizer: Optimizer = "adam-mixed"
    table: SharedTable = "summed"
    population: int = 40
    offspring: int = 160
    time_limit_s: float | None = None
    planning_s: float | Literal["measured"] = 90.0

    def __post_init__(self) -> None:
        """Refuse counts that are none."""
        super().__post_init__()
        for name, least in (("stages", 1), ("micro_batch", 1), ("population", 1), ("offspring", 0)):
            value = getattr(self, name)
            if isinstance(value, int) and value < least:
                raise ValueError(f"{name}: at least {least}, not {value}")
        if self.time_limit_s is not None and not self.time_limit_s > 0:
            raise ValueError(f"time_limit_s: above 0 s, or null, not {self.time_limit_s:g}")


class Dtfm(PlannedStrategy):
    """Pipelines of data-parallel groups, placed by a seeded search over the links; restarts from checkpoints."""

    Config: ClassVar[type] = DtfmConfig
    name: ClassVar[str] = "dtfm"
    config: DtfmConfig

    def plan(self, view: View, here: IntArray) -> Placement:
        """Equal stages on as many devices as make whole pipelines, those with most memory; then the search."""
        able, w = with_rate(view, here), view.workload
        chosen, stages, copies = self._sized(view, able)
        counts = _shares(w.batch_size // stages.micro_batch, copies)
        found = self._searched(view, chosen, stages, counts[0])
        lines = [
            Line.single(gpipe(stages.count, m), chosen[of], stages.micro_batch)
            for m, of in zip(counts, found.pipelines.T, strict=True)
        ]
        facts = {
            "communication_s": found.cost.total_s,
            "data_parallel_s": found.cost.data_parallel_s,
            "pipeline_s": found.cost.pipeline_s,
            "exact_order": found.exact_order,
            "candidates": found.evaluations,
            "search_cut": found.cut,
            "search_seed": found.seed,
        }
        return line_placement(lines, stages, facts)

    def _sized(self, view: View, able: IntArray) -> tuple[IntArray, Stages, int]:
        """Who takes part, the stages, and how many pipelines.

        Any device may get any stage, so the least memory of them has to hold the largest stage.  Devices with the least
        memory are left out as long as no number of stages fits.
        """
        memory, asked = view.fleet.memory_bytes, self.config.stages
        layers = view.workload.model.layers
        for room in np.unique(memory[able]).tolist():
            enough = able[memory[able] >= room]
            most = min(len(enough), layers)
            fits = []
            for P in range(1, most + 1) if isinstance(asked, str) else [asked] if asked <= most else []:
                stages, copies = self._cut(view, P, len(enough))
                if self._largest(view, stages, copies).total <= room:
                    first = enough[np.argsort(-memory[enough], kind="stable")][: P * copies]
                    fits.append((np.sort(first), stages, copies))
                    if asked != "fastest":
                        break
            if fits:
                return fits[0] if len(fits) == 1 else min(fits, key=lambda found: self._in_order(view, *found))
        most = min(len(able), layers)
        if not isinstance(asked, str) and asked > most:
            raise Infeasible(
                f"stages: {len(able)} devices and {layers} layers cannot fill {asked} stages; at most {most}"
            )
        P = most if isinstance(asked, str) else asked
        stages, copies = self._cut(view, P, P)
        need, names = self._largest(view, stages, copies), view.fleet.names()
        raise too_little_memory(f"one of {P} stages", need, memory[able], [names[d] for d in able], wanted=P)

    def _in_order(self, view: View, chosen: IntArray, stages: Stages, copies: int) -> float:
        """Seconds of an iteration with each pipeline on consecutive devices."""
        counts = _shares(view.workload.batch_size // stages.micro_batch, copies)
        places = chosen.reshape(copies, stages.count)
        made = {m: gpipe(stages.count, m) for m in set(counts)}
        lines = [Line.single(made[m], of, stages.micro_batch) for m, of in zip(counts, places, strict=True)]
        return iteration_s(lines, stages, view, self.config.reduction)

    def _cut(self, view: View, P: int, devices: int) -> tuple[Stages, int]:
        w = view.workload
        batch = micro_batch_of(self.config.micro_batch, w.batch_size, 2 * P)
        bounds = even_partition(w.model.layers, P)
        recompute = chosen_recompute(self.config.recompute, w)
        stages = Stages(w, bounds, batch, recompute, self.config.optimizer, table=self.config.table)
        return stages, min(devices // P, w.batch_size // batch)

    def _largest(self, view: View, stages: Stages, copies: int) -> DeviceMemory:
        """Of the largest stage: the first, the last, or the one with most layers."""
        held = -(-view.workload.batch_size // stages.micro_batch // copies)
        which = {0, stages.count - 1, int(np.argmax(stages.layers()))}
        return max((stages.memory(p, held) for p in sorted(which)), key=lambda m: m.total)

    def _searched(self, view: View, chosen: IntArray, stages: Stages, micro_batches: int) -> DtfmPlan:
        rates = view_rates(view, chosen)
        costs = DtfmCosts(
            rates.latency_s[:, None] + rates.latency_s,
            np.minimum(rates.up[:, None], rates.down),
            gradient_bytes=float(stages.own_parameters().max() * item_bytes(view.workload.dtype)),
            activation_bytes=float(micro_batches * stages.boundary),
            stages=stages.count,
        )
        return plan_dtfm(
            costs,
            int(view.random("search").integers(1 << 31)),
            population=self.config.population,
            offspring=self.config.offspring,
            time_limit_s=self.config.time_limit_s,
        )

    def tasks(self, placement: Placement, view: View) -> TaskTable:  # noqa: ARG002 - the plan says all
        """All pipelines, each stage's sum of gradients behind them, the optimizer."""
        lines, stages = placement.own
        return iteration_rows(lines, stages, self.config.reduction)

    def estimate(self, placement: Placement, view: View) -> float | None:
        """`iteration_s`."""
        lines, stages = placement.own
        return iteration_s(lines, stages, view, self.config.reduction)

    def beside(self, placement: Placement, busy_s: FloatArray, view: View) -> float:
        """`iteration_s`."""
        lines, stages = placement.own
        return iteration_s(lines, stages, view, self.config.reduction, busy_s=busy_s)

    def paper(self, view: View, here: IntArray) -> GroupCost:
        """`group_costs.dtfm`, with consecutive devices as groups."""
        w = view.workload
        return group_costs.dtfm(w.model, w.batch_size, w.sequence_length, view_rates(view, here))

    def assumptions(self) -> list[str]:
        """What is taken for granted."""
        said = [
            *PIPELINE_ASSUMPTIONS,
            "the search takes devices as equally fast, as published; the rows do not",
        ]
        if self.placement is not None and self.placement.facts["search_cut"]:
            done = self.placement.facts["candidates"]
            said.append(
                f"time_limit_s ended the search after {done} candidates: another machine may find another plan; the"
                f" same one is found with time_limit_s: null and offspring: {max(done - self.config.population, 0)}"
            )
        return said


def _shares(micro_batches: int, copies: int) -> list[int]:
    return [micro_batches // copies + (i < micro_batches % copies) for i in range(copies)]
