"""Asteroid: a pipeline whose stages are groups of data-parallel devices (Ye et al., MobiCom 2024, arXiv 2408.08015).

Planner and step model are in `morphling.planning.asteroid`; there is no official code.  A round is 1F1B with
2(P - p) - 1 warm-up passes on stage p, and each group sums its gradients after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from morphling.errors import Infeasible
from morphling.interfaces.view import View
from morphling.planning import group_costs
from morphling.planning.asteroid import LayerProfile, allocate, plan_asteroid
from morphling.planning.copies import Copied, CopiedPipeline, layers_of
from morphling.planning.group_costs import GroupCost
from morphling.planning.lacking import with_rate
from morphling.planning.lines import Line
from morphling.planning.moves import gathered, restored, saved
from morphling.planning.partition import min_max_partition
from morphling.planning.pipelines import (
    RecomputeChoice,
    line_placement,
    micro_batch_of,
    view_rates,
)
from morphling.planning.placement import Placement, PlannedConfig, Recovery
from morphling.planning.schedules import early_warm_up, one_f_one_b
from morphling.planning.stages import SharedTable, Stages, layer_seconds
from morphling.planning.upkeep import Due
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
        layers that change hands move, from device to device (devices that come meanwhile stay out, unless it does not
        fit without them); ``heavy``: the coordinator gathers all states, plans anew and scatters them
    copied : what replicas and moves consist of: ``weights`` in the workload's dtype, as published (the optimizer's
        moments then start anew on whoever takes over), or ``states``, all that training needs to go on exactly
    replicate_every : iterations between two copies of the stages of one device to a device of the next stage, sent
        while training goes on; 0: none but the initial one, which costs nothing
    recompute : which activations are computed twice, instead of what the workload says
    optimizer : which states a device holds
    table : of a table that the model uses for both embedding and LM head: ``summed``, the first and the last stage sum
        its gradients (Megatron-LM), or ``separate``, as if the model had two tables
    detection_s : seconds until a missing heartbeat is noticed; or ``[lowest, highest]``, of which one is drawn for each
        instant at which devices leave (8 s in the published comparison's emulator, 15 s in re-implementations)
    """

    model: Literal["physical", "paper"] = "physical"
    quirks: bool = True
    micro_batch: int | Literal["auto"] = "auto"
    most_stages: int = MOST_STAGES
    replay: Literal["light", "heavy"] = "light"
    copied: Copied = "weights"
    replicate_every: int = 25
    recompute: RecomputeChoice = "workload"
    optimizer: Optimizer = "adam-mixed"
    table: SharedTable = "summed"
    detection_s: float | list[float] = field(default_factory=lambda: [8.0, 15.0])
    setup_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse counts that are none."""
        super().__post_init__()
        for name, least in (("micro_batch", 1), ("most_stages", 1), ("replicate_every", 0)):
            value = getattr(self, name)
            if isinstance(value, int) and value < least:
                raise ValueError(f"{name}: at least {least}, not {value}")


class Asteroid(CopiedPipeline):
    """Hybrid pipeline: groups of devices share a stage, planned for memory, links and speed, with light recovery."""

    Config: ClassVar[type] = AsteroidConfig
    name: ClassVar[str] = "asteroid"
    config: AsteroidConfig

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
        return Stages(
            w,
            bounds,
            self._micro_batch(w.batch_size),
            self.recompute(view),
            self.config.optimizer,
            table=self.config.table,
        )

    def _micro_batch(self, batch: int) -> int:
        if self.config.micro_batch == "auto":
            return next(b for b in (4, 3, 2, 1) if batch % b == 0)
        return micro_batch_of(self.config.micro_batch, batch, 1)

    def _full(self, view: View, able: IntArray) -> Placement:
        """Algorithm 2 on all of ``able``; devices that get no samples are left out."""
        w, b, recompute = view.workload, self._micro_batch(view.workload.batch_size), self.recompute(view)
        times = [layer_seconds(view, able, y, recompute) for y in range(1, b + 1)]
        forward, backward = (np.stack([np.zeros_like(x[0]), *x], axis=2) for x in zip(*times, strict=True))
        sizes = self.sizes(view)
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
        w, b, recompute = view.workload, self._micro_batch(view.workload.batch_size), self.recompute(view)
        P, sizes = len(groups), self.sizes(view)
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

    # ------------------------------------------------------------------------------------------------------- the others

    def paper(self, view: View, here: IntArray) -> GroupCost:
        """`group_costs.asteroid`."""
        w = view.workload
        return group_costs.asteroid(
            w.model, w.batch_size, w.sequence_length, view_rates(view, here), quirks=self.config.quirks
        )

    def due(self, placement: Placement, finished: int) -> Due:  # noqa: ARG002 - the same for all
        """Every so many rounds."""
        near, central = self.config.replicate_every, self.config.checkpoint_every
        return int(bool(near) and finished % near == 0), int(bool(central) and finished % central == 0)

    def recover(self, view: View, old: Placement, new: Placement, gone: IntArray) -> Recovery:
        """Light: only layers that change hands move; heavy: all are gathered and scattered, each sent once."""
        found = super().recover(view, old, new, gone)
        if self.config.replay == "light" or found.from_checkpoint:
            return found
        size, needed = self.layer_bytes(view), layers_of(new)
        senders, given = _once(*self.sources(old, gone), size)
        wanted = [sum(size[i] for i in needed[d]) for d in new.devices.tolist()]
        return Recovery(
            gathered(saved(senders, given), restored(new.devices, wanted), view.fleet.size), from_checkpoint=False
        )


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
