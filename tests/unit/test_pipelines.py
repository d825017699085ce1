"""GPipe, 1F1B and interleaved 1F1B as strategies: plans, times beside an exact replay, memory, sums of gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from morphling.errors import Infeasible
from morphling.fleet import Availability
from morphling.fleet.published import fleet_from_arrays
from morphling.planning.pipeline_times import round_s, simulate
from morphling.planning.schedules import early_warm_up, gpipe, in_flight, interleaved, one_f_one_b
from morphling.strategies.gpipe import Gpipe, GpipeConfig
from morphling.strategies.interleaved import Interleaved, InterleavedConfig
from morphling.strategies.one_f_one_b import OneFOneB, OneFOneBConfig
from morphling.testing import replay, tiny_workload
from morphling.types import FAR_NS, DType, Kind
from morphling.units import format_bytes
from morphling.workload import activation_bytes, parameters, training_step
from morphling.workload.models import layer_parameters

RATE = 1e9
"""FLOP/s of every device here; links carry 8 bits in a microsecond unless said."""


def workload(layers, batch, *, vocab=8, tied=False, recompute="none"):
    """Width 64, FFN 256, 24 tokens a sequence: a layer of one sequence takes 2.5 ms forward and twice that back."""
    model = replace(tiny_workload(layers).model, vocab_size=vocab, tied=tied, dropout=False)
    return training_step(model, batch, 24, DType.FLOAT16, recompute=recompute)


# of one layer, one sequence of 24 tokens: 2 · 24 · (4 · 64² + 2 · 64 · 256) and scores and context 4 · 24² · 64
FORWARD = 2 * 24 * (4 * 64 * 64 + 2 * 64 * 256) + 4 * 24 * 24 * 64
BOUNDARY = 24 * 64 * 2
HEAD = 2 * 24 * 64 * 8


def fleet(devices, *, up=8e6, down=64e6, latency_ns=0, memory=1 << 30, flops=RATE):
    return fleet_from_arrays(
        flops=np.broadcast_to(flops, (devices,)), down_bps=down, up_bps=up, memory_bytes=memory, latency_ns=latency_ns
    )


def passes(run):
    """(device, ready to compute, done) of each pass in ns; sends and the optimizer are left out."""
    d = run.recording.dispatches[0]
    rows = d.tasks.kind == Kind.GEMM
    return d.tasks.device[rows], d.column("compute_start_ns")[rows], d.column("compute_end_ns")[rows]


def test_costs_of_a_layer_are_those_by_hand():
    w = workload(1, 1)
    assert w.dag.gemm_flops(layer=0) == 3 * FORWARD


@pytest.mark.parametrize(
    ("strategy", "config", "schedule"),
    [
        (Gpipe, GpipeConfig(), gpipe(4, 8)),
        (OneFOneB, OneFOneBConfig(), one_f_one_b(4, 8)),
        (OneFOneB, OneFOneBConfig(warm_up="early"), one_f_one_b(4, 8, early_warm_up(4))),
        (Interleaved, InterleavedConfig(), interleaved(4, 8, 2)),
    ],
)
@pytest.mark.parametrize("latency_ns", [0, 1000])
def test_the_engine_replays_the_schedule_to_the_nanosecond(strategy, config, schedule, latency_ns):
    chunks = schedule.chunks
    w, devices = workload(4 * chunks, 8), fleet(4, latency_ns=latency_ns)
    run = replay(strategy(config), devices, w)
    device, start, end = passes(run)
    # whole ns, as the executor rounds; the head makes the last chunk of the last stage longer; 1000 ns a byte
    forward, backward = np.full((4, chunks), FORWARD), np.full((4, chunks), 2 * FORWARD)
    forward[-1, -1] += HEAD
    backward[-1, -1] += 2 * HEAD
    timing = simulate(schedule, forward, backward, transfer=BOUNDARY * 1000, latency=2 * latency_ns, duplex="uplink")
    assert end.max() == timing.makespan
    for p in range(4):
        mine = slice(schedule.ptr[p], schedule.ptr[p + 1])
        assert start[device == p].tolist() == timing.start[mine].tolist()


def test_early_warm_up_hides_a_round_trip_and_short_does_not():
    # A boundary takes as long as a forward pass: f = c = 1, b = 2, and P = 4, M = 8 take 49 and 39 of it
    # (own replay of the schedules; GPipe 39).
    up = round(8 * BOUNDARY / (FORWARD / RATE))
    took = {}
    for name, config in (("short", {}), ("early", {"warm_up": "early"})):
        run = replay(OneFOneB(OneFOneBConfig(**config)), fleet(4, up=up, down=8 * up), workload(4, 8))
        took[name] = passes(run)[2].max() / FORWARD
    took["gpipe"] = passes(replay(Gpipe(), fleet(4, up=up, down=8 * up), workload(4, 8)))[2].max() / FORWARD
    # the head adds under a hundredth of a pass to each of 8 micro-batches
    assert took == {k: pytest.approx(v, abs=0.3) for k, v in {"short": 49, "early": 39, "gpipe": 39}.items()}


@pytest.mark.parametrize(("P", "M"), [(1, 3), (2, 4), (4, 2), (4, 4), (4, 8), (6, 3), (8, 16), (8, 32)])
@pytest.mark.parametrize("latency", [0, 1])
def test_the_closed_form_is_near_a_replay(P, M, latency):
    schedules = [gpipe(P, M), one_f_one_b(P, M), one_f_one_b(P, M, early_warm_up(P))]
    schedules += [interleaved(P, M, v) for v in (2, 3) if M % P == 0]
    for schedule in schedules:
        v, ones = schedule.chunks, np.ones(P)
        forward = np.full((P, v), 1 / v)
        for c in (0, 0.5, 1, 2, 3):
            found, _ = round_s(
                forward, 2 * forward, c * ones, c / 8 * ones, latency / 2 * ones, in_flight(schedule), schedule
            )
            wanted = simulate(schedule, 1.0, 2.0, transfer=c, latency=latency, duplex="uplink").makespan
            off = 1e-9 if schedule.name == "gpipe" else 0.13
            assert found == pytest.approx(wanted, rel=off), (schedule.name, v, c)


def test_the_closed_form_by_hand():
    # P = 4, M = 8, f = c = 1, b = 2: there and back 4 · 3 + 6 = 18.  GPipe: 7 more at paces of 1 and of 2.  1F1B with
    # 4 on their way: one each 18 / 4; with 7, 5, 3, 1 on their way none is slower than a stage's 3.
    ones = np.ones(4)
    args = np.ones((4, 1)), np.full((4, 1), 2.0), ones, ones / 8, 0 * ones
    for schedule, wanted in (
        (gpipe(4, 8), 18 + 7 * (1 + 2)),
        (one_f_one_b(4, 8), 18 + 7 * 18 / 4),
        (one_f_one_b(4, 8, early_warm_up(4)), 18 + 7 * 3),
    ):
        whole, turn = round_s(*args, in_flight(schedule), schedule)
        assert whole == wanted
        assert turn.tolist() == [0, 3, 6, 9]  # a backward pass and a send for each stage before it


def test_thirty_layers_on_four_stages_stay_thirty():
    s = Gpipe()
    replay(s, fleet(4, up=8e9), workload(30, 4))
    plan = s.report()["plan"]
    assert (plan["layers"], plan["pipelines"], plan["micro_batches"]) == ([7, 8, 7, 8], 1, [4])


def test_all_whole_pipelines_take_part_and_the_rest_is_said():
    s = Gpipe(GpipeConfig(stages=2))
    run = replay(s, fleet(5, up=8e9), workload(2, 3))
    report = s.report()
    assert report["plan"]["pipelines"] == 2
    assert report["plan"]["micro_batches"] == [2, 1]
    assert report["devices_left_out"] == {"not in the plan": 1}
    assert report["plan"]["groups"] == [[[0], [1]], [[2], [3]]]
    assert sorted(set(run.dispatches[0].tasks.device.tolist())) == [0, 1, 2, 3]


def test_copies_sum_their_gradients_stage_by_stage():
    w = workload(2, 2)
    run = replay(Gpipe(GpipeConfig(stages=2)), fleet(4), w)
    t = run.dispatches[0].tasks
    pairs = set(zip(t.device.tolist(), t.peer.tolist(), strict=True))
    sent = {(a, b): int(t.bytes_out[(t.device == a) & (t.peer == b)].sum()) for a, b in pairs}
    model, each = w.model, layer_parameters(w.model)
    first = 2 * (each + 8 * 64 + model.position_rows * 64)
    last = 2 * (parameters(model) - 2 * each - 8 * 64 - model.position_rows * 64 + each)
    # two members: each sends 2(n-1)/n = all of its stage's gradients; and one boundary each way
    assert {k: v for k, v in sent.items() if k[1] >= 0} == {
        (0, 1): BOUNDARY, (1, 0): BOUNDARY, (2, 3): BOUNDARY, (3, 2): BOUNDARY,
        (0, 2): first, (2, 0): first, (1, 3): last, (3, 1): last,
    }  # fmt: skip


def test_a_shared_table_stands_on_both_ends_and_is_summed_over_them():
    w = workload(3, 1, tied=True)
    s = Gpipe()
    t = replay(s, fleet(3), w).dispatches[0].tasks
    sent = t.bytes_out[(t.device == 0) & (t.peer == 2)].sum(), t.bytes_out[(t.device == 2) & (t.peer == 0)].sum()
    assert sent == (2 * 8 * 64, 2 * 8 * 64)
    states = [m.states for m in s.placement.memory]
    assert sum(states) == 16 * (parameters(w.model) + 8 * 64)
    apart = Gpipe(GpipeConfig(table="separate"))
    t = replay(apart, fleet(3), w).dispatches[0].tasks
    assert not ((t.device == 0) & (t.peer == 2)).any()
    assert [m.states for m in apart.placement.memory] == states
    alone = Gpipe(GpipeConfig(stages=1, data_parallel=1))
    replay(alone, fleet(3), w)
    assert alone.placement.memory[0].states == 16 * parameters(w.model)


def test_time_of_copies_by_hand():
    # One layer on one stage, a sequence for each of two copies: forward and backward 3 (FORWARD + HEAD) ns, then all
    # weights go to the other copy, 1000 ns a byte and two times 500 ns of latency; the 2-step ring has one token.
    w = workload(1, 2)
    run = replay(Gpipe(GpipeConfig(stages=1)), fleet(2, latency_ns=500), w)
    d = run.recording.dispatches[0]
    computed = 3 * (FORWARD + HEAD)
    ends = d.column("settled_ns")[d.tasks.kind == Kind.TRANSFER]
    size = 2 * parameters(w.model)
    # the member that sends the token has one byte less in its stream, and the token waits for the other's
    assert d.tasks.bytes_out.tolist().count(size) == d.tasks.bytes_out.tolist().count(size - 1) == 1
    assert ends.max() == computed + 1000 * size + 1000 + 1000 + 1000


# ------------------------------------------------------------------------------------------------------------- memory


def test_memory_by_schedule():
    w = workload(4, 8)
    kept = activation_bytes(w.model, 1, 24, "none")
    held = {}
    for name, s in (
        ("gpipe", Gpipe()),
        ("1f1b", OneFOneB()),
        ("early", OneFOneB(OneFOneBConfig(warm_up="early"))),
        ("recomputed", Gpipe(GpipeConfig(recompute="full"))),
    ):
        replay(s, fleet(4, up=8e9), w)
        held[name] = [m.activations for m in s.placement.memory]
    head = 4 * 24 * (64 + 8)
    assert held["gpipe"] == [8 * kept, 8 * kept, 8 * kept, 8 * kept + head]
    assert held["1f1b"] == [4 * kept, 3 * kept, 2 * kept, kept + head]
    assert held["early"] == [7 * kept, 5 * kept, 3 * kept, kept + head]
    assert held["recomputed"] == [8 * BOUNDARY + kept] * 3 + [8 * BOUNDARY + kept + head]
    chunked = Interleaved(InterleavedConfig(stages=4))
    w = workload(8, 8)
    replay(chunked, fleet(4, up=8e9), w)
    units = in_flight(interleaved(4, 8, 2)).tolist()
    assert [m.activations for m in chunked.placement.memory] == [
        n * kept + (head if p == 3 else 0) for p, n in enumerate(units)
    ]


def test_as_few_stages_as_memory_allows():
    w = workload(8, 8)
    s = OneFOneB(OneFOneBConfig(stages="fewest", data_parallel=1))
    replay(s, fleet(8, up=8e9), w)
    assert s.report()["plan"]["stages"] == 1
    half = OneFOneB(OneFOneBConfig(stages=2, data_parallel=1))
    replay(half, fleet(8, up=8e9), w)
    room = max(m.total for m in half.placement.memory)
    tight = OneFOneB(OneFOneBConfig(stages="fewest"))
    replay(tight, fleet(8, up=8e9, memory=room), w)
    assert (tight.report()["plan"]["stages"], tight.report()["plan"]["pipelines"]) == (2, 4)


def test_stages_that_need_most_get_the_devices_that_have_most():
    w = workload(4, 8)
    free = OneFOneB(OneFOneBConfig(stages=4))
    replay(free, fleet(4, up=8e9), w)
    need = [m.total for m in free.placement.memory]
    # exactly what each stage needs, the other way round
    s = OneFOneB(OneFOneBConfig(stages=4))
    replay(s, fleet(4, up=8e9, memory=need[::-1]), w)
    assert s.report()["plan"]["groups"] == [[3], [2], [1], [0]]
    short = np.array(need)
    short[2] -= 1
    with pytest.raises(Infeasible) as refused:
        replay(OneFOneB(OneFOneBConfig(stages=4)), fleet(4, up=8e9, memory=short), w)
    assert f"has {format_bytes(float(short[2]))} ({short[2]} bytes), needed {format_bytes(need[2])}" in str(
        refused.value
    )
    assert "1 of 4 devices of the plan do not fit: device " in str(refused.value)


def test_layers_in_proportion_to_speed():
    # 3 : 1, and 8 equal layers (the head is a hundredth of one)
    s = OneFOneB(OneFOneBConfig(partition="balanced"))
    replay(s, fleet(2, up=8e9, flops=[3e9, 1e9]), workload(8, 4))
    assert s.report()["plan"]["layers"] == [6, 2]


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("strategy", "layers", "batch", "said"),
    [
        (Gpipe(GpipeConfig(stages=5)), 8, 4, "stages: 5 need as many devices, and 4 are there; at most 4"),
        (Gpipe(GpipeConfig(stages=4)), 3, 4, "3 layers cannot fill 4 stages; at most 3 stages"),
        (
            Interleaved(InterleavedConfig(stages=4)), 6, 4,
            "6 layers cannot fill 4 stages of 2 chunks; at most 3 stages",
        ),
        (Interleaved(InterleavedConfig(stages=4)), 8, 6, "6 micro-batches are no multiple of 4 stages"),
        (Gpipe(GpipeConfig(micro_batch=4)), 4, 6, "6 sequences cannot be cut into micro-batches of 4; nearest: 3 or 6"),
        (
            Gpipe(GpipeConfig(stages=2, data_parallel=3)), 4, 6,
            "3 pipelines of 2 stages need 6 devices and 3 micro-batches; there are 4 and 6: at most 2",
        ),
        (
            Interleaved(InterleavedConfig()), 8, 6,
            "with 3: 3 of 3 devices of the plan do not fit: device device#0 has 100 kB, needed",
        ),
        (Interleaved(InterleavedConfig()), 1, 4, "1 layers cannot fill 1 stages of 2 chunks; at most 0 stages"),
    ],
)  # fmt: skip
def test_what_cannot_be(strategy, layers, batch, said):
    with pytest.raises(Infeasible, match=said):
        replay(strategy, fleet(4, memory=100_000 if "kB" in said else 1 << 30), workload(layers, batch))


@pytest.mark.parametrize(
    ("config", "values", "said"),
    [
        (GpipeConfig, {"stages": 0}, "stages: at least 1, not 0"),
        (GpipeConfig, {"micro_batch": 0}, "micro_batch: at least 1, not 0"),
        (InterleavedConfig, {"chunks": 1}, "chunks: at least 2, not 1; with 1 this is 1f1b"),
        (OneFOneBConfig, {"detection_s": -1.0}, "detection_s: seconds from 0 on"),
    ],
)
def test_what_no_config_may_say(config, values, said):
    with pytest.raises(ValueError, match=said):
        config(**values)


def test_interleaved_takes_a_number_of_stages_that_divides():
    # 6 micro-batches, 4 devices: 4 stages would need a multiple of 4
    s = Interleaved()
    replay(s, fleet(4, up=8e9), workload(8, 6))
    assert (s.report()["plan"]["stages"], s.report()["plan"]["micro_batches"]) == (3, [6])


# --------------------------------------------------------------------------------------------------------------- churn


def test_a_departure_restarts_all_from_the_checkpoint():
    # Two copies of two stages; device 1 leaves in the second iteration.  Three devices make one pipeline of two stages
    # (both micro-batches), which fetches its states at 8 bytes a microsecond; then both iterations are done again.
    w = workload(2, 2)
    quiet = replay(Gpipe(GpipeConfig(stages=2)), fleet(4), w).recording.end_ns
    sessions = [[(0, round(1.5 * quiet) if d == 1 else FAR_NS)] for d in range(4)]
    s = Gpipe(GpipeConfig(stages=2, detection_s=2.0, planning_s=1.0, setup_s=3.0))
    run = replay(s, replace(fleet(4), availability=Availability.of(sessions)), w, iterations=2)
    (entry,) = s.report()["recoveries"]
    assert s.report()["plan"]["groups"] == [[0], [2]]
    steps = [entry[f"{x}_ns"] for x in ("lost", "detected", "planned", "moved", "ready")]
    states = [m.states for m in s.placement.memory]
    assert np.diff(steps).tolist() == [2 * 10**9, 10**9, max(states) * 125, 3 * 10**9]
    assert entry["moved_bytes"] == sum(states)
    assert entry["iterations_redone"] == 1
    assert [d.label for d in run.dispatches][-2:] == ["recovery/replay iteration 1", "recovery/replay iteration 2"]


def test_each_stage_is_saved_once():
    # After iteration 1 of 2: of two copies of two stages the first one's, 16 bytes a parameter.
    s = Gpipe(GpipeConfig(stages=2, checkpoint_every=1))
    run = replay(s, fleet(4), workload(2, 2), iterations=2)
    (saved,) = [d.tasks for d in run.dispatches if d.label.startswith("upkeep")]
    assert saved.device.tolist() == [0, 1]
    assert saved.bytes_out.sum() == 16 * parameters(workload(2, 2).model)
