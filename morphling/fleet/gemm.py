"""Measured matrix products of a device, and the parameters of a latency model fitted to them: plain records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from morphling.types import BoolArray, DType, FloatArray, IntArray

__all__ = ["LAYOUTS", "RANGES", "GemmFit", "GemmParameters", "GemmSamples", "stored_row"]

LAYOUTS: Final = ("nn", "nt", "tn", "tt")
"""Whether A and B are stored as they are (n, row-major) or transposed (t)."""
RANGES: Final = ("m", "n", "k", "batch", "flops")
"""What has a sampled range: sizes, products in a call, and 2·m·n·k of one product."""

_Size = TypeVar("_Size", int, IntArray)


def stored_row(rows: _Size, cols: _Size, transposed: bool) -> _Size:
    """Elements of one stored row of a matrix: the least that a leading dimension can be."""
    return rows if transposed else cols


@dataclass(frozen=True)
class GemmParameters:
    """The parameters of `morphling.executors.gemm_model`, which has the formula.  Times in s, rates in FLOP/s and B/s.

    tile_m, tile_n : rows and columns that the kernel computes at once
    tile_paid_m, tile_paid_n : share of the padding to whole tiles that is paid for, in [0, 1]
    edge_m, edge_n : rows and columns that each piece (of a power of two) of an incomplete tile costs beside itself
    half_… : sizes at which half of the peak is reached; ``_t`` where the operand packed along it is stored transposed
    aliased, unaligned : factors on packing for strides of a multiple of 2048 bytes, and not of 64 bytes
    cache_… : traffic of working sets far below ``cache_bytes``; beyond, it approaches ``memory_bandwidth``
    batch_share : how much of the other products of a batch counts to the working set, in [0, 1]
    traffic_a, traffic_c : passes over A and C for one over B
    unhidden : share of the shorter of computing and traffic that is not hidden behind the longer, in [0, 1]
    small_… : the kernel without packing, for products of at most ``small_most`` multiply-adds; ``small_nt`` and so on
        are factors on its computing for the layouts other than nn
    vector_… : the kernel for m = 1 or n = 1; ``row`` for each row that a dot product ends in, ``step`` for each
        element of the vector, ``across`` a factor where the matrix is read against the way it is stored, ``aliased``
        one for such strides; ``across_row`` and ``across_step`` for each row added up there, and each element of it
    """

    launch: float
    item: float
    peak: float
    tile_m: int
    tile_n: int
    tile_paid_m: float
    tile_paid_n: float
    edge_m: float
    edge_n: float
    half_m: float
    half_m_t: float
    half_n: float
    half_n_t: float
    half_k: float
    aliased: float
    unaligned: float
    cache_bandwidth: float
    memory_bandwidth: float
    cache_bytes: float
    batch_share: float
    traffic_a: float
    traffic_c: float
    unhidden: float
    small_launch: float
    small_peak: float
    small_nt: float
    small_tn: float
    small_tt: float
    small_paid_m: float
    small_paid_n: float
    small_edge_m: float
    small_edge_n: float
    small_half_m: float
    small_half_n: float
    small_half_k: float
    small_half_k_nt: float
    small_most: float
    vector_launch: float
    vector_cache_bandwidth: float
    vector_memory_bandwidth: float
    vector_cache_bytes: float
    vector_row: float
    vector_step: float
    vector_across: float
    vector_across_row: float
    vector_across_step: float
    vector_aliased: float


@dataclass(frozen=True)
class GemmFit:
    """Parameters for one dtype with where they hold and how far they can be trusted.

    ranges : lowest and highest sampled value of each of `RANGES`; beyond, a duration is extrapolated
    median_error, p90_error : absolute error as a share of the measured time, over shapes that were held out; None where
        too few shapes were there to hold any out
    source, kind : where the samples come from, as in every number of a profile
    """

    parameters: GemmParameters
    ranges: Mapping[str, tuple[float, float]]
    source: str
    kind: str = "measured"
    median_error: float | None = None
    p90_error: float | None = None


@dataclass(frozen=True, eq=False)
class GemmSamples:
    """Measured shapes of one or several dtypes, one entry a shape; rounds of the same shape are put together.

    m, n, k, batch, lda, ldb : int64   C[m x n] = A[m x k] B[k x n], ``batch`` times in one call; elements between rows
    a_transposed, b_transposed : bool
    dtype : int8 `DType`
    seconds : float64   the shortest round: what disturbs a measurement lengthens it
    agreement : float64   second shortest round by the shortest, less 1; NaN for a single round
    rounds : int64
    cpu_share : float64   CPU time by wall time, mean of the rounds; NaN where not given
    facts : what the file says of itself
    """

    m: IntArray
    n: IntArray
    k: IntArray
    batch: IntArray
    lda: IntArray
    ldb: IntArray
    a_transposed: BoolArray
    b_transposed: BoolArray
    dtype: NDArray[np.int8]
    seconds: FloatArray
    agreement: FloatArray
    rounds: IntArray
    cpu_share: FloatArray
    facts: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.m)

    @classmethod
    def of_rows(cls, rows: Sequence[Mapping[str, Any]], facts: Mapping[str, str] | None = None) -> GemmSamples:
        """From rows with m, n, k, dtype, layout, ms, lda, ldb, batch and perhaps cpu_share, in order."""
        shapes: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
        for r in rows:
            key = (r["m"], r["n"], r["k"], r["batch"], r["lda"], r["ldb"], r["layout"], r["dtype"])
            shapes.setdefault(key, []).append((r["ms"] / 1e3, r.get("cpu_share", np.nan)))
        low = [sorted(s for s, _ in rounds) for rounds in shapes.values()]
        m, n, k, batch, lda, ldb = (np.array([key[i] for key in shapes], np.int64) for i in range(6))
        return cls(
            m=m,
            n=n,
            k=k,
            batch=batch,
            lda=lda,
            ldb=ldb,
            a_transposed=np.array([key[6][0] == "t" for key in shapes]),
            b_transposed=np.array([key[6][1] == "t" for key in shapes]),
            dtype=np.array([DType.named(key[7]) for key in shapes], np.int8),
            seconds=np.array([x[0] for x in low]),
            agreement=np.array([x[1] / x[0] - 1 if len(x) > 1 else np.nan for x in low]),
            rounds=np.array([len(x) for x in low], np.int64),
            cpu_share=np.array([np.mean([share for _, share in rounds]) for rounds in shapes.values()]),
            facts=dict(facts or {}),
        )

    def take(self, chosen: NDArray[Any]) -> GemmSamples:
        """The chosen shapes (a mask or indices)."""
        columns = {name: value[chosen] for name, value in vars(self).items() if name != "facts"}
        return replace(self, **columns)

    @property
    def flops(self) -> FloatArray:
        """Floating-point operations of a call."""
        return np.asarray(2.0 * self.m * self.n * self.k * self.batch, np.float64)

    def layouts(self) -> list[str]:
        """``nn``, ``nt``, … of each shape."""
        return [f"{'nt'[a]}{'nt'[b]}" for a, b in zip(self.a_transposed * 1, self.b_transposed * 1, strict=True)]
