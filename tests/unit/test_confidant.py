"""Confidant's planner against every way to cut the layers."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

from morphling.errors import Infeasible, PlanError
from morphling.planning.confidant import plan_confidant


def every_cut(layers, stages):
    for inner in combinations(range(1, layers), stages - 1):
        yield (0, *inner, layers)


def batch_s(cut, layer_s, power, out, rate):
    stages = [sum(layer_s[a:b]) * power[p] for p, (a, b) in enumerate(pairwise(cut))]
    return max([*stages, *(2 * out[end - 1] / rate[p] for p, end in enumerate(cut[1:-1]))])


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("bound", [False, True])
def test_plan_is_the_best_of_all_cuts(seed, bound):
    random = np.random.default_rng(seed)
    layers, devices = int(random.integers(1, 9)), int(random.integers(1, 6))
    layer_s, out = random.random(layers), random.random(layers)
    power, rate = 0.2 + random.random(devices), 0.5 + random.random(devices - 1)
    size, room = random.random(layers), 3 * random.random(devices) * layers / devices
    stages = min(layers, devices)
    cuts = [
        c
        for c in every_cut(layers, stages)
        if not bound or all(size[a:b].sum() <= room[p] for p, (a, b) in enumerate(pairwise(c)))
    ]
    memory = {"layer_bytes": size, "memory_bytes": room} if bound else {}
    if not cuts:
        with pytest.raises(Infeasible, match=f"{layers} layers do not fit into the memory of {stages} devices"):
            plan_confidant(layer_s, power, out, rate, **memory)
        return
    plan = plan_confidant(layer_s, power, out, rate, **memory)
    assert plan.batch_s == pytest.approx(min(batch_s(c, layer_s, power, out, rate) for c in cuts))
    assert tuple(plan.layers) in cuts
    assert batch_s(tuple(plan.layers), layer_s, power, out, rate) == pytest.approx(plan.batch_s)
    assert max(*plan.compute_s, *plan.transfer_s, 0.0) == pytest.approx(plan.batch_s)
    assert plan.idle == devices - stages


def test_thirty_layers_on_four_stages_are_thirty_layers():
    plan = plan_confidant(np.ones(30), [1, 1, 2, 4], np.zeros(30), [1, 1, 1])
    # 30 over speeds 1, 1, 1/2, 1/4 is 10.9: 11, 11, 5 and 3 layers in 12 s at the slowest
    assert plan.batch_s == 12
    assert np.diff(plan.layers).sum() == 30
    assert (np.diff(plan.layers) > 0).all()


def test_a_transfer_stands_under_the_maximum_and_is_not_added():
    # Layers of 1 s; the middle one sends little.  Cut there: stages of 2 s and 1 s, 2 · 1 / 1 = 2 s on the link.
    plan = plan_confidant([1, 1, 1], [1, 1], [9, 1, 9], [1])
    assert (plan.batch_s, plan.layers.tolist(), plan.transfer_s.tolist()) == (2.0, [0, 2, 3], [2.0])


def test_a_thousand_devices_take_a_layer_each():
    plan = plan_confidant(np.ones(40), np.linspace(1, 2, 1024), np.zeros(40), np.ones(1023))
    assert plan.idle == 984
    assert np.diff(plan.layers).tolist() == [1] * 40


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"power": [1, 0]}, "above zero"),
        ({"bandwidth": [0]}, "above zero"),
        ({"bandwidth": [1, 1]}, "one link less than devices"),
        ({"output_bytes": [1]}, "as many outputs as layers"),
        ({"layer_s": [1, np.nan, 1]}, "layer_s must be a row"),
        ({"layer_s": [], "output_bytes": []}, "at least one of each"),
        ({"layer_bytes": [1, 1, 1]}, "give both or neither"),
        ({"layer_bytes": [1, 1], "memory_bytes": [1, 1]}, "layer_bytes needs 3 numbers, not 2"),
    ],
)
def test_senseless_input_is_refused(changes, text):
    given = {"layer_s": [1, 1, 1], "power": [1, 1], "output_bytes": [1, 1, 1], "bandwidth": [1], **changes}
    with pytest.raises(PlanError, match=text):
        plan_confidant(**given)
