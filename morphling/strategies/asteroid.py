"""Asteroid: a pipeline whose stages are groups of data-parallel devices (Ye et al., MobiCom 2024, arXiv 2408.08015).

Planner and step model are in `morphling.planning.asteroid`; there is no official code.  A round is 1F1B with
2(P - p) - 1 warm-up passes on stage p, and each group sums its gradients after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from morphling.errors import Infeasible
from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import View
from morphling.planning import group_costs
from morphling.planning.asteroid import LayerProfile, allocate, plan_asteroid
from morphling.planning.group_costs import GroupCost
from morphling.planning.lines import Line, iteration_rows, iteration_s
from morphling.planning.moves import copied, gathered, restored, saved, shifted
from morphling.planning.partition import min_max_partition
from morphling.planning.pipelines import (
    PIPELINE_ASSUMPTIONS,
    RecomputeChoice,
    chosen_recompute,
    line_placement,
    micro_batch_of,
    view_rates,
    with_rate,
)
from morphling.planning.placement import Placement, PlannedConfig, Recovery
from morphling.planning.planned import PlannedStrategy
from morphling.planning.schedules import early_warm_up, one_f_one_b
from morphling.planning.stages import LayerSizes, Stages, layer_seconds, layer_sizes
from morphling.types import IntArray, item_bytes
from morphling.workload.counts import STATE_BYTES, Optimizer

__all__ = ["Asteroid", "AsteroidConfig"]

MOST_STAGES = 16


@dataclass(frozen=True)
class AsteroidConfig(PlannedConfig):
    """Configuration of Asteroid.

    model : ``physical``, or ``paper``: the published closed form of one batch, without rows or recovery
    quirks : of ``paper`` only: divide gigabytes by Gbit/s, as the published comparison does
    micro_batch : sequences of a micro-batch, a divisor of the batch; ``auto``: the largest up to 4, which is the size
        of the published comparison
    most_stages : of the planner's search
    replay : ``light``: the stages that are left keep their order, layers are shared out anew among them, and only
        layers that change hands move, from device to device; ``heavy``: the coordinator gathers all states, plans anew
        and scatters them
    copied : what replicas and moves consist of: ``weights`` in the workload's dtype, as published (the optimizer's
        moments then start anew on whoever takes over), or ``states``, all that training needs to go on exactly
    replicate_every : iterations between two copies of the stages of one device to a device of the next stage, sent
        while training goes on; 0: none but the initial one, which costs nothing
    recompute : which activations are computed twice, instead of what the workload says
    optimizer : which states a device holds
    detection_s : as below; by default a heartbeat that is missed after 8 to 15 s (re-implementations have 15 s, our
        earlier artifacts 8 s)
    """

    model: Literal["physical", "paper"] = "physical"
    quirks: bool = True
    micro_batch: int | Literal["auto"] = "auto"
    most_stages: int = MOST_STAGES
    replay: Literal["light", "heavy"] = "light"
    copied: Literal["weights", "states"] = "weights"
    replicate_every: int = 25
    recompute: RecomputeChoice = "workload"
    optimizer: Optimizer = "adam-mixed"
    detection_s: float | list[float] = field(default_factory=lambda: [8.0, 15.0])
    setup_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse counts that are none."""
        super().__post_init__()
        for name, least in (("micro_batch", 1), ("most_stages", 1), ("replicate_every", 0)):
            value = getattr(self, name)
            if isinstance(value, int) and value < least:
                raise ValueError(f"{name}: at least {least}, not {value}")


