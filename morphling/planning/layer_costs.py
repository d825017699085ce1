"""What each layer of a micro-batch costs, summed over its operations; for strategies whose rows are whole layers.

The numbers are sums over the GEMM DAG of `morphling.workload`; how layers are shared out is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from morphling.interfaces.products import BatchedProduct
from morphling.planning.layer_products import NO_PRODUCTS, LayerProducts, Shape, shape_of
from morphling.types import FloatArray, IntArray, Kind, Phase
from morphling.workload import GemmDag, Workload, training_step
from morphling.workload.build import Recompute

__all__ = ["LayerCosts", "Work", "layer_costs"]

_FIRST = ("embedding", "position", "project_in")
"""What the operations before the first layer are called (by how their names begin); all others outside the layers are
behind the last."""


@dataclass(frozen=True)
class Work:
    """FLOPs of matrix products, and bytes between memory and cores of all operations, memory-bound ones included.

    products : which they are; their FLOPs are ``flops`` (none of the optimizer, whose FLOPs are no products)
    """

    flops: float
    memory_bytes: float
    products: LayerProducts = NO_PRODUCTS

    def __add__(self, other: Work) -> Work:
        products = self.products + other.products
        return Work(self.flops + other.flops, self.memory_bytes + other.memory_bytes, products)


@dataclass(frozen=True, eq=False)
class LayerCosts:
    """Cost of each of L layers for ``batch_size`` sequences, by phase.

    flops : float64[3, L] of matrix products: forward, backward without the gradients of weights (and what is
        recomputed), gradients of weights
    memory_bytes : float64[3, L], all operations
    first, last : float64[3, 2], the same of what comes before the first layer (embedding) and behind the last (final
        norm, LM head, loss): FLOPs and bytes
    optimizer : FLOPs and bytes of the optimizer, for all parameters
    products : by phase, the products of each layer, of the first and of the last
    known : what `inner` was asked for
    """

    batch_size: int
    flops: FloatArray
    memory_bytes: FloatArray
    first: FloatArray
    last: FloatArray
    optimizer: Work
    products: tuple[tuple[LayerProducts, ...], ...]
    known: dict[tuple[int, int, tuple[Phase, ...]], Work] = field(default_factory=dict, repr=False)

    @property
    def layers(self) -> int:
        """How many."""
        return int(self.flops.shape[1])

    def span(self, start: int, end: int, phase: Phase) -> Work:
        """Layers ``start`` to ``end`` (exclusive) in one phase, with those ends of the model that they touch."""
        out = self.inner(start, end, phase)
        if start == 0 and end > 0:
            out += self.before(phase)
        if end == self.layers and end > start:
            out += self.behind(phase)
        return out

    def inner(self, start: int, end: int, *phases: Phase) -> Work:
        """Layers ``start`` to ``end`` (exclusive) without the ends of the model."""
        key = start, end, phases
        if key not in self.known:
            self.known[key] = self._inner(start, end, list(map(int, phases)))
        return self.known[key]

    def _inner(self, start: int, end: int, x: list[int]) -> Work:
        products = sum((self.products[p][layer] for p in x for layer in range(start, end)), NO_PRODUCTS)
        flops, traffic = (float(table[x, start:end].sum()) for table in (self.flops, self.memory_bytes))
        return Work(flops, traffic, products)

    def before(self, *phases: Phase) -> Work:
        """What comes before the first layer."""
        return self._end(self.first, -2, phases)

    def behind(self, *phases: Phase) -> Work:
        """What comes behind the last layer."""
        return self._end(self.last, -1, phases)

    def _end(self, table: FloatArray, place: int, phases: tuple[Phase, ...]) -> Work:
        works = (Work(float(table[x, 0]), float(table[x, 1]), self.products[x][place]) for x in phases)
        return sum(works, Work(0.0, 0.0))

    def whole(self) -> Work:
        """The step without the optimizer."""
        every = Phase.FORWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT
        return self.before(*every) + self.inner(0, self.layers, *every) + self.behind(*every)

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
        products=_products(dag, batch_size, phase, place, layers + 2),
    )


def _products(
    dag: GemmDag, batch_size: int, phase: IntArray, place: IntArray, places: int
) -> tuple[tuple[LayerProducts, ...], ...]:
    """Those of each phase and place; equal ones are one object."""
    found: list[list[dict[Shape, float]]] = [[{} for _ in range(places)] for _ in range(3)]
    for node in np.flatnonzero(dag.kind == Kind.GEMM).tolist():
        calls = found[phase[node]][place[node]]
        shape = shape_of(dag, node, batch_size)
        calls[shape] = calls.get(shape, 0.0) + 1.0
    known: dict[tuple[tuple[Shape, float], ...], LayerProducts] = {}

    def one(calls: dict[Shape, float]) -> LayerProducts:
        key = tuple(calls.items())
        if key not in known:
            known[key] = LayerProducts(key, batch_size, _elements(calls, batch_size))
        return known[key]

    return tuple(tuple(one(calls) for calls in of) for of in found)


def _elements(calls: dict[Shape, float], batch_size: int) -> float:
    """Of all operands and results, each once."""
    whole = (BatchedProduct(*shape.of(batch_size), n) for shape, n in calls.items())
    return sum(p.elements for p in whole)
