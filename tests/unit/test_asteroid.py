"""Asteroid's planner: the round by its definition, samples and pipelines against all there are."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from morphling.errors import Infeasible, PlanError
from morphling.planning.asteroid import LayerProfile, allocate, plan_asteroid, round_latency
from morphling.planning.costs import Rates

# --- the round ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("link", "seconds"), [(0, 33), (0.5, 36), (1, 39), (2, 49), (3, 69)])
def test_round_of_four_stages_and_eight_micro_batches(link, seconds):
    # Recomputed from the published step model: forward 1, backward 2, transfers each way over each link.
    assert round_latency([1, link, 1, link, 1, link, 1], [2, link, 2, link, 2, link, 2], [0] * 7, 8) == seconds


def by_definition(forward, backward, sync, micro_batches):
    steps = range(len(forward))
    both = [f + b for f, b in zip(forward, backward, strict=True)]
    dominant = max(steps, key=lambda c: micro_batches * both[c] + sum(both[:c]))
    rounds = []
    for s in steps:
        execution = micro_batches * both[dominant]
        execution += sum(both[s:dominant]) if s < dominant else -sum(both[dominant:s])
        rounds.append(sum(forward[:s]) + execution + sync[s])
    return max(rounds)


@pytest.mark.parametrize("seed", range(50))
def test_round_is_the_definition(seed):
    random = np.random.default_rng(seed)
    steps = 2 * int(random.integers(1, 6)) - 1
    forward, backward, sync = random.random((3, steps))
    sync[1::2] = 0
    micro_batches = int(random.integers(1, 9))
    expected = by_definition(forward, backward, 5 * sync, micro_batches)
    assert round_latency(forward, backward, 5 * sync, micro_batches) == pytest.approx(expected)


# --- samples --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_samples_are_the_best_of_all_divisions(seed):
    random = np.random.default_rng(seed)
    size, samples = int(random.integers(1, 5)), int(random.integers(1, 7))
    times = np.cumsum(random.random((size, samples + 1)) * (random.random((size, 1)) + 0.1), axis=1)
    times[:, 0] = 0
    most = random.integers(0, samples + 2, size)
    ways = [w for w in product(range(samples + 1), repeat=size) if sum(w) == samples and (np.array(w) <= most).all()]
    if not ways:
        with pytest.raises(Infeasible, match=f"a group of {size} devices has memory for"):
            allocate(times, most, samples)
        return
    given = allocate(times, most, samples)
    assert given.sum() == samples
    assert (given <= most).all()
    ids = np.arange(size)
    assert times[ids, given].max() == min(times[ids, list(w)].max() for w in ways)


def test_samples_follow_speed_and_memory():
    # 1, 2 and 5 times as fast, 8 samples; the fastest can hold but 2, the others take what is left as 1 to 2
    times = np.arange(9) / np.array([[1.0], [2.0], [5.0]])
    assert allocate(times, np.array([8, 8, 8]), 8).tolist() == [1, 2, 5]
    assert allocate(times, np.array([8, 8, 2]), 8).tolist() == [2, 4, 2]


# --- pipelines ------------------------------------------------------------------------------------------------------


def world(seed, devices, layers, *, memory=np.inf, same=False):
    random = np.random.default_rng(seed)
    speed = 1 + random.random((devices, 1, 1))
    work = np.ones((1, layers, 1)) if same else 0.2 + random.random((1, layers, 1))
    growth = np.array([0, 1, 1.7, 2.6])  # not in proportion to samples
    forward = speed * work * growth
    weights = np.full(layers, 3.0) if same else 1 + 4 * random.random(layers)
    profile = LayerProfile(forward, 2 * forward, weights, 1 + random.random(layers), np.ones(layers))
    rates = Rates.of(
        np.ones(devices), 2 + 3 * random.random(devices), 1 + random.random(devices),
        latency_s=0.1 * random.random(devices), memory_bytes=memory * (1 + random.random(devices)),
    )  # fmt: skip
    return profile, rates


def steps_of(profile, rates, groups, ranges):
    """E_f, E_b and T_a of a pipeline, pair by pair; None where memory is short."""
    steps, stages = [], len(groups)
    for p, (group, (first, end)) in enumerate(zip(groups, ranges, strict=True)):
        forward, backward = (x[list(group), first:end].sum(axis=1) for x in (profile.forward_s, profile.backward_s))
        warm_up = 2 * (stages - p) - 1
        free = rates.memory_bytes[list(group)] - 3 * profile.weight_bytes[first:end].sum()
        most = np.floor(np.minimum(free / (warm_up * profile.kept_bytes[first:end].sum()), 99)).astype(int)
        try:
            given = allocate(forward + backward, np.maximum(most, 0), profile.samples)
        except Infeasible:
            return None
        ids, k, sync = np.arange(len(group)), len(group), 0.0
        if k > 1:
            slow = min(min(rates.up[i], rates.down[j]) for i in group for j in group if i != j)
            sync = 2 * (k - 1) / k * profile.weight_bytes[first:end].sum() / slow
        steps.append((forward[ids, given].max(), backward[ids, given].max(), sync))
        if p + 1 < stages:
            size, pairs = profile.samples * profile.output_bytes[end - 1], list(product(group, groups[p + 1]))
            late = max(rates.latency_s[i] + rates.latency_s[j] for i, j in pairs)
            there = size / min(min(rates.up[i], rates.down[j]) for i, j in pairs)
            back = size / min(min(rates.up[j], rates.down[i]) for i, j in pairs)
            steps.append((there + late, back + late, 0.0))
    return np.array(steps).T


def latency_of(profile, rates, groups, ranges, micro_batches):
    steps = steps_of(profile, rates, groups, ranges)
    return np.inf if steps is None else by_definition(*steps.tolist(), micro_batches)


def slow_plan(profile, rates, micro_batches, stages):
    """Algorithm 2 in plain loops: Q(l, n, p) keeps its best pipeline, and only that is extended."""
    devices, layers, _ = profile.forward_s.shape
    order = sorted(range(devices), key=lambda d: -rates.memory_bytes[d])
    table = {}
    for p in range(1, stages + 1):
        for count in range(1, layers + 1):
            for n in range(1, devices + 1):
                found = (np.inf, None, None)
                tails = [(0, 0)] if p == 1 else product(range(1, count), range(1, n))
                for rest, others in tails:
                    _, groups, ranges = table.get((rest, others, p - 1), (0, [], []))
                    if groups is None or (p > 1 and not groups):
                        continue
                    head = order[devices - n : devices - others]
                    pipeline = [head, *groups], [(layers - count, layers - rest), *ranges]
                    seconds = latency_of(profile, rates, *pipeline, micro_batches)
                    if seconds < found[0]:
                        found = (seconds, *pipeline)
                table[count, n, p] = found
    return min((table[layers, devices, p] for p in range(1, stages + 1)), key=lambda found: found[0])


def every_pipeline(devices, layers):
    for stages in range(1, min(devices, layers) + 1):
        for a, b in product(combinations(range(1, devices), stages - 1), combinations(range(1, layers), stages - 1)):
            groups = [range(x, y) for x, y in zip((0, *a), (*a, devices), strict=True)]
            yield groups, list(zip((0, *b), (*b, layers), strict=True))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("memory", [np.inf, 20.0, 30.0, 45.0])
def test_plan_is_the_slow_algorithm_and_near_the_best_of_all(seed, memory):
    devices, layers, micro_batches = 4, 5, 4
    profile, rates = world(seed, devices, layers, memory=memory, same=seed % 2 == 0)
    expected = slow_plan(profile, rates, micro_batches, 4)
    if np.isinf(expected[0]):
        with pytest.raises(Infeasible, match="no pipeline of up to 4 stages fits: "):
            plan_asteroid(profile, rates, micro_batches)
        return
    plan = plan_asteroid(profile, rates, micro_batches)
    assert plan.latency_s == pytest.approx(expected[0])
    assert [list(g) for g in plan.groups] == [list(g) for g in expected[1]]
    assert list(plan.layers) == expected[2]
    assert [plan.forward_s, plan.backward_s, plan.sync_s] == [
        pytest.approx(x) for x in steps_of(profile, rates, plan.groups, plan.layers)
    ]
    order = np.argsort(-rates.memory_bytes, kind="stable")
    best = min(
        latency_of(profile, rates, [order[list(g)].tolist() for g in groups], ranges, micro_batches)
        for groups, ranges in every_pipeline(devices, layers)
    )
    assert best - 1e-9 <= plan.latency_s <= 1.1 * best
    assert [sum(s) for s in plan.samples] == [3] * len(plan.groups)
    assert plan.warm_up == tuple(2 * (len(plan.groups) - p) - 1 for p in range(len(plan.groups)))
    assert not plan.restricted


def test_many_devices_start_groups_at_some_places_only():
    profile, rates = world(1, 90, 6, same=True)
    plan = plan_asteroid(profile, rates, 8, cuts=7, stages=4)
    assert plan.restricted
    assert sorted(d for group in plan.groups for d in group) == list(range(90))
    assert plan.layers[0][0] == 0
    assert plan.layers[-1][1] == 6
    assert all(a[1] == b[0] for a, b in zip(plan.layers, plan.layers[1:], strict=False))
    places = [i * 90 // 7 for i in range(8)]
    assert {sum(len(g) for g in plan.groups[:p]) for p in range(len(plan.groups) + 1)} <= set(places)
    assert plan.latency_s == pytest.approx(latency_of(profile, rates, plan.groups, plan.layers, 8))
    assert plan_asteroid(profile, rates, 8, cuts=30, stages=4).latency_s <= plan.latency_s * 1.001


def test_a_linear_profile_by_hand():
    profile = LayerProfile.linear([2.0, 4.0], [8.0, 16.0], 2, weight_bytes=1, output_bytes=[2, 3], kept_bytes=5)
    assert profile.forward_s.tolist() == [[[0, 4, 8], [0, 8, 16]], [[0, 2, 4], [0, 4, 8]]]
    assert (profile.backward_s == 2 * profile.forward_s).all()
    assert profile.output_bytes.tolist() == [2, 3]
    assert profile.samples == 2


def test_one_device_computes_everything():
    profile = LayerProfile.linear([1.0], [1.0, 2.0], 2, weight_bytes=1, output_bytes=1, kept_bytes=1)
    plan = plan_asteroid(profile, Rates.of([1.0], 0.0, 0.0), 3)
    assert (plan.latency_s, plan.groups, plan.layers) == (3 * 3 * 6.0, ((0,),), ((0, 2),))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"weight_bytes": np.array([1.0, -1.0])}, "weight_bytes must be 2 finite numbers"),
        ({"output_bytes": np.ones(3)}, "output_bytes must be 2"),
        ({"forward_s": np.zeros((1, 2, 1))}, "times must be two arrays"),
        ({"backward_s": np.array([[[0, 2, 1.0]] * 2])}, "backward_s must be finite, 0 for no sample"),
        ({"forward_s": np.array([[[1, 2, 3.0]] * 2])}, "forward_s must be finite, 0 for no sample"),
    ],
)
def test_senseless_profiles_are_refused(changes, text):
    times = np.array([[[0, 1, 2.0]] * 2])
    given = {"forward_s": times, "backward_s": times, **dict.fromkeys(("weight_bytes", "output_bytes"), np.ones(2))}
    with pytest.raises(PlanError, match=text):
        LayerProfile(**{**given, "kept_bytes": np.ones(2), **changes})


def test_senseless_requests_are_refused():
    profile, rates = world(0, 3, 2)
    with pytest.raises(PlanError, match="the profile has 3 devices, the rates 2"):
        plan_asteroid(profile, rates.take(np.array([0, 1])), 1)
    with pytest.raises(PlanError, match="at least 1"):
        plan_asteroid(profile, rates, 0)
    with pytest.raises(PlanError, match="without a link"):
        plan_asteroid(profile, Rates.of(np.ones(3), 1.0, [1.0, 0.0, 1.0]), 1)
    with pytest.raises(PlanError, match="above zero"):
        LayerProfile.linear([0.0], [1.0], 1, weight_bytes=1, output_bytes=1, kept_bytes=1)
