"""The tape on which a GEMM DAG is written: it grows the columns and finds out who waits for whom.

Knows tensors, their makers and their sizes; what a transformer computes is written by `morphling.workload.build`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from morphling.types import Kind, Phase
from morphling.workload.dag import GemmDag, Place

__all__ = ["At", "Shape", "Tape"]

NONE = -1


class At(NamedTuple):
    """Where in the training step a node stands; ``layer`` -1 is outside the layers."""

    op: str
    phase: Phase
    layer: int = NONE


class Shape(NamedTuple):
    """``times`` products C[m x n] = A[m x k] B[k x n]."""

    m: int
    n: int
    k: int
    times: int = 1


@dataclass(frozen=True)
class _Tensor:
    elements: int
    makers: tuple[int, ...]


_COLUMNS = (
    "op", "kind", "phase", "layer", "m", "n", "k", "count", "a", "b", "c", "a_transposed", "b_transposed",
    "flops", "memory_bytes", "place", "level",
)  # fmt: skip
_DTYPES = {
    "op": np.int32, "kind": np.int8, "phase": np.int8, "layer": np.int32, "a_transposed": np.bool_,
    "b_transposed": np.bool_, "flops": np.float64, "memory_bytes": np.float64, "place": np.int8, "level": np.int32,
}  # fmt: skip


class Tape:
    """Nodes are appended in topological order; a node waits for the makers of the tensors it reads.

    While ``gate`` is a node, every new node that would not otherwise wait for it or for a later one waits for it too:
    the start of a recomputation and the backward pass after it are ordered in time, not by data.
    """

    def __init__(self, item_bytes: int) -> None:
        self.item_bytes = item_bytes
        self.gate: int | None = None
        self._rows: list[tuple[float, ...]] = []
        self._levels: list[int] = []
        self._dependencies: list[list[int]] = []
        self._tensors: list[_Tensor] = []
        self._ops: dict[str, int] = {}

    @property
    def last(self) -> int:
        """The node written last."""
        return len(self._rows) - 1

    def tensor(self, elements: int, makers: Iterable[int] = ()) -> int:
        """Id of a new tensor; without makers it is there from the start (a weight, the batch)."""
        self._tensors.append(_Tensor(elements, tuple(makers)))
        return len(self._tensors) - 1

    def makers(self, tensors: Iterable[int]) -> list[int]:
        """The nodes that make these tensors, ascending."""
        return sorted({maker for tensor in tensors for maker in self._tensors[tensor].makers})

    def split(self, tensor: int, sizes: Sequence[int]) -> tuple[int, ...]:
        """Ids of the parts of a tensor that one node makes at once (queries, keys and values)."""
        whole = self._tensors[tensor]
        if sum(sizes) != whole.elements:
            raise ValueError(f"parts of {tuple(sizes)} elements do not make a tensor of {whole.elements}")
        return tuple(self.tensor(size, whole.makers) for size in sizes)

    def join(self, tensors: Sequence[int]) -> int:
        """Id of the tensor that consists of these parts; made where they lie, without a copy."""
        return self.tensor(sum(self._tensors[t].elements for t in tensors), self.makers(tensors))

    def gemm(
        self,
        at: At,
        shape: Shape,
        a: int,
        b: int,
        *,
        a_transposed: bool = False,
        b_transposed: bool = False,
        place: Place = Place.DEVICES,
    ) -> int:
        """Write a matrix product and return its output tensor."""
        m, n, k, count = shape
        out = self.tensor(m * n * count, (len(self._rows),))
        traffic = self.item_bytes * count * (m * k + k * n + m * n)
        flops = 2 * m * n * k * count
        columns = (*shape, a, b, out, a_transposed, b_transposed, flops, traffic)
        self._add(Kind.GEMM, at, columns, place, self.makers((a, b)))
        return out

    def elementwise(
        self, at: At, reads: Sequence[int], writes: Sequence[int], flops_per_element: float, *, gathered: int = 0
    ) -> tuple[int, ...]:
        """Write a memory-bound operation and return its outputs, of ``writes`` elements each.

        Its traffic is every tensor that it reads and writes, once, and ``gathered`` elements of tables.
        """
        outs = tuple(self.tensor(size, (len(self._rows),)) for size in writes)
        elements = sum(self._tensors[t].elements for t in reads) + sum(writes) + gathered
        a, b = (*reads, NONE, NONE)[:2]
        c = outs[0] if outs else NONE
        columns = (0, 0, 0, 1, a, b, c, False, False, flops_per_element * sum(writes), self.item_bytes * elements)
        self._add(Kind.ELEMENTWISE, at, columns, Place.COORDINATOR, self.makers(reads))
        return outs

    def optimizer(self, at: At, gradients: Iterable[int], flops: float, memory_bytes: float) -> None:
        """Write the optimizer step, which waits for every gradient."""
        columns = (0, 0, 0, 1, NONE, NONE, NONE, False, False, flops, memory_bytes)
        self._add(Kind.OPTIMIZER, at, columns, Place.COORDINATOR, self.makers(gradients))

    def _add(self, kind: Kind, at: At, columns: tuple[float, ...], place: Place, waits: list[int]) -> None:
        if self.gate is not None and (not waits or waits[-1] < self.gate):
            waits = [*waits, self.gate]
        level = 1 + max((self._levels[w] for w in waits), default=-1)
        op = self._ops.setdefault(at.op, len(self._ops))
        self._rows.append((op, kind, at.phase, at.layer, *columns, place, level))
        self._levels.append(level)
        self._dependencies.append(waits)

    def dag(self) -> GemmDag:
        """The finished DAG."""
        columns: dict[str, Any] = {
            name: np.array(column, _DTYPES.get(name, np.int64))
            for name, column in zip(_COLUMNS, zip(*self._rows, strict=True), strict=True)
        }
        pointers = np.zeros(len(self._rows) + 1, np.int64)
        np.cumsum([len(waits) for waits in self._dependencies], out=pointers[1:])
        indices = np.array([w for waits in self._dependencies for w in waits], np.int64)
        return GemmDag(op_names=tuple(self._ops), **columns, dep_ptr=pointers, dep_idx=indices)
