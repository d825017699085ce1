"""Confidant: a line of phones, layers cut for the least slowest stage or link (Chen et al., MobiCom 2025).

Planned by the dynamic programme of FTPipeHD (repository qyy2003/FTPipeHD), which calls itself the implementation of
Confidant.  The pipeline is asynchronous 1F1B: weights are updated after every micro-batch, and a stage keeps a version
of its weights for each that is on its way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np

from morphling.errors import Infeasible, PlanError
from morphling.interfaces.strategy import Decisions, WakeAt
from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import View
from morphling.planning import group_costs
from morphling.planning.copies import Copied, CopiedPipeline, layers_of
from morphling.planning.delays import check_delay, delay_range
from morphling.planning.group_costs import GroupCost
from morphling.planning.lacking import with_rate
from morphling.planning.lines import Line
from morphling.planning.moves import copied, shifted
from morphling.planning.partition import min_max_partition
from morphling.planning.pipelines import (
    RecomputeChoice,
    line_placement,
    micro_batch_of,
    view_rates,
)
from morphling.planning.placement import Placement, PlannedConfig, Recovery
from morphling.planning.schedules import Schedule, pipedream
from morphling.planning.stages import Stages, layer_seconds, layer_sizes
from morphling.planning.upkeep import Due
from morphling.types import FloatArray, IntArray
from morphling.workload.counts import Optimizer

__all__ = ["Confidant", "ConfidantConfig"]


@dataclass(frozen=True)
class ConfidantConfig(PlannedConfig):
    """Configuration of Confidant.

    model : ``physical``, or ``paper``: the published closed form of one batch, without rows or recovery
    quirks : of ``paper`` only: the whole batch in every micro-batch, and gigabytes divided by Gbit/s, as in the
        published comparison
    micro_batch : sequences between two updates of the weights (the paper's batch), a divisor of the batch; ``auto``: 1,
        or the next larger divisor with which an iteration has at most 300,000 passes
    neighbour_every : micro-batches between two copies of each stage to the next one, sent while training goes on; 0:
        none but the initial one
    central_every : micro-batches between two copies of all stages to the coordinator (its checkpoints); 0: none but the
        initial one
    copied : what copies and moves consist of: ``weights`` in the workload's dtype, as published (the optimizer's
        moments then start anew on whoever takes over), or ``states``, all that training needs to go on exactly
    recompute : which activations are computed twice, instead of what the workload says
    optimizer : which states a device holds
    detection_s : seconds until a departure is noticed, or ``[lowest, highest]``; ``auto``: the published timer, twice
        the time of a micro-batch in the steady state
    checkpoint_every : has to be 0 here: see central_every
    announced : devices that announce their exit, as ``[[number in the fleet, seconds], …]``: at the end of the
        iteration then under way an idle device, at least as fast and with enough memory, takes over the stage, whose
        weights it fetches from the device itself (proactive hand-over); if there is none, it is waited for the exit
    """

    model: Literal["physical", "paper"] = "physical"
    quirks: bool = True
    micro_batch: int | Literal["auto"] = "auto"
    neighbour_every: int = 100
    central_every: int = 200
    copied: Copied = "weights"
    recompute: RecomputeChoice = "workload"
    optimizer: Optimizer = "adam-mixed"
    detection_s: float | list[float] | Literal["auto"] = "auto"  # type: ignore[assignment] # one more choice
    setup_s: float = 0.0
    checkpoint_every: int = 0
    announced: list[list[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Refuse counts that are none, and checkpoints beside the central copies."""
        if self.detection_s != "auto":
            check_delay("detection_s", self.detection_s)
        check_delay("setup_s", self.setup_s)
        if self.planning_s != "measured":
            check_delay("planning_s", self.planning_s)
        for name, least in (("micro_batch", 1), ("neighbour_every", 0), ("central_every", 0)):
            value = getattr(self, name)
            if isinstance(value, int) and value < least:
                raise ValueError(f"{name}: at least {least}, not {value}")
        for said in self.announced:
            if len(said) != 2 or said[0] < 0 or said[0] != int(said[0]) or not 0 <= said[1] < float("inf"):
                raise ValueError(f"announced: a device's number and seconds from 0 on, [3, 120.0], not {said}")
        if self.announced and self.model == "paper":
            raise ValueError("announced: model: paper knows no devices that come and go; use model: physical")
        if self.checkpoint_every:
            raise ValueError(
                "checkpoint_every: copies to the coordinator are Confidant's checkpoints; use central_every"
            )


