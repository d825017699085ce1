"""The published per-GEMM model of Cleave against recomputed numbers (OPT-13B, B = 128, S = 1024, seed 42).

Numbers come from independent code for the same continuous problem; none is printed in the paper.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from morphling.planning.areas import areas, solve_areas
from morphling.planning.gemms import artifact_gemms, cached_operand, linear_gemms
from morphling.planning.memory import published_device_memory
from morphling.types import Phase

D_MODEL, FFN, HEADS, LAYERS, BATCH, SEQUENCE = 5120, 20480, 40, 40, 128, 1024
LINEAR = linear_gemms(D_MODEL, FFN, BATCH * SEQUENCE)
ARTIFACT = artifact_gemms(D_MODEL, FFN, HEADS, BATCH, SEQUENCE)


def fleet(devices):
    random = np.random.RandomState(42)
    flops = (5 + 2 * random.rand(devices)) * 2.0**40
    up = random.randint(5, 10, devices) * 2.0**20
    down = random.randint(10, 100, devices) * 2.0**20
    return {"flops": flops, "down": down, "up": up}, random


def per_gemm(listed, rates):
    return {g.name: solve_areas(g.m, g.n, g.k, **rates, cached=g.cached).time_s for g in listed}


def batch_s(listed, rates):
    times = per_gemm(listed, rates)
    return LAYERS * sum(g.count * times[g.name] for g in listed)


def test_draw_order_of_the_published_fleet():
    flops, down, up = fleet(256)[0].values()
    assert up.sum() == 1805 * 2**20
    assert down.sum() == 13786 * 2**20
    assert flops.sum() / 2**40 == pytest.approx(1530, abs=0.5)


def test_linear_gemms_at_256_devices():
    expected = {
        "fw_q_proj": 0.709, "bi_q_proj": 0.709, "bw_q_proj": 0.093, "fw_fc1": 2.837, "bi_fc1": 0.709,
        "bw_fc1": 0.371, "fw_fc2": 2.121, "bi_fc2": 3.074, "bw_fc2": 0.136,
    }  # fmt: skip
    found = per_gemm(LINEAR, fleet(256)[0])
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=0.0005), name


def test_cached_forward_gemms_are_bound_by_the_uplink():
    rates, _ = fleet(256)
    for g in LINEAR:
        if g.name in {"fw_q_proj", "bi_q_proj", "fw_fc1", "bi_fc1"}:
            plan = solve_areas(g.m, g.n, g.k, **rates, cached=True)
            assert plan.time_s == pytest.approx(2.0 * g.m * g.n / rates["up"].sum(), rel=1e-12)
            assert plan.bounds["uplink"] == pytest.approx(plan.time_s, rel=1e-12)


def test_artifact_list_at_256_devices():
    expected = {
        "mlp-gate": 2.837, "mlp-proj": 2.121, "bk_input_mlp-proj": 3.074, "bk_weight_mlp-proj": 0.371,
        "bk_input_mlp-gate": 0.709, "bk_weight_mlp-gate": 0.136, "qkvo": 3.27, "bk_input_qkvo": 3.27,
        "bk_weight_qkvo": 14.18, "attn": 1.14, "attn_proj": 7.54, "bk_input_attn": 7.54, "bk_weight_attn": 0.71,
        "bk_input_attn_proj": 6.40, "bk_weight_attn_proj": 0.94,
    }  # fmt: skip
    found = per_gemm(ARTIFACT, fleet(256)[0])
    assert found.keys() == expected.keys()
    for g in ARTIFACT:
        digits = 0.006 if "qkvo" in g.name or "attn" in g.name else 0.0005
        assert g.count * found[g.name] == pytest.approx(expected[g.name], abs=digits), g.name


@pytest.mark.parametrize(
    ("devices", "artifact", "linear", "digits"),
    [
        (32, 13600, 4528, 0.5),
        (64, 7196, 2272, 0.5),
        (256, 2170, 611.7, 0.05),
        (1024, 744, 180, 0.5),
        (8192, 188, 35, 0.5),
    ],
)
def test_batch_totals_by_devices(devices, artifact, linear, digits):
    rates = fleet(devices)[0]
    assert batch_s(LINEAR, rates) == pytest.approx(linear, abs=digits)
    assert batch_s(ARTIFACT, rates) == pytest.approx(artifact, abs=0.5)


@pytest.mark.parametrize(("batch", "seconds"), [(32, 186), (256, 1164)])
def test_batch_totals_by_batch_size(batch, seconds):
    assert batch_s(linear_gemms(D_MODEL, FFN, batch * SEQUENCE), fleet(256)[0]) == pytest.approx(seconds, abs=0.5)


def test_stragglers():
    rates, random = fleet(256)
    expected = {
        740.9: random.choice(256, 52, replace=False),
        734.2: np.arange(52),
        742.4: np.arange(204, 256),
    }
    for seconds, slow in expected.items():
        factor = np.ones(256)
        factor[slow] = 0.1
        assert batch_s(LINEAR, {name: rate * factor for name, rate in rates.items()}) == pytest.approx(
            seconds, abs=0.05
        )


@pytest.mark.parametrize(("ratio", "seconds"), [(2, 972.6), (20, 501.9)])
def test_downlink_to_uplink_ratio(ratio, seconds):
    up = np.full(256, 7.5 * 2**20)
    assert batch_s(LINEAR, {"flops": fleet(256)[0]["flops"], "down": up * ratio, "up": up}) == pytest.approx(
        seconds, abs=0.05
    )


def test_without_the_cache_rule():
    sent = [replace(g, cached=False) for g in LINEAR]
    assert batch_s(sent, fleet(256)[0]) == pytest.approx(1559, abs=0.5)


def test_areas_follow_the_closed_form():
    rates, _ = fleet(64)
    flops, down, up = rates.values()
    m, n, k, time_s = 4096, 1000, 20480, 0.5
    s = time_s * down / (2 * k)
    x = np.minimum(s / 2, min(m, n))
    sent = x * np.minimum(s - x, max(m, n))
    kept = m * np.minimum(n, s)
    cap = np.minimum(time_s * up / 2, time_s * flops / (2 * k))
    assert areas(time_s, m, n, k, **rates) == pytest.approx(np.minimum(sent, cap), rel=1e-12)
    assert areas(time_s, m, n, k, **rates, cached=True) == pytest.approx(np.minimum(kept, cap), rel=1e-12)
    # Beyond squares the longer side grows alone, until C is whole.
    s = 10.0 * 2.0**20 / 2
    assert areas(1.0, 10**6, 100, 1, flops=1e18, down=10 * 2.0**20, up=1e18) == pytest.approx(min(100 * (s - 100), 1e8))


def test_optimum_is_tight_and_its_shards_are_consistent():
    rates, _ = fleet(256)
    for cached in (False, True):
        plan = solve_areas(131072, 5120, 20480, **rates, cached=cached)
        assert plan.area.sum() == pytest.approx(131072 * 5120, rel=1e-12)
        assert plan.rows * plan.cols == pytest.approx(plan.area, rel=1e-12)
        assert areas(plan.time_s * (1 - 1e-11), 131072, 5120, 20480, **rates, cached=cached).sum() < 131072 * 5120
        stages = np.stack([plan.download_s, plan.compute_s, plan.upload_s])
        assert stages.max(axis=0).max() <= plan.time_s * (1 + 1e-9)
        assert plan.time_s >= max(plan.bounds.values()) * (1 - 1e-12)


def test_cache_rule():
    for op in ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "fc1", "gate_proj", "up_proj"):
        assert all(cached_operand(op, p) for p in Phase)
    for op in ("fc2", "down_proj", "lm_head"):
        assert not cached_operand(op, Phase.FORWARD)
        assert not cached_operand(op, Phase.BACKWARD_INPUT)
        assert cached_operand(op, Phase.BACKWARD_WEIGHT)
    with pytest.raises(ValueError, match="fc3"):
        cached_operand("fc3", Phase.FORWARD)


def test_gated_lists():
    names = [g.name for g in linear_gemms(4096, 11008, 1024, gated=True)]
    assert len(names) == 12
    assert "fw_gate_proj" in names
    listed = {g.name: g for g in artifact_gemms(4096, 11008, 32, 128, 1024, gated=True)}
    assert len(listed) == 18
    assert (listed["mlp-gate1"].m, listed["mlp-gate1"].count) == (1024, 128)


@pytest.mark.parametrize(
    ("d", "f", "gib"),
    [
        (768, 3072, 0.0055), (2048, 8192, 0.0066), (4096, 11008, 0.0077),
        (5120, 20480, 0.0105), (7168, 28672, 0.0140), (9216, 36864, 0.0181),
    ],
)  # fmt: skip
def test_published_memory_figure(d, f, gib):
    assert published_device_memory(d, f, 16 * 512, 8192) / 2**30 == pytest.approx(gib, abs=0.00005)
