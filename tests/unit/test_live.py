"""The live executor: what is executed, how its time becomes the device's, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from morphling.errors import EngineError, InputError, RunError
from morphling.executors.analytic import Analytic
from morphling.executors.live import Live, LiveConfig
from morphling.executors.live.backends import open_back_end
from morphling.executors.live.scaling import device_seconds
from morphling.fleet import GemmFit
from morphling.fleet.gemm import RANGES
from morphling.fleet.published import fleet_from_arrays
from morphling.interfaces.recording import Recording
from morphling.interfaces.strategy import Dispatch
from morphling.interfaces.tasks import TaskTable
from morphling.run import build
from morphling.run.run import replay
from morphling.scenario import load_scenario
from morphling.strategies.cleave import Cleave
from morphling.testing import tiny_workload
from morphling.types import DType, Kind
from tests.live_back_ends import Formula
from tests.unit.test_gemm_model import PLAIN


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("MORPHLING_CACHE_DIR", str(tmp_path / "kept"))


def fleet(*flops, bandwidth=None, launch_s=0.0):
    made = fleet_from_arrays(
        flops=np.array(flops), down_bps=8_000_000, up_bps=8_000_000, memory_bytes=1 << 33, launch_s=launch_s,
        dtypes=(DType.FLOAT32, DType.FLOAT16), name="made",
    )  # fmt: skip
    return made if bandwidth is None else replace(made, memory_bandwidth=np.full(len(flops), float(bandwidth)))


def rows(device, m=1024, n=1024, k=1024, dtype=DType.FLOAT32, **more):
    return TaskTable.build(device=device, m=m, n=n, k=k, dtype=dtype, **more)


def dispatched(executor, tasks, serial=0):
    """As the engine does it."""
    executor.sent(serial, Dispatch(tasks), Cleave())
    return executor.durations(tasks, 0)


def live(fleet, back_end=None, **config):
    return Live(LiveConfig(**config), fleet=fleet, back_end=back_end or Formula())


# ------------------------------------------------------------------------------------------------------------- scaling


def scaled(measured, host_roof, **device):
    return device_seconds(measured, host_roof, **{"size": 0.0, "bandwidth": np.inf, "launch": 0.0, **device}).tolist()


def test_compute_bound_on_both_is_the_measured_time_dilated():
    # the partition does 1e11 FLOP/s, the device 5e10: twice as long, and 10 us to start
    assert scaled(3e-3, 2e-3, flops=2e8, rate=5e10, launch=1e-5) == pytest.approx(6e-3 + 1e-5, rel=1e-12)


def test_memory_bound_on_both_goes_by_the_bandwidths():
    # 1e8 bytes: 10 ms at the partition's 1e10 B/s, measured 12 ms; the device has 2e9 B/s: five times as long
    assert scaled(12e-3, 10e-3, flops=1e6, rate=1e12, size=1e8, bandwidth=2e9) == pytest.approx(60e-3, rel=1e-12)


def test_never_faster_than_the_memory_of_the_device():
    # in the partition's caches it took a third of what memory would; the device's own memory takes 50 ms
    assert scaled(3e-3, 10e-3, flops=1e6, rate=1e12, size=1e8, bandwidth=2e9) == pytest.approx(50e-3, rel=1e-12)


def test_a_host_without_size_effects_is_the_roofline():
    devices = fleet(2e10, 3e12, bandwidth=5e9, launch_s=2e-5)
    tasks = rows([0, 1] * 4, m=np.repeat([1, 40, 300, 2048], 2), n=512, k=np.tile([768, 64], 4))
    found = live(devices, Formula(bandwidth=2e10)).durations(tasks, 0)
    assert found == pytest.approx(Analytic(fleet=devices).durations(tasks, 0), abs=1)


def test_the_effect_of_a_shape_comes_from_execution():
    slow = (100, 1024, 1024)  # takes 1.7 times what the rate says
    found = live(fleet(5e10), Formula(factor={slow: 1.7}, bandwidth=np.inf)).durations(rows([0, 0], m=[100, 200]), 0)
    plain = [2 * m * 1024 * 1024 / 5e10 * 1e9 for m in (100, 200)]
    assert found.tolist() == [round(1.7 * plain[0]), round(plain[1])]


def test_a_fitted_model_is_the_device_where_the_profile_has_one():
    devices = fleet(1e13)
    fit = GemmFit(PLAIN, dict.fromkeys(RANGES, (1, 4096)), "a formula")
    devices = replace(devices, gemm_fits=({DType.FLOAT32: fit},))
    executor = live(devices, Formula(bandwidth=np.inf))
    took = executor.durations(rows([0], m=1024, n=1024, k=1024), 0)
    from morphling.executors.gemm_model import seconds

    references = [seconds(PLAIN, 4, p.m, p.n, p.k)[0] - PLAIN.launch for p in Formula().reference_set]
    kappa = np.median([s / (p.flops / 1e11) for s, p in zip(references, Formula().reference_set, strict=True)])
    assert took[0] == pytest.approx((PLAIN.launch + kappa * 2 * 1024**3 / 1e11) * 1e9, abs=1)
    assert executor.describe()["devices"]["made, float32"]["kappa"] == [pytest.approx(kappa)] * 2


def test_a_device_gets_the_smallest_partition_that_is_as_fast():
    executor = live(fleet(0.5e12, 1e12, 1.5e12, 4e12, 1e13), Formula((1e12, 2e12, 4e12), bandwidth=np.inf))
    executor.durations(rows(np.arange(5)), 0)
    scale = executor.scales[DType.FLOAT32]
    assert scale.which.tolist() == [0, 0, 1, 2, 2]
    assert scale.kappa.tolist() == pytest.approx([2, 1, 4 / 3, 1, 0.4])
    assert any("1 of 5 devices are faster" in note for note in executor.notes())


def test_no_more_partitions_are_calibrated_than_are_needed():
    back_end = Formula((1e12, 2e12, 4e12))
    live(fleet(0.5e12), back_end).durations(rows([0]), 0)
    assert {partition.size for _, partition in back_end.asked} == {1}


def test_several_products_in_a_row_take_so_many_times():
    executor = live(fleet(5e10), Formula(bandwidth=np.inf))
    one, three = executor.durations(rows([0, 0], m=64, flops=[2 * 64 * 1024**2, 6 * 64 * 1024**2]), 0)
    assert three == pytest.approx(3 * one, abs=2)


# ---------------------------------------------------------------------------------------------------- what is executed


def test_each_distinct_product_is_executed_once():
    back_end = Formula()
    executor = live(fleet(1e10, 1e10), back_end)
    for serial in range(3):
        dispatched(executor, rows([0, 1, 0, 1], m=[8, 8, 16, 16]), serial)
    shapes = [p for p, _ in back_end.asked if p.n == p.k == 1024 and p.m in (8, 16)]
    assert sorted(p.m for p in shapes) == [8, 16]
    assert executor.describe()["rows"]["executed"] == 12


def test_what_an_earlier_run_measured_is_not_executed_again():
    first, second = Formula(), Formula()
    a = live(fleet(1e10), first).durations(rows([0], m=77), 0)
    executor = live(fleet(1e10), second)
    assert (executor.durations(rows([0], m=77), 0) == a).all()
    assert {product for product, _ in second.asked} == {second.reference}  # is the host as fast as it was?
    assert executor.describe()["sub_tasks_measured"] == 0
    assert executor.describe()["sub_tasks_repeated"] == 5


def test_what_was_measured_before_an_interruption_is_kept():
    class Interrupted(Formula):
        def measure(self, product, partition):
            if product.m == 88:
                raise KeyboardInterrupt
            return super().measure(product, partition)

    with pytest.raises(KeyboardInterrupt):
        live(fleet(1e10), Interrupted()).durations(rows([0, 0], m=[77, 88]), 0)
    again = Formula()
    live(fleet(1e10), again).durations(rows([0, 0], m=[77, 88]), 0)
    assert [p.m for p, _ in again.asked if p.n == p.k == 1024 and p.m < 100] == [88]


def test_measuring_that_takes_longer_than_estimated_stops_and_can_go_on():
    class Slow(Formula):
        def measure(self, product, partition):
            self.measurements.spent_s += 3.0 if product.m < 100 and product.n == 1024 else 0.0
            return super().measure(product, partition)

    def started(budget):
        back_end = Slow()
        executor = live(fleet(1e10), back_end, max_measure_s=budget)
        back_end.measurements = executor.measurements
        return executor

    tasks = rows([0, 0, 0], m=[77, 88, 99])
    with pytest.raises(RunError, match=r"max_measure_s = 5 are spent, and 1 of 3 .*run again to go on"):
        started(5.0).durations(tasks, 0)
    started(5.0).durations(tasks, 0)


def test_without_a_cache_nothing_is_kept(tmp_path):
    live(fleet(1e10), cache=False).durations(rows([0]), 0)
    assert not (tmp_path / "kept").exists()


def test_rows_without_a_shape_and_the_coordinator_go_by_the_roofline():
    devices = fleet(1e10, launch_s=1e-5)
    tasks = TaskTable.build(
        device=[0, 0, 1, 0], kind=[Kind.GEMM, Kind.ELEMENTWISE, Kind.GEMM, Kind.GEMM], m=[0, 0, 64, 64],
        n=[0, 0, 64, 64], k=[0, 0, 64, 64], flops=[1e9, 1e6, 2 * 64**3, 2 * 64**3], memory_bytes=0, dtype=DType.FLOAT32,
    )  # fmt: skip
    executor = live(devices, Formula(factor={(64, 64, 64): 3.0}, bandwidth=np.inf))
    found, plain = dispatched(executor, tasks), Analytic(fleet=devices).durations(tasks, 0)
    assert found[:3].tolist() == plain[:3].tolist()
    assert found[3] == pytest.approx(10_000 + 3 * (plain[3] - 10_000), abs=2)
    said = executor.describe()
    assert said["rows"] == {
        "executed": 1, "roofline_device_gemm": 1, "roofline_coordinator": 1, "roofline_other": 1,
    }  # fmt: skip
    assert said["flops"]["executed"] == 2 * 64**3


def test_asking_for_a_plan_executes_nothing():
    back_end = Formula()
    executor = live(fleet(1e10), back_end)
    assert (
        executor.estimate(rows([0], m=33)).tolist()
        == Analytic(fleet=fleet(1e10)).durations(rows([0], m=33), 0).tolist()
    )
    assert back_end.asked == []


def test_nothing_executed_is_refused_unless_the_scenario_says_otherwise():
    tasks = TaskTable.build(device=[0], flops=1e9, dtype=DType.FLOAT32)
    done = Recording([[1]], 0, [0], "")  # of one dispatch with a row
    executor = live(fleet(1e10))
    dispatched(executor, tasks)
    with pytest.raises(RunError, match=r"nothing was executed.*missing: analytic"):
        executor.finish(done, tiny_workload())
    allowed = live(fleet(1e10), missing="analytic")
    dispatched(allowed, tasks)
    allowed.finish(done, tiny_workload())


# -------------------------------------------------------------------------------------------------------------- refused


def test_a_dtype_without_kernels_is_refused_or_stood_in_for_by_name():
    back_end = Formula(dtypes=(DType.FLOAT32,))
    with pytest.raises(InputError, match=r"execution\.stand_in: .*float16.*stand_in: float32"):
        live(fleet(1e10), back_end).check(DType.FLOAT16)
    executor = live(fleet(1e10), back_end, stand_in="float32")
    executor.check(DType.FLOAT16)
    executor.durations(rows([0], dtype=DType.FLOAT16), 0)
    assert {p.dtype for p, _ in back_end.asked} == {DType.FLOAT32}
    assert executor.describe()["executed_as"] == {"float16": "float32"}
    assert any("float32 products stand in for float16" in note for note in executor.notes())


def test_measuring_that_takes_too_long_is_refused_before_it_begins():
    back_end = Formula((1e9,))
    executor = live(fleet(1e10), back_end, max_measure_s=10.0)
    with pytest.raises(
        RunError, match=r"1 distinct sub-tasks \(the largest 16384 x 5120 x 5120\).*859 s.*max_measure_s"
    ):
        executor.durations(rows([0], m=16384, n=5120, k=5120), 0)
    assert 16384 not in {p.m for p, _ in back_end.asked}


@pytest.mark.parametrize("budget", [0.0, -1.0, float("inf"), float("nan")])
def test_a_budget_that_means_nothing_is_refused(budget):
    with pytest.raises(ValueError, match="max_measure_s"):
        LiveConfig(max_measure_s=budget)


def test_a_device_without_a_rate_is_refused():
    with pytest.raises(EngineError, match="has no bfloat16 rate"):
        live(fleet(1e10)).durations(rows([0], dtype=DType.BFLOAT16), 0)


def test_enforced_limiting_takes_the_wall_time_at_the_devices_rate():
    back_end = Formula((1e11,))
    executor = live(fleet(2e10, 5e10, launch_s=1e-5), back_end, limiting="enforced")
    assert executor.durations(rows([0, 1], m=128), 0).tolist() == [
        round((1e-5 + 2 * 128 * 1024**2 / rate) * 1e9) for rate in (2e10, 5e10)
    ]
    assert back_end.paced_at == pytest.approx([2e10, 5e10])
    with pytest.raises(RunError, match=r"limiting: enforced slows.*use limiting: virtual"):
        live(fleet(2e11), Formula((1e11,)), limiting="enforced").durations(rows([0]), 0)


def test_enforced_limiting_needs_a_back_end_that_paces():
    back_end = Formula()
    back_end.paces = False
    with pytest.raises(InputError, match=r"execution\.limiting: the formula back end does not pace"):
        live(fleet(1e10), back_end, limiting="enforced")


# ---------------------------------------------------------------------------------------------------- drift of the host


def test_a_host_that_is_faster_than_it_was_has_stale_measurements(tmp_path):
    live(fleet(1e10)).durations(rows([0], m=77), 0)
    faster = Formula()
    faster.speed = 1.5
    executor = live(fleet(1e10), faster)
    executor.durations(rows([0], m=77), 0)
    assert executor.describe()["drift"] == pytest.approx(1 / 1.5 - 1)
    assert any("50% faster" in note and "stale" in note for note in executor.notes())
    assert executor.describe()["sub_tasks_repeated"] <= 1  # the reference itself
    assert [p.name.endswith(".stale.json") for p in (tmp_path / "kept").glob("*.json")].count(True) == 1


def test_a_host_that_is_busy_keeps_its_measurements():
    live(fleet(1e10)).durations(rows([0], m=77), 0)
    busy = Formula()
    busy.speed = 1 / 1.3
    executor = live(fleet(1e10), busy)
    executor.durations(rows([0], m=77), 0)
    assert executor.describe()["sub_tasks_measured"] == 0
    assert any("30% slower" in note and "used as they are" in note for note in executor.notes())


def test_what_is_measured_beside_a_slow_reference_is_measured_again_and_told():
    class Restless(Formula):
        """Slow in all but the first rounds."""

        def measure(self, product, partition):
            self.speed = 1.0 if len(self.asked) < 10 else 0.8
            return super().measure(product, partition)

    back_end = Restless()
    executor = live(fleet(1e10), back_end)
    executor.durations(rows([0], m=77), 0)
    assert sum(p.m == 77 for p, _ in back_end.asked) == 3
    assert any("of these products were measured while the host was slower" in note for note in executor.notes())
    later = live(fleet(1e10), Formula())
    later.durations(rows([0], m=77), 0)
    assert later.describe()["disturbed"] == executor.describe()["disturbed"] > 0


# ------------------------------------------------------------------------------------------------------ whole scenarios

SCENARIO = {
    "name": "live",
    "workload": {"model": "opt-125m", "batch_size": 1, "sequence_length": 16, "dtype": "float32"},
    "fleet": [
        {
            "profile": {"compute": "20 GFLOP/s", "memory": "4 GB"},
            "count": 3,
            "link": {"downlink": "800 Mbit/s", "uplink": "800 Mbit/s", "latency": "1 ms"},
        }
    ],
    "strategy": {"name": "cleave"},
    "execution": {"mode": "live", "backend": "host"},
}


def test_the_host_back_end_runs_a_scenario_and_repeats_it_with_a_warm_cache():
    first = build(load_scenario(SCENARIO))
    if first.executor.back_end.name != "host":
        pytest.fail("asked for host")
    cold = replay(first)
    second = build(load_scenario(SCENARIO))
    second.executor.back_end.stale_faster = 100.0  # whatever else this machine is doing
    warm = replay(second)
    assert warm.events_sha256 == cold.events_sha256
    assert second.executor.describe()["sub_tasks_measured"] == 0
    assert first.executor.describe()["rows"]["executed"] > 0
    assert first.executor.describe()["fingerprint"]["library"].startswith("numpy")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"workload.dtype": "float16"}, r"stand_in.*float32"),
        ({"execution.backend": "gpu"}, r"execution\.backend"),
        ({"execution.limiting": "enfroced"}, r"execution\.limiting"),
        ({"execution.max_measure_s": 0.0}, r"execution\.max_measure_s: more than 0"),
        ({"execution.numeric": True}, r"numeric"),
    ],
)
def test_wrong_sections_are_refused_at_their_field(change, said):
    with pytest.raises(InputError, match=said):
        build(load_scenario(SCENARIO, change))


def test_cuda_where_there_is_none_is_refused_at_its_field(monkeypatch):
    monkeypatch.setattr("morphling.executors.live.cuda.driver_fault", lambda: (None, "no driver here"))
    open_back_end.__globals__["_opened"].cache_clear()
    with pytest.raises(InputError, match=r"execution\.backend: no driver here"):
        build(load_scenario(SCENARIO, {"execution.backend": "cuda"}))


def test_the_example_is_checked_without_executing_anything(tmp_path):
    built = build(load_scenario("examples/live_host"))
    assert (built.executor.config.numerics, built.executor.back_end.name) == (True, "host")
    assert not (tmp_path / "kept").exists()


def test_many_rows_of_many_shapes_are_told_apart():
    tasks = rows(np.arange(4000) % 2, m=np.arange(4000) % 7 + 1, n=np.arange(4000) % 5 + 1, k=64)
    back_end = Formula()
    devices = fleet(1e10, 1e10)
    found = live(devices, back_end).durations(tasks, 0)
    assert found == pytest.approx(Analytic(fleet=devices).durations(tasks, 0), abs=1)
    assert sum(p.k == 64 for p, _ in back_end.asked) == 35


def test_doctor_says_what_there_is_and_why_not_more():
    done = subprocess.run([sys.executable, "-m", "morphling", "doctor", "--json"], capture_output=True, check=True)
    told = json.loads(done.stdout)
    assert told["live"]["host"]["ready"]
    assert told["live"]["host"]["limiting"] == ["virtual", "enforced"]
    assert told["live"]["cuda"]["ready"] or told["live"]["cuda"]["why"]
    assert told["executors"]["live"] == "ready"
    plain = subprocess.run([sys.executable, "-m", "morphling", "doctor"], capture_output=True, text=True, check=True)
    assert "host         ready; 1 CPU thread; float32" in plain.stdout
