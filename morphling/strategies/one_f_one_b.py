"""1F1B with a flush: after a warm-up, backward and forward passes by turns (Narayanan et al. 2021, PipeDream-flush).

As long as GPipe where links take no time, with at most P - p micro-batches in flight on stage p.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from morphling.planning import schedules
from morphling.planning.pipelines import PipelineConfig, PipelineStrategy
from morphling.planning.schedules import Schedule, early_warm_up

__all__ = ["OneFOneB", "OneFOneBConfig"]


@dataclass(frozen=True)
class OneFOneBConfig(PipelineConfig):
    """Configuration of 1F1B.

    warm_up : forward passes of stage p before its first backward pass: ``short``, P - p, or ``early``, 2(P - p) - 1,
        which hides a round trip over slow links and holds more activations (Asteroid)
    """

    warm_up: Literal["short", "early"] = "short"


class OneFOneB(PipelineStrategy):
    """Pipelines that alternate forward and backward passes after a warm-up, and flush at the end of an iteration."""

    Config: ClassVar[type] = OneFOneBConfig
    name: ClassVar[str] = "1f1b"
    config: OneFOneBConfig

    def schedule(self, stages: int, micro_batches: int) -> Schedule:
        """One forward, one backward."""
        depth = early_warm_up(stages) if self.config.warm_up == "early" else None
        return schedules.one_f_one_b(stages, micro_batches, depth)
