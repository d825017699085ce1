"""Plans by the executor's durations: what a fitted model says of a device changes what the device is given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from morphling.engine import Engine
from morphling.executors import Profiled
from morphling.fleet import Fleet, GemmFit
from morphling.fleet.published import fleet_from_arrays
from morphling.strategies.cleave import Cleave, CleaveConfig
from morphling.types import DType, Kind
from morphling.workload import model_named, training_step
from tests.unit.test_gemm_model import PLAIN

RANGES = {"m": (1, 5000), "n": (1, 5000), "k": (1, 5000), "batch": (1, 4), "flops": (2, 1e12)}
SLOWER = 4.0


def two_groups(slower: float) -> Fleet:
    """Four devices of 100 GFLOP/s by their profiles; the last two were measured to compute ``slower`` times longer."""
    fleet = fleet_from_arrays(
        flops=np.full(4, 1e11), down_bps=np.full(4, 10**12), up_bps=np.full(4, 10**12), memory_bytes=np.full(4, 4 << 30)
    )
    fast = GemmFit(PLAIN, RANGES, "a formula")
    slow = replace(fast, parameters=replace(PLAIN, peak=1e11 / slower, small_peak=1e11 / slower))
    return replace(
        fleet, group=np.array([0, 0, 1, 1], np.int32), gemm_fits=({DType.FLOAT16: fast}, {DType.FLOAT16: slow})
    )


def replayed(slower: float, compute: str) -> tuple[float, np.ndarray]:
    """Virtual seconds of a step, and the GEMM FLOPs of each device."""
    fleet = two_groups(slower)
    work = training_step(model_named("opt-125m"), 2, 64, DType.FLOAT16)
    strategy = Cleave(CleaveConfig(compute=compute))
    recording = Engine(fleet, work, strategy, Profiled(fleet=fleet)).run()
    flops = np.zeros(4)
    for d in recording.dispatches:
        mine = (d.tasks.device < 4) & (d.tasks.kind == Kind.GEMM)
        flops += np.bincount(d.tasks.device[mine], d.tasks.flops[mine], minlength=4)
    return recording.end_ns / 1e9, flops


def test_a_group_that_was_measured_slow_is_given_less() -> None:
    """The links cost next to nothing, so shares go with speed: 4 to 1."""
    by_profile, even = replayed(SLOWER, "profile")
    by_model, uneven = replayed(SLOWER, "executor")
    assert even[:2].sum() / even[2:].sum() == pytest.approx(1.0, rel=0.05)
    assert uneven[:2].sum() / uneven[2:].sum() == pytest.approx(SLOWER, rel=0.1)
    assert uneven.sum() == even.sum()
    # the slow pair computes 1/4 of the work at 1/4 of the speed, or 1/10: 2.5 times as fast where nothing else counts
    assert by_profile / by_model > 1.5


def test_where_the_model_says_what_the_profile_says_plans_are_alike() -> None:
    (one, a), (two, b) = replayed(1.0, "profile"), replayed(1.0, "executor")
    assert a / a.sum() == pytest.approx(b / b.sum(), abs=0.02)
    assert one == pytest.approx(two, rel=0.05)
