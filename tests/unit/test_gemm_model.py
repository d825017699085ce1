"""The latency model: hand-worked times, scalar against vector, and how time grows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from morphling.executors.gemm_model import extrapolated, seconds
from morphling.fleet import GemmFit, GemmParameters

PLAIN = GemmParameters(
    launch=1e-6, item=0.0, peak=1e11, tile_m=4, tile_n=16, tile_paid_m=0.0, tile_paid_n=0.0, edge_m=0.0, edge_n=0.0,
    half_m=0.0, half_m_t=0.0, half_n=0.0, half_n_t=0.0, half_k=0.0, aliased=1.0, unaligned=1.0,
    cache_bandwidth=1e13, memory_bandwidth=1e13, cache_bytes=1e6, batch_share=1.0, traffic_a=1.0, traffic_c=1.0,
    unhidden=0.0, small_launch=1.0, small_peak=1e11, small_nt=1.0, small_tn=1.0, small_tt=1.0, small_paid_m=0.0,
    small_paid_n=0.0, small_edge_m=0.0, small_edge_n=0.0, small_half_m=0.0, small_half_n=0.0, small_half_k=0.0,
    small_half_k_nt=0.0, small_most=1e12, vector_launch=2e-6, vector_cache_bandwidth=1e10,
    vector_memory_bandwidth=1e10, vector_cache_bytes=1e6, vector_row=0.0, vector_step=0.0, vector_across=3.0,
    vector_across_row=0.0, vector_across_step=0.0,    vector_aliased=2.0,
)  # fmt: skip
"""2 m n k / 1e11 after 1 us, and nothing else; vectors at 10 GB/s."""
RICH = replace(
    PLAIN, item=1e-8, tile_paid_m=0.4, tile_paid_n=0.7, edge_m=0.3, edge_n=2.0, half_m=3.0, half_m_t=20.0, half_n=5.0,
    half_n_t=9.0, half_k=6.0, aliased=1.5, unaligned=1.2, cache_bandwidth=5e10, memory_bandwidth=6e9, unhidden=0.5,
    traffic_a=0.8, traffic_c=0.5, small_launch=8e-7, small_peak=1.4e11, small_nt=2.0, small_tn=0.9, small_tt=1.3,
    small_paid_n=0.9, small_half_m=2.0, small_half_n=6.0, small_half_k=8.0, small_half_k_nt=16.0, small_most=1e6,
    vector_memory_bandwidth=3e9, vector_row=2e-9, vector_step=5e-10,
    vector_across_row=3e-9, vector_across_step=1e-10,
)  # fmt: skip


def one(p: GemmParameters, *shape: float, **more: object) -> float:
    return float(seconds(p, 4, *shape, **more)[0])


def test_compute_bound_by_hand() -> None:
    assert one(PLAIN, 100, 200, 300) == pytest.approx(1e-6 + 2 * 100 * 200 * 300 / 1e11)
    assert one(PLAIN, 100, 200, 300, 10) == pytest.approx(1e-6 + 10 * 2 * 100 * 200 * 300 / 1e11)
    assert one(PLAIN, 100, 200, 300, 2.5) == pytest.approx(1e-6 + 2.5 * 2 * 100 * 200 * 300 / 1e11)


def test_memory_bound_by_hand() -> None:
    p = replace(PLAIN, cache_bandwidth=1e9, memory_bandwidth=1e9, traffic_a=2.0, traffic_c=0.5)
    traffic = 4 * (2.0 * 100 * 300 + 300 * 200 + 0.5 * 100 * 200)
    assert one(p, 100, 200, 300) == pytest.approx(1e-6 + traffic / 1e9)
    half = replace(p, unhidden=0.5)
    assert one(half, 100, 200, 300) == pytest.approx(1e-6 + traffic / 1e9 + 0.5 * 1.2e7 / 1e11)


def test_bandwidth_falls_from_the_caches_to_the_memory() -> None:
    p = replace(PLAIN, cache_bandwidth=4e9, memory_bandwidth=1e9, cache_bytes=4 * (300 + 300 + 10000))
    size = 4 * (100 * 3 + 3 * 100 + 100 * 100)
    assert one(p, 100, 100, 3) == pytest.approx(1e-6 + size * (0.5 / 4e9 + 0.5 / 1e9))


@pytest.mark.parametrize(
    ("changed", "more", "factor"),
    [
        ({"half_n": 200.0}, {}, 2.0),  # packing A costs as much as multiplying
        ({"half_m": 100.0}, {}, 2.0),
        ({"half_k": 300.0}, {}, 2.0),
        ({"half_n": 200.0, "half_n_t": 0.0}, {"a_transposed": True}, 1.0),
        ({"half_m_t": 300.0}, {"b_transposed": True}, 4.0),
        ({"half_n": 200.0, "aliased": 3.0}, {"lda": 512}, 4.0),  # 2048 bytes from row to row
        ({"half_n": 200.0, "aliased": 3.0}, {"lda": 528}, 2.0),
        ({"half_n": 200.0, "unaligned": 5.0}, {"lda": 528}, 2.0),  # 33 lines of 64 bytes
        ({"half_n": 200.0, "unaligned": 5.0}, {"lda": 529}, 6.0),
        ({"half_m": 100.0, "unaligned": 5.0}, {"ldb": 529}, 6.0),
    ],
)
def test_packing_by_hand(changed: dict, more: dict, factor: float) -> None:
    rest = {"lda": 304, "ldb": 208}  # 19 and 13 lines of 64 bytes
    if "a_transposed" in more:
        rest["lda"] = 112
    if "b_transposed" in more:
        rest["ldb"] = 304
    took = one(replace(PLAIN, **changed), 100, 200, 300, **{**rest, **more})
    assert took == pytest.approx(1e-6 + factor * 1.2e7 / 1e11)


def test_an_incomplete_tile_by_hand() -> None:
    p = replace(PLAIN, tile_paid_n=0.5, edge_n=2.0, tile_paid_m=1.0)
    # 47 = 2 x 16 + 15: half of one column of padding, and pieces of 8, 4, 2 and 1; 5 = 4 + 1 pays for 8 rows
    assert one(p, 5, 47, 1000) == pytest.approx(1e-6 + 2 * 8 * (47 + 0.5 + 4 * 2.0) * 1000 / 1e11)
    assert one(p, 8, 48, 1000) == pytest.approx(1e-6 + 2 * 8 * 48 * 1000 / 1e11)


def test_the_faster_kernel_counts_where_it_may() -> None:
    p = replace(PLAIN, small_launch=5e-7, small_peak=2e11, small_nt=4.0, small_most=100 * 100 * 100)
    assert one(p, 100, 100, 100) == pytest.approx(5e-7 + 2e6 / 2e11)
    assert one(p, 100, 100, 100, b_transposed=True) == pytest.approx(1e-6 + 2e6 / 1e11)
    assert one(p, 100, 100, 101) == pytest.approx(1e-6 + 2.02e6 / 1e11)


def test_matrix_times_vector_by_hand() -> None:
    p = replace(PLAIN, vector_row=1e-9, vector_step=1e-10, vector_across_row=3e-9, vector_across_step=4e-10)
    assert one(p, 300, 1, 72) == pytest.approx(2e-6 + 4 * 300 * 72 / 1e10 + 300e-9 + 72e-10)
    across = 2e-6 + 3.0 * 4 * 300 * 72 / 1e10 + 72 * 3e-9 + 300 * 4e-10
    assert one(p, 300, 1, 72, a_transposed=True) == pytest.approx(across)
    assert one(p, 1, 300, 72) == pytest.approx(across)
    assert one(p, 1, 300, 72, b_transposed=True) == one(p, 300, 1, 72)
    assert one(p, 300, 1, 72, lda=512) - one(p, 300, 1, 72) == pytest.approx(4 * 300 * 72 / 1e10)


def test_many_at_once_equal_one_at_a_time() -> None:
    rng = np.random.default_rng(1)
    m, n, k = rng.integers(1, 300, (3, 400))
    batch = rng.integers(1, 5, 400)
    ta, tb = rng.random((2, 400)) < 0.5
    lda = np.where(ta, m, k) + rng.integers(0, 2, 400) * 8
    ldb = np.where(tb, k, n)
    m[:40] = 1
    n[40:80] = 1
    lda, ldb = np.maximum(lda, np.where(ta, m, k)), np.maximum(ldb, np.where(tb, k, n))
    many = seconds(RICH, 4, m, n, k, batch, a_transposed=ta, b_transposed=tb, lda=lda, ldb=ldb)
    each = [
        one(RICH, m[i], n[i], k[i], batch[i], a_transposed=ta[i], b_transposed=tb[i], lda=lda[i], ldb=ldb[i])
        for i in range(400)
    ]
    assert many.tolist() == each


def test_time_never_falls_as_a_size_grows_by_whole_tiles() -> None:
    for first in (16, 48, 160, 2048):
        for second in (16, 96, 512):
            sizes = np.arange(1, 256) * 16
            for shape in ((sizes, first, second), (first, sizes, second)):
                assert (np.diff(seconds(RICH, 4, *shape, lda=4096, ldb=4096)) >= 0).all()
            every = seconds(RICH, 4, first, second, np.arange(1, 4000), lda=4096, ldb=4096)
            assert (np.diff(every) >= 0).all()
            assert (np.diff(seconds(RICH, 4, first, second, 64, np.arange(1, 100))) > 0).all()


def test_extrapolated_outside_any_range() -> None:
    ranges = {"m": (1, 100), "n": (1, 100), "k": (1, 100), "batch": (1, 8), "flops": (2e3, 1e6)}
    fit = GemmFit(PLAIN, ranges, "by hand")
    m, n, k = np.array([[50, 50, 50], [101, 10, 10], [100, 100, 100], [5, 5, 5], [50, 50, 50]], float).T
    assert extrapolated(fit, m, n, k, [1, 1, 1, 1, 9]).tolist() == [False, True, True, True, True]