class Asteroid(PlannedStrategy):
    """Hybrid pipeline: groups of devices share a stage, planned for memory, links and speed, with light recovery."""

    Config: ClassVar[type] = AsteroidConfig
    name: ClassVar[str] = "asteroid"
    config: AsteroidConfig

    def __init__(self, config: AsteroidConfig | None = None) -> None:
        super().__init__(config)
        self.copies: dict[int, range] = {}
        self.copying: dict[int, range] = {}

    # ------------------------------------------------------------------------------------------------------------ plan

    def plan(self, view: View, here: IntArray) -> Placement:
        """The planner's; in a light replay the stages that are left, unless that does not fit."""
        able = with_rate(view, here)
        if self.placement is not None and self.config.replay == "light":
            try:
                return self._light(view, able, self.placement)
            except Infeasible:
                pass  # planned anew, with the devices that came since
        return self._full(view, able)

    def _stages(self, view: View, bounds: IntArray) -> Stages:
        w = view.workload
        return Stages(w, bounds, self._micro_batch(w.batch_size), self._recompute(view), self.config.optimizer)

    def _recompute(self, view: View) -> Literal["none", "selective", "full"]:
        return chosen_recompute(self.config.recompute, view.workload)

    def _micro_batch(self, batch: int) -> int:
        if self.config.micro_batch == "auto":
            return next(b for b in (4, 3, 2, 1) if batch % b == 0)
        return micro_batch_of(self.config.micro_batch, batch, 1)

    def _sizes(self, view: View) -> LayerSizes:
        return layer_sizes(view.workload, 1, self._recompute(view), self.config.optimizer)

    def _full(self, view: View, able: IntArray) -> Placement:
        """Algorithm 2 on all of ``able``; devices that get no samples are left out."""
        w, b, recompute = view.workload, self._micro_batch(view.workload.batch_size), self._recompute(view)
        times = [layer_seconds(view, able, y, recompute) for y in range(1, b + 1)]
        forward, backward = (np.stack([np.zeros_like(x[0]), *x], axis=2) for x in zip(*times, strict=True))
        sizes = self._sizes(view)
        boundary = np.full(w.model.layers, float(self._stages(view, np.array([0, w.model.layers])).boundary // b))
        profile = LayerProfile(
            np.maximum.accumulate(forward, axis=2),
            np.maximum.accumulate(backward, axis=2),
            sizes.weights.astype(np.float64),
            boundary,
            (sizes.kept + sizes.once).astype(np.float64),
        )
        found = plan_asteroid(
            profile,
            view_rates(view, able, spare=b * sizes.working),
            w.batch_size // b,
            stages=self.config.most_stages,
            states=STATE_BYTES[self.config.optimizer] / item_bytes(w.dtype),
        )
        groups, samples = [], []
        for group, given in zip(found.groups, found.samples, strict=True):
            ids, y = able[list(group)], np.array(given, np.int64)
            groups.append(ids[y > 0])
            samples.append(y[y > 0])
        bounds = np.array([a for a, _ in found.layers] + [w.model.layers])
        return self._placement(
            view, groups, samples, bounds, planned_round_s=found.latency_s, restricted_search=found.restricted
        )

    def _light(self, view: View, able: IntArray, old: Placement) -> Placement:
        """The old stages, without who is gone: layers by speed in the old order, samples by Algorithm 1."""
        stay = able[~np.isin(able, np.array(sorted(self.stateless), np.int64))]
        groups = [of[np.isin(of, stay)] for of in old.own[0][0].groups]
        groups = [of for of in groups if len(of)]
        if not groups:
            raise Infeasible("no device of the pipeline is left")
        w, b, recompute = view.workload, self._micro_batch(view.workload.batch_size), self._recompute(view)
        P, sizes = len(groups), self._sizes(view)
        held = early_warm_up(P)
        speed = np.zeros((P, w.model.layers))
        room = np.zeros(P, np.int64)
        need = np.zeros((P, w.model.layers), np.int64)
        for p, of in enumerate(groups):
            forward, backward = layer_seconds(view, of, b, recompute)
            speed[p] = 1.0 / (1.0 / (forward + backward)).sum(axis=0)
            room[p] = view.fleet.memory_bytes[of].min() - b * sizes.working
            need[p] = sizes.states + held[p] * -(-b // len(of)) * sizes.kept + b * sizes.once
        bounds = min_max_partition(speed, memory_bytes=need, capacity_bytes=room).bounds
        samples = []
        for p, of in enumerate(groups):
            layers = slice(bounds[p], bounds[p + 1])
            times = [np.zeros(len(of))]
            for y in range(1, b + 1):
                forward, backward = layer_seconds(view, of, y, recompute)
                times.append((forward + backward)[:, layers].sum(axis=1))
            each = held[p] * sizes.kept[layers].sum() + sizes.once[layers].sum()
            free = view.fleet.memory_bytes[of] - b * sizes.working - sizes.states[layers].sum()
            samples.append(allocate(np.stack(times, axis=1), np.maximum(free, 0) // max(int(each), 1), b))
        kept = [y > 0 for y in samples]
        return self._placement(
            view, [g[k] for g, k in zip(groups, kept, strict=True)], [y[k] for y, k in zip(samples, kept, strict=True)],
            bounds, replayed="light",
        )  # fmt: skip

    def _placement(
        self, view: View, groups: list[IntArray], samples: list[IntArray], bounds: IntArray, **facts: object
    ) -> Placement:
        stages = self._stages(view, bounds)
        rounds = view.workload.batch_size // stages.micro_batch
        schedule = one_f_one_b(len(groups), rounds, early_warm_up(len(groups)))
        line = Line(schedule, tuple(groups), tuple(samples))
        return line_placement([line], stages, {"samples": [y.tolist() for y in samples], **facts})

    # ------------------------------------------------------------------------------------------------------ iterations

    def tasks(self, placement: Placement, view: View) -> TaskTable:  # noqa: ARG002 - the plan says all
        """The round, each group's all-reduce behind it, the optimizer."""
        if self.placement is placement and not self.interruptions:
            self.copies = dict(self._replicas(placement).values())  # the initial ones
        lines, stages = placement.own
        return iteration_rows(lines, stages)

    def estimate(self, placement: Placement, view: View) -> float | None:
        """`iteration_s`; the planner's own step model is among the facts of the plan (``planned_round_s``)."""
        lines, stages = placement.own
        return iteration_s(lines, stages, view)

    def paper(self, view: View, here: IntArray) -> GroupCost:
        """`group_costs.asteroid`."""
        w = view.workload
        return group_costs.asteroid(
            w.model, w.batch_size, w.sequence_length, view_rates(view, here), quirks=self.config.quirks
        )

    # -------------------------------------------------------------------------------------------------------- recovery

    def _layer_bytes(self, view: View) -> list[int]:
        sizes = self._sizes(view)
        found: list[int] = (sizes.weights if self.config.copied == "weights" else sizes.states).tolist()
        return found

    def _replicas(self, placement: Placement) -> dict[int, tuple[int, range]]:
        """Stages of one device: device → who keeps its copy, and of which layers."""
        (line,), stages = placement.own
        P = len(line.groups)
        spans = [range(a, b) for a, b in zip(stages.bounds.tolist(), stages.bounds[1:].tolist(), strict=False)]
        return {
            int(of[0]): (int(line.groups[(p + 1) % P][0]), spans[p])
            for p, of in enumerate(line.groups)
            if len(of) == 1 and P > 1
        }

    def upkeep(self, placement: Placement, finished: int, view: View) -> TaskTable | None:
        """Copies to the next stage, and checkpoints, when they are due."""
        every, size, parts = self.config.replicate_every, self._layer_bytes(view), []
        self.copying = {}
        if every and finished % every == 0:
            sends = [(d, to, sum(size[i] for i in of), of) for d, (to, of) in self._replicas(placement).items()]
            self.copying = {to: of for _, to, _, of in sends}
            if sends:
                parts.append(copied(*([x[i] for x in sends] for i in range(3))))
        checkpoint = super().upkeep(placement, finished, view)
        if checkpoint is not None:
            parts.append(checkpoint)
        return TaskTable.concat(parts) if parts else None

    def kept(self, finished: int) -> None:
        """Copies are only good once they have arrived."""
        self.copies |= self.copying
        self.copying = {}
        every = self.config.checkpoint_every
        if every and finished % every == 0:
            super().kept(finished)

    def recover(self, view: View, old: Placement, new: Placement, gone: IntArray) -> Recovery:
        """Layers come from who has them, from a copy on the next stage, or from the last checkpoint."""
        size, lost = self._layer_bytes(view), set(gone.tolist())
        held = {d: of for d, of in _layers_of(old).items() if d not in lost}
        self.copies = copies = {d: of for d, of in self.copies.items() if d not in lost}
        needed = _layers_of(new)
        if len({i for of in (*held.values(), *copies.values()) for i in of}) < len(size):
            return Recovery(restored(new.devices, new.restored_bytes), from_checkpoint=True)
        if self.config.replay == "heavy":
            senders, given = _once(held, copies, size)
            wanted = [sum(size[i] for i in needed[d]) for d in new.devices.tolist()]
            moves = gathered(saved(senders, given), restored(new.devices, wanted), view.fleet.size)
            return Recovery(moves, from_checkpoint=False)
        return Recovery(shifted(held, needed, size, copies=copies), from_checkpoint=False)

    def assumptions(self) -> list[str]:
        """What is taken for granted."""
        kept = self.config.copied
        return [
            *PIPELINE_ASSUMPTIONS,
            f"replicas and moves consist of {kept}; replicas are on storage, and take no memory",
            "layers that come from a replica are as old as the replica, as published: only the round under way is lost",
        ]


def _layers_of(placement: Placement) -> dict[int, range]:
    (line,), stages = placement.own
    spans = zip(line.groups, stages.bounds.tolist(), stages.bounds[1:].tolist(), strict=False)
    return {int(d): range(a, b) for of, a, b in spans for d in of}


def _once(held: dict[int, range], copies: dict[int, range], size: list[int]) -> tuple[list[int], list[int]]:
    """Who sends how many bytes so that each layer is sent once: its first holder, or the first with a copy."""
    seen: set[int] = set()
    given: dict[int, int] = {}
    for source in (held, copies):
        for device, of in source.items():
            new = [i for i in of if i not in seen]
            seen.update(new)
            given[device] = given.get(device, 0) + sum(size[i] for i in new)
    return list(given), list(given.values())
