"""A latency model of matrix products: ``t = launch + max(compute, memory)``, with what real kernels do to both.

The formula for one call of ``batch`` products C[m x n] = A[m x k] B[k x n], row-major unless transposed:

    compute = 2 m' n' k / peak · (1 + half_n(A) / n' + half_m(B) / m' + half_k / k)
    memory  = (a m k + k n + c m n) bytes / bandwidth(bytes)
    t       = launch + batch · (item + max(compute, memory) + unhidden · min(compute, memory))

m' and n' are m and n with what an incomplete last tile costs (tile quantisation): part of the padding to a whole one,
and an edge for each piece, since kernels take the remainder in pieces of powers of two.  The halves are sizes at which
half of the peak is reached: packing A costs m·k operations, which n amortises, packing B likewise over m, and loading C
over k.  Packing depends on how the operand is stored (as it is or transposed) and on its stride: a multiple of 2048
bytes makes rows compete for the same lines of a cache, and one that is no multiple of 64 bytes splits lines.
bandwidth(bytes) falls from that of the caches to that of the memory as the working set grows:
1/bandwidth = (1 - s)/cache + s/memory, s = bytes / (bytes + cache_bytes).

Libraries have several kernels and take the faster, so t is the smaller of two such formulas: the one above, and one
without packing and tiles for small products.  A matrix times a vector (m = 1 or n = 1) has a third,

    t = launch + batch · (matrix bytes / bandwidth · across + row · rows + step · length),

where ``rows`` are dot products and ``length`` is that of each.  If the matrix is read against the way it is stored,
``across`` counts, stored rows are added up, and ``row`` and ``step`` are others.

At given strides, t never falls as k or batch grow, nor as m or n grow by whole tiles; within a tile it may, as it does
when measured (47 columns take longer than 48).

The form follows the published roofline of size-dependent efficiency (1 / (1 + half / size), Hockney's n-half) and the
cost structure of blocked GEMM with packing (Goto and van de Geijn, ACM TOMS 34(3), 2008).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from morphling.fleet.gemm import GemmFit, GemmParameters
from morphling.types import BoolArray, FloatArray

__all__ = ["extrapolated", "roofline_seconds", "seconds"]

ALIAS_BYTES: Final = 2048
LINE_BYTES: Final = 64


def seconds(
    p: GemmParameters,
    item_bytes: int,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    batch: ArrayLike = 1,
    *,
    a_transposed: ArrayLike = False,
    b_transposed: ArrayLike = False,
    lda: ArrayLike | None = None,
    ldb: ArrayLike | None = None,
) -> FloatArray:
    """Seconds of each call, float64[n]; arguments broadcast.  ``lda``, ``ldb`` left out: rows without gaps.

    ``batch`` need not be whole (a part of a product takes that part of its time).  Sizes must be at least 1.
    """
    m, n, k, batch = (np.asarray(x, np.float64) for x in (m, n, k, batch))
    ta, tb = np.asarray(a_transposed), np.asarray(b_transposed)
    m, n, k, batch = np.broadcast_arrays(*np.atleast_1d(m, n, k, batch))
    mn, mk, kn = m * n, m * k, k * n
    size = float(item_bytes) * (mk + kn + mn) * (1.0 - p.batch_share + p.batch_share * batch)
    share = size / (size + p.cache_bytes)  # of the traffic that goes to the memory
    near, behind = 1.0 / p.cache_bandwidth, 1.0 / p.memory_bandwidth
    memory = float(item_bytes) * (p.traffic_a * mk + kn + p.traffic_c * mn) * (near + (behind - near) * share)
    pack_a = _packing(p, item_bytes, _chosen(ta, p.half_n, p.half_n_t), _stored(lda, ta, m, k))
    pack_b = _packing(p, item_bytes, _chosen(tb, p.half_m, p.half_m_t), _stored(ldb, tb, k, n))
    tall = _padded(m, p.tile_m, p.tile_paid_m, p.edge_m)
    wide = _padded(n, p.tile_n, p.tile_paid_n, p.edge_n)
    # 2 m'n'k/peak · (1 + a/n' + b/m' + c/k), multiplied out: no divisions
    compute = (2.0 / p.peak) * (tall * wide * (k + p.half_k) + (pack_a * tall + pack_b * wide) * k)
    packed = p.launch + batch * (p.item + _either(compute, memory, p.unhidden))
    small = _small(p, m, n, k, ta, tb)
    small = p.small_launch + batch * (p.item + _either(small, memory, p.unhidden))
    t = np.where(mn * k <= p.small_most, np.minimum(packed, small), packed)
    vector = (m == 1) | (n == 1)
    if vector.any():
        ld = np.where(n == 1, _stored(lda, ta, m, k), _stored(ldb, tb, k, n))
        t = np.where(vector, _vector(p, item_bytes, (m, n, k, batch), ta, tb, ld), t)
    out: FloatArray = np.atleast_1d(t)
    return out


def _small(
    p: GemmParameters, m: FloatArray, n: FloatArray, k: FloatArray, ta: np.ndarray, tb: np.ndarray
) -> FloatArray:
    """Computing of the kernel without packing.  With both operands transposed it works on columns, as C' = B' A'."""
    half_k: FloatArray | float = p.small_half_k
    if ta.any() or tb.any():
        both = ta & tb
        m, n = np.where(both, n, m), np.where(both, m, n)
        half_k = np.where(tb & ~ta, p.small_half_k_nt, half_k)
    tall = _padded(m, p.tile_m, p.small_paid_m, p.small_edge_m)
    wide = _padded(n, p.tile_n, p.small_paid_n, p.small_edge_n)
    out: FloatArray = (2.0 / p.small_peak) * (
        tall * wide * (k + half_k) + (p.small_half_n * tall + p.small_half_m * wide) * k
    )
    if ta.any() or tb.any():
        out = out * np.where(ta, np.where(tb, p.small_tt, p.small_tn), np.where(tb, p.small_nt, 1.0))
    return out