class Confidant(CopiedPipeline):
    """Asynchronous pipeline over a line of devices, cut for the least slowest stage or link, with copies of layers."""

    Config: ClassVar[type] = ConfidantConfig
    name: ClassVar[str] = "confidant"
    config: ConfidantConfig

    def __init__(self, config: ConfidantConfig | None = None) -> None:
        super().__init__(config)
        self.leaving: dict[int, int] = {}

    def start(self, view: View) -> Decisions:
        """Plan, begin, and listen for announcements."""
        for device, _ in self.config.announced:
            if device >= view.fleet.size:
                raise PlanError(f"announced: there is no device {device:.0f}; the last one is {view.fleet.size - 1}")
        begun = super().start(view)
        told = [WakeAt(at, ("announced", int(device))) for device, at in self.config.announced]
        return [*told, *(begun if isinstance(begun, Iterable) else [begun])]

    def on_timer(self, tag: Any, view: View) -> Decisions:
        """A device announces its exit, or something of the others."""
        what, number = tag
        if what != "announced":
            return super().on_timer(tag, view)
        if self.present[number]:
            self.leaving.setdefault(number, view.now_ns)
        return ()

    def on_left(self, devices: IntArray, view: View) -> Decisions:
        """Who is gone announces nothing any more."""
        for device in devices.tolist():
            self.leaving.pop(device, None)
        return super().on_left(devices, view)

    def handed_over(self, view: View) -> tuple[Placement, TaskTable, int] | None:
        """The first that has announced its exit, and the fastest idle device that can take over."""
        old = self.placement
        assert old is not None  # noqa: S101 - an iteration of it is done
        devices, rate = old.devices, view.fleet.compute_flops(view.workload.dtype)
        for device in [d for d in self.leaving if d in devices]:
            p = int(np.flatnonzero(devices == device)[0])
            idle = np.setdiff1d(np.flatnonzero(self.present), [*devices, *self.leaving])
            able = idle[(rate[idle] >= rate[device]) & (view.fleet.memory_bytes[idle] >= old.memory[p].total)]
            if not len(able):
                continue
            substitute = int(able[np.argmax(rate[able])])
            line = np.where(devices == device, substitute, devices)
            moves = copied([device], [substitute], [int(old.restored_bytes[p])])
            return self._on(view, line, old.own[0][0].schedule, old.own[1]), moves, self.leaving.pop(device)
        return None

    def plan(self, view: View, here: IntArray) -> Placement:
        """As many devices as there are layers, those with the fastest rates; fewer only where memory asks for it.

        Where not all fit, the device with the least memory is left out, again and again.
        """
        able, w, sizes = with_rate(view, here), view.workload, self.sizes(view)
        rate, memory = view.fleet.compute_flops(w.dtype), view.fleet.memory_bytes
        holds = memory[able] >= int((sizes.states + sizes.kept + sizes.once).min())
        line = able[holds] if holds.any() else able
        line = np.sort(line[np.argsort(-rate[line], kind="stable")][: w.model.layers])
        first, most = "", len(line)
        while len(line):
            try:
                return self._line(view, line)
            except Infeasible as reason:
                first = first or str(reason)
                line = np.delete(line, len(line) - 1 - int(np.argmin(memory[line][::-1])))
        raise Infeasible(
            f"no line of 1 to {most} devices is possible; with {most}: {first}; a smaller model or micro_batch,"
            " recompute: full or an optimizer with fewer states needs less"
        )

    def _line(self, view: View, line: IntArray) -> Placement:
        w, P = view.workload, len(line)
        batch = micro_batch_of(self.config.micro_batch, w.batch_size, 2 * P)
        count = w.batch_size // batch
        recompute, optimizer = self.recompute(view), self.config.optimizer
        sizes = layer_sizes(w, batch, recompute, optimizer)
        forward, backward = layer_seconds(view, line, batch, recompute)
        schedule = pipedream(P, count)
        held = np.minimum(P - np.arange(P), count)
        stages = Stages(w, np.array([0, w.model.layers]), batch, recompute, optimizer, table="separate")
        found = min_max_partition(
            forward + backward,
            transfer_s=_there_and_back(view, line, stages.boundary),
            memory_bytes=sizes.needed(held, held),
            capacity_bytes=view.fleet.memory_bytes[line] - sizes.working,
        )
        cut = replace(stages, bounds=found.bounds)
        return self._on(view, line, schedule, cut)

    def _on(self, view: View, line: IntArray, schedule: Schedule, cut: Stages) -> Placement:
        """The stages ``cut`` on the devices ``line``."""
        layers = zip(*layer_seconds(view, line, cut.micro_batch, cut.recompute), strict=True)
        spans = zip(cut.bounds.tolist(), cut.bounds[1:].tolist(), strict=False)
        stages_s = [float((f + b)[i:j].sum()) for (f, b), (i, j) in zip(layers, spans, strict=True)]
        slowest = max(*stages_s, 0.0, *_there_and_back(view, line, cut.boundary).tolist())
        facts = {"micro_batch_s": slowest, "steady_iteration_s": schedule.micro_batches * slowest}
        made = line_placement([Line.single(schedule, line, cut.micro_batch)], cut, facts)
        size = self.layer_bytes(view)
        sent = np.array([sum(size[i] for i in of) for of in layers_of(made).values()], np.int64)
        return replace(made, saved_bytes=sent, restored_bytes=sent)

    def detection_range(self) -> tuple[float, float]:
        """A timer of twice the time between two micro-batches, unless given."""
        if self.config.detection_s != "auto":
            return delay_range(self.config.detection_s)
        timer = 2.0 * float(self.placement.facts["micro_batch_s"]) if self.placement is not None else 0.0
        return timer, timer

    def due(self, placement: Placement, finished: int) -> Due:
        """As many as fell due during the iteration that has just ended; all are sent after it."""
        (count,) = placement.facts["micro_batches"]
        config = self.config
        near, central = (
            finished * count // every - (finished - 1) * count // every if every else 0
            for every in (config.neighbour_every, config.central_every)
        )
        return near, central

    def recover(self, view: View, old: Placement, new: Placement, gone: IntArray) -> Recovery:
        """Each device fetches only what it lacks: from who has it, from a copy, and from the coordinator.

        What comes from the coordinator is as old as its copy, so that all go back to that iteration.
        """
        held, copies = self.sources(old, gone)
        size = self.layer_bytes(view)
        back = len({i for of in (*held.values(), *copies.values()) for i in of}) < len(size)
        return Recovery(shifted(held, layers_of(new), size, copies=copies), from_checkpoint=back)

    def paper(self, view: View, here: IntArray) -> GroupCost:
        """`group_costs.confident`."""
        w = view.workload
        return group_costs.confident(
            w.model, w.batch_size, w.sequence_length, view_rates(view, here), quirks=self.config.quirks
        )

    def assumptions(self) -> list[str]:
        """What is taken for granted."""
        return [
            *super().assumptions(),
            "an iteration begins and ends with an empty pipeline; without that it would take steady_iteration_s",
            "updates of the weights overlap with backward passes; a shared table counts as two",
            "devices that are not in announced leave without notice",
        ]


def _there_and_back(view: View, line: IntArray, boundary: int) -> FloatArray:
    """Seconds that activations and gradients of a micro-batch take over each link between neighbours."""
    up, down = view.uplink_bps[line], view.downlink_bps[line]
    out: FloatArray = 8.0 * boundary * (1 / np.minimum(up[:-1], down[1:]) + 1 / np.minimum(up[1:], down[:-1]))
    return out
