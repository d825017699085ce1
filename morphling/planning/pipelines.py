"""What plain pipelines share: how many stages and copies, who stands where, and one iteration as a table.

The schedules differ; each is a strategy of its own.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from morphling.errors import Infeasible
from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import View
from morphling.planning.costs import Rates
from morphling.planning.lacking import require_fit, with_rate
from morphling.planning.lines import Line, iteration_rows, iteration_s
from morphling.planning.partition import even_partition, min_max_partition
from morphling.planning.placement import Placement, PlannedConfig
from morphling.planning.planned import PlannedStrategy
from morphling.planning.schedules import Schedule, in_flight
from morphling.planning.stages import SharedTable, Stages, layer_seconds, layer_sizes
from morphling.planning.training_memory import DeviceMemory
from morphling.types import FloatArray, IntArray
from morphling.workload import Workload
from morphling.workload.build import Recompute
from morphling.workload.counts import Optimizer

__all__ = [
    "MOST_ROWS",
    "PIPELINE_ASSUMPTIONS",
    "PipelineConfig",
    "PipelineStrategy",
    "RecomputeChoice",
    "chosen_recompute",
    "line_placement",
    "micro_batch_of",
    "view_rates",
]

MOST_ROWS = 300_000
"""Passes of an iteration; with more, micro-batches are made larger unless their size is given."""

RecomputeChoice: TypeAlias = Literal["workload", "none", "selective", "full"]


@dataclass(frozen=True)
class PipelineConfig(PlannedConfig):
    """Configuration of a plain pipeline.

    stages : how many stages of one device each; ``most``: as many as there are devices and layers, fewer only where
        that does not fit into memory; ``fewest``: as few as memory allows
    data_parallel : copies of the pipeline, among which the micro-batches are shared out evenly; ``all``: as many as
        the devices make
    micro_batch : sequences of a micro-batch, a divisor of the batch; ``auto``: 1, or the next larger divisor with
        which an iteration has at most 300,000 passes
    partition : layers of the stages: ``even``, or ``balanced`` so that the slowest stage takes the least
    recompute : which activations are computed twice, instead of what the workload says
    optimizer : which states a device holds: ``adam-mixed`` (16 bytes a parameter), ``sgd``, …
    table : of a table that the model uses for both embedding and LM head: ``summed``, the first and the last stage sum
        its gradients (Megatron-LM), or ``separate``, as if the model had two tables
    """

    stages: int | Literal["most", "fewest"] = "most"
    data_parallel: int | Literal["all"] = "all"
    micro_batch: int | Literal["auto"] = "auto"
    partition: Literal["even", "balanced"] = "even"
    recompute: RecomputeChoice = "workload"
    optimizer: Optimizer = "adam-mixed"
    table: SharedTable = "summed"

    def __post_init__(self) -> None:
        """Refuse counts below 1."""
        super().__post_init__()
        for name in ("stages", "data_parallel", "micro_batch"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise ValueError(f"{name}: at least 1, not {value}")


def chosen_recompute(choice: RecomputeChoice, workload: Workload) -> Recompute:
    """The workload's own unless another is asked for."""
    return workload.recompute if choice == "workload" else choice


