"""DT-FM's planner: matchings and routes against all permutations, costs by hand, searches that repeat."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest

from morphling.errors import Infeasible, PlanError
from morphling.planning import dtfm
from morphling.planning.dtfm import DtfmCosts, plan_dtfm
from morphling.planning.matching import bottleneck_matching, bottleneck_value, cheapest_path


def network(size, stages, seed=0, **more):
    random = np.random.default_rng(seed)
    latency, rate = random.random((size, size)), 1e6 * (1 + random.random((size, size)))
    sizes = {"gradient_bytes": 2e6, "activation_bytes": 1e6, **more}
    return DtfmCosts(latency + latency.T, rate + rate.T, stages=stages, **sizes)


# --- matchings and routes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_bottleneck_is_the_best_of_all_matchings(seed):
    random = np.random.default_rng(seed)
    size = 1 + seed % 6
    cost = random.integers(0, 6, (size, size)).astype(float) if seed % 2 else random.random((size, size))
    value, columns = bottleneck_matching(cost)
    assert value == min(max(cost[i, p[i]] for i in range(size)) for p in permutations(range(size)))
    assert sorted(columns.tolist()) == list(range(size))
    assert cost[np.arange(size), columns].max() == value


def test_a_large_matching_is_the_known_one():
    # All but one hidden permutation is dear; 70 columns are more than one machine word.
    random = np.random.default_rng(3)
    hidden = random.permutation(70)
    cost = 10 + random.random((70, 70))
    cost[np.arange(70), hidden] = random.random(70)
    value, columns = bottleneck_matching(cost)
    assert value == cost[np.arange(70), hidden].max()
    assert columns.tolist() == hidden.tolist()


@pytest.mark.parametrize("seed", range(30))
def test_the_exact_route_is_the_best_of_all_orders(seed):
    random = np.random.default_rng(seed)
    size = 1 + seed % 7
    cost = random.random((size, size))
    cost += cost.T
    best = min(sum(cost[p[i], p[i + 1]] for i in range(size - 1)) for p in permutations(range(size)))
    length, order, proven = cheapest_path(cost)
    assert proven
    assert length == pytest.approx(best)
    assert sum(cost[a, b] for a, b in pairwise(order)) == pytest.approx(best)


def test_the_heuristic_route_is_near_the_exact_one_and_says_so():
    random = np.random.default_rng(0)
    ratios = []
    for _ in range(20):
        cost = random.random((11, 11))
        cost += cost.T
        length, order, proven = cheapest_path(cost, exact=1)
        assert not proven
        assert sorted(order.tolist()) == list(range(11))
        assert length == pytest.approx(cost[order[:-1], order[1:]].sum())
        ratios.append(length / cheapest_path(cost)[0])
    assert min(ratios) > 1 - 1e-12
    assert np.mean(ratios) < 1.05


def test_many_groups_on_a_line_are_found_in_order():
    at = np.random.default_rng(1).permutation(40).astype(float)
    length, order, proven = cheapest_path(np.abs(at[:, None] - at[None, :]))
    assert (length, proven) == (39.0, False)
    assert np.abs(np.diff(at[order])).tolist() == [1.0] * 39


@pytest.mark.parametrize("cost", [np.zeros((2, 3)), np.zeros((0, 0)), np.zeros(4)])
def test_what_is_not_square_is_refused(cost):
    with pytest.raises(ValueError, match="square"):
        bottleneck_value(cost)
    with pytest.raises(ValueError, match="square"):
        cheapest_path(cost)


def test_infinite_costs_are_refused():
    with pytest.raises(ValueError, match="finite"):
        bottleneck_value(np.array([[1.0, np.inf], [1.0, 1.0]]))


# --- costs ----------------------------------------------------------------------------------------------------------


def test_costs_by_hand():
    # 4 devices on a line, 1 MB/s everywhere, latency = distance; 2 stages of 2
    at = np.arange(4.0)
    model = DtfmCosts(
        np.abs(at[:, None] - at), np.full((4, 4), 1e6), gradient_bytes=2e6, activation_bytes=3e6, stages=2
    )
    cost = model.evaluate([[0, 1], [2, 3]])
    # DP: 2 (1 + 2/(2·1)) = 4;  PP: 0-2 and 1-3, or 0-3 and 1-2 at worst 3: 2 + 3 = 5
    assert cost == pytest.approx((4 + 10, 4, 5))
    pipelines, hops, proven = model.pipelines([[0, 1], [2, 3]])
    assert proven
    assert hops.tolist() == [5.0]
    assert np.abs(np.diff(pipelines, axis=0)).tolist() == [[2, 2]]


def test_unequal_directions_cost_half_of_there_and_back():
    rate = np.array([[1.0, 4e6], [1e6, 1.0]])
    model = DtfmCosts(np.zeros((2, 2)), rate, gradient_bytes=0, activation_bytes=4e6, stages=2)
    assert model.evaluate([[0], [1]]) == pytest.approx((1 + 4, 0, 2.5))


def test_hops_of_a_plan_add_up_to_its_cost():
    model = network(24, 6)
    plan = plan_dtfm(model, 5, population=10, offspring=20, time_limit_s=None)
    assert np.sort(plan.pipelines, axis=None).tolist() == list(range(24))
    assert plan.pipelines.shape == (6, 4)
    assert plan.hops_s.sum() == pytest.approx(plan.cost.pipeline_s)
    for stage, slowest in enumerate(plan.hops_s):
        assert model.across[plan.pipelines[stage], plan.pipelines[stage + 1]].max() == slowest
    assert model.data_parallel_s(plan.pipelines) == plan.cost.data_parallel_s
    assert plan.cost.total_s == plan.cost.data_parallel_s + 2 * plan.cost.pipeline_s


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"stages": 5}, Infeasible, "24 devices cannot form 5 equal stages; the nearest number is 4"),
        ({"stages": 0}, Infeasible, "the nearest number is 1"),
        ({"gradient_bytes": -1}, PlanError, "not negative"),
        ({"latency_s": np.full((24, 24), np.nan)}, PlanError, "latencies"),
        ({"bandwidth": np.zeros((24, 24))}, PlanError, "above zero"),
        ({"bandwidth": np.ones((3, 24))}, PlanError, "square"),
    ],
)
def test_senseless_networks_are_refused(changes, kind, text):
    given = {
        "latency_s": np.zeros((24, 24)),
        "bandwidth": np.ones((24, 24)),
        "gradient_bytes": 1,
        "activation_bytes": 1,
        "stages": 4,
        **changes,
    }
    with pytest.raises(kind, match=text):
        DtfmCosts(**given)


def test_partitions_must_hold_everybody_once():
    with pytest.raises(PlanError, match="each of 4 devices once"):
        network(4, 2).evaluate([[0, 1], [1, 2]])


# --- the search -----------------------------------------------------------------------------------------------------


def test_the_search_finds_the_best_of_all_partitions_of_few_devices():
    for seed in range(5):
        model = network(6, 3, seed)
        best = min(model.evaluate(np.reshape(p, (3, 2))).total_s for p in permutations(range(6)))
        plan = plan_dtfm(model, 0, population=20, offspring=100, time_limit_s=None)
        assert plan.cost.total_s == pytest.approx(best)


def test_the_same_seed_is_the_same_plan_and_another_is_another():
    model = network(32, 4)
    plans = [plan_dtfm(model, seed, population=8, offspring=12, time_limit_s=None) for seed in (1, 1, 2)]
    assert plans[0].pipelines.tolist() == plans[1].pipelines.tolist()
    assert plans[0].cost == plans[1].cost
    assert plans[0].pipelines.tolist() != plans[2].pipelines.tolist()
    assert (plans[0].evaluations, plans[0].asked, plans[0].cut, plans[0].seed) == (20, 20, False, 1)


def test_a_cut_search_says_so_and_can_be_found_again(monkeypatch):
    model, now = network(32, 4), iter(range(100))
    monkeypatch.setattr(dtfm, "monotonic", lambda: next(now))
    cut = plan_dtfm(model, 1, population=8, offspring=40, time_limit_s=15)
    assert (cut.cut, cut.evaluations, cut.asked) == (True, 15, 48)
    again = plan_dtfm(model, 1, population=8, offspring=40, evaluations=cut.evaluations, time_limit_s=None)
    assert not again.cut
    assert again.pipelines.tolist() == cut.pipelines.tolist()
    assert again.cost == cut.cost


def test_a_time_limit_of_nothing_still_gives_a_plan(monkeypatch):
    now = iter(range(0, 1000, 100))
    monkeypatch.setattr(dtfm, "monotonic", lambda: next(now))
    plan = plan_dtfm(network(8, 2), 1, time_limit_s=0.001)
    assert (plan.cut, plan.evaluations) == (True, 1)
    assert plan.pipelines.shape == (2, 4)


@pytest.mark.parametrize(("devices", "stages"), [(6, 1), (6, 6), (1, 1)])
def test_the_search_copes_with_one_stage_and_with_one_device_a_stage(devices, stages):
    plan = plan_dtfm(network(devices, stages), 0, population=3, offspring=9, time_limit_s=None)
    assert plan.pipelines.shape == (stages, devices // stages)
    assert plan.cost.pipeline_s == pytest.approx(plan.hops_s.sum())


def test_moves_keep_every_group_at_its_size():
    model = network(40, 5)
    for seed in range(10):
        labels = np.random.default_rng(seed).permutation(40) // 8
        for aim in dtfm.GAINS:
            moved = dtfm._moved(labels, model.across, 5, aim)
            assert np.bincount(moved).tolist() == [8] * 5
            assert moved.tolist() != labels.tolist()


def test_what_is_kept_while_devices_move_is_what_counting_anew_gives():
    model, random = network(20, 4), np.random.default_rng(2)
    for aim in dtfm.GAINS:
        groups = dtfm._Groups(np.arange(20) // 5, model.across, 4, aim)
        for _ in range(12):
            groups.move(int(random.integers(20)), int(random.integers(4)))
        for group in range(4):
            members = groups.labels == group
            assert groups.total[:, group] == pytest.approx(model.across[:, members].sum(axis=1), abs=1e-9)
            for device in range(20):
                others = members & (np.arange(20) != device)
                nearest = model.across[device, others].min(initial=groups.dearest)
                assert groups.nearest[device, group] == nearest


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"population": 0}, "population"),
        ({"offspring": -1}, "offspring"),
        ({"evaluations": 0}, "evaluations"),
        ({"time_limit_s": 0}, "time_limit_s is 0"),
    ],
)
def test_senseless_searches_are_refused(changes, text):
    with pytest.raises(PlanError, match=text):
        plan_dtfm(network(4, 2), 0, **changes)
