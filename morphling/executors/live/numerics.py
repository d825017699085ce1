"""Real operands: the product that is put together from sub-tasks, compared with the one in a single piece.

Where a strategy says where its rows lie (`Strategy.places`), each output of the GEMM DAG is assembled from the rows
that got done, in their partitions, and every element must be computed exactly once.  Else each distinct sub-task is
executed with random operands, and elements of its result are compared with sums in double precision.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from morphling.errors import RunError
from morphling.executors.live.measuring import Measurements
from morphling.executors.live.partition import Partition, Product
from morphling.interfaces.recording import Recording
from morphling.interfaces.strategy import Dispatch, Placement, Strategy
from morphling.types import AnyArray, DType, IntArray, Kind
from morphling.workload import GemmDag, Place, Workload

__all__ = ["Numerics", "relative_error", "tolerance"]

SAMPLED: Final = 32
"""Rows and columns of a sub-task's result that are summed again in double precision, at most."""
_EPS: Final = {DType.FLOAT32: 2.0**-23, DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-7, DType.TFLOAT32: 2.0**-10}

PartitionOf = Callable[[int, DType], Partition]
"""The partition in which a device's rows of a dtype are executed."""


def tolerance(dtype: DType, k: int) -> float:
    """Largest relative error that rounding explains, relative to the largest element.

    Sums of k terms in another order differ by about sqrt(k) roundings of the accumulator (float32), and operands and
    result are rounded to the dtype; 16 and 4 are margins of ours.
    """
    own: float = 0.0 if dtype == DType.FLOAT32 else 4 * _EPS[dtype]
    return own + 16 * _EPS[DType.FLOAT32] * math.sqrt(max(k, 1))


def relative_error(assembled: AnyArray, whole: AnyArray) -> float:
    """Largest difference by the largest element; inf where one of them is no finite number."""
    if not (np.isfinite(assembled).all() and np.isfinite(whole).all()):
        return float("inf")
    most = float(np.abs(whole).max(initial=0.0))
    off = float(np.abs(assembled.astype(np.float64) - whole).max(initial=0.0))
    return off / most if most else off


