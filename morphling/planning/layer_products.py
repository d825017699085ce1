"""The matrix products of whole layers, for any number of sequences and any share of them.

A row of whole layers names the products that its device executes (`TaskTable.products`).  Which they are depends on how
many sequences the row is for, so they are kept for one sequence, with the side that grows with their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Final, Literal, NamedTuple, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from morphling.interfaces.products import Products
from morphling.types import Int32Array, Phase
from morphling.workload import GemmDag

__all__ = ["NO_PRODUCTS", "LayerProducts", "ListColumns", "Shape", "list_columns", "shape_of"]

Side = Literal["m", "n", "k", "batch"]

ROUNDING: Final = 1e-9
"""Sequences that are a whole number but for this share of it are taken to be one."""
_ROW_PARALLEL: Final = {"o_proj", "fc2", "down"}
"""Linears whose input tensor parallelism cuts; it cuts the output of all others (Shoeybi et al. 2019)."""


class Shape(NamedTuple):
    """``batch`` products C[m x n] = A[m x k] B[k x n] in one call, for one sequence.

    grows : which of them is proportional to the sequences;  cut : which of them tensor parallelism cuts
    """

    m: int
    n: int
    k: int
    batch: int
    grows: Side
    cut: Side

    def of(self, sequences: int) -> tuple[int, int, int, int]:
        """m, n, k and batch for so many sequences at once."""
        m, n, k, batch = (
            x * sequences if side == self.grows else x for side, x in zip(self._fields, self[:4], strict=False)
        )
        return m, n, k, batch


@dataclass(frozen=True, eq=False)
class LayerProducts:
    """Products of ``sequences`` sequences at once.

    Layers are alike, so sums and shares of the same lists are asked for again and again: they are made once, and are
    the same object.

    shapes : (shape for one sequence, calls), each shape once
    elements : of their operands and results, as the bytes of the layers count them: for all sequences, on all devices
        that share them
    """

    shapes: tuple[tuple[Shape, float], ...]
    sequences: int
    elements: float

    def __add__(self, other: LayerProducts) -> LayerProducts:
        if not self.shapes or not other.shapes:
            return self if self.shapes else other
        return _sum(self, other)

    def times(self, share: float) -> LayerProducts:
        """Each call so many times."""
        return _times(self, share)

    def cut(self, ways: int) -> LayerProducts:
        """A ``ways``-th under tensor parallelism; of a side that does not divide, the larger part, in fewer calls."""
        return self if ways == 1 else _cut(self, ways)

    def part(self, share: float) -> Products | None:
        """What a device executes of ``share`` times the sequences; None if there is no product.

        As many times all sequences at once as they fit in, and the rest at once.  A part of a sequence is that part of
        the calls for a whole one.
        """
        return _part(self, float(share)) if self.shapes and share > 0 else None


NO_PRODUCTS: Final = LayerProducts((), 0, 0.0)


@lru_cache(maxsize=4096)
def _sum(one: LayerProducts, other: LayerProducts) -> LayerProducts:
    if one.sequences != other.sequences:
        raise ValueError(f"products of {one.sequences} and of {other.sequences} sequences have no sum")
    calls = dict(one.shapes)
    for shape, more in other.shapes:
        calls[shape] = calls.get(shape, 0.0) + more
    return LayerProducts(tuple(calls.items()), one.sequences, one.elements + other.elements)


@lru_cache(maxsize=4096)
def _times(products: LayerProducts, share: float) -> LayerProducts:
    shapes = tuple((shape, calls * share) for shape, calls in products.shapes)
    return LayerProducts(shapes, products.sequences, products.elements * share)


@lru_cache(maxsize=4096)
def _cut(products: LayerProducts, ways: int) -> LayerProducts:
    out: dict[Shape, float] = {}
    for shape, calls in products.shapes:
        whole: int = getattr(shape, shape.cut)
        side = -(-whole // ways)
        smaller = Shape._make(side if name == shape.cut else x for name, x in zip(Shape._fields, shape, strict=True))
        out[smaller] = out.get(smaller, 0.0) + calls * (whole / ways / side)
    return LayerProducts(tuple(out.items()), products.sequences, products.elements / ways)


@lru_cache(maxsize=4096)
def _part(products: LayerProducts, share: float) -> Products:
    total = share * products.sequences
    if abs(total - round(total)) <= ROUNDING * total:
        total = round(total)
    times, rest = divmod(total, products.sequences)
    calls: dict[tuple[int, ...], float] = {}
    for at_once, how_often in ((products.sequences, float(times)), (ceil(rest), rest / ceil(rest) if rest else 0.0)):
        for shape, each in products.shapes if how_often else ():
            key = shape.of(at_once)
            calls[key] = calls.get(key, 0.0) + each * how_often
    return Products(((*key, n) for key, n in calls.items()), products.elements * share)


def shape_of(dag: GemmDag, node: int, batch_size: int) -> Shape:
    """A GEMM of a training step of ``batch_size`` sequences, for one of them.

    Attention has a product for each sequence and head; of other products the tokens are m, or k in gradients of
    weights.
    """
    op = dag.op_names[dag.op[node]]
    sides = {"m": int(dag.m[node]), "n": int(dag.n[node]), "k": int(dag.k[node]), "batch": int(dag.count[node])}
    phase = Phase(int(dag.phase[node]))
    grows: Side
    cut: Side
    if op.startswith("attention_"):
        grows = cut = "batch"
    else:
        grows = "k" if phase == Phase.BACKWARD_WEIGHT else "m"
        inner: tuple[Side, Side] = ("k", "n")  # the input's width and the output's
        if phase == Phase.BACKWARD_WEIGHT:
            inner = ("m", "n")
        elif phase == Phase.BACKWARD_INPUT:
            inner = ("n", "k")
        cut = inner[0 if op in _ROW_PARALLEL else 1]
    sides[grows] //= batch_size
    return Shape(sides["m"], sides["n"], sides["k"], sides["batch"], grows, cut)


class ListColumns(TypedDict):
    """Of `TaskTable.build`."""

    products: Int32Array
    product_lists: tuple[Products, ...]


def list_columns(works: Sequence[LayerProducts], which: ArrayLike, share: ArrayLike) -> ListColumns:
    """The columns of rows of which each is ``share`` of ``works[which]``; both broadcast to the rows."""
    work, part = np.broadcast_arrays(np.asarray(which, np.int64), np.asarray(share, np.float64))
    pairs, back = np.unique(np.stack([work.ravel(), part.ravel()]), axis=1, return_inverse=True)
    found = [works[int(w)].part(s) for w, s in pairs.T.tolist()]
    place: dict[Products, int] = {}
    column = [-1 if x is None else place.setdefault(x, len(place)) for x in found]
    return ListColumns(products=np.array(column, np.int32)[back.ravel()], product_lists=tuple(place))
