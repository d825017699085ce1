"""The GEMM DAG: every matrix product of a training step and what it waits for, as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from morphling.types import FloatArray, Int32Array, IntArray, Kind, Phase

__all__ = ["GemmDag", "Place"]


class Place(IntEnum):
    """Where a node may run."""

    DEVICES = 0
    COORDINATOR = 1


@dataclass(frozen=True, eq=False)
class GemmDag:
    """Nodes in topological order, one entry per node in every column.

    op : index into ``op_names`` (q_proj, k_proj, …, attention_scores, lm_head, norm, …)
    kind : `Kind` (GEMM, ELEMENTWISE, OPTIMIZER)
    phase : `Phase`; the optimizer, which belongs to no pass, has BACKWARD_WEIGHT
    layer : int, -1 outside the layers
    m, n, k : C[m x n] = A[m x k] B[k x n], of one product
    count : how many such products (batch x heads for attention)
    a, b, c : ids of the two operands' and the output's tensors; a GEMM reads rows of A and columns of B.
        A transposed use of a tensor has the same id and ``a_transposed`` / ``b_transposed`` set, because a row shard of
        X is a column shard of its transpose.  -1 = none.
    flops, memory_bytes : float64, of all ``count`` products together
    place : `Place`
    level : longest path from the start; nodes of one level are independent
    dep_ptr, dep_idx : CSR of the nodes each node waits for (all smaller than itself)
    """

    op_names: tuple[str, ...]
    op: Int32Array
    kind: NDArray[np.int8]
    phase: NDArray[np.int8]
    layer: Int32Array
    m: IntArray
    n: IntArray
    k: IntArray
    count: IntArray
    a: IntArray
    b: IntArray
    c: IntArray
    a_transposed: NDArray[np.bool_]
    b_transposed: NDArray[np.bool_]
    flops: FloatArray
    memory_bytes: FloatArray
    place: NDArray[np.int8]
    level: Int32Array
    dep_ptr: IntArray
    dep_idx: IntArray

    def __len__(self) -> int:
        return len(self.op)

    def label(self, node: int) -> str:
        """``layer 3 q_proj dW`` for messages and figures."""
        name = self.op_names[self.op[node]]
        plain = self.kind[node] == Kind.OPTIMIZER or name.startswith("attention_d")
        suffix = "" if plain else ("", " dX", " dW", " recompute")[int(self.phase[node])]
        where = f"layer {self.layer[node]} " if self.layer[node] >= 0 else ""
        return f"{where}{name}{suffix}"

    def predecessors(self, node: int) -> IntArray:
        """The nodes that ``node`` waits for, ascending."""
        return self.dep_idx[self.dep_ptr[node] : self.dep_ptr[node + 1]]

    def levels(self) -> list[IntArray]:
        """The nodes of each level, level by level, ascending inside one; every node is in exactly one."""
        order = np.argsort(self.level, kind="stable").astype(np.int64)
        ends = np.cumsum(np.bincount(self.level, minlength=1))
        return [order[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]

    def select(
        self,
        op: str | None = None,
        *,
        kind: Kind | None = None,
        phase: Phase | None = None,
        layer: int | None = None,
        place: Place | None = None,
    ) -> IntArray:
        """The nodes that fit every given value, ascending; `KeyError` for an op that the DAG does not have."""
        keep = np.ones(len(self), np.bool_)
        if op is not None:
            if op not in self.op_names:
                raise KeyError(f"no op {op!r} in this DAG; it has {', '.join(self.op_names)}")
            keep &= self.op == self.op_names.index(op)
        for column, value in ((self.kind, kind), (self.phase, phase), (self.layer, layer), (self.place, place)):
            if value is not None:
                keep &= column == value
        return np.flatnonzero(keep).astype(np.int64)

    def gemm_flops(self, *, phase: Phase | None = None, layer: int | None = None, place: Place | None = None) -> int:
        """Floating-point operations of the matrix products (2·m·n·k each), exact: a sum of whole numbers."""
        rows = self.select(kind=Kind.GEMM, phase=phase, layer=layer, place=place)
        columns = (column[rows].tolist() for column in (self.m, self.n, self.k, self.count))
        return sum(2 * m * n * k * count for m, n, k, count in zip(*columns, strict=True))

    def flops_by_phase(self) -> dict[Phase, int]:
        """`gemm_flops` of every phase."""
        return {phase: self.gemm_flops(phase=phase) for phase in Phase}