@dataclass(eq=False)
class Numerics:
    """Collects where rows lie while a run goes on, and checks them when it is over."""

    measurements: Measurements
    partition_of: PartitionOf
    executed_as: Callable[[DType], DType]
    places: dict[int, Placement | None] = field(default_factory=dict)
    products: dict[tuple[Product, Partition], str] = field(default_factory=dict)
    worst: float = 0.0
    checked: dict[str, int] = field(default_factory=lambda: {"products": 0, "tiles": 0, "sub_tasks": 0})

    def sent(self, serial: int, dispatch: Dispatch, strategy: Strategy) -> None:
        """Ask where the rows lie, while the strategy still knows."""
        if strategy.covers == "gemms":
            self.places[serial] = strategy.places(dispatch)

    def timed(self, products: list[tuple[Product, Partition]]) -> None:
        """Products that rows were timed by."""
        self.products.update(dict.fromkeys(products, ""))

    def verify(self, recording: Recording, workload: Workload, rate: float) -> dict[str, Any]:
        """Check all; the report as plain values.  ``rate`` (FLOP/s) is for estimating how long that takes.

        ``RunError`` for an element that is missed or computed twice, for an error above `tolerance`, and where it would
        take longer than what is left of the budget.
        """
        placed = _assemblies(recording, workload.dag, self.places)
        cost = sum(2 * flops for flops in placed.values()) + sum(p.flops for p, _ in self.products)
        self.measurements.spend(cost, rate, "the check of numerics")
        for which in placed:
            self._assemble(which)
        for product, partition in sorted(self.products):
            self._sub_task(product, partition)
        return {
            "max_relative_error": self.worst,
            "tolerance": "16 eps sqrt(k) of float32, and 4 eps of a shorter dtype",
            "assembled_products": self.checked["products"],
            "assembled_tiles": self.checked["tiles"],
            "sub_tasks_by_themselves": self.checked["sub_tasks"],
            "placed_dispatches": sum(p is not None for p in self.places.values()),
        }

    def _assemble(self, which: _Assembly) -> None:
        which.require_covered()
        rng = np.random.default_rng(which.m * 31 + which.n * 17 + which.k)
        a = rng.standard_normal((which.m, which.k)).astype(np.float32)
        b = rng.standard_normal((which.k, which.n)).astype(np.float32)
        dtype = self.executed_as(which.dtype)
        out = np.full((which.m, which.n), np.nan, np.float32)
        back_end = self.measurements.back_end
        device = which.tiles[-1].tolist()
        for (r, c, i, m, n, k), d in zip(which.tiles[:-1].T.tolist(), device, strict=True):
            part = back_end.multiply(a[r : r + m, i : i + k], b[i : i + k, c : c + n], dtype, self._partition(d, which))
            block = out[r : r + m, c : c + n]
            block[...] = part if i == 0 else block + part  # rising inner dimension: sums repeat
        whole = back_end.multiply(a, b, dtype, self._partition(device[0], which))
        self._judge(
            relative_error(out, whole), dtype, which.k, f"{which.label}, assembled from {len(device):,} sub-tasks"
        )
        self.checked["products"] += 1
        self.checked["tiles"] += len(device)

    def _partition(self, device: int, which: _Assembly) -> Partition:
        return self.partition_of(device, which.dtype)

    def _sub_task(self, product: Product, partition: Partition) -> None:
        rng = np.random.default_rng(product.m * 31 + product.n * 17 + product.k)
        a = rng.standard_normal((product.m, product.k)).astype(np.float32)
        b = rng.standard_normal((product.k, product.n)).astype(np.float32)
        got = self.measurements.back_end.multiply(a, b, product.dtype, partition)
        if got.shape != (product.m, product.n):
            raise RunError(f"numerics: {product} in {partition.name} gave a result of shape {got.shape}")
        rows = np.unique(np.linspace(0, product.m - 1, min(SAMPLED, product.m)).astype(np.int64))
        columns = np.unique(np.linspace(0, product.n - 1, min(SAMPLED, product.n)).astype(np.int64))
        exact = a[rows].astype(np.float64) @ b[:, columns].astype(np.float64)
        error = relative_error(got[np.ix_(rows, columns)], exact)
        self._judge(error, product.dtype, product.k, f"sub-task {product} in {partition.name}")
        self.checked["sub_tasks"] += 1

    def _judge(self, error: float, dtype: DType, k: int, what: str) -> None:
        self.worst = max(self.worst, error)
        most = tolerance(dtype, k)
        if not error <= most:
            raise RunError(f"numerics: {what}: the relative error is {error:.3g}, and rounding explains {most:.3g}")


@dataclass(frozen=True, eq=False)
class _Assembly:
    """One output of the DAG in one iteration.

    tiles : int64[7, T]   first row, first column, first inner index, m, n, k, device; by row, column and inner index
    """

    label: str
    m: int
    n: int
    k: int
    dtype: DType
    tiles: IntArray

    def require_covered(self) -> None:
        """``RunError`` unless every multiply-add is done exactly once; counted on the grid of all cuts."""
        low, sides = self.tiles[:3], self.tiles[3:6]
        high = low + sides
        most = (self.m, self.n, self.k)
        outside = (low < 0).any(axis=0) | (high > np.array(most)[:, None]).any(axis=0) | (sides < 1).any(axis=0)
        if outside.any():
            r, c, i, m, n, k, d = self.tiles[:, int(np.argmax(outside))].tolist()
            raise RunError(
                f"numerics: {self.label} is {self.m} x {self.k} x {self.n}; the sub-task {m} x {k} x {n} of device {d} "
                f"at row {r}, column {c}, inner {i} lies outside it"
            )
        cuts = [np.unique([*a.tolist(), *b.tolist(), 0, end]) for a, b, end in zip(low, high, most, strict=True)]
        done = np.zeros([len(x) - 1 for x in cuts], np.int32)
        ends = [
            (np.searchsorted(x, a).tolist(), np.searchsorted(x, b).tolist())
            for x, a, b in zip(cuts, low, high, strict=True)
        ]
        for r0, r1, c0, c1, i0, i1 in zip(*itertools.chain(*ends), strict=True):
            done[r0:r1, c0:c1, i0:i1] += 1
        if (done == 1).all():
            return
        r, c, i = (int(x) for x in np.argwhere(done != 1)[0])
        where = (
            f"rows {cuts[0][r]} to {cuts[0][r + 1]}, columns {cuts[1][c]} to {cuts[1][c + 1]}, inner {cuts[2][i]} to "
            f"{cuts[2][i + 1]}"
        )
        times = int(done[r, c, i])
        raise RunError(
            f"numerics: {self.label}: {where} is computed {times} times"
            if times
            else f"numerics: {self.label}: nobody computes {where}"
        )


