"""The published group cost models against recomputed numbers (B = 128, s = 1024, the published fleet, seed 42).

Numbers come from independent code for the same closed forms; none is printed in a paper.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from morphling.errors import Infeasible, PlanError
from morphling.fleet.published import MEGABYTE, TERA, cleave_draw
from morphling.planning.costs import Rates
from morphling.planning.group_costs import alpa, asteroid, confident, dtfm, layer_flops
from morphling.workload.models import model_named

SMALL, MIDDLE, LARGE = (model_named(name) for name in ("opt-125m", "opt-1.3b", "opt-13b"))
BATCH, SEQUENCE = 128, 1024
REL = 1e-3


def fleet(devices, **more):
    drawn = cleave_draw(devices)
    return Rates.of(drawn.tera_flops * TERA, drawn.down_mb * MEGABYTE, drawn.up_mb * MEGABYTE, **more)


def parts_sum(cost):
    return sum(cost.parts.values()) == pytest.approx(cost.total_s, rel=1e-12)


# --- golden values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "devices", "total", "stages", "slowest", "consistent"),
    [
        (SMALL, 8, 175.93, 8, 4.511, 38.82),
        (SMALL, 16, 227.56, 12, 5.292, 51.20),
        (SMALL, 32, 223.03, 12, 5.187, 51.06),
        (SMALL, 64, 227.95, 12, 5.301, 51.22),
        (MIDDLE, 8, 734.19, 8, 18.825, 106.21),
        (MIDDLE, 64, 900.25, 24, 16.368, 178.52),
        (LARGE, 8, 4802.28, 8, 123.135, 309.29),
        (LARGE, 16, 3759.74, 16, 79.994, 400.56),
        (LARGE, 64, 3856.02, 40, 54.310, 605.85),
    ],
)
def test_confident(model, devices, total, stages, slowest, consistent):
    cost = confident(model, BATCH, SEQUENCE, fleet(devices))
    assert cost.total_s == pytest.approx(total, rel=REL)
    assert (cost.stages, cost.bottleneck_s) == (stages, pytest.approx(slowest, rel=REL))
    assert sum(cost.layers) == model.layers
    assert parts_sum(cost)
    assert confident(model, BATCH, SEQUENCE, fleet(devices), quirks=False).total_s == pytest.approx(consistent, rel=REL)


@pytest.mark.parametrize(
    ("model", "devices", "total", "stages", "slowest", "consistent", "consistent_stages"),
    [
        (SMALL, 4, 4.861, 4, 0.13889, 33.775, 3),
        (SMALL, 8, 5.225, 6, 0.14121, 29.787, 4),
        (SMALL, 12, 5.176, 5, 0.14378, 29.719, 2),
        (MIDDLE, 8, 22.943, 8, 0.58829, 106.036, 8),
    ],
)
def test_asteroid(model, devices, total, stages, slowest, consistent, consistent_stages):
    cost = asteroid(model, BATCH, SEQUENCE, fleet(devices))
    assert cost.total_s == pytest.approx(total, rel=REL)
    assert (cost.stages, cost.bottleneck_s) == (stages, pytest.approx(slowest, rel=REL))
    assert sum(cost.layers) == model.layers
    assert [i for group in cost.groups for i in group] == list(range(devices))
    assert [sum(s) for s in cost.samples] == [4] * stages
    assert parts_sum(cost)
    other = asteroid(model, BATCH, SEQUENCE, fleet(devices), quirks=False)
    assert (other.total_s, other.stages) == (pytest.approx(consistent, rel=REL), consistent_stages)


@pytest.mark.parametrize(
    ("devices", "data_parallel", "pipeline", "compute", "total"),
    [
        (32, 293.0, 3097.1, 43.2, 3433),
        (64, 439.5, 2173.0, 21.6, 2634),
        (256, 549.3, 1347.7, 5.4, 1902),
        (1024, 576.8, 1040.0, 1.4, 1618),
    ],
)
def test_dtfm(devices, data_parallel, pipeline, compute, total):
    cost = dtfm(LARGE, BATCH, SEQUENCE, fleet(devices))
    assert cost.stages == 16
    assert cost.parts["data_parallel"] == pytest.approx(data_parallel, abs=0.05)
    assert cost.parts["pipeline"] == pytest.approx(pipeline, abs=0.05)
    assert cost.parts["compute"] == pytest.approx(compute, abs=0.05)
    assert cost.total_s == pytest.approx(total, rel=REL)
    assert parts_sum(cost)


@pytest.mark.parametrize(("devices", "total"), [(32, 38997), (64, 19799), (256, 5400), (1024, 1800)])
def test_alpa(devices, total):
    cost = alpa(LARGE, BATCH, SEQUENCE, fleet(devices))
    assert cost.total_s == pytest.approx(total, rel=REL)
    assert {len(group) for group in cost.groups} == {16}  # the least degree of tensor parallelism always wins
    assert parts_sum(cost)


def test_random_groups_of_dtfm_differ_by_some_percent():
    rates = fleet(256)
    given = [np.random.RandomState(seed).permutation(256).reshape(16, 16) for seed in range(4)]
    totals = [dtfm(LARGE, BATCH, SEQUENCE, rates, groups=groups).total_s for groups in given]
    assert len(set(totals)) > 1
    assert all(abs(total / 1902.4 - 1) < 0.1 for total in totals)


# --- the formulas ---------------------------------------------------------------------------------------------------


def test_flops_of_a_layer_count_a_multiply_add_once():
    # 3 (4·2·4² + 2·2·4·16 + 2·1·4·2²) with h = 4, f = 16, B = 1, s = 2
    model = type("Sizes", (), {"hidden_size": 4, "ffn_size": 16})
    assert layer_flops(model, 1, 2) == 3 * (128 + 256 + 32)


def test_latency_of_both_ends_is_added_to_each_transfer():
    plain, late = fleet(8), fleet(8, latency_s=0.5)
    costs = [confident(SMALL, BATCH, SEQUENCE, rates) for rates in (plain, late)]
    assert costs[1].bottleneck_s == pytest.approx(costs[0].bottleneck_s + 1.0)
    # P = 4 groups of 2: one peer in the group, 2 (2 · 0.5) s more; three boundaries of 1 s more each
    costs = [dtfm(SMALL, BATCH, SEQUENCE, rates) for rates in (plain, late)]
    more = {name: costs[1].parts[name] - costs[0].parts[name] for name in costs[0].parts}
    assert more["data_parallel"] == pytest.approx(2.0)
    assert more["pipeline"] == pytest.approx(2 * 3.0 / 32 * (32 - 1 + 2))
    assert more["compute"] == 0


class SlowAsteroid:
    """The artifact's loops, one candidate after another."""

    def __init__(self, model, batch, rates, memory, bits):
        h, f = model.hidden_size, model.ffn_size
        self.layers, self.rates, self.memory, self.unit = model.layers, rates, memory, bits / 8 * 1000 / 1024
        self.count = max(1, batch // 4)
        self.size = math.ceil(batch / self.count)
        self.weights, self.sample = 2 * (4 * h * h + 2 * h * f), 2 * SEQUENCE * h
        self.flops = layer_flops(model, 1, SEQUENCE)

    def pair(self, i, j):
        return min(self.rates.up[i], self.rates.down[j])

    def compute(self, group, layers, left):
        given, kept = dict.fromkeys(group, 0), (2 * left - 1) * self.sample * layers
        for _ in range(self.size):
            fits = [d for d in group if 3 * self.weights * layers + kept * (given[d] + 1) <= self.memory]
            if not fits:
                return math.inf
            given[min(fits, key=lambda d: (given[d] + 1) / self.rates.flops[d])] += 1
        return max(layers * self.flops * y / self.rates.flops[d] for d, y in given.items())

    def stage(self, group, layers, left, follows):
        total, k, late = self.compute(group, layers, left), len(group), self.rates.latency_s
        if follows:
            slow = min(self.pair(i, j) for i in group for j in follows)
            total += self.size * self.sample / slow * self.unit
            total += max(late[i] + late[j] for i in group for j in follows)
        if k > 1:
            slow = min(self.pair(i, j) for i in group for j in group if i != j)
            total += 2 * (k - 1) / k * self.weights * layers / k / slow * self.unit
        return total

    def head(self, table, layers, n, left):
        found, devices = (math.inf,), len(self.rates)
        for rest in range(left - 1, layers):
            for other in range(left - 1, n):
                tail = table.get((rest, other, left - 1), (math.inf,))
                if not math.isinf(tail[0]):
                    group = range(devices - n, devices - other)
                    own = max(tail[0], self.stage(group, layers - rest, left, tail[1][0]))
                    if own < found[0]:
                        found = (own, [group, *tail[1]], [layers - rest, *tail[2]])
        return found

    def plan(self):
        best, devices, table = (math.inf,), len(self.rates), {}
        for left in range(1, min(8, devices, self.layers) + 1):
            for layers in range(left, self.layers + 1):
                for n in range(left, devices + 1):
                    group = range(devices - n, devices)
                    if left == 1:
                        table[layers, n, 1] = (self.stage(group, layers, 1, None), [group], [layers])
                    else:
                        table[layers, n, left] = self.head(table, layers, n, left)
            found = table[self.layers, devices, left]
            total = (self.count + left - 1) * found[0]
            if total < best[0]:
                best = (total, left, tuple(map(tuple, found[1])), tuple(found[2]))
        return best


@pytest.mark.parametrize("gib", [0.18, 0.22, 0.3, 0.6, 32])
@pytest.mark.parametrize(("batch", "quirks"), [(7, True), (30, False)])
def test_asteroid_is_the_slow_loops(gib, batch, quirks):
    rates = fleet(6, latency_s=np.arange(6) * 0.01)
    memory = gib * 2**30
    expected = SlowAsteroid(SMALL, batch, rates, memory, 1 if quirks else 8).plan()
    if math.isinf(expected[0]):
        with pytest.raises(Infeasible, match="no pipeline"):
            asteroid(SMALL, batch, SEQUENCE, rates, quirks=quirks, memory_bytes=memory)
        return
    cost = asteroid(SMALL, batch, SEQUENCE, rates, quirks=quirks, memory_bytes=memory)
    assert (cost.total_s, cost.stages, cost.groups, cost.layers) == (pytest.approx(expected[0]), *expected[1:])
    assert parts_sum(cost)


# --- what cannot be done --------------------------------------------------------------------------------------------


def test_not_available_says_why():
    with pytest.raises(Infeasible, match=r"asteroid: no pipeline of up to 8 stages fits: each device has 100 MB"):
        asteroid(SMALL, BATCH, SEQUENCE, fleet(8), memory_bytes=1e8)
    with pytest.raises(Infeasible, match=r"asteroid: 1024 devices and 40 layers give 3442688000 candidate"):
        asteroid(LARGE, BATCH, SEQUENCE, fleet(1024))
    with pytest.raises(Infeasible, match=r"dtfm: no divisor of 1 devices"):
        dtfm(SMALL, BATCH, SEQUENCE, fleet(1))
    with pytest.raises(Infeasible, match=r"dtfm: no divisor of 46 devices .* route table of at most 8 bytes"):
        dtfm(SMALL, BATCH, SEQUENCE, fleet(46), table_bytes=8)
    with pytest.raises(Infeasible, match="alpa: 15 devices"):
        alpa(SMALL, BATCH, SEQUENCE, fleet(15))


def test_the_route_table_sets_the_groups():
    assert dtfm(SMALL, BATCH, SEQUENCE, fleet(48), table_bytes=8 * 12 * 2**12).stages == 12
    assert dtfm(SMALL, BATCH, SEQUENCE, fleet(48), table_bytes=8 * 12 * 2**12 - 1).stages == 8


@pytest.mark.parametrize("formula", [alpa, asteroid, confident, dtfm])
def test_senseless_input_is_refused(formula):
    with pytest.raises(PlanError, match="at least 1"):
        formula(SMALL, 0, SEQUENCE, fleet(16))
    with pytest.raises(PlanError, match="device 2 has no compute rate or no link"):
        formula(SMALL, BATCH, SEQUENCE, Rates.of([1e12] * 16, 1e6, [1e6, 1e6, 0.0, *[1e6] * 13]))


def test_groups_must_hold_every_device_once():
    with pytest.raises(PlanError, match=r"each of 8 devices once, as int\[4, 2\]"):
        dtfm(SMALL, BATCH, SEQUENCE, fleet(8), groups=[[0, 1], [2, 3], [4, 5], [6, 6]])
