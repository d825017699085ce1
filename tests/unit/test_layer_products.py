"""The products of whole layers: those of the DAG, for any number of sequences, share and cut; and every strategy's."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest

from morphling.planning.layer_costs import layer_costs
from morphling.planning.layer_products import NO_PRODUCTS, LayerProducts, Shape, list_columns
from morphling.run import build
from morphling.scenario import load_scenario
from morphling.testing import replay, tiny_fleet, tiny_workload
from morphling.types import DType, Kind, Phase
from morphling.workload import model_from_config, training_flops, training_step

S, H, FFN, HEADS, VOCAB = 24, 64, 256, 4, 512
"""Tokens of a sequence and sizes of the tiny workload; a head is 16 wide."""


def products(phase, batch=2, layer=0):
    return layer_costs(tiny_workload(batch_size=4), batch).inner(layer, layer + 1, phase).products


def entries(found):
    return Counter({tuple(p[:4]): p.calls for p in found.entries})


def test_a_layer_by_hand():
    t = 2 * S
    linears = {(t, H, H, 1): 4, (t, FFN, H, 1): 1, (t, H, FFN, 1): 1}
    attention = {(S, S, 16, 2 * HEADS): 1, (S, 16, S, 2 * HEADS): 1}
    assert entries(products(Phase.FORWARD).part(1.0)) == {**linears, **attention}
    # dX of fc1 is the shape of fc2 forward, and the other way round; dV, dP, dQ and dK beside
    back = {**linears, (S, S, 16, 2 * HEADS): 1, (S, 16, S, 2 * HEADS): 3}
    assert entries(products(Phase.BACKWARD_INPUT).part(1.0)) == back
    weights = {(H, H, t, 1): 4, (H, FFN, t, 1): 1, (FFN, H, t, 1): 1}
    assert entries(products(Phase.BACKWARD_WEIGHT).part(1.0)) == weights
    costs = layer_costs(tiny_workload(batch_size=4), 2)
    assert entries(costs.behind(Phase.FORWARD).products.part(1.0)) == {(t, VOCAB, H, 1): 1}
    assert costs.before(Phase.FORWARD).products.part(1.0) is None


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.5, {(S, H, H, 1): 4.0}),  # one of the two sequences: half as many rows
        (2.0, {(2 * S, H, H, 1): 8.0}),  # twice two sequences
        (2.5, {(2 * S, H, H, 1): 8.0, (S, H, H, 1): 4.0}),  # the fifth alone
        (0.25, {(S, H, H, 1): 2.0}),  # half a sequence: half of the calls of a whole one
        (0.75, {(2 * S, H, H, 1): 3.0}),  # one and a half
        (1 / 3 + 1 / 6, {(S, H, H, 1): 4.0}),  # one, but for rounding
    ],
)
def test_shares_of_the_sequences(share, expected):
    whole = products(Phase.FORWARD)
    part = whole.part(share)
    found = {shape: calls for shape, calls in entries(part).items() if shape[1:3] == (H, H)}
    assert found == pytest.approx(expected)
    assert part.flops == pytest.approx(share * whole.part(1.0).flops, rel=1e-14)
    assert part.elements == pytest.approx(share * whole.part(1.0).elements, rel=1e-14)


def test_tensor_parallelism_cuts_by_hand():
    t = 2 * S
    cut = entries(products(Phase.FORWARD).cut(2).part(1.0))
    assert cut == {
        (t, H // 2, H, 1): 3,  # q, k and v: columns
        (t, H, H // 2, 1): 1,  # out: rows
        (t, FFN // 2, H, 1): 1, (t, H, FFN // 2, 1): 1,
        (S, S, 16, HEADS): 1, (S, 16, S, HEADS): 1,  # half of the heads
    }  # fmt: skip
    weights = entries(products(Phase.BACKWARD_WEIGHT).cut(2).part(1.0))
    assert weights == {(H, H // 2, t, 1): 3, (H // 2, H, t, 1): 1, (H, FFN // 2, t, 1): 1, (FFN // 2, H, t, 1): 1}
    back = entries(products(Phase.BACKWARD_INPUT).cut(2).part(1.0))
    assert back[(t, H, H // 2, 1)] == 3
    assert back[(t, H // 2, H, 1)] == 1


def test_a_side_that_does_not_divide_is_rounded_up_in_fewer_calls():
    odd = LayerProducts(((Shape(1, 7, 5, 1, "m", "n"), 1.0),), 1, 47.0)
    (found,) = odd.cut(2).part(1.0).entries
    assert found == (1, 4, 5, 1, 7 / 8)
    assert odd.cut(2).part(1.0).elements == 23.5


CONFIGS = {
    "opt": {},
    "fused": {"fused_projections": True},
    "llama": {"gqa": True},
}


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("which", CONFIGS)
def test_another_number_of_sequences_is_another_dag(which, recompute):
    """Products of 4 sequences, for 3 of them, are the GEMMs of the DAG of 3."""
    model, fused = tiny_workload().model, which == "fused"
    if which == "llama":
        config = {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 96,
            "max_position_embeddings": 64, "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
        }  # fmt: skip
        model = model_from_config(config, "llama", "here")
    four, three = (
        training_step(model, b, 16, DType.FLOAT16, fused_projections=fused, recompute=recompute) for b in (4, 3)
    )
    found = layer_costs(four, 4).whole().products.part(0.75)
    dag = three.dag
    gemms = np.flatnonzero(dag.kind == Kind.GEMM)
    wanted = Counter(zip(*(c[gemms].tolist() for c in (dag.m, dag.n, dag.k, dag.count)), strict=True))
    assert entries(found) == wanted
    assert found.flops == training_flops(model, 3, 16, recompute=recompute)
    # what the bytes of the step hold for its products is all traffic of GEMMs
    whole = layer_costs(four, 4).whole()
    assert 2 * whole.products.elements == four.dag.memory_bytes[four.dag.kind == Kind.GEMM].sum()


def test_columns_of_rows():
    a, b = products(Phase.FORWARD), products(Phase.BACKWARD_WEIGHT)
    columns = list_columns([a, b, NO_PRODUCTS], [0, 1, 2, 0, 0], [1.0, 0.5, 1.0, 0.0, 1.0])
    assert columns["products"].tolist() == [0, 1, -1, -1, 0]
    assert columns["product_lists"] == (a.part(1.0), b.part(0.5))


# ---------------------------------------------------------------------------------------------------------- strategies

STRATEGIES = [
    ("ddp", {}, "none"),
    ("ddp", {"micro_batch": 2}, "full"),
    ("zero1", {}, "none"),
    ("zero2", {}, "selective"),
    ("zero3", {}, "full"),
    ("megatron-tp", {"tensor_parallel": 2}, "selective"),
    ("megatron-tp", {"tensor_parallel": 4, "sequence_parallel": True}, "full"),
    ("alpa", {}, "none"),
    ("gpipe", {}, "none"),
    ("gpipe", {"data_parallel": 2}, "full"),
    ("1f1b", {}, "selective"),
    ("interleaved", {}, "none"),
    ("asteroid", {}, "full"),
    ("confidant", {}, "none"),
    ("dtfm", {}, "full"),
    ("swarm", {"stages": 2}, "full"),
]


@cache
def workload(recompute):
    base = tiny_workload(4, batch_size=6)
    return training_step(base.model, 6, S, base.dtype, recompute=recompute)


def made(name, config):
    link = {"downlink": "8 Mbit/s", "uplink": "8 Mbit/s"}
    entry = {"profile": {"compute": "1 TFLOP/s", "memory": "1 GB"}, "count": 1, "link": link}
    scenario = {
        "name": "lists", "workload": {"model": "opt-125m", "batch_size": 1, "sequence_length": 8}, "fleet": [entry],
        "strategy": {"name": name, **config},
    }  # fmt: skip
    return build(load_scenario(scenario)).strategy


def sums(name, config, recompute):
    """FLOPs of the lists, of the GEMM rows of devices, and how many of these with FLOPs have no list."""
    fleet = tiny_fleet()
    listed = rows = 0.0
    without = 0
    for dispatch in replay(made(name, config), fleet, workload(recompute)).dispatches:
        t = dispatch.tasks
        mine = (t.kind == Kind.GEMM) & (t.device < fleet.size) & (t.flops > 0)
        own = np.array([*(x.flops for x in t.product_lists), 0.0])[t.products]
        listed, rows, without = listed + own.sum(), rows + t.flops[mine].sum(), without + (mine & (own == 0)).sum()
    return listed, rows, without


@pytest.mark.parametrize(("name", "config", "recompute"), STRATEGIES)
def test_the_lists_of_an_iteration_are_the_gemms_of_the_workload(name, config, recompute):
    listed, rows, without = sums(name, config, recompute)
    model = workload(recompute).model
    assert listed == pytest.approx(training_flops(model, 6, S, recompute=recompute), rel=1e-12)
    assert listed == pytest.approx(rows, rel=1e-12)
    assert without == 0


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("fedavg", {"clients_per_round": 3, "local_steps": 5, "batch_size": 4}),
        ("fedavg", {"clients_per_round": 3, "local_epochs": 2, "samples_per_client": 7, "batch_size": 4}),
        ("fedbuff", {"concurrency": 3, "buffer_size": 2, "local_steps": 5}),
    ],
)
def test_clients_train_in_batches(name, config):
    listed, rows, without = sums(name, config, "none")
    assert listed == pytest.approx(rows, rel=1e-12)
    assert (without, listed > 0) == (0, True)


def test_each_epoch_ends_with_the_batch_that_is_left():
    config = {"clients_per_round": 1, "local_epochs": 3, "samples_per_client": 5, "batch_size": 4}
    (dispatch,) = replay(made("fedavg", config), tiny_fleet(1), workload("none")).dispatches
    (listed,) = dispatch.tasks.product_lists
    # an LM head forward for each batch: four samples and one, three times over
    assert {p.m // S: p.calls for p in listed.entries if p[1:3] == (VOCAB, H)} == {4: 3, 1: 3}
