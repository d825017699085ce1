"""DT-FM as a strategy: pipelines where the links are, fill and drain, sums of gradients, restarts from a checkpoint."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from morphling.errors import Infeasible
from morphling.fleet import Availability
from morphling.planning.costs import Rates
from morphling.planning.group_costs import dtfm
from morphling.planning.pipeline_times import simulate
from morphling.planning.schedules import gpipe
from morphling.strategies.dtfm import Dtfm, DtfmConfig
from morphling.testing import replay
from morphling.types import FAR_NS, Kind
from morphling.workload import activation_bytes, parameters
from morphling.workload.models import layer_parameters
from tests.unit.test_pipelines import BOUNDARY, FORWARD, HEAD, fleet, passes, workload

S = 10**9


def made(**more):
    return Dtfm(DtfmConfig(**{"population": 4, "offspring": 8, **more}))


def test_one_pipeline_fills_and_drains_with_every_layer_computed_again():
    run = replay(made(stages=4), fleet(4), workload(4, 8))
    forward = [FORWARD] * 3 + [FORWARD + HEAD]
    backward = [3 * FORWARD] * 3 + [3 * FORWARD + 2 * HEAD]  # the head is not computed again
    timing = simulate(gpipe(4, 8), forward, backward, transfer=BOUNDARY * 1000, duplex="uplink")
    assert passes(run)[2].max() == timing.makespan


def test_groups_meet_over_the_fast_links():
    # Uplinks of 1 and 4 MB/s.  With gradients of 100 kB a layer and activations of 3 kB, the sums weigh most: of 2 x 2
    # devices the group of the fast ones and that of the slow ones cost as much as mixed ones, 2 (100 kB / 2) at 1 MB/s;
    # so what is left to gain is little.  The plan is as good as the best of all partitions.
    s = made(stages=2, offspring=30)
    replay(s, fleet(4, up=np.array([8e6, 32e6, 8e6, 32e6]), down=64e6), workload(2, 4))
    plan = s.report()["plan"]
    first = 2 * (layer_parameters(workload(2, 4).model) + 8 * 64 + workload(2, 4).model.position_rows * 64)
    assert plan["data_parallel_s"] == pytest.approx(2 * first / 2 / 1e6)
    assert sorted(d for line in plan["groups"] for of in line for d in of) == [0, 1, 2, 3]
    assert (plan["candidates"], plan["search_cut"]) == (34, False)


def test_shares_of_gradients_go_to_their_servers_and_back():
    # Two pipelines of one stage: a share of each half of the weights goes to the other, and the sum comes back.
    w = workload(1, 2)
    run = replay(made(stages=1), fleet(2), w)
    d = run.recording.dispatches[0]
    sends = d.tasks.kind == Kind.TRANSFER
    half = parameters(w.model)  # 2 bytes each, halved
    assert d.tasks.bytes_out[sends].tolist() == [half] * 4
    computed = 4 * FORWARD + 3 * HEAD
    assert d.column("settled_ns")[sends].max() == computed + 2 * half * 1000


def test_as_few_stages_as_the_memory_of_all_allows():
    w = workload(8, 8)
    s = made(stages="fewest")
    replay(s, fleet(8, up=8e9), w)
    assert (s.report()["plan"]["stages"], s.report()["plan"]["pipelines"]) == (1, 8)
    two = made(stages=2)
    replay(two, fleet(8, up=8e9), w)
    room = max(m.total for m in two.placement.memory)
    held = 2 * 4 * BOUNDARY + activation_bytes(w.model, 1, 24, "none")
    assert [m.activations for m in two.placement.memory][:1] == [held]  # 2 micro-batches, 4 layers, a working set
    s = made(stages="fewest")
    replay(s, fleet(8, up=8e9, memory=room), w)
    assert (s.report()["plan"]["stages"], s.report()["plan"]["pipelines"]) == (2, 4)
    # One small device: the other seven go on without it, and one more is left over.  Three pipelines have up to three
    # micro-batches each.
    s = made(stages="fewest")
    replay(s, fleet(8, up=8e9, memory=[room + 4 * BOUNDARY] * 7 + [100_000]), w)
    assert (s.report()["plan"]["stages"], s.report()["plan"]["pipelines"]) == (2, 3)
    assert s.report()["devices_left_out"] == {"not in the plan": 2}


@pytest.mark.parametrize(("up", "stages"), [(8e9, 1), (8e6, 8)])
def test_the_number_of_stages_is_the_fastest(up, stages):
    # On links of 1 GB/s eight replicas of one stage have no bubble; on 1 MB/s their sums of 100 kB a layer take longer
    # than a line of eight stages, which passes on 3 kB.
    took = {}
    for asked in ("fastest", 1, 2, 4, 8):
        s = made(stages=asked)
        took[asked] = replay(s, fleet(8, up=up, down=8 * up), workload(8, 8)).recording.end_ns
        if asked == "fastest":
            assert s.report()["plan"]["stages"] == stages
    assert took["fastest"] <= 1.1 * min(took.values())


def test_what_cannot_be():
    with pytest.raises(Infeasible, match="3 devices and 8 layers cannot fill 5 stages; at most 3"):
        replay(made(stages=5), fleet(3), workload(8, 8))
    with pytest.raises(
        Infeasible, match=r"no device can hold one of 3 stages: the largest of 3, .* has 100 kB, needed "
    ):
        replay(made(), fleet(3, memory=100_000), workload(8, 8))
    for wrong in ({"offspring": -1}, {"population": 0}, {"time_limit_s": 0.0}, {"stages": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            made(**wrong)


def test_a_departure_restarts_from_the_checkpoint_with_a_new_search():
    # Device 1 of 4 leaves in the second iteration; 3 are left, with copies of one stage.  30 s until it is noticed,
    # 90 s for the search, all states of the three (8 bytes a microsecond), 30 s to start; then both iterations again.
    w = workload(2, 4)
    where = fleet(4)
    quiet = replay(made(stages=2), where, w).recording.end_ns
    sessions = [[(0, round(1.5 * quiet) if d == 1 else FAR_NS)] for d in range(4)]
    s = made(stages=2)
    run = replay(s, replace(where, availability=Availability.of(sessions)), w, iterations=2)
    report = s.report()
    (entry,) = report["recoveries"]
    assert (report["plan"]["pipelines"], report["devices_left_out"]) == (1, {"not in the plan": 2})
    assert entry["detected_ns"] - entry["lost_ns"] == 30 * S
    assert entry["planned_ns"] - entry["planning_ns"] == 90 * S
    states = [m.states for m in s.placement.memory]
    assert entry["moved_bytes"] == sum(states)
    assert entry["moved_ns"] - entry["planned_ns"] == max(states) * 125
    assert entry["ready_ns"] - entry["moved_ns"] == 30 * S
    assert entry["iterations_redone"] == 1
    assert [d.label for d in run.dispatches][-2:] == ["recovery/replay iteration 1", "recovery/replay iteration 2"]


def test_the_search_repeats_with_its_seed_and_says_when_it_was_cut():
    w, where = workload(2, 4), fleet(6, up=np.arange(1, 7) * 1_000_000)
    first, second = (replay(made(), where, w, seed=5) for _ in range(2))
    assert first.recording.events_sha256 == second.recording.events_sha256
    cut = made(offspring=100_000, time_limit_s=0.02)
    replay(cut, where, w)
    report = cut.report()
    assert report["plan"]["search_cut"]
    assert any("another machine may find another plan" in x for x in report["assumptions"])
    assert not any("another machine" in x for x in first.strategy.report()["assumptions"])


def test_the_published_formula_stands_for_the_run():
    w = workload(4, 8)
    run = replay(made(model="paper"), fleet(4), w)
    wanted = dtfm(w.model, 8, 24, Rates.of(np.full(4, 1e9), 8e6, 1e6))
    assert run.recording.end_ns == round(wanted.total_s * 1e9)


def test_the_published_formula_says_what_it_assumes_and_nothing_of_rows():
    s = made(model="paper")
    replay(s, fleet(4), workload(4, 8))
    said = s.report()["assumptions"]
    assert "a multiply-add counts as one FLOP, and the LM head is not counted" in said
    assert not any("uplink" in x or "search" in x for x in said)
