"""The profiled executor: which rows the fitted model times, what it says of the others, what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from morphling.errors import EngineError, InputError
from morphling.executors import Analytic, Profiled
from morphling.executors.gemm_model import seconds
from morphling.executors.profiled import ProfiledConfig
from morphling.fleet import Availability, Coordinator, Fleet, GemmFit, Links, LinkTrace, PastEnd
from morphling.interfaces.tasks import TaskTable
from morphling.types import DType, Kind
from tests.unit.test_gemm_model import PLAIN, RICH

RANGES = {"m": (1, 1000), "n": (1, 1000), "k": (1, 1000), "batch": (1, 4), "flops": (2, 2e9)}
FIT = GemmFit(RICH, RANGES, "a formula", median_error=0.01, p90_error=0.02)


def fleet(*fits: dict) -> Fleet:
    """One device a group, at 1 GFLOP/s in float32 and float16."""
    size = len(fits)
    one, zero = np.ones(size), np.zeros(size, np.int64)
    rates = Fleet.per_dtype({"float32": 1e9, "float16": 1e9})
    trace = LinkTrace("constant", np.zeros(1, np.int64), np.array([8]), np.array([8]), 1, PastEnd.HOLD)
    return Fleet(
        profile_names=tuple(f"p{i}" for i in range(size)), profile=np.arange(size, dtype=np.int32),
        group=np.arange(size, dtype=np.int32), peak_flops=np.tile(rates, (size, 1)),
        efficiency=np.ones((size, len(DType))), memory_bytes=zero + 1, memory_bandwidth=one * 1e9, launch_s=one * 1e-3,
        idle_w=one, max_w=one, links=Links.of([trace], zero.astype(np.int32), zero, zero, zero.astype(bool)),
        availability=Availability.always(size),
        coordinator=Coordinator("c", rates, np.ones(len(DType)), 1, 1e9), gemm_fits=fits,
    )  # fmt: skip


def test_rows_are_timed_by_their_devices_own_model() -> None:
    other = replace(FIT, parameters=replace(PLAIN, launch=5e-6))
    executor = Profiled(fleet=fleet({DType.FLOAT32: FIT}, {DType.FLOAT32: other}))
    rows = TaskTable.build(
        device=[0, 1, 0, 1], m=[64, 64, 100, 7], n=[48, 48, 200, 9], k=[32, 32, 300, 11], dtype=DType.FLOAT32
    )
    expected = [
        seconds(p, 4, int(rows.m[i]), int(rows.n[i]), int(rows.k[i]))[0] * 1e9
        for i, p in enumerate((RICH, other.parameters, RICH, other.parameters))
    ]
    assert executor.durations(rows, 0).tolist() == [round(x) for x in expected]
    assert executor.counts == {"fitted": 4, "extrapolated": 0, "roofline_gemm": 0, "roofline_other": 0}


def test_a_multiple_of_the_flops_is_a_batch() -> None:
    executor = Profiled(fleet=fleet({DType.FLOAT32: FIT}))
    rows = TaskTable.build(device=[0], m=64, n=48, k=32, flops=3 * 2.0 * 64 * 48 * 32, dtype=DType.FLOAT32)
    assert executor.durations(rows, 0)[0] == round(seconds(RICH, 4, 64, 48, 32, 3)[0] * 1e9)


def test_rows_without_a_shape_and_the_coordinator_take_the_roofline() -> None:
    world = fleet({DType.FLOAT32: FIT})
    rows = TaskTable.build(
        device=[0, 0, 1], kind=[Kind.OPTIMIZER, Kind.TRANSFER, Kind.GEMM], m=[0, 0, 10], n=[0, 0, 10], k=[0, 0, 10],
        flops=[1e6, 0.0, 2000.0], dtype=DType.FLOAT32,
    )  # fmt: skip
    executor = Profiled(fleet=world)
    assert executor.durations(rows, 0).tolist() == Analytic(fleet=world).durations(rows, 0).tolist()
    assert executor.counts == {"fitted": 0, "extrapolated": 0, "roofline_gemm": 1, "roofline_other": 1}
    assert executor.notes()[-1] == "1 GEMM rows were timed by the analytic roofline"


def test_rows_beyond_the_samples_are_counted_and_said() -> None:
    executor = Profiled(fleet=fleet({DType.FLOAT32: FIT}))
    shape = {
        "device": [0, 0, 0, 0],
        "m": [1000, 1001, 10, 10],
        "n": [1000, 10, 10, 10],
        "k": 10,
        "dtype": DType.FLOAT32,
    }
    executor.durations(TaskTable.build(**shape), 0)
    assert executor.counts["extrapolated"] == 1
    said = executor.describe()
    assert said["executor"] == "profiled"
    assert said["extrapolated_share"] == 0.25
    assert said["rows"]["fitted"] == 4
    assert said["fits"]["p0, float32"]["held_out_error"] == {"median": 0.01, "p90": 0.02}
    assert any("1 of 4 fitted durations (25.0%) are extrapolated" in note for note in executor.notes())


def test_a_device_without_a_model_is_refused_or_allowed_in_words() -> None:
    with pytest.raises(InputError, match=r"^fleet\.1\.profile: p1 has no fitted model"):
        Profiled(fleet=fleet({DType.FLOAT32: FIT}, {}))
    with pytest.raises(InputError, match=r"^fleet\.0\.profile: p0 has no fitted model"):
        Profiled(fleet=replace(fleet({}), gemm_fits=()))
    world = fleet({DType.FLOAT32: FIT}, {})
    allowed = Profiled(ProfiledConfig("analytic"), fleet=world)
    rows = TaskTable.build(device=[1], m=64, n=48, k=32, dtype=DType.FLOAT32)
    assert allowed.durations(rows, 0).tolist() == Analytic(fleet=world).durations(rows, 0).tolist()
    assert any("p1" in note and "missing: analytic" in note for note in allowed.notes())
    assert allowed.describe()["analytic_profiles"] == ["p1", "the coordinator (c)"]


def test_a_dtype_without_a_model_is_refused() -> None:
    executor = Profiled(fleet=fleet({DType.FLOAT32: FIT}))
    executor.check(DType.FLOAT32)
    with pytest.raises(InputError, match=r"^fleet\.0\.profile: p0 has a fitted model for float32, not for .*float16"):
        executor.check(DType.FLOAT16)
    with pytest.raises(EngineError, match="row 0 is a GEMM of float16; for it p0 has no fitted model"):
        executor.durations(TaskTable.build(device=[0], m=64, n=48, k=32, dtype=DType.FLOAT16), 0)
    Profiled(ProfiledConfig("analytic"), fleet=fleet({DType.FLOAT32: FIT})).check(DType.FLOAT16)


def test_long_tables_are_cut_into_blocks_without_a_seam() -> None:
    executor = Profiled(fleet=fleet({DType.FLOAT32: FIT}, {DType.FLOAT32: FIT}))
    rng = np.random.default_rng(2)
    m, n, k = rng.integers(1, 900, (3, 40_000))
    rows = TaskTable.build(device=rng.integers(0, 2, 40_000), m=m, n=n, k=k, dtype=DType.FLOAT32)
    expected = np.rint(seconds(RICH, 4, m, n, k) * 1e9).astype(np.int64)
    assert (executor.durations(rows, 0) == expected).all()
