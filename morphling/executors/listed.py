"""Rows that say which products they consist of, taken apart into calls and put together again.

A row takes the sum of its calls, each with a launch of its own as on a device, and what it does beside them: FLOPs and
traffic that its products do not account for, by the roofline and without a launch (how many kernels that is, rows do
not say; the calls of the products hide most of it).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from morphling.executors.analytic import Analytic
from morphling.interfaces.tasks import FLOPS_ROUNDING, TaskTable
from morphling.types import BoolArray, DType, FloatArray, Int32Array, IntArray, Kind, item_bytes

__all__ = ["WHOLE_LAYERS", "Calls", "calls_of", "rest_flops", "rest_seconds", "with_list"]


WHOLE_LAYERS: Final = (
    "rows that name their products: the sum of their calls, each with a launch, and the rest by the analytic roofline"
)


def with_list(tasks: TaskTable) -> BoolArray:
    """Which rows name their products, bool[n]."""
    found: BoolArray = (tasks.products >= 0) & (tasks.kind == Kind.GEMM)
    return found


def rest_flops(tasks: TaskTable) -> FloatArray:
    """FLOPs of each row that its products do not account for, float64[n]; 0 for rows that name none."""
    own = np.array([*(x.flops for x in tasks.product_lists), 0.0], np.float64)[tasks.products]
    rest = tasks.flops - own
    found: FloatArray = np.where(with_list(tasks) & (rest > FLOPS_ROUNDING * tasks.flops), rest, 0.0)
    return found


@dataclass(frozen=True, eq=False)
class Calls:
    """The calls of rows, each distinct (list, owner) once: C of them, of P pairs.

    owner : int[C], what was asked for: devices, or groups of them
    m, n, k : int64[C];  batch : float64[C], products of this shape in one call;  calls : float64[C], how many
    pair : int64[C], to which of the P each belongs;  row : int64[n], the pair of each row
    """

    owner: Int32Array
    m: IntArray
    n: IntArray
    k: IntArray
    batch: FloatArray
    calls: FloatArray
    pair: IntArray
    row: IntArray

    @property
    def flops(self) -> FloatArray:
        """Of one call, float64[C]."""
        found: FloatArray = 2.0 * self.m * self.n * self.k * self.batch
        return found

    def size(self, dtype: DType) -> FloatArray:
        """Bytes of all operands and results of one call, float64[C]."""
        found: FloatArray = item_bytes(dtype) * self.batch * (self.m * self.k + self.k * self.n + self.m * self.n)
        return found

    def seconds(self, of_call: FloatArray) -> FloatArray:
        """Of each row, float64[n], from the seconds of one call, float64[C]."""
        found: FloatArray = np.bincount(self.pair, of_call * self.calls).astype(np.float64)[self.row]
        return found

    def any(self, of_call: BoolArray) -> BoolArray:
        """Rows with a call of which this is true, bool[n]."""
        found: BoolArray = (np.bincount(self.pair, of_call) > 0)[self.row]
        return found


def calls_of(tasks: TaskTable, rows: IntArray, owner: Int32Array) -> Calls:
    """The calls of ``rows``, at least one, which name their products; ``owner`` int[len(rows)] >= 0, of each."""
    span = int(owner.max()) + 1
    pairs, row = np.unique(tasks.products[rows].astype(np.int64) * span + owner, return_inverse=True)
    which, owners = np.divmod(pairs, span)
    used, place = np.unique(which, return_inverse=True)  # a row of a table for all clients comes with all their lists
    entries = [np.array(tasks.product_lists[x].entries, np.float64) for x in used.tolist()]
    lengths = np.array([len(x) for x in entries])[place]
    columns = np.concatenate([entries[x] for x in place.tolist()]).T
    m, n, k = columns[:3].astype(np.int64)
    pair = np.repeat(np.arange(len(pairs)), lengths)
    return Calls(owners[pair].astype(np.int32), m, n, k, columns[3], columns[4], pair, row)


def rest_seconds(tasks: TaskTable, rows: IntArray, analytic: Analytic) -> FloatArray:
    """What ``rows`` do beside their products, by the device's roofline, float64[len(rows)].

    A row that counts less traffic than its products have nothing of it left.
    """
    lists, dtype, device = tasks.products[rows], tasks.dtype[rows], tasks.device[rows]
    width = np.array([item_bytes(d) for d in DType], np.float64)[dtype]
    flops = rest_flops(tasks)[rows]
    left = tasks.memory_bytes[rows] - width * np.array([x.elements for x in tasks.product_lists])[lists]
    out: FloatArray = np.maximum(
        flops / analytic.rate[device, dtype], np.maximum(left, 0.0) / analytic.bandwidth[device]
    )
    return out
