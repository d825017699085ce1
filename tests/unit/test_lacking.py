"""What strategies say when devices lack something: every one of them made to say it, in one wording."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.metadata import entry_points

import numpy as np
import pytest

from morphling.errors import Infeasible
from morphling.fleet.published import fleet_from_arrays
from morphling.planning.lacking import has_and_needed, require_fit, too_little_memory
from morphling.planning.training_memory import DeviceMemory
from morphling.testing import replay, tiny_workload
from morphling.types import DType

GB = 10**9
NEED = DeviceMemory(3 * GB, GB, GB // 2)


def fleet(*memory_bytes, dtypes=tuple(DType)):
    count = len(memory_bytes)
    made = fleet_from_arrays(
        flops=np.full(count, 1e12), down_bps=8e6, up_bps=8e6, memory_bytes=1, name="tiny", dtypes=dtypes
    )
    return replace(made, memory_bytes=np.array(memory_bytes))


def refused(name, there, **config):
    (entry,) = entry_points(group="morphling.strategies", name=name)
    cls = entry.load()
    with pytest.raises(Infeasible) as error:
        replay(cls(cls.Config(**config)), there, tiny_workload(4, batch_size=8))
    return str(error.value)


# ------------------------------------------------------------------------------------------------------ the one wording


def test_nobody_can():
    said = str(too_little_memory("it", NEED, [GB, 4 * GB, 2 * GB], ["a", "b", "c"], also="more of them"))
    assert said == (
        "no device can hold it: the largest of 3, b, has 4 GB, needed 4.5 GB (states 3 GB, activations 1 GB, other"
        " 500 MB); a smaller micro-batch, recompute: full or shorter sequences need less; more of them"
    )
    said = str(too_little_memory("it", NEED, [GB], ["a"]))
    assert said.startswith("no device can hold it: the only one, a, has 1 GB, needed 4.5 GB (")
    assert said.endswith("; the states alone are more: a smaller model or an optimizer with fewer states needs less")


def test_some_can_and_more_have_to():
    said = str(too_little_memory("it", NEED, [5 * GB, 4 * GB, 2 * GB], ["a", "b", "c"], wanted=2))
    assert said.startswith(
        "1 of 3 devices can hold it, 2 have to: the largest of the others, b, has 4 GB, needed 4.5 GB"
    )


def test_sizes_that_look_the_same_are_told_apart():
    assert has_and_needed(4 * GB - 1, 4 * GB, "a") == "a has 4 GB (3999999999 bytes), needed 4 GB (4000000000 bytes)"


def test_what_does_not_fit_is_named():
    needs = [DeviceMemory(GB, 2 * GB), NEED]
    require_fit(needs, [3 * GB, 5 * GB])
    words = (
        r"1 of 2 stages of the plan do not fit: stage 1 has 4 GB, needed 4.5 GB \(states 3 GB, activations 1 GB, other"
    )
    with pytest.raises(Infeasible, match=words):
        require_fit(needs, [3 * GB, 4 * GB])
    with pytest.raises(Infeasible, match=r"2 of 2 devices of the plan do not fit: device 0 has 1 GB, needed 3 GB"):
        require_fit(needs, np.array([1, 3]) * GB, what="device")
    with pytest.raises(ValueError, match="capacity_bytes: 2"):
        require_fit(needs, [1])


# ------------------------------------------------------------------------------------------------------- every strategy

POOR = (10_000, 20_000, 300_000, 10_000)
MEMORY = {
    "ddp": ({}, "no device can hold the training of tiny"),
    "zero1": ({}, "no device can hold one of 4 parts of tiny"),
    "zero2": ({}, "no device can hold one of 4 parts of tiny"),
    "zero3": ({}, "no device can hold one of 4 parts of tiny"),
    "megatron-tp": ({}, "no device can hold one of 4 parts of tiny"),
    "swarm": ({}, "no device can hold one of 4 stages"),
    "dtfm": ({"offspring": 1}, "no device can hold one of 4 stages"),
    "fedavg": ({"clients_per_round": 1}, "no device can hold the training of tiny"),
    "fedbuff": ({"concurrency": 1}, "no device can hold the training of tiny"),
    "gpipe": ({}, "no pipeline of 1 to 4 stages is possible; with 4: 4 of 4 devices of the plan do not fit"),
    "1f1b": ({}, "no pipeline of 1 to 4 stages is possible; with 4: 4 of 4 devices of the plan do not fit"),
    "interleaved": ({}, "no pipeline of 1 to 2 stages is possible; with 2: 4 of 4 devices of the plan do not fit"),
    "confidant": ({}, "no line of 1 to 4 devices is possible; with 4: stage 0 of 4 has 10 kB, needed"),
    "asteroid": ({}, "no pipeline of up to 4 stages fits"),
    "alpa": ({}, "no division of 4 layers of tiny over 4 devices fits: the smallest of them has 10 kB, needed"),
    "uniform-tp": ({}, "3 of 4 devices cannot hold one of 4 equal parts of the 192 x 192 x 64 GEMM"),
}


@pytest.mark.parametrize("name", MEMORY)
def test_too_little_memory_is_said_with_numbers_units_and_what_would_help(name):
    config, begins = MEMORY[name]
    said = refused(name, fleet(*POOR), **config)
    assert said.startswith(begins)
    sizes = re.findall(r"has [\d.]+ kB, needed [\d.]+ [kM]B|takes [\d.]+ MB", said)
    assert sizes, said
    assert re.search(r"needs? less|make parts smaller", said), said
    if begins.startswith("no device"):
        assert "the largest of 4, tiny#2, has 300 kB, needed " in said


def test_cleave_names_the_gemm():
    said = refused("cleave", fleet(*[150] * 4))
    assert re.search(
        r"no device can hold a 1 x 1 tile of the .* GEMM: the largest budget has 150 B, needed \d+ B", said
    )


def test_every_strategy_is_asked():
    names = {entry.name for entry in entry_points(group="morphling.strategies")}
    assert names == {*MEMORY, "cleave", "cloud"}  # a cloud has no devices of the fleet: test_cloud.py


@pytest.mark.parametrize(
    "name", ["ddp", "zero3", "megatron-tp", "alpa", "gpipe", "dtfm", "asteroid", "confidant", "swarm"]
)
def test_a_rate_that_nobody_has_is_said_with_those_that_there_are(name):
    there = fleet(*[GB] * 4, dtypes=(DType.FLOAT32,))
    assert refused(name, there) == "no device of 4 has a float16 rate; workload.dtype: float32 would do"


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("gpipe", {"stages": 9}, "stages: 9 need as many devices, and 4 are there; at most 4"),
        ("interleaved", {"stages": 3}, "stages: 4 layers cannot fill 3 stages of 2 chunks; at most 2 stages"),
        ("swarm", {"stages": 9}, "stages: 4 devices and 4 layers cannot fill 9 stages; at most 4"),
        ("dtfm", {"stages": 9}, "stages: 4 devices and 4 layers cannot fill 9 stages; at most 4"),
        ("megatron-tp", {"tensor_parallel": 8}, "tensor_parallel: 4 heads of tiny cannot be cut into 8 equal parts"),
        ("megatron-tp", {"tensor_parallel": 2, "data_parallel": 3}, "data_parallel: 3 groups of 2 devices need 6"),
        ("alpa", {"micro_batches": 3}, "micro_batches: 8 sequences cannot be divided into 3; the nearest is 2"),
        ("dtfm", {"micro_batch": 3}, "micro_batch: a batch of 8 sequences cannot be cut into micro-batches of 3"),
    ],
)
def test_what_was_asked_for_and_cannot_be_is_named_with_the_nearest_that_can(name, config, words):
    assert refused(name, fleet(*[GB] * 4), **config).startswith(words)


def test_too_few_reports_say_what_a_client_needs():
    said = refused("fedavg", fleet(GB, 1000, 1000), clients_per_round=2, minimum_reports=2)
    assert said.startswith("minimum_reports is 2, and 1 of 3 devices can train the model (too little memory")
    assert "needed 4.62 MB" in said
