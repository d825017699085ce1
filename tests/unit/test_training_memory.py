"""States and activations on devices of data-, tensor- and pipeline-parallel training; published values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from morphling.planning.collective_times import boundary_bytes, sent_bytes, tensor_parallel_bytes
from morphling.planning.schedules import in_flight, interleaved, one_f_one_b, zero_bubble_h1
from morphling.planning.training_memory import (
    STATE_PARTS,
    head_activation_bytes,
    input_activation_bytes,
    sharded_state_bytes,
    stage_activation_bytes,
)
from morphling.workload import model_named, parameters
from morphling.workload.counts import STATE_BYTES

GIB, MIB = 2**30, 2**20

STATES_GIB = {
    "opt-125m": 1.87,
    "opt-350m": 4.94,
    "opt-1.3b": 19.6,
    "opt-2.7b": 39.5,
    "opt-6.7b": 99.2,
    "opt-13b": 191.5,
    "opt-30b": 446.7,
    "opt-66b": 979.3,
    "llama-2-7b": 100.4,
    "llama-2-13b": 194.0,
    "llama-2-70b": 1027.8,
}
LAYER_MIB = {  # one sequence of 2048 tokens: everything, and without what attention's scores keep
    "opt-125m": (291, 51),
    "opt-350m": (388, 68),
    "opt-1.3b": (776, 136),
    "opt-2.7b": (810, 170),
    "opt-6.7b": (912, 272),
    "opt-13b": (1140, 340),
    "opt-30b": (1596, 476),
    "opt-66b": (2052, 612),
}


@pytest.mark.parametrize("name", list(STATES_GIB))
def test_states_of_published_models(name):
    found = sharded_state_bytes(parameters(model_named(name))) / GIB
    assert found == pytest.approx(STATES_GIB[name], rel=3e-3)


def test_parts_sum_to_the_whole():
    assert {name: sum(parts) for name, parts in STATE_PARTS.items()} == STATE_BYTES


@pytest.mark.parametrize("g", [1, 2, 8, 64])
def test_sharded_states_are_the_published_forms(g):
    psi = 64_000_000
    forms = {"none": 16 * psi, "zero-1": 4 * psi + 12 * psi // g, "zero-2": 2 * psi + 14 * psi // g}
    forms["zero-3"] = 16 * psi // g
    for sharding, expected in forms.items():
        assert sharded_state_bytes(psi, sharding=sharding, ways=g) == expected
    megatron = sharded_state_bytes(psi, "adam-mixed-fp32-gradients", sharding="zero-1", ways=g)
    assert megatron == 6 * psi + 12 * psi // g
    assert sharded_state_bytes(psi, "adam", sharding="zero-1", ways=g) == 8 * psi + 8 * psi // g
    assert sharded_state_bytes(psi, "sgd-momentum", ways=g) == 12 * psi
    assert sharded_state_bytes(psi, "sgd", ways=g) == 8 * psi


def test_shards_are_rounded_up_and_gathered_layers_counted():
    # ZeRO's own example: 7.5 G parameters on 64 devices take 120, 31.4, 16.6 and 1.9 GB.
    published = {"none": 120e9, "zero-1": 31.4e9, "zero-2": 16.6e9, "zero-3": 1.88e9}
    for sharding, expected in published.items():
        found = sharded_state_bytes(7_500_000_000, sharding=sharding, ways=64)
        assert found == pytest.approx(expected, rel=5e-3)
    assert sharded_state_bytes(10, sharding="zero-3", ways=4) == 3 * 16
    assert sharded_state_bytes(10, sharding="zero-3", ways=4, gathered_parameters=5) == 3 * 16 + 10


@pytest.mark.parametrize("name", list(LAYER_MIB))
def test_activations_of_one_layer(name):
    model = model_named(name)
    whole, selective = LAYER_MIB[name]
    assert stage_activation_bytes(model, 1, 2048, layers=1) / MIB == whole
    assert stage_activation_bytes(model, 1, 2048, layers=1, scheme="selective") / MIB == selective


def test_all_schemes_on_a_model_of_round_numbers():
    """s = 1024, b = 2, OPT-6.7B: h = 4096, a = 32, so sbh = 8 MiB and 5as/h = 40."""
    model, sbh = model_named("opt-6.7b"), 8 * MIB

    def held(**more):
        return stage_activation_bytes(model, 2, 1024, layers=1, **more) / sbh

    assert held() == 34 + 40
    assert held(tensor_parallel=8) == 10 + 24 / 8 + 40 / 8
    assert held(tensor_parallel=8, sequence_parallel=True) == (34 + 40) / 8
    assert held(tensor_parallel=8, scheme="selective") == 10 + 24 / 8
    assert held(tensor_parallel=8, sequence_parallel=True, scheme="selective") == 34 / 8
    assert held(scheme="full") == 2 + (34 + 40)
    assert stage_activation_bytes(model, 2, 1024, layers=8, in_flight=4, scheme="full") / sbh == 2 * 8 * 4 + 74


def test_micro_batches_in_flight():
    """32 layers on 4 stages: the first stage of 1F1B holds as much as all layers of one micro-batch."""
    model, P, M = model_named("opt-6.7b"), 4, 8
    layer = stage_activation_bytes(model, 1, 1024, layers=1)

    def first(schedule):
        counted = {"in_flight": int(in_flight(schedule)[0]), "chunks": schedule.chunks}
        return stage_activation_bytes(model, 1, 1024, layers=8, **counted) / layer

    assert first(one_f_one_b(P, M)) == 32
    assert first(zero_bubble_h1(P, M)) == 32
    assert first(interleaved(P, M, 2)) == 32 * (1 + 3 / 8)
    assert first(interleaved(P, M, 4)) == 32 * (1 + 3 / 16)


def test_before_the_first_layer_and_after_the_last():
    model = model_named("opt-6.7b")  # h = 4096, V = 50272
    assert input_activation_bytes(model, 2, 1024, in_flight=4, tensor_parallel=2) == 2 * 1024 * 4096 * 4 // 2
    assert input_activation_bytes(replace(model, dropout=False), 2, 1024, in_flight=4) == 0
    assert head_activation_bytes(model, 2, 1024) == 4 * 2 * 1024 * (4096 + 50272)
    assert head_activation_bytes(model, 2, 1024, tensor_parallel=8) == 2 * 1024 * (4096 + 50272) // 2


def test_published_traffic_of_opt_13b():
    assert tensor_parallel_bytes(128, 1024, 5120, 8) == 9_395_240_960
    assert boundary_bytes(128, 1024, 5120) == 1_342_177_280
    assert sent_bytes(40 * 314_639_360 * 2, 256) == pytest.approx(50.1e9, rel=2e-3)
