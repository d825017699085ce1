"""A training step of a model: what was asked for, and its DAG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from morphling.errors import WorkloadError
from morphling.types import DType
from morphling.workload.build import Recompute, training_dag
from morphling.workload.dag import GemmDag, Place
from morphling.workload.models import Model

__all__ = ["Workload", "training_step"]

_MOST_TOKENS = 1 << 40


@dataclass(frozen=True, eq=False)
class Workload:
    """One training iteration of ``model`` on ``batch_size`` sequences of ``sequence_length`` tokens.

    ``lm_head`` and ``attention`` say where those matrix products may run, ``fused_projections`` whether q, k and v
    (and gate and up) are one product, ``recompute`` which activations are computed twice.
    """

    model: Model
    batch_size: int
    sequence_length: int
    dtype: DType
    dag: GemmDag
    lm_head: Place = Place.COORDINATOR
    attention: Place = Place.COORDINATOR
    fused_projections: bool = False
    recompute: Recompute = "none"

    @property
    def tokens(self) -> int:
        """Tokens of one iteration."""
        return self.batch_size * self.sequence_length


def training_step(
    model: Model,
    batch_size: int,
    sequence_length: int,
    dtype: DType,
    lm_head: Place = Place.COORDINATOR,
    *,
    attention: Place = Place.COORDINATOR,
    fused_projections: bool = False,
    recompute: Recompute = "none",
) -> Workload:
    """One training iteration with its DAG (forward, dX, dW, optimizer; see `morphling.workload.build`).

    Raises `WorkloadError` for sizes that are not positive whole numbers, more than 2^40 tokens, an unknown
    ``recompute``, or a sequence longer than a learned position table (rotary models may run past ``max_positions``).
    """
    for key, value in (("batch_size", batch_size), ("sequence_length", sequence_length)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise WorkloadError(f"{key}: a positive whole number is needed, not {value!r}")
    if batch_size * sequence_length > _MOST_TOKENS:
        raise WorkloadError(
            f"batch_size: {batch_size} sequences of {sequence_length} tokens are beyond any training step"
        )
    if model.position_rows and sequence_length > model.max_positions:
        raise WorkloadError(
            f"sequence_length: {sequence_length} is more than the {model.max_positions} positions of {model.name}"
        )
    if recompute not in get_args(Recompute):
        raise WorkloadError(f"recompute: unknown scheme {recompute!r}; known: {', '.join(get_args(Recompute))}")
    dag = training_dag(
        model,
        batch_size,
        sequence_length,
        dtype,
        lm_head=lm_head,
        attention=attention,
        fused_projections=fused_projections,
        recompute=recompute,
    )
    return Workload(model, batch_size, sequence_length, dtype, dag, lm_head, attention, fused_projections, recompute)
