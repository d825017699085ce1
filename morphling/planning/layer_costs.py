"""What each layer of a micro-batch costs, summed over its operations; for strategies whose rows are whole layers.

The numbers are sums over the GEMM DAG of `morphling.workload`; how layers are shared out is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from morphling.types import FloatArray, Kind, Phase
from morphling.workload import GemmDag, Workload, training_step
from morphling.workload.build import Recompute

__all__ = ["LayerCosts", "Work", "layer_costs"]

_FIRST = ("embedding", "position", "project_in")
"""What the operations before the first layer are called (by how their names begin); all others outside the layers are
behind the last."""


@dataclass(frozen=True)
class Work:
    """FLOPs of matrix products, and bytes between memory and cores of all operations, memory-bound ones included."""

    flops: float
    memory_bytes: float

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.memory_bytes + other.memory_bytes)


@dataclass(frozen=True, eq=False)
class LayerCosts:
    """Cost of each of L layers for ``batch_size`` sequences, by phase.

    flops : float64[3, L] of matrix products: forward, backward without the gradients of weights (and what is
        recomputed), gradients of weights
    memory_bytes : float64[3, L], all operations
    first, last : float64[3, 2], the same of what comes before the first layer (embedding) and behind the last (final
        norm, LM head, loss): FLOPs and bytes
    optimizer : FLOPs and bytes of the optimizer, for all parameters
    """

    batch_size: int
    flops: FloatArray
    memory_bytes: FloatArray
    first: FloatArray
    last: FloatArray
    optimizer: Work

    @property
    def layers(self) -> int:
        """How many."""
        return int(self.flops.shape[1])

    def span(self, start: int, end: int, phase: Phase) -> Work:
        """Layers ``start`` to ``end`` (exclusive) in one phase, with those ends of the model that they touch."""
        x = int(phase)
        out = Work(float(self.flops[x, start:end].sum()), float(self.memory_bytes[x, start:end].sum()))
        if start == 0 and end > 0:
            out += Work(*self.first[x].tolist())
        if end == self.layers and end > start:
            out += Work(*self.last[x].tolist())
        return out

    @property
    def total_flops(self) -> float:
        """All matrix products of the step."""
        return float(self.flops.sum() + self.first[:, 0].sum() + self.last[:, 0].sum())


def layer_costs(workload: Workload, batch_size: int, *, recompute: Recompute | None = None) -> LayerCosts:
    """Costs of the workload's model for ``batch_size`` of its sequences.

    ``recompute`` : instead of the workload's own.  Weights are read once for each micro-batch, so bytes are not
    proportional to the batch; FLOPs are.
    """
    return _costs(_Key(workload, batch_size, workload.recompute if recompute is None else recompute))


class _Key:
    """A workload by identity: its arrays cannot be compared cheaply."""

    def __init__(self, workload: Workload, batch_size: int, recompute: Recompute) -> None:
        self.workload, self.batch_size, self.recompute = workload, batch_size, recompute
        self.key = id(workload), batch_size, recompute

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.key == other.key


@lru_cache(maxsize=16)
def _costs(asked: _Key) -> LayerCosts:
    w = asked.workload
    if asked.batch_size == w.batch_size and asked.recompute == w.recompute:
        dag = w.dag
    else:
        dag = training_step(
            w.model,
            asked.batch_size,
            w.sequence_length,
            w.dtype,
            w.lm_head,
            attention=w.attention,
            fused_projections=w.fused_projections,
            recompute=asked.recompute,
        ).dag
    return _sums(dag, asked.batch_size, w.model.layers)


def _sums(dag: GemmDag, batch_size: int, layers: int) -> LayerCosts:
    optimizer = dag.kind == Kind.OPTIMIZER
    # What is recomputed belongs to the backward pass that needs it.
    phase = np.where(dag.phase == Phase.RECOMPUTE, Phase.BACKWARD_INPUT, dag.phase).astype(np.int64)
    before = np.array([name.startswith(_FIRST) for name in dag.op_names])[dag.op]
    place = np.where(dag.layer >= 0, dag.layer, np.where(before, layers, layers + 1))
    sums = []
    for column in (np.where(dag.kind == Kind.GEMM, dag.flops, 0.0), dag.memory_bytes):
        table = np.zeros((3, layers + 2))
        np.add.at(table, (phase[~optimizer], place[~optimizer]), column[~optimizer])
        sums.append(table)
    flops, traffic = sums
    return LayerCosts(
        batch_size=batch_size,
        flops=flops[:, :layers],
        memory_bytes=traffic[:, :layers],
        first=np.stack([flops[:, layers], traffic[:, layers]], axis=1),
        last=np.stack([flops[:, layers + 1], traffic[:, layers + 1]], axis=1),
        optimizer=Work(float(dag.flops[optimizer].sum()), float(dag.memory_bytes[optimizer].sum())),
    )
