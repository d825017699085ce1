"""SWARM: routing, bytes and times of passes, and what happens when peers leave and come, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from morphling.errors import Infeasible
from morphling.fleet import Availability
from morphling.planning.routing import Pool
from morphling.results.metrics import metrics
from morphling.strategies.swarm import Swarm, SwarmConfig
from morphling.testing import replay
from morphling.types import FAR_NS, Kind
from morphling.workload import activation_bytes, parameters
from tests.unit.test_pipelines import FORWARD, HEAD, fleet, workload

S = 10**9
ELEMENTS = 24 * 64
TOKENS = 24 * 4


def made(**more):
    return Swarm(SwarmConfig(**{"micro_batch": 1, "detection_s": 2.0, "checkpoint_every": 0, **more}))


def sessions(devices, **of):
    """``d0=[(from s, to s)]`` : when device 0 is here; the others always are."""
    listed = [
        [(round(a * S), FAR_NS if b is None else round(b * S)) for a, b in of.get(f"d{d}", [(0, None)])]
        for d in range(devices.size)
    ]
    return replace(devices, availability=Availability.of(listed))


def test_the_next_task_goes_to_the_peer_that_is_expected_first():
    pool = Pool(smoothing=0.5, start=1.0)
    pool.add(3)
    pool.add(7)
    assert [pool.choose(1.0) for _ in range(3)] == [3, 7, 3]  # priorities 2 and 1
    pool.observe(7, 3.5, 0.5)  # 7 a second: 0.5 · 1 + 0.5 · 7 = 4
    assert pool.throughput == {3: 1.0, 7: 4.0}
    # 7 takes tasks at a quarter of a second each until both are at 2, and 3 entered first
    assert [pool.choose(1.0) for _ in range(5)] == [7, 7, 7, 7, 3]
    pool.add(1)  # enters at the front, beside the lowest
    assert pool.priority[1] == min(pool.priority[3], pool.priority[7])
    pool.ban(7)
    pool.observe(7, 1.0, 1.0)
    assert set(pool.priority) == set(pool.throughput) == {1, 3}


def test_one_micro_batch_by_hand():
    # Down 8 bytes a microsecond, up 1.  Stage 0: tokens, its layer, 1,536 bytes (8 bits each) up; stage 1: those down,
    # layer and head, the loss up.  Backward: the input again (no gradient for the loss), the forward pass again; then
    # the gradient, with the input, to stage 0, which returns nothing.
    s = made(stages=2)
    run = replay(s, fleet(2), workload(2, 1))
    done = [d for d in run.recording.dispatches if (d.tasks.kind == Kind.GEMM).any()]
    there = TOKENS * 125 + FORWARD + ELEMENTS * 1000 + ELEMENTS * 125 + FORWARD + HEAD + 4 * 1000
    back = ELEMENTS * 125 + 3 * FORWARD + 2 * HEAD + ELEMENTS * 1000 + (TOKENS + ELEMENTS) * 125 + 3 * FORWARD
    assert [d.label for d in done] == [
        "iteration 1 forward 1 stage 0", "iteration 1 forward 1 stage 1",
        "iteration 1 backward 1 stage 1", "iteration 1 backward 1 stage 0",
    ]  # fmt: skip
    assert done[1].settled_ns == there
    assert done[3].settled_ns == there + back
    plain = made(stages=2, compression="none")
    row = next(d for d in replay(plain, fleet(2), workload(2, 1)).dispatches if "stage 1" in d.label).tasks
    assert row.bytes_in.tolist() == [2 * ELEMENTS]


def test_a_pool_sums_its_gradients():
    run = replay(made(stages=1), fleet(2), workload(1, 2))
    sums = next(d for d in run.recording.dispatches if d.label == "iteration 1 sums").tasks
    assert sums.bytes_out.sum() == 2 * 2 * parameters(workload(1, 2).model)  # 2(n-1) vectors, of two members
    assert (sums.kind == Kind.OPTIMIZER).sum() == 2


def test_what_a_peer_holds_stands_in_one_row_at_a_time():
    s = made(stages=1, in_flight=6)
    where = fleet(2)
    run = replay(s, where, workload(1, 12))
    got = metrics(run.recording, where, report=s.report())
    kept = activation_bytes(workload(1, 1).model, 1, 24, "none") + 4 * 24 * (64 + 8)
    assert got["peak_device_memory_bytes"] == 16 * parameters(workload(1, 1).model) + kept


def test_fast_peers_get_more_micro_batches():
    s = made(stages=1, smoothing=0.5)
    replay(s, fleet(2, up=8e9, down=8e9, flops=[3e9, 1e9]), workload(1, 40))
    passes = s.report()["plan"]["passes_of_peers"]
    assert passes["0"] + passes["1"] == 80
    assert passes["0"] > 1.5 * passes["1"]


def test_what_a_lost_peer_had_is_sent_to_another_and_nothing_else():
    # Four micro-batches of FORWARD + HEAD = 2.5 ms, two peers; the first leaves after 1 ms with two passes.  It is sent
    # the backward pass of one that the other peer did, before all is noticed at 2.001 s and done by the other peer.
    s = made(stages=1, in_flight=4)
    where = sessions(fleet(2), d0=[(0, 0.001)])
    run = replay(s, where, workload(1, 4))
    again = [d for d in run.recording.dispatches if d.label.startswith("recovery")]
    assert [d.label.removeprefix("recovery/replay iteration 1 ") for d in again] == [
        "forward 2 stage 0", "forward 4 stage 0", "backward 3 stage 0",
    ]  # fmt: skip
    assert {int(d.tasks.device[0]) for d in again} == {1}
    assert {d.time_ns for d in again} == {2_001_000_000}
    passes = [d for d in run.recording.dispatches if (d.tasks.kind == Kind.GEMM).any()]
    assert len(passes) == 8 + 3
    entry, second = s.report()["recoveries"]
    assert (second["rows"], second["detected_ns"]) == (1, 2_001_000_000)
    assert (entry["lost_ns"], entry["detected_ns"], entry["planned_ns"]) == (1_000_000, 2_001_000_000, 2_001_000_000)
    assert entry["rows"] == 2
    got = metrics(run.recording, where, report=s.report())
    assert got["unrecovered_losses"] == 0
    assert got["recovery_detection_s"] == pytest.approx(2.0 + (2_001_000_000 - second["lost_ns"]) / S)
    assert s.report()["plan"]["peers"] == [[1]]


def test_a_peer_that_leaves_in_the_sums_is_left_out_of_them():
    w = workload(1, 4)
    quiet = replay(made(stages=1), fleet(3), w).recording
    sums = next(d for d in quiet.dispatches if d.label.endswith("sums"))
    at = (sums.time_ns + sums.settled_ns) / 2 / S
    s = made(stages=1)
    where = sessions(fleet(3), d0=[(0, at)])
    run = replay(s, where, w)
    (again,) = [d for d in run.recording.dispatches if d.label.startswith("recovery")]
    assert again.label == "recovery/replay iteration 1 sums"
    assert set(again.tasks.device.tolist()) == {1, 2}
    assert again.time_ns - round(at * S) == 2 * S
    got = metrics(run.recording, where, report=s.report())
    assert (got["unrecovered_losses"], got["recovery_detection_s"]) == (0, 2.0)


def test_a_newcomer_fetches_states_from_a_peer_and_then_serves():
    # Device 1 comes after 1 ms: 16 bytes a parameter from device 0, 1 us a byte.
    s = made(stages=1, in_flight=1)
    w = workload(1, 200)
    run = replay(s, sessions(fleet(2), d1=[(0.001, None)]), w)
    (join,) = [d for d in run.recording.dispatches if d.label.startswith("join")]
    size = 16 * parameters(w.model)
    assert (join.tasks.device.tolist(), join.tasks.peer.tolist(), join.tasks.bytes_out.tolist()) == ([0], [1], [size])
    first = min(d.time_ns for d in run.recording.dispatches if d.tasks.device[0] == 1 and d.tasks.kind[0] == Kind.GEMM)
    assert first >= join.settled_ns
    assert s.report()["plan"]["passes_of_peers"]["1"] > 50


def test_newcomers_that_leave_again_or_come_too_late_are_no_loss_to_recover_from():
    # Device 1 leaves while it fetches states, and is back before that is noticed; device 2 comes 1 us before the end.
    w, flapping = workload(1, 200), [(0.001, 0.002), (0.003, None)]
    end = replay(made(stages=1, in_flight=1), sessions(fleet(3), d1=flapping, d2=[(1e4, None)]), w).recording.end_ns
    s, where = made(stages=1, in_flight=1), sessions(fleet(3), d1=flapping, d2=[(end / S - 1e-6, None)])
    run = replay(s, where, w)
    joins = [d for d in run.recording.dispatches if d.label.startswith("join")]
    assert [bool(d.lost.any()) for d in joins] == [True, False, True]
    entries = s.report()["recoveries"]
    assert [(x["lost_ns"], x["absorbed"]) for x in entries] == [(2_000_000, True), (run.recording.end_ns, True)]
    assert metrics(run.recording, where, report=s.report())["unrecovered_losses"] == 0


def test_a_stage_without_peers_is_taken_over_with_the_trainers_copy():
    # Stage 1 has one peer, which leaves; one of the two peers of stage 0 fetches its states at 8 bytes a microsecond.
    w = workload(2, 6)
    s = made(stages=2)
    replay(s, fleet(3), w)
    (lonely,) = min(s.report()["plan"]["peers"], key=len)
    stage = s.report()["plan"]["peers"].index([lonely])
    s = made(stages=2)
    where = sessions(fleet(3), **{f"d{lonely}": [(0, 0.01)]})
    run = replay(s, where, w)
    (join,) = [d for d in run.recording.dispatches if d.label.startswith("join")]
    assert join.label == f"join/states stage {stage}"
    assert join.time_ns == 2_010_000_000
    assert join.tasks.bytes_in.tolist() == [s.stages.memory(stage, 1).states]
    assert [len(p) for p in s.report()["plan"]["peers"]] == [1, 1]
    assert metrics(run.recording, where, report=s.report())["unrecovered_losses"] == 0


def test_memory_decides_how_many_stages_there_are():
    w = workload(4, 4)
    need = {}
    for P in (1, 2):
        s = made(stages=P)
        replay(s, fleet(4, up=8e9), w)
        need[P] = s.memory.total
    s = made()
    replay(s, fleet(4, up=8e9, memory=need[1]), w)
    assert s.report()["plan"]["stages"] == 1
    s = made()
    replay(s, fleet(4, up=8e9, memory=[need[2]] * 2 + [need[1]] + [1000]), w)
    assert s.report()["plan"]["stages"] == 2
    assert s.report()["devices_left_out"] == {"too little memory for a stage": 1}


def test_too_few_peers():
    with pytest.raises(Infeasible, match="2 devices and 4 layers cannot fill 3 stages; at most 2"):
        replay(made(stages=3), fleet(2), workload(4, 4))
    with pytest.raises(Infeasible, match="no device can hold one of 2 stages: the largest of 2, "):
        replay(made(), fleet(2, memory=1000), workload(4, 4))
    with pytest.raises(Infeasible, match=r"stage \d has lost all its peers, and no other stage has one to spare"):
        replay(made(stages=2), sessions(fleet(2), d0=[(0, 0.01)]), workload(2, 4))
    run = replay(made(stages=2), sessions(fleet(2), d0=[(1, None)]), workload(2, 4))
    assert run.recording.dispatches[0].time_ns == S
    for wrong in ({"smoothing": 0.0}, {"in_flight": 0}, {"stages": 0}, {"detection_s": -1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            made(**wrong)


def test_the_same_seed_gives_the_same_wiring():
    where = sessions(fleet(5), d1=[(0, 0.02)], d2=[(0.01, None)])
    runs = [replay(made(stages=2), where, workload(4, 12), seed=3).recording.events_sha256 for _ in range(2)]
    assert runs[0] == runs[1]
    other = replay(made(stages=2), where, workload(4, 12), seed=4).recording.events_sha256
    assert other != runs[0]


def test_checkpoints_go_to_the_trainer():
    s = made(stages=2, checkpoint_every=1)
    run = replay(s, fleet(4), workload(2, 2), iterations=2)
    (kept,) = [d.tasks for d in run.recording.dispatches if d.label.startswith("upkeep")]
    sizes = sorted(s.stages.memory(p, 1).states for p in range(2))
    assert sorted(kept.bytes_out.tolist()) == sizes
    assert np.all(kept.peer == -1)