def micro_batch_of(asked: int | str, batch: int, passes: int) -> int:
    """Sequences of a micro-batch.

    asked : a divisor of ``batch``, or ``auto``: the smallest with at most `MOST_ROWS` passes, of which each micro-batch
        has ``passes``.  Raises ``Infeasible``, with the nearest divisors, for any other number
    """
    divisors = [b for b in range(1, batch + 1) if batch % b == 0]
    if not isinstance(asked, int):
        return next((b for b in divisors if batch // b * passes <= MOST_ROWS), batch)
    if batch % asked:
        below, above = [b for b in divisors if b < asked][-1:], [b for b in divisors if b > asked][:1]
        raise Infeasible(
            f"micro_batch: a batch of {batch} sequences cannot be cut into micro-batches of {asked};"
            f" nearest: {' or '.join(map(str, below + above))}"
        )
    return asked


def view_rates(view: View, here: IntArray, *, spare: int = 0) -> Rates:
    """Of the devices ``here`` as they are known now; ``spare`` bytes of each device's memory are not for the plan."""
    fleet = view.fleet
    return Rates.of(
        fleet.compute_flops(view.workload.dtype)[here],
        view.downlink_bps[here] / 8.0,
        view.uplink_bps[here] / 8.0,
        latency_s=fleet.links.latency_ns[here] / 1e9,
        launch_s=fleet.launch_s[here],
        memory_bytes=np.maximum(fleet.memory_bytes[here] - spare, 0).astype(np.float64),
    )


class _Undivided(Infeasible):
    """Another number of stages may divide; memory is the better reason to tell."""


class PipelineStrategy(PlannedStrategy):
    """P stages of one device each, g copies of the pipeline; write `schedule`, and `chunks` if a stage has several."""

    Config: ClassVar[type] = PipelineConfig
    config: Any

    @abstractmethod
    def schedule(self, stages: int, micro_batches: int) -> Schedule:
        """The order of the passes."""

    @property
    def chunks(self) -> int:
        """v, parts of the model on each stage."""
        return 1

    def unit(self, stages: int) -> int:  # noqa: ARG002 - for schedules that ask for multiples
        """Of how many micro-batches a copy of the pipeline takes a multiple."""
        return 1

    # ------------------------------------------------------------------------------------------------------------ plan

    def plan(self, view: View, here: IntArray) -> Placement:
        """The first number of stages, in the order of ``stages``, that divides and fits."""
        able, model, asked = with_rate(view, here), view.workload.model, self.config.stages
        most = min(len(able), model.layers // self.chunks)
        if isinstance(asked, int):
            self._check_stages(asked, len(able), model.layers)
            return self._of_stages(view, able, asked)
        if most < 1:
            self._check_stages(1, len(able), model.layers)
        why: dict[int, Infeasible] = {}
        for stages in range(1, most + 1) if asked == "fewest" else range(most, 0, -1):
            try:
                return self._of_stages(view, able, stages)
            except Infeasible as reason:
                why[stages] = reason
        told = max([P for P, reason in why.items() if not isinstance(reason, _Undivided)], default=most)
        raise Infeasible(f"no pipeline of 1 to {most} stages is possible; with {told}: {why[told]}")

    def _check_stages(self, stages: int, devices: int, layers: int) -> None:
        if stages > devices:
            raise Infeasible(f"stages: {stages} need as many devices, and {devices} are there; at most {devices}")
        if stages * self.chunks > layers:
            parts = f"{stages} stages" + (f" of {self.chunks} chunks" if self.chunks > 1 else "")
            raise Infeasible(f"stages: {layers} layers cannot fill {parts}; at most {layers // self.chunks} stages")

    def _of_stages(self, view: View, able: IntArray, stages: int) -> Placement:
        w = view.workload
        batch = micro_batch_of(self.config.micro_batch, w.batch_size, 2 * stages * self.chunks)
        counts = self._shares(w.batch_size // batch, stages, len(able))
        even = Stages(
            w, even_partition(w.model.layers, stages * self.chunks), batch,
            chosen_recompute(self.config.recompute, w), self.config.optimizer, self.chunks,
            self.config.table,
        )  # fmt: skip
        schedules = {m: self.schedule(stages, m) for m in set(counts)}
        held = in_flight(schedules[max(counts)])
        need = [even.memory(p, int(held[p])) for p in range(stages)]
        places = _placed(able, view.fleet.memory_bytes, need, len(counts), view.fleet.names())
        made = even if self.config.partition == "even" else self._balanced(view, even, places, held)
        lines = [Line.single(schedules[m], at, batch) for m, at in zip(counts, places, strict=True)]
        return line_placement(lines, made, {"schedule": self.name, "chunks": self.chunks})

    def _shares(self, micro_batches: int, stages: int, devices: int) -> list[int]:
        """Micro-batches of each copy, as even as they can be; ``Infeasible`` if they do not divide."""
        unit, asked = self.unit(stages), self.config.data_parallel
        if micro_batches % unit:
            raise _Undivided(f"{micro_batches} micro-batches are no multiple of {unit} stages, as {self.name} needs")
        most = min(devices // stages, micro_batches // unit)
        copies = most if asked == "all" else asked
        if copies > most:
            raise Infeasible(
                f"data_parallel: {copies} pipelines of {stages} stages need {copies * stages} devices and"
                f" {copies * unit} micro-batches; there are {devices} and {micro_batches}: at most {most}"
            )
        units = micro_batches // unit
        return [unit * (units // copies + (i < units % copies)) for i in range(copies)]

    def _balanced(self, view: View, even: Stages, places: list[IntArray], held: IntArray) -> Stages:
        """Layers shared out so that the slowest stage takes the least; each is as slow as the slowest of its copies."""
        w, devices = view.workload, np.stack(places)
        each = layer_seconds(view, devices.ravel(), even.micro_batch, even.recompute)
        slowest = (each[0] + each[1]).reshape(*devices.shape, -1).max(axis=0)
        sizes = layer_sizes(w, even.micro_batch, even.recompute, even.optimizer)
        room = view.fleet.memory_bytes[devices].min(axis=0) - sizes.working
        found = min_max_partition(
            np.tile(slowest, (self.chunks, 1)),
            memory_bytes=np.tile(sizes.needed(-(-held // self.chunks)), (self.chunks, 1)),
            capacity_bytes=np.tile(room, self.chunks) // self.chunks,
        )
        return replace(even, bounds=found.bounds)

    # ----------------------------------------------------------------------------------------------------- the others

    def tasks(self, placement: Placement, view: View) -> TaskTable:  # noqa: ARG002 - the plan says it all
        """All passes, the sums of gradients, the optimizer."""
        lines, stages = placement.own
        return iteration_rows(lines, stages)

    def estimate(self, placement: Placement, view: View) -> float | None:
        """`iteration_s`."""
        lines, stages = placement.own
        return iteration_s(lines, stages, view)

    def beside(self, placement: Placement, busy_s: FloatArray, view: View) -> float:
        """`iteration_s`."""
        lines, stages = placement.own
        return iteration_s(lines, stages, view, busy_s=busy_s)

    def assumptions(self) -> list[str]:
        """What is taken for granted."""
        return PIPELINE_ASSUMPTIONS


PIPELINE_ASSUMPTIONS = [
    "the first stage has the embedding, the last the final norm and the LM head",
    "a table that the model uses for both ends stands on both; both are summed, unless table is separate",
    "each stage has its own part of what the model reads (tokens, labels) locally",
    "sends leave through a device's one uplink in the order in which they are ready",
]


def _placed(
    able: IntArray, memory_bytes: IntArray, need: list[DeviceMemory], copies: int, names: list[str]
) -> list[IntArray]:
    """Devices of each copy, int64[P] each: those with most memory, in fleet order if that fits.

    Otherwise the stages that need most get the devices that have most.  Raises ``Infeasible`` if that does not fit.
    """
    stages = len(need)
    sorted_ = able[np.argsort(-memory_bytes[able], kind="stable")][: stages * copies]
    total = np.array([x.total for x in need])
    places = np.sort(sorted_).reshape(copies, stages)
    if (memory_bytes[places] < total).any():
        places = np.empty((stages, copies), np.int64)
        places[np.argsort(-total, kind="stable")] = sorted_.reshape(stages, copies)
        places = places.T
    flat = places.ravel().tolist()
    require_fit(need * copies, memory_bytes[flat], what="device", names=[names[d] for d in flat])
    return list(places)


def line_placement(lines: list[Line], stages: Stages, facts: dict[str, Any]) -> Placement:
    """The placement of ``lines`` on ``stages``: memory, checkpoints (each stage saves once) and facts."""
    devices, memory, saves = [], [], []
    versions = [1] * stages.count if lines[0].schedule.flush else in_flight(lines[0].schedule).tolist()
    for i, line in enumerate(lines):
        held = in_flight(line.schedule)
        for p, (of, given) in enumerate(zip(line.groups, line.samples, strict=True)):
            for k, (device, y) in enumerate(zip(of.tolist(), given.tolist(), strict=True)):
                devices.append(device)
                memory.append(stages.memory(p, int(held[p]), y, versions=versions[p]))
                saves.append(i == 0 and k == 0)
    states = np.array([m.states for m in memory], np.int64)
    first = lines[0]
    return Placement(
        devices=np.array(devices, np.int64),
        memory=tuple(memory),
        saved_bytes=np.where(saves, states, 0),
        restored_bytes=states,
        facts={
            "stages": stages.count,
            "pipelines": len(lines),
            "layers": stages.layers().tolist(),
            "micro_batch": stages.micro_batch,
            "micro_batches": [line.schedule.micro_batches for line in lines],
            "groups": [of.tolist() for of in first.groups] if len(lines) == 1 else
            [[of.tolist() for of in line.groups] for line in lines],
            **facts,
        },
        own=(lines, stages),
    )  # fmt: skip
