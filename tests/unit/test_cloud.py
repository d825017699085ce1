"""The cloud reference worked by hand.

OPT-13B on 128 sequences of 1024 tokens: 6 N = 6 (40 · 12 · 5120² + 50,272 · 5120) = 77.042 GFLOP a token for the
weights and 12 · 40 · 1024 · 5120 = 2.517 for attention: 131,072 tokens are 1.04280e16 FLOP.  Half of an A100's
312 TFLOP/s needs 66.8 s; states of 16 · 12.85e9 = 205.7 GB need three of them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import morphling
from morphling.errors import Infeasible, PlanError
from morphling.fleet.published import cleave_fleet
from morphling.results import metrics
from morphling.run import build
from morphling.scenario import load_scenario
from morphling.strategies.cloud import Cloud, CloudConfig
from morphling.testing import replay
from morphling.testing.worlds import coming_and_going, tiny_fleet, tiny_workload
from morphling.types import DType
from morphling.workload import model_named, training_step

WORK = training_step(model_named("opt-13b"), 128, 1024, DType.BFLOAT16)
FLOPS = 131_072 * (6 * (40 * 12 * 5120**2 + 50_272 * 5120) + 12 * 40 * 1024 * 5120)


def run(work=WORK, iterations=1, fleet=None, **config):
    return replay(Cloud(CloudConfig(**config)), fleet or cleave_fleet(4), work, iterations=iterations)


def test_three_a100_take_a_third_of_one():
    assert pytest.approx(1.04280e16, rel=1e-4) == FLOPS
    got = run(gpus=3)
    assert got.recording.end_ns / 1e9 == pytest.approx(FLOPS / (0.5 * 312e12 * 3), rel=1e-9)
    assert got.recording.end_ns / 1e9 == pytest.approx(66.8 / 3, rel=1e-3)
    report = got.strategy.report()
    assert (report["mfu"], report["training_flops"]) == (0.5, FLOPS)
    assert report["mfu_source"].startswith("Narayanan")


def test_a_given_share_of_the_peak():
    got = run(gpu="h200", gpus=2, mfu=0.4)
    assert got.recording.end_ns / 1e9 == pytest.approx(FLOPS / (0.4 * 989e12 * 2), rel=1e-9)
    assert got.strategy.report()["mfu_source"] == "given"
    assert run(gpu="h100", gpus=3, mfu=0.4, mfu_source="ours").strategy.report()["mfu_source"] == "ours"


def test_recomputation_is_not_useful_work():
    again = training_step(WORK.model, 128, 1024, DType.BFLOAT16, recompute="full")
    assert run(again, gpus=3).recording.end_ns == run(gpus=3).recording.end_ns


def test_states_have_to_fit():
    with pytest.raises(Infeasible, match=r"states of opt-13b are 206 GB, and 2 x NVIDIA A100 .* 160 GB; gpus: 3 would"):
        run(gpus=2)
    assert run(gpu="h200", gpus=2, mfu=0.4).recording.iteration_ends_ns


def test_by_default_there_are_as_few_as_hold_the_states():
    got = run()
    assert got.strategy.report()["gpus"] == 3
    assert got.recording.end_ns == run(gpus=3).recording.end_ns
    assert run(gpu="h200", mfu=0.4).strategy.report()["gpus"] == 2
    assert run(tiny_workload()).strategy.report()["gpus"] == 1


def test_iterations_and_a_fleet_that_comes_and_goes():
    there = replace(tiny_fleet(), availability=coming_and_going(4, 10**3))
    got = run(tiny_workload(), 3, there)
    each = tiny_workload().dag.gemm_flops() / (0.5 * 312e12) * 1e9
    assert got.recording.iteration_ends_ns == pytest.approx([each, 2 * each, 3 * each], abs=1)


def test_what_comes_from_rows_has_no_value():
    got = run(gpus=3)
    said = metrics(got.recording, cleave_fleet(4), 1.0, got.strategy.report())
    assert said["bytes_up"] is None
    # A comparison shows this line, so that nobody takes the time for that of one GPU.
    assert said["not_available"]["bytes_up"].startswith(
        "the cloud reference, 3 x NVIDIA A100 80 GB (SXM) at 50% of peak, is a formula"
    )
    assert said["iteration_time_s"] == pytest.approx(66.8 / 3, rel=1e-3)


def test_other_dtypes_are_refused():
    with pytest.raises(PlanError, match="peaks are known in float16 and bfloat16, not in float32"):
        run(training_step(WORK.model, 1, 8, DType.FLOAT32), gpus=3)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"gpus": 0}, "gpus: at least 1, not 0"),
        ({"gpu": "h100"}, "mfu: none is known for the h100"),
        ({"mfu": 0.0}, "mfu: a share above 0 and up to 1, not 0"),
        ({"mfu": 40.0}, "mfu: a share above 0 and up to 1, not 40"),
        ({"mfu_source": "a paper"}, "mfu_source: it is the source of mfu, which is not given"),
    ],
)
def test_configs_that_say_nothing(config, words):
    with pytest.raises(ValueError, match=words):
        CloudConfig(**config)


def scenario(**strategy):
    link = {"downlink": "8 Mbit/s", "uplink": "8 Mbit/s"}
    return {
        "name": "reference",
        "workload": {"model": "opt-125m", "batch_size": 1, "sequence_length": 8},
        "fleet": [{"profile": {"compute": "1 TFLOP/s", "memory": "1 GB"}, "count": 1, "link": link}],
        "strategy": {"plugin": Cloud, **strategy},
    }


def test_a_scenario_names_an_unknown_gpu():
    with pytest.raises(Exception, match=r"gpu.*a100"):
        build(load_scenario(scenario(gpu="v100")))


def test_a_run_without_rows_is_saved_and_drawn(tmp_path):
    results = morphling.run(scenario(), out=tmp_path / "run")
    assert results.metrics["rows"] is None
    assert (tmp_path / "run" / "figures" / "overview.png").stat().st_size > 10_000