def _padded(size: FloatArray, tile: int, paid: float, edge: float) -> FloatArray:
    """The size with what its last, incomplete tile costs: a share of the padding, and an edge for each piece."""
    gaps, pieces = _remainders(tile)
    rest = (size - tile * np.floor(size * (1.0 / tile) + 1e-9)).astype(np.intp)
    out: FloatArray = size + paid * gaps[rest] + edge * pieces[rest]
    return out


@cache
def _remainders(tile: int) -> tuple[FloatArray, FloatArray]:
    """By remainder: what lacks to a whole tile, and in how many pieces of powers of two kernels take it."""
    rest = np.arange(tile)
    return np.where(rest > 0, tile - rest, 0.0), np.array([float(int(r).bit_count()) for r in rest])


def _either(compute: FloatArray, memory: FloatArray, unhidden: float) -> FloatArray:
    out: FloatArray = np.maximum(compute, memory)
    out += unhidden * np.minimum(compute, memory)
    return out


def _chosen(transposed: np.ndarray, plain: float, other: float) -> FloatArray | float:
    return np.where(transposed, other, plain) if transposed.any() else plain


def _stored(ld: ArrayLike | None, transposed: np.ndarray, rows: FloatArray, cols: FloatArray) -> FloatArray:
    """The stride; left out, that of rows without gaps."""
    if ld is not None:
        return np.asarray(ld, np.float64)
    return np.where(transposed, rows, cols) if transposed.any() else cols


def _packing(p: GemmParameters, item_bytes: int, half: FloatArray | float, ld: FloatArray) -> FloatArray:
    stride = ld * (item_bytes / LINE_BYTES)
    lines = np.floor(stride)
    per_page = lines * (LINE_BYTES / ALIAS_BYTES)
    factor = np.where(stride != lines, p.unaligned, np.where(per_page == np.floor(per_page), p.aliased, 1.0))
    out: FloatArray = factor * half
    return out


def _vector(
    p: GemmParameters,
    item_bytes: int,
    sizes: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
    ta: np.ndarray,
    tb: np.ndarray,
    ld: FloatArray,
) -> FloatArray:
    m, n, k, batch = sizes
    dots = np.where(n == 1, ~ta, tb)  # whether each result is a dot product along stored rows
    results = np.maximum(m, n)
    size = float(item_bytes) * results * k
    share = size * batch / (size * batch + p.vector_cache_bytes)
    slow, fast = 1.0 / p.vector_memory_bandwidth, 1.0 / p.vector_cache_bandwidth
    traffic = size * (fast + (slow - fast) * share) * np.where(dots, 1.0, p.vector_across)
    traffic = traffic * np.where(ld * item_bytes % ALIAS_BYTES == 0, p.vector_aliased, 1.0)
    along = p.vector_row * results + p.vector_step * k
    steps = np.where(dots, along, p.vector_across_row * k + p.vector_across_step * results)
    out: FloatArray = p.vector_launch + batch * (traffic + steps)
    return out


def roofline_seconds(launch: float, rate: float, bandwidth: float, flops: FloatArray, size: FloatArray) -> FloatArray:
    """The plain roofline, for comparison: ``launch + max(flops / rate, bytes / bandwidth)``."""
    out: FloatArray = launch + np.maximum(flops / rate, size / bandwidth)
    return out


def extrapolated(fit: GemmFit, m: FloatArray, n: FloatArray, k: FloatArray, batch: ArrayLike = 1) -> BoolArray:
    """Whether each shape lies outside the sampled ranges (of m, n, k, batch or the size of one product)."""
    values: Mapping[str, ArrayLike] = {"m": m, "n": n, "k": k, "batch": batch, "flops": 2.0 * m * n * k}
    out = np.zeros(len(m), bool)
    for name, (low, high) in fit.ranges.items():
        value = np.asarray(values[name])
        out |= (value < low) | (value > high)
    return out
