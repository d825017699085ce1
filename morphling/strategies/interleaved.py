"""Interleaved 1F1B: each stage has several parts of the model, which makes the bubble shorter (Narayanan et al. 2021).

The bubble is that of 1F1B divided by the chunks of a stage, and boundaries are crossed as many times more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from morphling.planning import schedules
from morphling.planning.pipelines import PipelineConfig, PipelineStrategy
from morphling.planning.schedules import Schedule

__all__ = ["Interleaved", "InterleavedConfig"]


@dataclass(frozen=True)
class InterleavedConfig(PipelineConfig):
    """Configuration of interleaved 1F1B; the micro-batches of a copy are a multiple of its stages.

    chunks : parts of the model on each stage, from 2 on
    """

    chunks: int = 2

    def __post_init__(self) -> None:
        """Refuse what is plain 1F1B."""
        super().__post_init__()
        if self.chunks < 2:
            raise ValueError(f"chunks: at least 2, not {self.chunks}; with 1 this is 1f1b")


class Interleaved(PipelineStrategy):
    """Pipelines whose stages have several parts of the model each, run by turns (Megatron-LM)."""

    Config: ClassVar[type] = InterleavedConfig
    name: ClassVar[str] = "interleaved"
    config: InterleavedConfig

    @property
    def chunks(self) -> int:
        """Parts of the model on each stage."""
        return self.config.chunks

    def unit(self, stages: int) -> int:
        """The schedule goes through the chunks in groups of P micro-batches."""
        return stages

    def schedule(self, stages: int, micro_batches: int) -> Schedule:
        """Chunks by turns; of one stage, they are simply one after another."""
        return schedules.interleaved(stages, micro_batches, self.chunks)
