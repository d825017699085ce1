"""One pipeline whose stages keep copies of their layers on the next stage, and recover from them.

When copies are due, and how layers are shared out anew, is a strategy's own.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal, TypeAlias

from morphling.interfaces.strategy import Decisions
from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import View
from morphling.planning.lines import iteration_rows, iteration_s
from morphling.planning.moves import copied, restored, shifted
from morphling.planning.pipelines import PIPELINE_ASSUMPTIONS, RecomputeChoice, chosen_recompute
from morphling.planning.placement import Placement, Recovery
from morphling.planning.planned import PlannedStrategy
from morphling.planning.stages import LayerSizes, layer_sizes
from morphling.planning.upkeep import Due
from morphling.types import FloatArray, IntArray
from morphling.workload.build import Recompute

__all__ = ["Copied", "CopiedPipeline", "layers_of", "replicas"]

Copied: TypeAlias = Literal["weights", "states"]


class CopiedPipeline(PlannedStrategy):
    """Stages of one device send copies of their layers to the first device of the next stage, the last to the first.

    The copies of the first placement are there from the start, as its states are.  Stages of several devices need none.
    """

    config: Any

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.copies: dict[int, range] = {}

    @abstractmethod
    def due(self, placement: Placement, finished: int) -> Due:
        """How many copies to the next stage, and how many to the coordinator, are due after so many iterations."""

    # ------------------------------------------------------------------------------------------------------ iterations

    def tasks(self, placement: Placement, view: View) -> TaskTable:  # noqa: ARG002 - the plan says all
        """One round of the pipeline."""
        if self.placement is placement and not self.interruptions:
            self.copies = dict(replicas(placement).values())
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

    def upkeep(self, placement: Placement, due: Due, view: View) -> TaskTable:
        """Copies to the next stage and to the coordinator, as often as they are due."""
        near, _ = due
        size = self.layer_bytes(view)
        sends = [(d, to, near * sum(size[i] for i in of)) for d, (to, of) in replicas(placement).items()]
        parts = [copied(*([x[i] for x in sends] for i in range(3)))] if sends else []
        return TaskTable.concat([*parts, super().upkeep(placement, due, view)])

    def kept(self, placement: Placement, finished: int) -> None:
        """Copies are only good once they have arrived."""
        near, central = self.due(placement, finished)
        if near:
            self.copies |= dict(replicas(placement).values())
        if central:
            super().kept(placement, finished)

    # -------------------------------------------------------------------------------------------------------- recovery

    def recompute(self, view: View) -> Recompute:
        """Which activations are computed twice."""
        choice: RecomputeChoice = self.config.recompute
        return chosen_recompute(choice, view.workload)

    def sizes(self, view: View) -> LayerSizes:
        """Bytes of each layer, of one sequence."""
        return layer_sizes(view.workload, 1, self.recompute(view), self.config.optimizer)

    def layer_bytes(self, view: View) -> list[int]:
        """What moves of each layer."""
        sizes = self.sizes(view)
        found: list[int] = (sizes.weights if self.config.copied == "weights" else sizes.states).tolist()
        return found

    def on_left(self, devices: IntArray, view: View) -> Decisions:
        """Who is in no plan is not missed, but its copies are gone, also if it comes back."""
        out = super().on_left(devices, view)
        self.copies = {d: of for d, of in self.copies.items() if self.present[d]}
        return out

    def sources(self, old: Placement, gone: IntArray) -> tuple[dict[int, range], dict[int, range]]:
        """Who still has which layers, and copies of which; whoever went away has lost both."""
        lost = set(gone.tolist())
        self.copies = {d: of for d, of in self.copies.items() if d not in lost}
        return {d: of for d, of in layers_of(old).items() if d not in lost}, self.copies

    def recover(self, view: View, old: Placement, new: Placement, gone: IntArray) -> Recovery:
        """Layers that a device lacks come from who has them or a copy; if nobody does, all restart."""
        size = self.layer_bytes(view)
        held, copies = self.sources(old, gone)
        if len({i for of in (*held.values(), *copies.values()) for i in of}) < len(size):
            return Recovery(restored(new.devices, new.restored_bytes), from_checkpoint=True)
        return Recovery(shifted(held, layers_of(new), size, copies=copies), from_checkpoint=False)

    def assumptions(self) -> list[str]:
        """What is taken for granted."""
        return [
            *PIPELINE_ASSUMPTIONS,
            f"copies and moves consist of {self.config.copied}; copies are on storage, and take no memory",
            "layers that come from a copy are as old as the copy, as published: only what is under way is lost",
        ]


def layers_of(placement: Placement) -> dict[int, range]:
    """Device → its layers, of a placement of one pipeline."""
    (line,), stages = placement.own
    spans = zip(line.groups, stages.bounds.tolist(), stages.bounds[1:].tolist(), strict=False)
    return {int(d): range(a, b) for of, a, b in spans for d in of}


def replicas(placement: Placement) -> dict[int, tuple[int, range]]:
    """Of stages of one device: device → who keeps its copy, and of which layers."""
    (line,), _ = placement.own
    P, spans = len(line.groups), layers_of(placement)
    return {
        int(of[0]): (int(line.groups[(p + 1) % P][0]), spans[int(of[0])])
        for p, of in enumerate(line.groups)
        if len(of) == 1 and P > 1
    }