def _assemblies(recording: Recording, dag: GemmDag, places: dict[int, Placement | None]) -> dict[_Assembly, float]:
    """What is to be put together, with its FLOPs; alike outputs (shape, tiles, devices) once."""
    ends = np.array(recording.iteration_ends_ns, np.int64)
    found: dict[tuple[int, int], list[IntArray]] = {}
    dtypes: dict[int, DType] = {}
    for record in recording.dispatches:
        place = places.get(record.serial)
        iteration = int(np.searchsorted(ends, record.time_ns, side="right"))
        if place is None or iteration >= len(ends) or not len(record):
            continue  # of an iteration that did not end: it need not be whole
        rows = np.flatnonzero(~record.lost & (place.node >= 0) & (record.tasks.kind == Kind.GEMM))
        rows = rows[dag.count[place.node[rows]] == 1]
        inner = np.zeros(len(record), np.int64) if place.inner is None else place.inner
        t = record.tasks
        columns = np.stack([place.row, place.column, inner, t.m, t.n, t.k, t.device])[:, rows].astype(np.int64)
        nodes = place.node[rows]
        for node in np.unique(nodes).tolist():
            found.setdefault((iteration, node), []).append(columns[:, nodes == node])
            dtypes[node] = DType(int(t.dtype[rows[0]]))
    placed = {node for _, node in found}
    if places and all(p is not None for p in places.values()):  # then nothing can hide
        devices = (dag.kind == Kind.GEMM) & (dag.place == Place.DEVICES) & (dag.count == 1)
        placed.update(np.flatnonzero(devices).tolist())
    for iteration, node in itertools.product(range(len(ends)), sorted(placed)):
        if (iteration, node) not in found:
            raise RunError(f"numerics: {dag.label(node)} is not computed in iteration {iteration + 1}")
    return _distinct(found, dag, dtypes)


def _distinct(
    found: dict[tuple[int, int], list[IntArray]], dag: GemmDag, dtypes: dict[int, DType]
) -> dict[_Assembly, float]:
    seen: set[tuple[Any, ...]] = set()
    out: dict[_Assembly, float] = {}
    for (_, node), parts in _in_order(found):
        tiles = np.concatenate(parts, axis=1)
        tiles = tiles[:, np.lexsort((tiles[2], tiles[1], tiles[0]))]
        shape = int(dag.m[node]), int(dag.n[node]), int(dag.k[node])
        key = (*shape, tiles.tobytes())
        if key not in seen:
            seen.add(key)
            out[_Assembly(dag.label(node), *shape, dtypes[node], tiles)] = 2.0 * shape[0] * shape[1] * shape[2]
    return out


def _in_order(found: dict[tuple[int, int], list[IntArray]]) -> Iterator[tuple[tuple[int, int], list[IntArray]]]:
    for key in sorted(found):
        yield key, found[key]
