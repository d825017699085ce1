"""Whatever the fleet and the shape: exact cover, memory respected, no faster than the bounds."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from morphling.errors import Infeasible
from morphling.planning.costs import Costs, Gemm, Rates, tile_bytes
from morphling.planning.rectangles import LeftOut, check_tiling, split_columns
from morphling.planning.tiling import plan_tiling

rate = st.floats(1.0, 1e12)
weight = st.sampled_from([0.0, 1.0, 1.0, 2.0])


@st.composite
def problems(draw):
    size = draw(st.integers(1, 30))
    gemm = Gemm(
        draw(st.integers(1, 200)),
        draw(st.integers(1, 200)),
        draw(st.integers(1, 5000)),
        draw(st.sampled_from([2, 4])),
        draw(weight),
        draw(weight),
        draw(weight),
    )

    def column(values):
        return draw(st.lists(values, min_size=size, max_size=size))

    rates = Rates.of(
        column(st.one_of(rate, rate, st.just(float("nan")))),
        column(st.one_of(rate, rate, st.just(0.0))),
        column(rate),
        latency_s=column(st.sampled_from([0.0, 0.0, 1e-3, 1e3])),
        launch_s=column(st.sampled_from([0.0, 1e-5])),
        memory_bytes=column(st.sampled_from([np.inf, np.inf, 1e9, 1e6, 1e5, 1e4])),
    )
    tiles = draw(st.sampled_from([None, 1, 2, 16]))
    caps = draw(st.sampled_from([(None, None), (1e6, None), (None, 1e6), (1e8, 1e5)]))
    return gemm, rates, tiles, caps


@settings(max_examples=250, deadline=None)
@given(problems())
def test_every_plan_is_exact_and_honest(problem):
    gemm, rates, tiles, (egress, ingress) = problem
    try:
        tiling = plan_tiling(gemm, rates, tiles=tiles, egress=egress, ingress=ingress)
    except Infeasible as failure:
        assert "device" in str(failure)  # noqa: PT017 - the fleet decides whether it is raised
        return
    check_tiling(tiling, gemm.m, gemm.n)
    assert int((tiling.rows * tiling.columns).sum()) == gemm.m * gemm.n
    assert (tile_bytes(tiling.rows, tiling.columns, gemm.k, gemm.item_bytes) <= rates.memory_bytes[tiling.device]).all()
    assert (tiling.left_out[tiling.device] == LeftOut.USED).all()
    assert (tiling.left_out == LeftOut.USED).sum() == len(tiling)
    alone = Costs(gemm, rates.take(tiling.device), tiles).times(tiling.rows, tiling.columns)
    # Sharing the coordinator's links never makes a device faster.
    assert (tiling.device_s >= alone * (1 - 1e-12)).all()
    sent = gemm.item_bytes * gemm.k * float(gemm.weight_a * tiling.rows.sum() + gemm.weight_b * tiling.columns.sum())
    received = gemm.item_bytes * gemm.weight_c * gemm.m * gemm.n
    floor = max(
        float(tiling.device_s.max()),
        sent / egress if egress else 0.0,
        received / ingress if ingress else 0.0,
        *(bound * (1 - 1e-8) for bound in tiling.bounds.values()),
    )
    assert tiling.time_s >= floor * (1 - 1e-12)
    parts = split_columns(tiling, sorted({gemm.n // 2 or gemm.n, gemm.n}))
    assert int(((parts.row1 - parts.row0) * (parts.col1 - parts.col0)).sum()) == gemm.m * gemm.n


@settings(max_examples=100, deadline=None)
@given(problems(), st.randoms(use_true_random=False))
def test_more_memory_or_faster_links_never_make_a_plan_impossible(problem, random):
    gemm, rates, tiles, _ = problem
    try:
        plan_tiling(gemm, rates, tiles=tiles)
    except Infeasible:
        return
    better = Rates.of(
        rates.flops,
        rates.down * 2,
        rates.up * random.choice([1.0, 3.0]),
        latency_s=rates.latency_s,
        launch_s=rates.launch_s,
        memory_bytes=rates.memory_bytes * 2,
    )
    check_tiling(plan_tiling(gemm, better, tiles=tiles), gemm.m, gemm.n)
