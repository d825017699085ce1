"""Confidant as a strategy: the cut, asynchronous rounds, versions of weights, copies and recovery, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from morphling.errors import Infeasible, PlanError
from morphling.fleet import Availability
from morphling.planning.confidant import plan_confidant
from morphling.planning.group_costs import confident
from morphling.planning.pipeline_times import simulate
from morphling.planning.schedules import pipedream
from morphling.results import metrics
from morphling.strategies.confidant import Confidant, ConfidantConfig
from morphling.testing import replay
from morphling.types import FAR_NS, Kind
from morphling.workload import activation_bytes
from morphling.workload.models import layer_parameters
from tests.unit.test_pipelines import BOUNDARY, FORWARD, HEAD, fleet, passes, workload

S = 10**9


def made(**more):
    return Confidant(ConfidantConfig(**{"micro_batch": 1, "detection_s": 10.0, **more}))


def leaving(where, at_s):
    """``at_s`` : device → when it leaves."""
    sessions = [[(0, round(at_s[d] * S) if d in at_s else FAR_NS)] for d in range(where.size)]
    return replace(where, availability=Availability.of(sessions))


def outside(model):
    """Bytes of weights before the first layer and behind the last, of a table that is not shared."""
    return 2 * (8 * 64 + model.position_rows * 64), 2 * (2 * 64 + 8 * 64)


def test_the_line_is_replayed_without_a_flush():
    s = made()
    run = replay(s, fleet(4), workload(4, 8))
    forward, backward = [FORWARD] * 3 + [FORWARD + HEAD], [2 * FORWARD] * 3 + [2 * (FORWARD + HEAD)]
    timing = simulate(pipedream(4, 8), forward, backward, transfer=BOUNDARY * 1000, duplex="uplink")
    assert run.recording.end_ns == passes(run)[2].max() == timing.makespan
    assert not (run.dispatches[0].tasks.kind == Kind.OPTIMIZER).any()
    plan = s.report()["plan"]
    # boundaries: 3,072 bytes take 3 ms there and 3 ms back; a stage takes 3 x 2.5 ms, the last a little more
    assert plan["micro_batch_s"] == pytest.approx(3 * (FORWARD + HEAD) / 1e9)
    assert plan["steady_iteration_s"] == 8 * plan["micro_batch_s"]


@pytest.mark.parametrize("seed", range(5))
def test_the_cut_is_that_of_the_published_programme(seed):
    rng = np.random.default_rng(seed)
    flops, up = rng.uniform(1e9, 6e9, 4), rng.integers(4_000_000, 12_000_000, 4)
    w = workload(12, 4)
    s = made()
    replay(s, fleet(4, flops=flops, up=up, down=64_000_000), w)
    time = np.full(12, 3 * FORWARD / flops[0])
    time[-1] += 3 * HEAD / flops[0]
    # The programme has one rate for a link; as its sum is there and back, that is the harmonic mean of both.
    both = 2 / (1 / (up[:-1] / 8) + 1 / (up[1:] / 8))
    found = plan_confidant(time, flops[0] / flops, np.full(12, BOUNDARY), both)
    assert s.report()["plan"]["micro_batch_s"] == pytest.approx(found.batch_s)


def test_more_devices_than_layers_leave_the_slow_ones_out():
    s = made()
    replay(s, fleet(5, flops=[2e9, 1e9, 3e9, 2e9, 5e8], up=8e9), workload(3, 4))
    assert s.report()["plan"]["groups"] == [[0], [2], [3]]


def test_a_stage_holds_a_version_of_its_weights_for_each_micro_batch_on_its_way():
    w = workload(3, 8)
    s = made()
    replay(s, fleet(3, up=8e9), w)
    first, last = outside(w.model)
    each = 2 * layer_parameters(w.model)
    assert [m.other for m in s.placement.memory] == [2 * (each + first), each, 0 * last]
    kept = activation_bytes(w.model, 1, 24, "none")
    assert [m.activations for m in s.placement.memory][:2] == [3 * kept, 2 * kept]


def test_memory_moves_layers_and_then_leaves_devices_out():
    w = workload(6, 4)
    free = made()
    replay(free, fleet(3, up=8e9), w)
    assert free.report()["plan"]["layers"] == [2, 2, 2]
    need = [m.total for m in free.placement.memory]
    one = 16 * layer_parameters(w.model) + activation_bytes(w.model, 1, 24, "none") * 2
    s = made()
    replay(s, fleet(3, up=8e9, memory=[2 * need[0], need[1] - one, 2 * need[2]]), w)
    assert s.report()["plan"]["layers"][1] == 1
    s = made()
    replay(s, fleet(3, up=8e9, memory=[3 * need[0], 1_000_000, 3 * need[2]]), w)
    assert s.report()["plan"]["groups"] == [[0], [2]]
    with pytest.raises(Infeasible, match="stage 0 of 3 has"):
        replay(made(), fleet(3, up=8e9, memory=1_200_000), w)


def test_a_lost_stage_comes_from_the_copy_behind_it():
    # Six layers, 2 each; device 0 leaves.  Device 1 has a copy of 0 and 1 and has 2 and 3; 3 goes to device 2.
    w = workload(6, 6)
    quiet = replay(made(), fleet(3), w).recording.end_ns / S
    s = made()
    replay(s, leaving(fleet(3), {0: 1.5 * quiet}), w, iterations=2)
    (entry,) = s.report()["recoveries"]
    layer = 2 * layer_parameters(w.model)
    assert s.report()["plan"]["layers"] == [3, 3]
    assert (entry["moved_bytes"], entry["iterations_redone"]) == (layer, 0)
    assert entry["detected_ns"] - entry["lost_ns"] == 10 * S
    assert entry["moved_ns"] - entry["planned_ns"] == layer * 1000
    assert entry["ready_ns"] == entry["moved_ns"]


def test_without_a_copy_the_coordinator_has_one_and_batches_are_lost():
    # Devices 0 and 1 leave together: layers 0 and 1 come from the coordinator (8 bytes a microsecond), as old as its
    # copy after 12 micro-batches, two iterations; 2 and 3 are on the copy of device 2.
    w = workload(6, 6)
    s = made(central_every=12, neighbour_every=0)
    # In the middle of the fourth iteration; that and the third are done again.
    ends = replay(made(central_every=12, neighbour_every=0), fleet(3), w, iterations=4).recording.iteration_ends_ns
    at = (ends[2] + ends[3]) / 2 / S
    run = replay(s, leaving(fleet(3), {0: at, 1: at}), w, iterations=4)
    (entry,) = s.report()["recoveries"]
    lost = 2 * 2 * layer_parameters(w.model) + outside(w.model)[0]
    assert s.report()["plan"]["layers"] == [6]
    assert entry["moved_bytes"] == lost
    assert entry["moved_ns"] - entry["planned_ns"] == lost * 125
    assert entry["iterations_redone"] == 1
    assert [d.label for d in run.dispatches if "replay" in d.label] == [
        "recovery/replay iteration 3", "recovery/replay iteration 4",
    ]  # fmt: skip


def test_copies_are_counted_in_micro_batches():
    # 8 micro-batches an iteration: copies are due after 5, 10, 15, 20 and 25 of them: 1, 2, 0, 1 (32: 30 too) ...
    s = made(neighbour_every=5, central_every=24)
    run = replay(s, fleet(4), workload(4, 8), iterations=4)
    sent = {d.label: d.tasks for d in run.dispatches if d.label.startswith("upkeep")}
    each = 2 * layer_parameters(workload(4, 8).model)
    counts = [int(t.bytes_out[(t.device == 1) & (t.peer == 2)].sum()) / each for t in sent.values()]
    assert counts == [8 // 5, 16 // 5 - 8 // 5, 24 // 5 - 16 // 5]
    central = sent["upkeep/after iteration 3"]
    assert central.bytes_out[(central.device == 1) & (central.peer == -1)].tolist() == [each]


def test_the_timer_is_twice_a_micro_batch():
    s = Confidant(ConfidantConfig(micro_batch=1))
    replay(s, leaving(fleet(4), {1: 0.05}), workload(4, 8))
    (entry,) = s.report()["recoveries"]
    assert entry["detected_ns"] - entry["lost_ns"] == round(2 * 3 * (FORWARD + HEAD))


def test_the_published_formula_stands_for_the_run():
    from morphling.planning.costs import Rates

    w = workload(4, 8)
    s = made(model="paper")
    run = replay(s, fleet(4), w)
    wanted = confident(w.model, 8, 24, Rates.of(np.full(4, 1e9), 8e6, 1e6))
    assert run.recording.end_ns == round(wanted.total_s * 1e9)


def test_checkpoints_are_its_own():
    with pytest.raises(ValueError, match="use central_every"):
        ConfidantConfig(checkpoint_every=100)
    with pytest.raises(ValueError, match="detection_s: seconds from 0 on"):
        ConfidantConfig(detection_s=-1.0)


# ------------------------------------------------------------------------------------------------ proactive hand-over


def test_who_announces_its_exit_hands_over_to_an_idle_device_and_nothing_is_lost():
    """Device 1 says in the middle of the first of three iterations that it goes, and goes in that of the third."""
    w, quiet = workload(4, 8), replay(made(), fleet(5), workload(4, 8), iterations=3)
    first, second, third = quiet.recording.iteration_ends_ns
    assert quiet.strategy.placement.devices.tolist() == [0, 1, 2, 3]
    said = first // 2
    weights = 2 * layer_parameters(w.model)
    moving = weights * 1000  # 1 MB/s: a byte takes 1 us
    s = made(announced=[[1, said / S]])
    run = replay(s, leaving(fleet(5), {1: (third + second) / 2 / S + moving / S}), w, iterations=3)
    assert s.placement.devices.tolist() == [0, 4, 2, 3]
    (x,) = s.report()["recoveries"]
    assert (x["lost_ns"], x["detected_ns"], x["planned_ns"], x["rows"]) == (said, said, first, 0)
    assert x["moved_bytes"] == weights
    assert x["moved_ns"] == x["ready_ns"] == x["replayed_ns"] == first + moving
    assert (x["iterations_redone"], x["abandoned"]) == (0, [])
    assert run.recording.iteration_ends_ns == [first, second + moving, third + moving]
    assert not any(d.lost.any() for d in run.recording.dispatches)
    got = metrics(run.recording, fleet(5), 1.0, s.report())
    assert (got["recovery_detection_s"], got["recovery_recompute_s"], got["discarded_compute_s"]) == (0, 0, 0)
    assert got["recovery_redispatch_s"] == moving / S
    assert got["recovery_moved_bytes"] == weights


def test_copies_that_are_due_at_a_hand_over_are_made_of_the_new_line():
    """Eight micro-batches an iteration, copies after each eight; device 1 hands over to device 4 after the first."""
    w = workload(4, 8)
    first = replay(made(), fleet(5), w).recording.end_ns
    layer, (head, tail) = 2 * layer_parameters(w.model), outside(w.model)
    s = made(announced=[[1, first / 2 / S]], neighbour_every=8, central_every=8)
    run = replay(s, fleet(5), w, iterations=2)
    labels = [d.label for d in run.dispatches]
    assert labels == ["iteration 1", "recovery/hand-over", "upkeep/after iteration 1", "iteration 2"]
    sent = run.dispatches[2].tasks
    rows = set(zip(sent.device.tolist(), sent.peer.tolist(), sent.bytes_out.tolist(), strict=True))
    sizes = {0: layer + head, 4: layer, 2: layer, 3: layer + tail}
    near = {(d, to, sizes[d]) for d, to in ((0, 4), (4, 2), (2, 3), (3, 0))}
    assert rows == near | {(d, -1, n) for d, n in sizes.items()}
    assert s.saved == 1
    assert s.copies == {1: range(1), 4: range(1), 2: range(1, 2), 3: range(2, 3), 0: range(3, 4)}  # 1 keeps its own


@pytest.mark.parametrize("flops", [[2e9] * 4 + [1e9], [2e9] * 4])
def test_without_an_idle_device_as_fast_the_exit_is_waited_for(flops):
    s = made(announced=[[1, 0.0]])
    run = replay(s, fleet(len(flops), flops=np.array(flops)), workload(4, 8), iterations=2)
    assert s.placement.devices.tolist() == [0, 1, 2, 3]
    assert s.report()["recoveries"] == []
    assert len(run.recording.iteration_ends_ns) == 2


def test_who_goes_while_it_hands_over_is_recovered_from():
    w = workload(4, 8)
    first = replay(made(), fleet(5), w).recording.end_ns
    gone = first + layer_parameters(w.model) * 1000  # half of the weights are there
    s = made(announced=[[1, 0.0]], detection_s=0.5)
    run = replay(s, leaving(fleet(5), {1: gone / S}), w, iterations=2)
    both = s.report()["recoveries"]
    assert [x.get("announced", False) for x in both] == [True, False]
    assert both[1]["lost_ns"] == gone
    assert both[1]["detected_ns"] == gone + S // 2
    assert 1 not in s.placement.devices
    assert len(run.recording.iteration_ends_ns) == 2


def test_a_copy_goes_with_its_device_also_after_that_has_handed_over():
    """Device 1 keeps the copy of stage 0, hands stage 1 over and leaves; then stage 0 leaves: no copy is left."""
    w = workload(4, 8)
    first = replay(made(), fleet(6), w).recording.end_ns
    s = made(announced=[[1, 0.0]], neighbour_every=0, central_every=0)
    there = leaving(fleet(6), {1: 2.2 * first / S, 0: 2.6 * first / S})
    run = replay(s, there, w, iterations=4)
    assert 1 not in s.copies
    assert s.report()["recoveries"][-1]["iterations_redone"] > 0  # from the coordinator's initial copy
    assert len(run.recording.iteration_ends_ns) == 4


@pytest.mark.parametrize("said", [[1], [1.5, 2.0], [-1, 2.0], [1, -2.0]])
def test_announcements_that_are_none_are_refused(said):
    with pytest.raises(ValueError, match="announced: a device's number and seconds"):
        ConfidantConfig(announced=[said])
    with pytest.raises(PlanError, match="there is no device 7; the last one is 3"):
        replay(made(announced=[[7, 1.0]]), fleet(4), workload(4, 8))
