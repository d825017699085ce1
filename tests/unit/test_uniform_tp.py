"""Uniform tensor parallelism worked by hand.

Identical devices of 100 MFLOP/s on links of 1 MB/s each way, without latency, and a coordinator that is free.  The
level ``forward/layer 0/o_proj`` of opt-125m with 128 tokens: C is 128 x 768, k = 768, fp16.  A device that covers
m x n of it receives 1536 (m + n) bytes, computes 1536 m n FLOP and returns 2 m n bytes, one after another.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from morphling.engine import Engine
from morphling.errors import Infeasible
from morphling.executors.analytic import Analytic
from morphling.fleet import Availability
from morphling.fleet.published import fleet_from_arrays
from morphling.planning.costs import Gemm, Rates
from morphling.planning.rectangles import check_tiling
from morphling.planning.uniform import uniform_grid, uniform_tiling
from morphling.strategies.cleave import Cleave, CleaveConfig
from morphling.strategies.uniform_tp import UniformTp, UniformTpConfig
from morphling.testing import replay
from morphling.testing.worlds import tiny_fleet, tiny_workload
from morphling.types import FAR_NS, DType
from morphling.workload import model_named, training_step

S = 10**9
WORK = training_step(model_named("opt-125m"), 2, 64, DType.FLOAT16)
LEVEL = "forward/layer 0/o_proj"


def took(m, n):
    """Seconds of a block."""
    return (1536 * (m + n) + 2 * m * n) / 1e6 + 1536 * m * n / 1e8


def fleet(size, *, slow=(), sessions=None, memory=4 << 30):
    flops = np.where(np.isin(np.arange(size), slow), 5e7, 1e8)
    made = fleet_from_arrays(flops=flops, down_bps=np.full(size, 8e6), up_bps=np.full(size, 8e6), memory_bytes=memory)
    if sessions:
        made = replace(made, availability=Availability.of([sessions.get(i, [(0, FAR_NS)]) for i in range(size)]))
    return made


def run(there, **config):
    strategy = UniformTp(UniformTpConfig(**{"overlap": "none", "detection_s": 0.1, "planning_s": 0.25, **config}))
    return strategy, Engine(there, WORK, strategy, Analytic(fleet=there)).run()


def level(recording):
    """When the level began and when the next did, ns; and its rows."""
    i = next(i for i, d in enumerate(recording.dispatches) if d.label == LEVEL)
    after = recording.dispatches[i + 1]
    return recording.dispatches[i].time_ns, after.time_ns, recording.dispatches[i].tasks


def test_the_level_is_cut_into_equal_parts():
    # 1 x 4: 128 + 192 lines a device, fewer than 64 + 384 of 2 x 2
    start, end, rows = level(run(fleet(4))[1])
    assert (end - start) / S == pytest.approx(took(128, 192), rel=1e-9)
    assert rows.m.tolist() == [128] * 4
    assert rows.n.tolist() == [192] * 4


def test_a_slow_device_gets_as_much_and_is_waited_for():
    start, end, rows = level(run(fleet(4, slow=[1]))[1])
    assert (end - start) / S == pytest.approx(took(128, 192) + 1536 * 128 * 192 / 1e8, rel=1e-9)
    assert rows.n.tolist() == [192] * 4


def test_a_lost_block_is_cut_for_the_survivors():
    # Device 2 of 3 leaves while it computes its 128 x 256; noticed after 0.1 s, planned for 0.25 s, then 128 x 128 each
    begin, _, _ = level(run(fleet(3))[1])
    left = begin + 700_000_000
    strategy, recording = run(fleet(3, sessions={2: [(0, left)]}))
    (x,) = strategy.report()["recoveries"]
    assert (x["lost_ns"], x["detected_ns"], x["planned_ns"]) == (left, left + S // 10, left + 35 * S // 100)
    (again,) = [d for d in recording.dispatches if d.label == "recovery/orphaned blocks"]
    assert again.tasks.m.tolist() == [128] * 2
    assert again.tasks.n.tolist() == [128] * 2
    # the survivors' links towards them are idle by then, and the new rows are downloaded while own results are sent
    after = min(d.time_ns for d in recording.dispatches if d.time_ns > again.time_ns)
    assert (after - again.time_ns) / S == pytest.approx(took(128, 128), rel=1e-9)


def test_every_row_says_where_it_lies():
    # Of three devices the third has columns 512 to 768; it leaves, and the other two get 128 columns each of that block
    node = next(i for i in range(len(WORK.dag)) if WORK.dag.op_names[WORK.dag.op[i]] == "o_proj")
    begin, _, _ = level(run(fleet(3))[1])
    strategy, dispatches = UniformTp(UniformTpConfig(overlap="none", detection_s=0.1)), []
    there = fleet(3, sessions={2: [(0, begin + 700_000_000)]})
    replay(strategy, there, WORK, on_dispatch=lambda d: dispatches.append((d.label, strategy.places(d))))
    (first,) = [p for label, p in dispatches if label == LEVEL]
    (again,) = [p for label, p in dispatches if label == "recovery/orphaned blocks"]
    assert [x.tolist() for x in first[:3]] == [[node] * 3, [0] * 3, [0, 256, 512]]
    assert [x.tolist() for x in again[:3]] == [[node] * 2, [0] * 2, [512, 640]]


def test_nobody_is_left_out_to_make_it_fit():
    words = r"1 of 4 devices cannot hold one of 4 equal parts of the 128 x 768 x 768 GEMM: device#1 has 500 kB, needed"
    there = fleet(4, memory=np.array([4 << 30, 500_000, 4 << 30, 4 << 30]))
    gemm = Gemm(128, 768, 768)
    rates = Rates.of(np.full(4, 1e8), 1e6, 1e6, memory_bytes=there.memory_bytes.astype(float))
    with pytest.raises(Infeasible, match=words + " 541 kB for 128 x 192 of it"):
        uniform_tiling(gemm, rates, names=there.names())
    with pytest.raises(Infeasible, match=r"device#1 has 500 kB"):
        run(there)


def test_a_device_without_the_dtype_is_refused():
    rates = Rates.of([1e9, np.nan], 1e6, 1e6)
    with pytest.raises(Infeasible, match="device 1 lacks the dtype"):
        uniform_tiling(Gemm(4, 4, 4), rates)
    with pytest.raises(Infeasible, match="there is no device for the 4 x 4 x 4 GEMM"):
        uniform_tiling(Gemm(4, 4, 4), rates.take(np.zeros(0, np.int64)))


@pytest.mark.parametrize(
    ("shape", "devices", "grid"),
    [
        ((48, 64), 4, (2, 2)),
        ((48, 64), 1, (1, 1)),
        ((100, 100), 7, (1, 7)),
        ((131072, 5120), 256, (64, 4)),  # 2048 + 1280 lines
        ((2, 2), 7, (2, 2)),
        ((1, 3), 7, (1, 3)),
        ((3, 5), 14, (3, 4)),  # neither 14 nor 13 are a grid of at most 3 x 5
    ],
)
def test_grids(shape, devices, grid):
    assert uniform_grid(*shape, devices) == grid


@pytest.mark.parametrize("devices", [1, 2, 3, 7, 12, 30])
def test_a_tiling_covers_everything_once(devices):
    tiling = uniform_tiling(Gemm(17, 29, 5), Rates.of(np.full(devices, 1e9), 1e6, 1e6))
    check_tiling(tiling, 17, 29)
    assert np.ptp(tiling.rows) <= 1
    assert np.ptp(tiling.columns) <= 1


def test_the_coordinator_s_links_bound_the_time():
    # 4 parts of 16 x 16, k = 8: 2 8 32 4 = 2048 bytes out at 100 bytes/s
    tiling = uniform_tiling(Gemm(32, 32, 8), Rates.of(np.full(4, 1e12), 1e9, 1e9), egress=100.0)
    assert tiling.time_s == pytest.approx(20.48, rel=1e-6)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_cleave_is_faster_on_unlike_devices(seed):
    there, work = tiny_fleet(6, seed), tiny_workload()
    uniform = replay(UniformTp(), there, work).recording.end_ns
    cleave = replay(Cleave(CleaveConfig(cache=False)), there, work).recording.end_ns
    assert cleave < uniform
