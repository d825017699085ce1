"""GPipe: all micro-batches go forward, then all come back (Huang et al. 2019).

Every stage holds the activations of all micro-batches, unless they are computed again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from morphling.planning import schedules
from morphling.planning.pipelines import PipelineConfig, PipelineStrategy
from morphling.planning.schedules import Schedule

__all__ = ["Gpipe", "GpipeConfig"]


@dataclass(frozen=True)
class GpipeConfig(PipelineConfig):
    """Configuration of GPipe."""


class Gpipe(PipelineStrategy):
    """Pipelines that fill and drain: all forward passes, then all backward passes; copies sum gradients by stage."""

    Config: ClassVar[type] = GpipeConfig
    name: ClassVar[str] = "gpipe"
    config: GpipeConfig

    def schedule(self, stages: int, micro_batches: int) -> Schedule:
        """All forward, all backward."""
        return schedules.gpipe(stages, micro_batches)
