"""The GEMM DAG of a training step: shapes, order, counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from morphling.errors import WorkloadError
from morphling.types import DType, Kind, Phase
from morphling.workload import MODELS, Place, activation_bytes, model_named, parameters, training_flops, training_step
from morphling.workload.counts import layer_training_flops
from morphling.workload.models import layer_linears, matmul_parameters

F, DX, DW, AGAIN = Phase.FORWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT, Phase.RECOMPUTE

# Published forms, GFLOP per token with all scores computed and the logits included.
GFLOP_PER_TOKEN = {
    "opt-125m": (2048, 0.968),
    "opt-350m": (2048, 2.577),
    "opt-1.3b": (2048, 9.073),
    "opt-2.7b": (2048, 17.885),
    "opt-6.7b": (2048, 43.111),
    "opt-13b": (2048, 82.075),
    "opt-30b": (2048, 188.188),
    "opt-66b": (2048, 408.654),
    "llama-2-7b": (4096, 46.08),
    "llama-2-13b": (4096, 87.18),
    "llama-2-70b": (4096, 444.49),
}

SMALL = replace(model_named("llama-2-7b"), layers=3, hidden_size=64, heads=4, kv_heads=2, head_dim=24, ffn_size=96)
SMALL = replace(SMALL, embedding_size=64, vocab_size=128, post_norms=True, qk_norm=True)
SAMPLES = {
    "opt-125m": model_named("opt-125m"),
    "opt-350m": replace(model_named("opt-350m"), layers=3),
    "gpt2": replace(model_named("gpt2"), layers=2),
    "llama-2-70b": replace(model_named("llama-2-70b"), layers=2),
    "small": SMALL,
}
VARIANTS = [(r, f) for r in ("none", "selective", "full") for f in (False, True)]


def step(model, recompute="none", fused=False, **other):
    return training_step(model, 2, 16, DType.FLOAT16, recompute=recompute, fused_projections=fused, **other)


def shapes(dag, op, phase, layer=0):
    rows = dag.select(op, phase=phase, layer=layer)
    return [tuple(int(c[r]) for c in (dag.m, dag.n, dag.k, dag.count)) for r in rows]


@pytest.mark.parametrize("name", GFLOP_PER_TOKEN)
def test_gemm_flops_are_the_published_form(name):
    model = model_named(name)
    s, gflop = GFLOP_PER_TOKEN[name]
    dag = training_step(model, 2, s, DType.FLOAT16, lm_head=Place.DEVICES).dag
    per_token = 6 * matmul_parameters(model) + 12 * model.layers * s * model.attention_size
    assert dag.gemm_flops() == per_token * 2 * s == training_flops(model, 2, s)
    assert per_token / 1e9 == pytest.approx(gflop, abs=0.006)
    assert dag.flops[dag.kind == Kind.GEMM].sum() == pytest.approx(dag.gemm_flops(), rel=1e-15)


@pytest.mark.parametrize(("recompute", "fused"), VARIANTS)
@pytest.mark.parametrize("name", SAMPLES)
def test_closed_form_equals_the_dag(name, recompute, fused):
    model = SAMPLES[name]
    dag = step(model, recompute, fused).dag
    assert dag.gemm_flops() == training_flops(model, 2, 16, recompute=recompute)
    assert dag.gemm_flops(layer=1) == layer_training_flops(model, 2, 16, recompute=recompute)
    assert sum(dag.flops_by_phase().values()) == dag.gemm_flops()


def test_full_recomputation_adds_one_forward_of_the_layers():
    plain, full = (step(SAMPLES["gpt2"], r).dag for r in ("none", "full"))
    inside = plain.gemm_flops(phase=F) - 2 * 32 * 768 * 50257
    assert full.gemm_flops() - plain.gemm_flops() == inside == full.gemm_flops(phase=AGAIN)
    selective = step(SAMPLES["gpt2"], "selective").dag
    assert selective.gemm_flops(phase=AGAIN) == 2 * 4 * 2 * 16**2 * 768


@pytest.mark.parametrize(("recompute", "fused"), VARIANTS)
@pytest.mark.parametrize("name", SAMPLES)
def test_order_levels_and_leaves(name, recompute, fused):
    dag = step(SAMPLES[name], recompute, fused).dag
    size = len(dag)
    assert dag.dep_ptr[0] == 0
    assert dag.dep_ptr[-1] == len(dag.dep_idx)
    for node in range(size):
        before = dag.predecessors(node)
        assert (before < node).all()
        assert (np.diff(before) > 0).all()
        assert dag.level[node] == (1 + dag.level[before].max() if len(before) else 0)
    waiting = np.repeat(np.arange(size), np.diff(dag.dep_ptr))
    optimizer = dag.select(kind=Kind.OPTIMIZER)
    assert optimizer.tolist() == [size - 1]
    leaves = dag.select(phase=DW, kind=Kind.GEMM)
    assert set(waiting[np.isin(dag.dep_idx, leaves)]) == {size - 1}
    assert set(leaves) <= set(dag.predecessors(size - 1))
    # Nothing hangs loose: every node but the optimizer is waited for.
    assert set(dag.dep_idx) == set(range(size - 1))
    levels = dag.levels()
    assert len(levels) == dag.level.max() + 1
    assert np.array_equal(np.sort(np.concatenate(levels)), np.arange(size))
    assert all((dag.level[nodes] == i).all() for i, nodes in enumerate(levels))


@pytest.mark.parametrize(("recompute", "fused"), VARIANTS)
@pytest.mark.parametrize("name", SAMPLES)
def test_operands_are_made_before_they_are_read(name, recompute, fused):
    dag = step(SAMPLES[name], recompute, fused).dag
    maker = {int(c): i for i, c in enumerate(dag.c) if c >= 0}
    assert len(maker) == (dag.c >= 0).sum()
    for node in range(len(dag)):
        for operand in (int(dag.a[node]), int(dag.b[node])):
            if operand in maker:
                assert maker[operand] in dag.predecessors(node)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_linear_costs_the_same_three_times_and_shares_its_tensors(name):
    model = SAMPLES[name]
    dag = step(model).dag
    for op, rows, columns in layer_linears(model):
        assert shapes(dag, op, F) == [(32, columns, rows, 1)]
        assert shapes(dag, op, DX) == [(32, rows, columns, 1)]
        assert shapes(dag, op, DW) == [(rows, columns, 32, 1)]
        (f,), (dx,), (dw,) = (dag.select(op, phase=p, layer=0) for p in (F, DX, DW))
        assert dag.flops[f] == dag.flops[dx] == dag.flops[dw]
        assert dag.b[f] == dag.b[dx]
        assert not dag.b_transposed[f]
        assert dag.b_transposed[dx]
        assert dag.a[f] == dag.a[dw]
        assert dag.a_transposed[dw]
        assert dag.a[dx] == dag.b[dw]
        assert dag.memory_bytes[f] == 2 * (32 * rows + rows * columns + 32 * columns)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("name", SAMPLES)
def test_a_tensor_of_linears_has_one_stored_shape(name, recompute):
    dag = step(SAMPLES[name], recompute).dag
    stored = {}
    for i in np.flatnonzero((dag.kind == Kind.GEMM) & (dag.count == 1)):
        m, n, k = int(dag.m[i]), int(dag.n[i]), int(dag.k[i])
        uses = ((dag.a, (k, m) if dag.a_transposed[i] else (m, k)), (dag.b, (n, k) if dag.b_transposed[i] else (k, n)))
        for column, shape in (*uses, (dag.c, (m, n))):
            stored.setdefault(int(column[i]), set()).add(shape)
    assert {len(found) for found in stored.values()} == {1}


def test_shapes_of_opt_13b():
    dag = training_step(model_named("opt-13b"), 128, 1024, DType.FLOAT16).dag
    t, h = 131072, 5120
    expected = {
        ("q_proj", F): (t, h, h, 1),
        ("fc1", F): (t, 4 * h, h, 1),
        ("fc1", DX): (t, h, 4 * h, 1),
        ("fc1", DW): (h, 4 * h, t, 1),
        ("fc2", F): (t, h, 4 * h, 1),
        ("fc2", DX): (t, 4 * h, h, 1),
        ("fc2", DW): (4 * h, h, t, 1),
        ("o_proj", DW): (h, h, t, 1),
        ("attention_scores", F): (1024, 1024, 128, 5120),
        ("attention_context", F): (1024, 128, 1024, 5120),
        ("attention_dp", DX): (1024, 1024, 128, 5120),
        ("attention_dv", DX): (1024, 128, 1024, 5120),
        ("attention_dq", DX): (1024, 128, 1024, 5120),
        ("attention_dk", DX): (1024, 128, 1024, 5120),
    }
    assert {key: shapes(dag, *key, layer=39) for key in expected} == {key: [v] for key, v in expected.items()}
    assert shapes(dag, "lm_head", F, -1) == [(t, 50272, h, 1)]
    assert shapes(dag, "lm_head", DX, -1) == [(t, h, 50272, 1)]
    assert shapes(dag, "lm_head", DW, -1) == [(h, 50272, t, 1)]


def test_shapes_of_llama_70b_with_grouped_queries():
    model = replace(model_named("llama-2-70b"), layers=1)
    dag = training_step(model, 1, 4096, DType.BFLOAT16).dag
    assert shapes(dag, "k_proj", F) == [(4096, 1024, 8192, 1)]
    assert shapes(dag, "v_proj", DW) == [(8192, 1024, 4096, 1)]
    assert shapes(dag, "attention_scores", F) == [(4096, 4096, 128, 64)]
    assert shapes(dag, "gate", F) == shapes(dag, "up", F) == [(4096, 28672, 8192, 1)]
    assert shapes(dag, "down", DW) == [(28672, 8192, 4096, 1)]
    (kv_sum,) = dag.select("kv_sum")
    # Reads the key and value gradients of 64 heads, writes those of 8.
    assert dag.memory_bytes[kv_sum] == 2 * 4096 * 2 * (8192 + 1024)
    fused = training_step(model, 1, 4096, DType.BFLOAT16, fused_projections=True).dag
    assert shapes(fused, "qkv_proj", DX) == [(4096, 8192, 10240, 1)]
    assert shapes(fused, "gate_up", F) == [(4096, 57344, 8192, 1)]


def test_projections_of_one_input_share_it_and_are_independent():
    dag = step(SMALL).dag
    rows = [int(dag.select(op, phase=F, layer=1)[0]) for op in ("q_proj", "k_proj", "v_proj")]
    assert len(set(dag.a[rows])) == len(set(dag.level[rows])) == 1
    gate, up = (int(dag.select(op, phase=F, layer=1)[0]) for op in ("gate", "up"))
    assert dag.a[gate] == dag.a[up]
    assert dag.level[gate] == dag.level[up]


def test_traffic_of_memory_bound_operations():
    dag = step(SAMPLES["opt-125m"]).dag

    def traffic(op, phase):
        return dag.memory_bytes[dag.select(op, phase=phase, layer=5)].tolist()

    t, h, scores = 32, 768, 2 * 12 * 16**2
    assert traffic("attention_norm", F) == [2 * 2 * t * h]
    assert traffic("softmax", F) == [2 * 2 * scores]
    assert traffic("softmax", DX) == [2 * 3 * scores]
    assert traffic("mlp_residual", F) == [2 * 3 * t * h]
    assert traffic("activation", DX) == [2 * 3 * t * 4 * h]
    # The norm's backward reads the gradients of q, k and v, its input and the skip gradient, and writes one.
    assert traffic("attention_norm", DX) == [2 * 6 * t * h]


@pytest.mark.parametrize(
    ("dtype", "width"), [(DType.FLOAT16, 28), (DType.BFLOAT16, 28), (DType.FLOAT32, 28), (DType.INT8, 26)]
)
def test_the_optimizer_reads_and_writes_its_states(dtype, width):
    dag = training_step(SMALL, 1, 8, dtype).dag
    assert dag.memory_bytes[-1] == width * parameters(SMALL)
    assert dag.flops[-1] == 18 * parameters(SMALL)
    assert dag.label(len(dag) - 1) == "optimizer"


def test_places():
    usual = step(SMALL)
    assert (usual.lm_head, usual.attention) == (Place.COORDINATOR, Place.COORDINATOR)
    away = {usual.dag.op_names[i] for i in usual.dag.op[usual.dag.select(kind=Kind.GEMM, place=Place.DEVICES)]}
    assert away == {op for op, _, _ in layer_linears(SMALL)}
    everywhere = step(SMALL, lm_head=Place.DEVICES, attention=Place.DEVICES).dag
    assert (everywhere.place[everywhere.kind == Kind.GEMM] == Place.DEVICES).all()
    assert (everywhere.place[everywhere.kind != Kind.GEMM] == Place.COORDINATOR).all()


def test_tied_head_shares_the_embedding_once():
    dag = step(SAMPLES["gpt2"]).dag
    assert [len(dag.select("lm_head", phase=p)) for p in (F, DX, DW)] == [1, 1, 1]
    (f,) = dag.select("lm_head", phase=F)
    assert dag.b[f] == 0  # the first tensor is the table


def test_recomputation_starts_when_the_gradient_arrives_and_ends_before_it_goes_on():
    dag = step(SAMPLES["opt-125m"], "full").dag
    again = dag.select(phase=AGAIN, layer=4)
    (arrival,) = dag.select("attention_norm", phase=DX, layer=5)
    back = np.concatenate([dag.select(phase=p, layer=4) for p in (DX, DW)])
    assert arrival in dag.predecessors(again[0])
    assert dag.level[again].min() > dag.level[arrival]
    assert dag.level[back].min() > dag.level[again].max()


def test_labels_and_selection():
    dag = step(SAMPLES["opt-125m"], "full").dag
    names = [dag.label(int(dag.select("q_proj", phase=p, layer=3)[0])) for p in Phase]
    assert names == [f"layer 3 q_proj{x}" for x in ("", " dX", " dW", " recompute")]
    assert dag.label(int(dag.select("attention_dq", layer=2)[0])) == "layer 2 attention_dq"
    assert dag.label(0) == "embedding"
    with pytest.raises(KeyError, match="no op 'qproj' in this DAG; it has embedding"):
        dag.select("qproj")


@pytest.mark.parametrize(
    ("name", "whole", "selective"),
    [
        ("opt-125m", 291, 51),
        ("opt-350m", 388, 68),
        ("opt-1.3b", 776, 136),
        ("opt-2.7b", 810, 170),
        ("opt-6.7b", 912, 272),
        ("opt-13b", 1140, 340),
        ("opt-30b", 1596, 476),
        ("opt-66b", 2052, 612),
    ],
)
def test_activations_of_a_layer(name, whole, selective):
    model = model_named(name)
    assert activation_bytes(model, 1, 2048) == whole * 2**20
    assert activation_bytes(model, 1, 2048, "selective") == selective * 2**20
    assert activation_bytes(model, 1, 2048, "full") == 2 * 2048 * model.hidden_size
    s, h, a, t = 2048, model.hidden_size, model.heads, 4
    assert activation_bytes(model, 3, s, tensor_parallel=t) == 3 * s * (10 * h + 24 * h // t + 5 * a * s // t)
    shared = activation_bytes(model, 3, s, tensor_parallel=t, sequence_parallel=True)
    assert shared == 3 * s * (34 * h + 5 * a * s) // t
    cut = {"tensor_parallel": t, "sequence_parallel": True}
    assert activation_bytes(model, 3, s, "selective", **cut) == 34 * 3 * s * h // t


def test_activations_of_gated_models_without_dropout():
    model = model_named("llama-2-70b")
    assert activation_bytes(model, 2, 512, "selective") == 2 * 512 * (12 * 8192 + 4 * 8 * 128 + 8 * 28672)
    assert activation_bytes(model, 1, 512) - activation_bytes(model, 1, 512, "selective") == 2 * 64 * 512**2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: training_step(m, 0, 8, DType.FLOAT16), "batch_size: a positive whole number is needed, not 0"),
        (lambda m: training_step(m, 1, 8.0, DType.FLOAT16), "sequence_length: a positive whole number"),
        (lambda m: training_step(m, 10**30, 8, DType.FLOAT16), "batch_size: .* are beyond any training step"),
        (lambda m: training_step(m, 1, 2049, DType.FLOAT16), "sequence_length: 2049 is more than the 2048 positions"),
        (lambda m: training_step(m, 1, 8, DType.FLOAT16, recompute="some"), "recompute: unknown scheme 'some'"),
        (lambda m: activation_bytes(m, 1, 8, "half"), "scheme: unknown scheme 'half'"),
        (lambda m: activation_bytes(m, 1, 8, tensor_parallel=5), "12 heads of opt-125m cannot be cut into 5"),
        (lambda m: activation_bytes(m, 1, 8, tensor_parallel=0), "tensor_parallel: a positive whole number"),
        (
            lambda m: activation_bytes(m, 1, 9, tensor_parallel=2, sequence_parallel=True),
            "9 tokens of a sequence of opt-125m cannot be cut into 2",
        ),
    ],
)
def test_refusals(call, message):
    with pytest.raises(WorkloadError, match=message):
        call(model_named("opt-125m"))


def test_all_known_models_build():
    for model in MODELS.values():
        dag = training_step(model, 1, 8, DType.FLOAT16).dag
        assert dag.layer.max() == model.layers - 1
