"""Rectangles that tile C: costs, quality against bounds, odd shapes, selection, memory, messages."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from morphling.errors import Infeasible, PlanError
from morphling.planning.areas import smallest_time
from morphling.planning.bands import round_rows
from morphling.planning.costs import Costs, Gemm, Rates, tile_bytes, water_fill
from morphling.planning.gemms import linear_gemms
from morphling.planning.rectangles import LeftOut, check_tiling, split_columns
from morphling.planning.tiling import plan_tiling


def published(devices, **more):
    random = np.random.RandomState(42)
    flops = (5 + 2 * random.rand(devices)) * 2.0**40
    up = random.randint(5, 10, devices) * 2.0**20
    down = random.randint(10, 100, devices) * 2.0**20
    return Rates.of(flops, down, up, **more)


def planned(gemm, rates, **how):
    tiling = plan_tiling(gemm, rates, **how)
    check_tiling(tiling, gemm.m, gemm.n)
    return tiling


# --- costs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tiles", "seconds"), [(1, 8.0), (None, 4.0), (0, 4.0), (4, 5.0)])
def test_time_of_a_rectangle(tiles, seconds):
    # x_d = 2·10(4 + 6)/50 = 4 s, x_c = 2·24·10/160 = 3 s, x_u = 2·24/48 = 1 s
    costs = Costs(Gemm(8, 8, 10), Rates.of([160.0], 50.0, 48.0, latency_s=0.25, launch_s=0.125), tiles)
    assert costs.times([4], [6]) == pytest.approx([2 * 0.25 + 0.125 + seconds])
    assert costs.times([0], [6]).tolist() == [0.0]


def test_empty_transfers_cost_no_latency():
    rates = Rates.of([160.0], 50.0, 48.0, latency_s=100.0)
    local = Gemm(8, 8, 10, weight_a=0, weight_b=0, weight_c=0)
    assert Costs(local, rates, 1).times([4], [6]) == pytest.approx([3.0])
    assert Costs(replace(local, weight_c=1), rates, 1).times([4], [6]) == pytest.approx([104.0])
    assert Costs(replace(local, weight_b=1), rates, 1).times([4], [6]) == pytest.approx([100 + 2.4 + 3.0])


@pytest.mark.parametrize("tiles", [1, 3, None])
@pytest.mark.parametrize("weights", [(1, 1, 1), (0, 1, 1), (1, 0, 1), (0, 0, 1), (1, 1, 0), (2, 1, 2)])
def test_columns_invert_times(tiles, weights):
    random = np.random.RandomState(1)
    gemm = Gemm(1000, 10**9, 64, 2, *map(float, weights))
    rates = Rates.of(random.rand(50) * 1e7, random.rand(50) * 1e5, random.rand(50) * 1e4, latency_s=random.rand(50))
    costs = Costs(gemm, rates, tiles)
    alpha = random.randint(1, 1000, 50).astype(float)
    beta = costs.columns(500.0, alpha)
    assert (beta > 0).any()
    assert costs.times(alpha, beta)[beta > 0] == pytest.approx(500.0)
    again, by_alpha, by_time = costs.slopes(500.0, alpha)
    assert again == pytest.approx(beta)
    step = 1e-4
    assert by_time * step == pytest.approx(costs.columns(500.0 + step, alpha) - beta, rel=1e-2, abs=1e-6)
    assert by_alpha * step == pytest.approx(costs.columns(500.0, alpha + step) - beta, rel=2e-2, abs=1e-6)


@pytest.mark.parametrize("tiles", [1, 3, None])
@pytest.mark.parametrize("weights", [(1, 1, 1), (0, 1, 1), (1, 0, 1), (3, 1, 1)])
def test_areas_are_the_best_over_all_shapes(tiles, weights):
    gemm = Gemm(300, 200, 64, 2, *map(float, weights))
    rates = Rates.of([1e6, 1e5, 1e9], [3e3, 1e6, 1e4], [1e3, 1e2, 1e5], latency_s=0.1, memory_bytes=[1e5, np.inf, 5e4])
    costs = Costs(gemm, rates, tiles)
    shapes = np.linspace(0.5, 300, 20000)
    for time_s in (1.0, 7.0, 40.0):
        area = costs.areas(time_s, costs.memory_area())
        for device in range(3):
            one = costs.take(np.full(len(shapes), device))
            best = (shapes * one.columns(time_s, shapes)).max()
            assert best <= area[device] * (1 + 1e-9)
            if np.isinf(rates.memory_bytes[device]):
                assert best == pytest.approx(area[device], rel=1e-3)


def test_water_fill():
    rates = np.array([1.0, 10.0, 4.0])
    assert water_fill(rates, None) is rates
    assert water_fill(rates, 15.0) is rates
    assert water_fill(rates, 9.0).tolist() == [1.0, 4.0, 4.0]
    assert water_fill(rates, 3.0).tolist() == [1.0, 1.0, 1.0]
    assert water_fill(rates, 7.0).tolist() == [1.0, 3.0, 3.0]


def test_rates_refuse_nonsense():
    with pytest.raises(ValueError, match="flops of device 1 is 0"):
        Rates.of([1.0, 0.0], 1.0, 1.0)
    with pytest.raises(ValueError, match="down of device 0 is nan"):
        Rates.of([1.0], np.nan, 1.0)
    with pytest.raises(ValueError, match="memory_bytes of device 0 is -1"):
        Rates.of([1.0], 1.0, 1.0, memory_bytes=-1)
    with pytest.raises(ValueError, match="up of device 0 is inf"):
        Rates.of([1.0], 1.0, np.inf)
    with pytest.raises(ValueError, match="empty"):
        Gemm(0, 1, 1)
    with pytest.raises(ValueError, match="weights"):
        Gemm(1, 1, 1, weight_a=-1.0)
    with pytest.raises(PlanError, match="without a compute rate"):
        Costs(Gemm(1, 1, 1), Rates.of([np.nan], 1.0, 1.0), 1)
    with pytest.raises(ValueError, match="tiles"):
        Costs(Gemm(1, 1, 1), Rates.of([1.0], 1.0, 1.0), -1)


def test_smallest_time_gives_up():
    with pytest.raises(Infeasible):
        smallest_time(lambda _: 0.0, 1.0, 1.0, tolerance=1e-9)


def test_round_rows_gives_rows_where_they_cost_least():
    no_limit = np.full(3, 100)
    assert round_rows(np.array([10.6, 2.7, 6.7]), no_limit, 20).tolist() == [11, 2, 7]
    assert round_rows(np.array([10.6, 2.7, 6.7]), np.array([10, 100, 6]), 20).tolist() == [10, 4, 6]
    assert round_rows(np.array([10.6, 2.7, 6.7]), np.array([10, 3, 6]), 20) is None


# --- quality -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tiles", [1, None, 8])
@pytest.mark.parametrize(("devices", "within"), [(64, 1.05), (256, 1.02), (1024, 1.02), (8192, 1.03)])
def test_within_a_few_percent_of_the_lower_bound(devices, within, tiles):
    rates = published(devices)
    for shape in sorted({(g.m, g.n, g.k) for g in linear_gemms(5120, 20480, 128 * 1024)}):
        tiling = planned(Gemm(*shape), rates, tiles=tiles)
        lower = tiling.bounds["relaxed"]
        assert lower <= tiling.time_s <= within * lower, shape
        assert lower >= max(tiling.bounds[name] for name in ("uplink", "compute", "download"))
        assert tiling.time_s == pytest.approx(tiling.device_s.max(), rel=1e-12)


@pytest.mark.parametrize("devices", [64, 256, 1024])
def test_cached_rows_near_the_lower_bound_while_columns_are_many(devices):
    tiling = planned(Gemm(131072, 20480, 5120, weight_a=0.0), published(devices), tiles=None)
    assert tiling.time_s <= 1.01 * tiling.bounds["relaxed"]


@pytest.mark.parametrize(("devices", "shape"), [(1024, (5120, 5120, 131072)), (8192, (5120, 20480, 131072))])
def test_cached_rows_reach_the_whole_column_bound(devices, shape):
    # Few columns a device: the areas promise fractions of a column that nobody can send.
    for flipped in (False, True):
        m, n = shape[:2][::-1] if flipped else shape[:2]
        gemm = Gemm(m, n, shape[2], weight_a=float(flipped), weight_b=float(not flipped))
        tiling = planned(gemm, published(devices), tiles=None)
        assert tiling.bounds["whole"] >= 1.02 * tiling.bounds["relaxed"]
        assert tiling.time_s == pytest.approx(tiling.bounds["whole"], rel=1e-3)


def test_equal_devices_get_equal_rectangles():
    tiling = planned(Gemm(64, 64, 100), Rates.of(np.full(16, 1e6), 1e4, 1e3))
    assert set(tiling.rows.tolist()) == set(tiling.columns.tolist()) == {16}
    assert tiling.imbalance == pytest.approx(0.0)
    assert tiling.time_s == pytest.approx(tiling.bounds["relaxed"])


def test_small_cases_against_every_banded_tiling():
    random = np.random.RandomState(0)
    ratios = []
    for _ in range(40):
        size, m, n = random.randint(1, 4), random.randint(1, 6), random.randint(1, 6)
        gemm = Gemm(m, n, int(random.choice([1, 16, 1000])), weight_a=float(random.randint(0, 2)))
        rates = Rates.of(
            random.rand(size) * 1e5 + 1e3,
            random.rand(size) * 1e5 + 1e3,
            random.rand(size) * 1e4 + 1e3,
            latency_s=random.rand(size) * random.choice([0.0, 0.1]),
        )
        tiles = [None, 1, 4][random.randint(3)]
        ratios.append(planned(gemm, rates, tiles=tiles).time_s / best_by_trying(Costs(gemm, rates, tiles)))
    assert min(ratios) >= 1 - 1e-12
    assert max(ratios) < 1.25
    assert np.mean(np.array(ratios) < 1 + 1e-12) > 0.85


def compositions(total, parts):
    if parts == 1:
        yield (total,)
        return
    for head in range(1, total - parts + 2):
        for tail in compositions(total - head, parts - 1):
            yield (head, *tail)


def best_by_trying(costs):
    """Seconds of the best tiling by bands of rows or of columns, by trying all."""
    m, n, size = costs.gemm.m, costs.gemm.n, len(costs)
    time = np.zeros((size, m + 1, n + 1))
    for alpha in range(1, m + 1):
        for beta in range(1, n + 1):
            time[:, alpha, beta] = costs.times(np.full(size, alpha), np.full(size, beta))
    best = np.inf
    for used in range(1, size + 1):
        groups = [c for bands in range(1, used + 1) for c in compositions(used, bands)]
        for table, high, wide in ((time, m, n), (time.transpose(0, 2, 1), n, m)):
            for sizes in groups:
                if len(sizes) > high or max(sizes) > wide:
                    continue
                for heights in compositions(high, len(sizes)):
                    for order in permutations(range(size), used):
                        best = min(best, bands_time(table, heights, sizes, order, wide))
    return best


def bands_time(table, heights, sizes, order, wide):
    ends = np.cumsum(sizes)
    worst = 0.0
    for height, count, end in zip(heights, sizes, ends, strict=True):
        devices = order[end - count : end]
        runs = compositions(wide, count)
        worst = max(worst, min(max(table[d, height, w] for d, w in zip(devices, run, strict=True)) for run in runs))
    return worst


# --- odd cases -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [(1, 5120, 512), (5120, 1, 512), (1, 1, 5), (3, 5, 7), (7, 9, 100000), (64, 1, 64), (1, 64, 64), (63, 1, 2)],
)
@pytest.mark.parametrize("weights", [(1, 1, 1), (0, 1, 1), (1, 0, 1), (0, 0, 0)])
def test_odd_shapes(shape, weights):
    tiling = planned(Gemm(*shape, 2, *map(float, weights)), published(64))
    assert len(tiling) <= shape[0] * shape[1]
    assert tiling.time_s >= tiling.bounds["relaxed"] * (1 - 1e-9)
    assert len(tiling) + sum(tiling.left_out_counts().values()) == 64


def test_one_device_takes_all():
    tiling = planned(Gemm(100, 7, 3), Rates.of([1e3], 1e3, 1e3))
    assert (len(tiling), tiling.row1[0], tiling.col1[0]) == (1, 100, 7)
    assert tiling.time_s == pytest.approx(tiling.bounds["relaxed"])


def test_a_device_a_thousand_times_faster():
    rates = published(64)
    factor = np.ones(64)
    factor[17] = 1000.0
    fast = Rates.of(rates.flops * factor, rates.down * factor, rates.up * factor)
    tiling = planned(Gemm(131072, 5120, 5120), fast)
    assert tiling.time_s <= 1.03 * tiling.bounds["relaxed"]
    share = tiling.rows * tiling.columns
    assert tiling.device[np.argmax(share)] == 17


def test_devices_too_far_away_are_left_out():
    latency = np.where(np.arange(64) < 10, 0.001, 1000.0)
    tiling = planned(Gemm(4096, 4096, 512), published(64, latency_s=latency))
    assert sorted(tiling.device.tolist()) == list(range(10))
    assert tiling.left_out_counts() == {"too slow": 54}
    assert tiling.time_s < 1000


def test_reasons():
    rates = Rates.of(
        [np.nan, 1e9, 1e9, 1e9, 1e9],
        [1e6, 0.0, 1e6, 1e6, 1e6],
        [1e6, 1e6, 1e6, 1e6, 1e6],
        memory_bytes=[1e9, 1e9, 10.0, 1e9, 1e9],
        latency_s=[0, 0, 0, 1e6, 0],
    )
    tiling = planned(Gemm(10, 10, 100), rates)
    assert tiling.left_out.tolist() == [
        LeftOut.NO_DTYPE, LeftOut.NO_LINK, LeftOut.NO_MEMORY, LeftOut.TOO_SLOW, LeftOut.USED,
    ]  # fmt: skip


def test_same_arrays_same_tiling():
    one, two = (planned(Gemm(5120, 5120, 4096), published(200)) for _ in range(2))
    for name in ("device", "row0", "row1", "col0", "col1", "device_s", "left_out"):
        assert (getattr(one, name) == getattr(two, name)).all()
    assert one.device.dtype == np.int32
    assert one.row0.dtype == np.int64


# --- coordinator ---------------------------------------------------------------------------------------------------


def test_finite_coordinator_uses_fewer_devices():
    gemm, rates = Gemm(131072, 5120, 5120), published(2048)
    free = planned(gemm, rates)
    tight = planned(gemm, rates, egress=1.25e9, ingress=1.25e9)
    assert len(tight) < len(free) == 2048
    assert tight.time_s > free.time_s
    sent = 2 * gemm.k * (tight.rows + tight.columns).sum()
    assert tight.time_s >= max(sent / 1.25e9, 2 * gemm.m * gemm.n / 1.25e9)
    assert tight.bounds["coordinator"] == pytest.approx(
        max(2 * gemm.k * (gemm.m + gemm.n) / 1.25e9, 2 * gemm.m * gemm.n / 1.25e9)
    )
    assert tight.left_out_counts() == {"not selected": 2048 - len(tight)}
    # Offering all of them would have been slower.
    everybody = Rates.of(rates.flops, water_fill(rates.down, 1.25e9), water_fill(rates.up, 1.25e9))
    assert tight.time_s < planned(gemm, everybody).time_s


@pytest.mark.parametrize("weights", [(0, 1, 1), (1, 0, 1)])
def test_finite_coordinator_with_a_cached_operand(weights):
    gemm = Gemm(8192, 8192, 2048, 2, *map(float, weights))
    tiling = planned(gemm, published(500), egress=1e9, ingress=1e9)
    sides = (weights[0] * tiling.rows + weights[1] * tiling.columns).sum()
    assert tiling.time_s >= max(2 * gemm.k * sides / 1e9, 2 * gemm.m * gemm.n / 1e9)
    assert tiling.time_s <= 1.5 * max(tiling.bounds.values())


def test_a_wide_coordinator_changes_nothing():
    gemm, rates = Gemm(4096, 4096, 512), published(64)
    assert planned(gemm, rates, egress=1e12, ingress=1e12).time_s == planned(gemm, rates).time_s


# --- memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight_a", [0.0, 1.0])
@pytest.mark.parametrize("mib", [86, 90, 120, 512])
def test_memory_is_respected(mib, weight_a):
    tiling = planned(Gemm(131072, 5120, 5120, weight_a=weight_a), published(64, memory_bytes=mib * 2**20))
    assert (tile_bytes(tiling.rows, tiling.columns, 5120, 2) <= mib * 2**20).all()


def test_mixed_memory():
    memory = np.random.RandomState(3).choice([16, 64, 256, 512], 64) * 2.0**19
    tiling = planned(Gemm(131072, 5120, 5120), published(64, memory_bytes=memory))
    assert (tile_bytes(tiling.rows, tiling.columns, 5120, 2) <= memory[tiling.device]).all()
    assert tiling.time_s <= 1.1 * tiling.bounds["relaxed"]


def test_memory_just_enough():
    # 4 x 4 tiles of a 16 x 16 product with k = 8: 2 (32 + 32 + 16) = 160 bytes
    rates = Rates.of(np.full(16, 1e6), 1e6, 1e6, memory_bytes=160)
    tiling = planned(Gemm(16, 16, 8), rates)
    assert set(tiling.rows.tolist()) == set(tiling.columns.tolist()) == {4}
    with pytest.raises(Infeasible):
        plan_tiling(Gemm(16, 16, 8), Rates.of(np.full(16, 1e6), 1e6, 1e6, memory_bytes=158))


def test_infeasible_says_what_would_do():
    gemm = Gemm(131072, 5120, 5120)
    with pytest.raises(Infeasible, match="does not fit the memory of 64 devices") as failure:
        plan_tiling(gemm, published(64, memory_bytes=70 * 2**20))
    times = float(re.search(r"with ([\d.]+) times the memory", str(failure.value)).group(1))
    count = int(re.search(r"with (\d+) devices", str(failure.value)).group(1))
    assert 1.15 < times < 1.3
    assert 64 < count < 110
    planned(gemm, published(64, memory_bytes=70 * 2**20 * times * 1.001))
    planned(gemm, published(count, memory_bytes=70 * 2**20))


def test_no_device_can_hold_a_tile():
    with pytest.raises(Infeasible, match=r"1 x 1 tile .*: the largest budget has 1 kB, needed 524 kB for k = 131072"):
        plan_tiling(Gemm(10, 10, 131072), Rates.of([1.0, 1.0], 1.0, 1.0, memory_bytes=[900, 1000]))
    with pytest.raises(Infeasible, match="2 no dtype"):
        plan_tiling(Gemm(10, 10, 10), Rates.of([np.nan, np.nan], 1.0, 1.0))
    with pytest.raises(Infeasible, match="there is no device"):
        plan_tiling(Gemm(10, 10, 10), Rates.of(np.zeros(0), np.zeros(0), np.zeros(0)))


# --- rectangles ----------------------------------------------------------------------------------------------------


def test_split_columns_at_gemm_borders():
    tiling = planned(Gemm(512, 3 * 256, 128), published(40))
    parts = split_columns(tiling, [256, 512, 768])
    cover = np.zeros((3, 512, 256), int)
    for i in range(len(parts)):
        cover[parts.gemm[i], parts.row0[i] : parts.row1[i], parts.col0[i] : parts.col1[i]] += 1
        assert parts.device[i] == tiling.device[parts.tile[i]]
    assert (cover == 1).all()
    assert parts.first.sum() == len(tiling)
    assert (np.diff(parts.tile) >= 0).all()
    later = ~parts.first[1:]
    assert (parts.gemm[1:][later] == parts.gemm[:-1][later] + 1).all()


@pytest.mark.parametrize("borders", [[], [768, 512], [256, 512], [0, 768], [256, 256, 768]])
def test_split_columns_refuses_other_borders(borders):
    tiling = planned(Gemm(64, 768, 8), published(8))
    with pytest.raises(ValueError, match="column boundaries"):
        split_columns(tiling, borders)


def test_check_tiling_finds_faults():
    tiling = planned(Gemm(512, 256, 128), published(20))
    for fault in ("row0", "row1", "col0", "col1"):
        for i in (0, len(tiling) // 2, len(tiling) - 1):
            moved = getattr(tiling, fault).copy()
            moved[i] += 1
            with pytest.raises(ValueError, match=r"covered exactly once|empty"):
                check_tiling(replace(tiling, **{fault: moved}), 512, 256)
    with pytest.raises(ValueError, match="two rectangles"):
        check_tiling(replace(tiling, device=np.zeros_like(tiling.device)), 512, 256)
    with pytest.raises(ValueError, match="covered exactly once"):
        check_tiling(tiling, 512, 257)
