"""Parameter counts of the models known by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from morphling.errors import WorkloadError
from morphling.types import DType
from morphling.workload import MODELS, model_named, parameters
from morphling.workload.counts import layer_parameter_bytes, state_bytes
from morphling.workload.models import layer_linears, layer_parameters, matmul_parameters

# name: parameters, parameters of one layer, GiB of Adam mixed-precision states
COUNTS = {
    "opt-125m": (125_239_296, 7_087_872, 1.87),
    "opt-350m": (331_196_416, 12_596_224, 4.94),
    "opt-1.3b": (1_315_758_080, 50_358_272, 19.6),
    "opt-2.7b": (2_651_596_800, 78_676_480, 39.5),
    "opt-6.7b": (6_658_473_984, 201_379_840, 99.2),
    "opt-13b": (12_853_473_280, 314_639_360, 191.5),
    "opt-30b": (29_974_540_288, 616_655_872, 446.7),
    "opt-66b": (65_719_701_504, 1_019_335_680, 979.3),
    "opt-175b": (174_604_468_224, 1_812_099_072, 2601.8),
    "llama-2-7b": (6_738_415_616, 202_383_360, 100.4),
    "llama-2-13b": (13_015_864_320, 317_204_480, 194.0),
    "llama-2-70b": (68_976_648_192, 855_654_400, 1027.8),
    "gpt2": (124_439_808, 7_087_872, 1.85),
    "gpt2-medium": (354_823_168, 12_596_224, 5.29),
    "gpt2-large": (774_030_080, 19_677_440, 11.53),
    "gpt2-xl": (1_557_611_200, 30_740_800, 23.21),
}


def test_every_known_model_is_counted():
    assert set(COUNTS) == set(MODELS)


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_exact(name):
    model = model_named(name)
    total, layer, states_gib = COUNTS[name]
    assert parameters(model) == total
    assert layer_parameters(model) == layer
    assert state_bytes(model) == 16 * total
    assert state_bytes(model) / 2**30 == pytest.approx(states_gib, abs=0.05)


@pytest.mark.parametrize(("name", "mib"), [("opt-125m", 13.5), ("opt-13b", 600), ("opt-66b", 1944)])
def test_layer_bytes(name, mib):
    assert layer_parameter_bytes(model_named(name), DType.FLOAT16) / 2**20 == pytest.approx(mib, rel=0.002)


def test_states_of_other_optimizers():
    model = model_named("opt-125m")
    each = {name: state_bytes(model, name) // parameters(model) for name in ("adam", "sgd-momentum", "sgd")}
    assert each == {"adam": 16, "sgd-momentum": 12, "sgd": 8}
    with pytest.raises(WorkloadError, match="optimizer: unknown scheme 'lion'; known: adam-mixed"):
        state_bytes(model, "lion")


def test_matmul_parameters_leave_out_the_lookup_but_not_the_head():
    tied, untied = model_named("opt-125m"), model_named("llama-2-7b")
    assert matmul_parameters(tied) == 12 * 12 * 768**2 + 50272 * 768
    assert matmul_parameters(untied) == parameters(untied) - 32000 * 4096 - 65 * 4096


def test_fused_linears_have_the_same_weights():
    for model in MODELS.values():
        apart, joined = layer_linears(model), layer_linears(model, fused=True)
        assert sum(a * b for _, a, b in apart) == sum(a * b for _, a, b in joined)
    assert [op for op, _, _ in layer_linears(model_named("gpt2"))] == ["qkv_proj", "o_proj", "fc1", "fc2"]
    assert layer_linears(model_named("llama-2-70b"), fused=True)[0] == ("qkv_proj", 8192, 8192 + 2 * 1024)


def test_unknown_model_names_the_nearest():
    with pytest.raises(WorkloadError, match="unknown model 'OPT_13B'; did you mean opt-13b"):
        model_named("OPT_13B")
    with pytest.raises(WorkloadError, match=r"unknown model 'meta-llama/Llama-2-7b-hf'; did you mean llama-2-7b"):
        model_named("meta-llama/Llama-2-7b-hf")
    with pytest.raises(WorkloadError, match=r"unknown model 'zzz'; known: opt-125m, .* path of a config\.json"):
        model_named("zzz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "layers: a positive whole number is needed, not 0"),
        ({"heads": True}, "heads: a positive whole number"),
        ({"hidden_size": 768.0}, "hidden_size: a positive whole number"),
        ({"kv_heads": 5}, "kv_heads: 12 heads cannot share 5 KV heads evenly"),
        ({"position_rows": 10}, "position_rows: 10 rows for 2048 positions"),
        ({"activation": "tanh"}, "activation: unknown function 'tanh'"),
    ],
)
def test_absurd_sizes_are_refused(change, message):
    with pytest.raises(WorkloadError, match=message):
        replace(model_named("opt-125m"), **change)
