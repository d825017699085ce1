"""Alpa: layers as pipeline stages on submeshes, with the mix of data and tensor parallelism chosen for each stage.

``model: physical`` plans with `morphling.planning.alpa` (the inter-op dynamic program; even plans on very large
fleets) and replays 1F1B; ``model: paper`` is the formula by which the authors of Cleave put Alpa beside theirs.
Source: Zheng et al. 2022 (Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep Learning, OSDI).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from morphling.errors import Infeasible
from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import View
from morphling.planning.alpa import AlpaCosts, AlpaDevices, AlpaPlan, plan_alpa_even, plan_alpa_stages
from morphling.planning.costs import Rates
from morphling.planning.group_costs import GroupCost
from morphling.planning.group_costs import alpa as published
from morphling.planning.lacking import with_rate
from morphling.planning.planned import Placement, PlannedConfig, PlannedStrategy
from morphling.planning.row_times import Speeds, links_of
from morphling.planning.staged_rows import StagedPipeline, StagedStage
from morphling.planning.tensor_parallel import shard_memory, shard_parameters
from morphling.planning.training_memory import STATE_PARTS
from morphling.types import FloatArray, IntArray
from morphling.workload import Workload
from morphling.workload.build import Recompute
from morphling.workload.counts import Optimizer

__all__ = ["Alpa", "AlpaConfig"]


@dataclass(frozen=True)
class AlpaConfig(PlannedConfig):
    """Configuration of Alpa.

    model : ``physical`` (a plan, replayed row by row) or ``paper`` (the published formula: time only, no churn)
    search : ``stages``, the dynamic program; ``even``, the best plan of equal stages; ``auto``: stages up to
        ``most_devices``, else even
    most_devices : up to how many devices ``auto`` runs the dynamic program, which takes about 10 s with 256 devices and
        40 layers, after each departure again; ``search: even`` takes less than a second
    micro_batches : into how many the batch is divided; ``auto``: the best power of two that divides it
    recompute : activations that are computed twice; ``workload``: what the workload says
    optimizer : which states a device holds: ``adam-mixed`` (16 bytes a parameter), ``sgd``, …
    """

    model: Literal["physical", "paper"] = "physical"
    search: Literal["auto", "stages", "even"] = "auto"
    most_devices: int = 256
    micro_batches: int | Literal["auto"] = "auto"
    recompute: Literal["workload", "none", "selective", "full"] = "workload"
    optimizer: Optimizer = "adam-mixed"

    def __post_init__(self) -> None:
        """Refuse counts of nothing."""
        super().__post_init__()
        if self.most_devices < 0:
            raise ValueError(f"most_devices: 0 or more devices, not {self.most_devices}")
        if self.micro_batches != "auto" and self.micro_batches < 1:
            raise ValueError(f"micro_batches: a whole number from 1 on, or auto, not {self.micro_batches}")
        if self.model == "paper":
            for name, left_out in (("search", "auto"), ("micro_batches", "auto"), ("recompute", "workload")):
                if getattr(self, name) != left_out:
                    raise ValueError(f"{name}: model: paper does not know it; leave it out, or use model: physical")


MOST_ROOMS = 4
"""How many lower bounds of memory are tried."""


def _rooms(memory_bytes: IntArray) -> list[int]:
    """Lower bounds of memory, from the least there is: all sizes, or some of them evenly spread."""
    sizes = np.unique(memory_bytes)
    step = max(1, -(-len(sizes) // MOST_ROOMS))
    rooms: list[int] = sizes[::step].tolist()
    return rooms


@dataclass(frozen=True, eq=False)
class _Plan:
    """What was planned, and its stages on devices."""

    alpa: AlpaPlan
    stages: list[StagedStage]


class Alpa(PlannedStrategy):
    """Alpa: pipeline stages on submeshes, each with its own data and tensor parallelism; see the module."""

    Config: ClassVar[type] = AlpaConfig
    name: ClassVar[str] = "alpa"
    config: AlpaConfig

    def plan(self, view: View, here: IntArray) -> Placement:
        """Devices by their links, the best first; then the best plan over the divisions of the batch.

        A stage is planned for the least memory of its devices, so that this is also tried without those that have
        little.
        """
        work = view.workload
        able = with_rate(view, here)
        search = self.config.search
        if search == "auto":
            search = "stages" if len(able) <= self.config.most_devices else "even"
        best: AlpaPlan | None = None
        ranked, why = able, ""
        memory = np.asarray(view.fleet.memory_bytes)[able]
        for room in reversed(
            _rooms(memory)
        ):  # few devices are planned fast, and what is found cuts other searches short
            try:
                found, order = self._found(view, able[memory >= room], search, best)
            except Infeasible as reason:
                why = str(reason)  # in the end, of all devices
                continue
            if found is not best:
                best, ranked = found, order
        if best is None:
            raise Infeasible(why)
        return self._placement(work, best, ranked, search)

    def _found(self, view: View, able: IntArray, search: str, best: AlpaPlan | None) -> tuple[AlpaPlan, IntArray]:
        """A plan that is better than ``best``, or that, and the devices in the order in which it takes them."""
        work = view.workload
        link = np.minimum(view.uplink_bps[able], view.downlink_bps[able])
        ranked = able[np.argsort(-link, kind="stable")]
        devices = AlpaDevices(
            Speeds.of(view, ranked), links_of(view, ranked), np.asarray(view.fleet.memory_bytes)[ranked]
        )
        choices = [
            AlpaCosts(work, count, devices, self.config.optimizer, self._recompute(work))
            for count in self._micro_batches(work)
        ]
        plan = plan_alpa_stages if search == "stages" else plan_alpa_even
        return plan(choices, best=best), ranked

    def _placement(self, work: Workload, found: AlpaPlan, ranked: IntArray, search: str) -> Placement:
        batch, last = work.batch_size // found.micro_batches, len(found.stages) - 1
        stages, memory, saved = [], [], []
        for p, s in enumerate(found.stages):
            devices = ranked[s.start : s.start + s.size].reshape(s.replicas, s.ways)
            stages.append(StagedStage(devices, s.layers, s.sharding))
            need = shard_memory(
                work,
                self.config.optimizer,
                batch // s.replicas,
                s.ways,
                layers=len(s.layers),
                first=p == 0,
                last=p == last,
                in_flight=s.in_flight,
                recompute=self._recompute(work),
                sharding=s.sharding,
                replicas=s.replicas,
            )
            memory += [need] * s.size
            count = shard_parameters(work.model, len(s.layers), s.ways, first=p == 0, last=p == last)
            saved += [-(-count // s.replicas) * sum(STATE_PARTS[self.config.optimizer])] * s.size
        return Placement(
            devices=np.concatenate([s.devices.ravel() for s in stages]),
            memory=tuple(memory),
            saved_bytes=np.array(saved, np.int64),
            restored_bytes=np.array([m.states for m in memory], np.int64),
            facts={
                "search": search,
                "micro_batches": found.micro_batches,
                "planned_s": found.total_s,
                "stages": len(found.stages),
                "layers": [len(s.layers) for s in found.stages],
                "data_parallel": [s.replicas for s in found.stages],
                "tensor_parallel": [s.ways for s in found.stages],
                "sharding": [s.sharding for s in found.stages],
            },
            own=_Plan(found, stages),
        )

    def _recompute(self, work: Workload) -> Recompute:
        return work.recompute if self.config.recompute == "workload" else self.config.recompute

    def _micro_batches(self, work: Workload) -> list[int]:
        """How many micro-batches are tried."""
        asked = self.config.micro_batches
        if asked == "auto":
            return [1 << i for i in range(work.batch_size.bit_length()) if work.batch_size % (1 << i) == 0]
        if work.batch_size % asked:
            near = [m for m in range(1, work.batch_size + 1) if work.batch_size % m == 0]
            best = min(near, key=lambda m: (abs(m - asked), m))
            raise Infeasible(
                f"micro_batches: {work.batch_size} sequences cannot be divided into {asked}; the nearest is {best}"
            )
        return [asked]

    def _pipeline(self, placement: Placement, view: View) -> StagedPipeline:
        plan: _Plan = placement.own
        return StagedPipeline(
            view.workload,
            plan.stages,
            plan.alpa.micro_batches,
            recompute=self._recompute(view.workload),
            tokens=bool(view.fleet.links.latency_ns[placement.devices].any()),
        )

    def tasks(self, placement: Placement, view: View) -> TaskTable:
        """1F1B over the stages; then the replicas of each stage exchange gradients, and the optimizer."""
        return self._pipeline(placement, view).tasks()

    def estimate(self, placement: Placement, view: View) -> float | None:
        """The schedule replayed over whole stages and boundaries (Alpa's own T is ``planned_s`` of the plan)."""
        return self._pipeline(placement, view).estimate(view)

    def beside(self, placement: Placement, busy_s: FloatArray, view: View) -> float:
        """The same; the first collective of a stage, or its first boundary, waits until its uplinks are free."""
        return self._pipeline(placement, view).estimate(view, busy_s)

    def paper(self, view: View, here: IntArray) -> GroupCost:
        """Uniform tensor parallelism, as the authors of Cleave cost Alpa."""
        work = view.workload
        rates = Rates.of(
            view.fleet.compute_flops(work.dtype)[here], view.downlink_bps[here] / 8, view.uplink_bps[here] / 8
        )
        return published(work.model, work.batch_size, work.sequence_length, rates)

    def assumptions(self) -> list[str]:
        """What is taken for granted."""
        return [
            "options of a stage are replicas of tensor parallelism, instead of all sharding specifications",
            "devices are ordered by their links, and a stage is planned as if all its devices were its worst",
            "devices that do not make the plan faster stay idle",
            "what crosses to the next stage is sent once, by all devices of a replica, and gathered there",
            "gradients of a tied embedding on two stages are not added up",
        ]
