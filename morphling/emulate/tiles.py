"""Which part of a product was computed where: tiles as arrays, and the proof that they cover it.

Numbers only; the tensors are cut in `products`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from morphling.errors import PlanError
from morphling.types import IntArray

__all__ = ["Part", "ProductShape", "Tiles", "inner_split", "product_split", "row_split", "whole"]


class ProductShape(NamedTuple):
    """``batch`` products C[m x n] = A[m x k] B[k x n]."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        """Floating-point operations (a multiply-add is two)."""
        return 2 * self.batch * self.m * self.n * self.k

    def __str__(self) -> str:
        times = f"{self.batch} x " if self.batch > 1 else ""
        return f"{times}{self.m} x {self.k} x {self.n}"


class Part(NamedTuple):
    """One tile as `products` cuts it: start and length in each dimension; ``first`` of its elements of C or added."""

    product: int
    row: int
    rows: int
    column: int
    columns: int
    inner: int
    inners: int
    first: bool


@dataclass(frozen=True, eq=False)
class Tiles:
    """T tiles of ``shape``; int64[T] each, half open.

    device : who computes it;  product : which of the ``batch`` products
    row0, row1, col0, col1 : its rectangle of C;  in0, in1 : its part of the inner dimension.  Tiles of one rectangle
        that share out the inner dimension are partial sums, added in the order of ``in0``.
    """

    shape: ProductShape
    device: IntArray
    product: IntArray
    row0: IntArray
    row1: IntArray
    col0: IntArray
    col1: IntArray
    in0: IntArray
    in1: IntArray

    def __len__(self) -> int:
        return len(self.device)

    def check(self, plan: str) -> None:
        """``PlanError`` unless each multiply-add of each product is done exactly once; ``plan`` names it.

        Exact: counted on the grid of all cuts.
        """
        count, m, n, k = self.shape
        bounds = ((self.product, self.product + 1, count), (self.row0, self.row1, m), (self.col0, self.col1, n))
        for low, high, most in (*bounds, (self.in0, self.in1, k)):
            wrong = np.flatnonzero((low < 0) | (high > most) | (low >= high))
            if len(wrong):
                i = int(wrong[0])
                raise PlanError(f"{plan}: tile {i} of {self.shape} lies outside it, or is empty: {self.describe(i)}")
        for product in range(count):
            self._check_product(np.flatnonzero(self.product == product), f"{plan}: product {product} of {self.shape}")

    def _check_product(self, tiles: IntArray, plan: str) -> None:
        _, m, n, k = self.shape
        sides = ((self.row0, self.row1, m), (self.col0, self.col1, n), (self.in0, self.in1, k))
        cuts = [np.unique(np.concatenate([low[tiles], high[tiles], [0, most]])) for low, high, most in sides]
        done = np.zeros([len(c) - 1 for c in cuts], np.int32)
        at = [
            (np.searchsorted(c, low[tiles]).tolist(), np.searchsorted(c, high[tiles]).tolist())
            for c, (low, high, _) in zip(cuts, sides, strict=True)
        ]
        for r0, r1, c0, c1, i0, i1 in zip(*at[0], *at[1], *at[2], strict=True):
            done[r0:r1, c0:c1, i0:i1] += 1
        if (done == 1).all():
            return
        r, c, i = (int(x) for x in np.argwhere(done != 1)[0])
        times = int(done[r, c, i])
        where = (
            f"rows {cuts[0][r]} to {cuts[0][r + 1]}, columns {cuts[1][c]} to {cuts[1][c + 1]}"
            f", inner {cuts[2][i]} to {cuts[2][i + 1]}"
        )
        raise PlanError(f"{plan}: {where} is computed {times} times" if times else f"{plan} misses {where}")

    def describe(self, tile: int) -> str:
        """``device 3, rows 0 to 8, columns 0 to 4, inner 0 to 16``."""
        ends = (self.row0, self.row1, self.col0, self.col1, self.in0, self.in1)
        r0, r1, c0, c1, i0, i1 = (int(x[tile]) for x in ends)
        return f"device {int(self.device[tile])}, rows {r0} to {r1}, columns {c0} to {c1}, inner {i0} to {i1}"

    def parts(self, *, turned: bool = False) -> tuple[Part, ...]:
        """The tiles in the order of execution: by product, row and column (``turned``: column and row), and inner
        dimension last, so that sums repeat.
        """
        sides = (self.row0, self.col0) if turned else (self.col0, self.row0)
        order = np.lexsort((self.in0, *sides, self.product))
        ends = (self.row0, self.row1, self.col0, self.col1, self.in0, self.in1)
        columns = (x[order].tolist() for x in (self.product, *ends))
        return tuple(
            Part(p, r0, r1 - r0, c0, c1 - c0, i0, i1 - i0, i0 == 0)
            for p, r0, r1, c0, c1, i0, i1 in zip(*columns, strict=True)
        )


def whole(shape: ProductShape, device: int) -> Tiles:
    """Each product in one piece on one device."""
    n = shape.batch
    zero = np.zeros(n, np.int64)
    ends = (np.full(n, side, np.int64) for side in (shape.m, shape.n, shape.k))
    row1, col1, in1 = ends
    return Tiles(shape, np.full(n, device), np.arange(n), zero, row1, zero, col1, zero, in1)


def _ends(total: int, shares: IntArray) -> IntArray:
    """Where each share of ``total`` ends, by the largest fractions: whole numbers that add up to it."""
    exact = total * np.cumsum(shares / shares.sum())
    out: IntArray = np.rint(exact).astype(np.int64)
    out[-1] = total
    return out


def row_split(shape: ProductShape, device: IntArray, shares: IntArray) -> Tiles:
    """Rows of C (the batch) by ``shares``: forward and dX of data parallelism.  Devices without a row get no tile."""
    ends = np.tile(_ends(shape.m, shares), shape.batch)
    starts = np.concatenate([[0], ends[:-1]])
    starts[:: len(device)] = 0
    product = np.repeat(np.arange(shape.batch), len(device))
    keep = ends > starts
    size = int(keep.sum())
    zero = np.zeros(size, np.int64)
    return Tiles(
        shape, np.tile(device, shape.batch)[keep], product[keep], starts[keep], ends[keep],
        zero, zero + shape.n, zero, zero + shape.k,
    )  # fmt: skip


def product_split(shape: ProductShape, device: IntArray, shares: IntArray) -> Tiles:
    """Whole products by ``shares``, as many as there are: those of attention, one for each sample and head."""
    ends = _ends(shape.batch, shares)
    mine = device[np.searchsorted(ends, np.arange(shape.batch), side="right")]
    tiles = whole(shape, 0)
    return replace(tiles, device=mine)


def inner_split(shape: ProductShape, device: IntArray, shares: IntArray) -> Tiles:
    """The inner dimension (the batch, of dW) by ``shares``: partial sums of all of C, added up in order."""
    turned = row_split(ProductShape(shape.batch, shape.k, shape.n, shape.m), device, shares)
    zero = np.zeros(len(turned), np.int64)
    return Tiles(
        shape, turned.device, turned.product, zero, zero + shape.m, zero, zero + shape.n, turned.row0, turned.row1
    )
