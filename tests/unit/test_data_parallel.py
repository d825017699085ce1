"""Data parallelism and ZeRO worked by hand.

The tiny workload: 2 layers of width 64 and FFN 256, 4 heads, vocabulary 512, sequences of 24 tokens in float16.
FLOPs of a sequence: a layer forward 2 24 49,152 + 4 24² 64 = 2,506,752, the head 2 24 32,768 = 1,572,864; backward is
twice that; 19,759,104 in all.  Gradients of the last layer are ready after 6,586,368 + 2 (2,506,752 + 1,572,864) =
14,745,600.  Parameters: 165,760, of which 49,984 in each layer.  Devices compute 1 GFLOP/s, so a FLOP takes 1 ns, and
send 1 MB/s, so a byte takes 1 us.
"""

from __future__ import annotations

import types
from dataclasses import replace

import numpy as np
import pytest

from morphling.errors import Infeasible
from morphling.fleet import Availability
from morphling.fleet.published import fleet_from_arrays
from morphling.planning.layer_costs import layer_costs
from morphling.strategies.ddp import Ddp, DdpConfig
from morphling.strategies.zero import Zero1, Zero2, Zero3, ZeroConfig
from morphling.testing import replay
from morphling.testing.worlds import tiny_workload
from morphling.types import FAR_NS, DType
from morphling.workload import model_named, parameters, training_step
from morphling.workload.models import layer_parameters

S = 10**9
SEQUENCE, READY = 19_759_104e-9, 14_745_600e-9
PARAMETERS, LAYER = 165_760, 49_984
STEP = layer_costs(tiny_workload(), 2).optimizer.flops / 1e9
"""Seconds of the optimizer for all parameters."""


def fleet(count, *, flops=1e9, up=8e6, memory=1 << 30, latency_ms=0, sessions=None):
    made = fleet_from_arrays(
        flops=np.full(count, flops) if np.isscalar(flops) else flops,
        down_bps=np.full(count, 8e10),
        up_bps=np.full(count, up),
        memory_bytes=memory,
        latency_ns=latency_ms * 10**6,
    )
    if sessions:
        made = replace(made, availability=Availability.of([sessions.get(i, [(0, FAR_NS)]) for i in range(count)]))
    return made


def run(kind, there, sequences=2, iterations=1, seed=0, **config):
    work = tiny_workload(batch_size=sequences)
    return replay(kind(kind.Config(**config)), there, work, iterations=iterations, seed=seed)


def seconds(run):
    return run.recording.end_ns / S


def near(value):
    return pytest.approx(value, rel=1e-6)


def table(strategy, there, work):
    """The rows of one iteration, without a replay."""
    rates = {"uplink_bps": np.full(there.size, 8e6), "downlink_bps": np.full(there.size, 8e7)}
    view = types.SimpleNamespace(fleet=there, workload=work, **rates)
    return strategy.tasks(strategy.plan(view, np.arange(there.size)), view)


def test_the_numbers_of_the_header():
    model = tiny_workload().model
    assert (parameters(model), layer_parameters(model)) == (PARAMETERS, LAYER)
    assert tiny_workload().dag.gemm_flops() == 2 * 19_759_104


# ----------------------------------------------------------------------------------------------------------------- ddp


def test_gradients_of_the_last_layer_leave_first():
    # a ring of 2: each sends the 2 bytes of every gradient once; the rest of the backward pass is long over
    got = run(Ddp, fleet(2))
    assert seconds(got) == near(READY + 2 * PARAMETERS * 1e-6 + STEP)
    assert got.strategy.report()["estimate_s"] == near(seconds(got))


def test_on_fast_links_only_the_first_layer_s_gradients_are_waited_for():
    # 1 GB/s up; with the first layer go the embedding and the final norm
    got = run(Ddp, fleet(2, up=8e9))
    assert seconds(got) == near(SEQUENCE + 2 * (PARAMETERS - LAYER) * 1e-9 + STEP)


def test_gradients_accumulate_before_they_leave():
    # two sequences each, one at a time: the first is over before gradients of the second are whole
    got = run(Ddp, fleet(2), 4)
    assert seconds(got) == near(SEQUENCE + READY + 2 * PARAMETERS * 1e-6 + STEP)
    # both at once: the same work, and gradients of the last layer are ready after twice as long
    at_once = run(Ddp, fleet(2), 4, micro_batch=2)
    assert seconds(at_once) == near(2 * READY + 2 * PARAMETERS * 1e-6 + STEP)


def test_the_ring_pays_latency_once():
    # 2 (n-1) = 2 steps of 1 ms to the backbone and 1 ms from it; the second is a byte of its own
    there = fleet(2, latency_ms=1)
    assert seconds(run(Ddp, there)) - seconds(run(Ddp, fleet(2))) == pytest.approx(0.004, rel=1e-3)


def test_bytes_of_opt_13b():
    # 2 (N-1)/N of 2 bytes for each of 40 · 314,639,360 parameters: 50.1 GB
    work = training_step(model_named("opt-13b"), 256, 64, DType.FLOAT16)
    there = fleet_from_arrays(
        flops=np.full(256, 1e12), down_bps=np.full(256, 8e7), up_bps=np.full(256, 8e6), memory_bytes=1 << 40
    )
    rows = table(Ddp(DdpConfig()), there, work)
    assert np.bincount(rows.device)[1:].max() <= 42  # forward, 40 layers, optimizer
    last_layer = rows.bytes_out[256:512]
    assert 40 * last_layer == pytest.approx(np.full(256, 50.1464e9), rel=1e-4)
    assert rows.bytes_out.sum() == 2 * 255 * 2 * parameters(work.model)


def test_shares_are_proportional_to_speed_or_even():
    there = fleet(3, flops=np.array([2e9, 1e9, 1e9]))
    assert run(Ddp, there, 8).strategy.report()["plan"]["samples"] == [4, 2, 2]
    assert run(Ddp, there, 8, shares="even").strategy.report()["plan"]["samples"] == [3, 3, 2]


def test_those_whose_memory_is_too_small_are_left_out():
    need = sum(run(Ddp, fleet(2)).strategy.report()["memory_bytes"].values())
    there = fleet(3, memory=np.array([need, need - 1, need]))
    got = run(Ddp, there, 4).strategy
    assert got.placement.devices.tolist() == [0, 2]
    with pytest.raises(
        Infeasible, match=r"no device can hold .*: the largest of 3, .*#0, has .* bytes\), needed .* bytes\) \(states "
    ):
        run(Ddp, fleet(3, memory=need - 1), 3)


def test_survivors_of_a_departure_go_on_at_once():
    # Device 2 of 3 leaves in the middle of the second iteration; noticed after 1 s, 2 s to form the ring again; states
    # are on every survivor.  The interrupted iteration, with 3 sequences for 2, is done again.
    quiet = run(Ddp, fleet(3), 3)
    left = int(quiet.recording.end_ns * 1.5)
    got = run(Ddp, fleet(3, sessions={2: [(0, left)]}), 3, 2, detection_s=1.0, setup_s=2.0)
    (x,) = got.strategy.report()["recoveries"]
    assert (x["lost_ns"], x["detected_ns"], x["planned_ns"]) == (left, left + S, left + S)
    assert (x["moved_bytes"], x["moved_ns"], x["ready_ns"]) == (0, left + S, left + 3 * S)
    assert x["iterations_redone"] == 0
    again = seconds(run(Ddp, fleet(2), 3))
    assert got.recording.end_ns == near(left + 3 * S + again * S)


def test_newcomers_are_taken_in_between_iterations():
    # Device 2 comes during the first iteration: at its end it fetches all states from a survivor, 16 bytes a parameter
    quiet = run(Ddp, fleet(2), 3)
    come = quiet.recording.end_ns // 2
    got = run(Ddp, fleet(3, sessions={2: [(come, FAR_NS)]}), 3, 2)
    moved = [d for d in got.recording.dispatches if d.label == "join/states"]
    assert [int(d.tasks.bytes_out.sum()) for d in moved] == [16 * PARAMETERS]
    assert got.recording.end_ns == near(
        quiet.recording.end_ns + 16 * PARAMETERS * 1e-6 * S + run(Ddp, fleet(3), 3).recording.end_ns
    )
    assert got.strategy.report()["recoveries"] == []


def test_a_newcomer_waits_until_the_interrupted_iteration_is_done():
    # Device 3 comes before device 2 leaves, both in the first iteration: the survivors go on without any states moved,
    # and take device 3 in at the end of the iteration.
    quiet = run(Ddp, fleet(3), 3)
    come, left = quiet.recording.end_ns // 4, quiet.recording.end_ns // 2
    got = run(Ddp, fleet(4, sessions={2: [(0, left)], 3: [(come, FAR_NS)]}), 3, 2, detection_s=1.0, setup_s=2.0)
    (x,) = got.strategy.report()["recoveries"]
    assert (x["moved_bytes"], x["ready_ns"]) == (0, left + 3 * S)
    moved = [d for d in got.recording.dispatches if d.label == "join/states"]
    assert [int(d.tasks.bytes_out.sum()) for d in moved] == [16 * PARAMETERS]
    assert got.strategy.placement.devices.tolist() == [0, 1, 3]
    two, three = run(Ddp, fleet(2), 3).recording.end_ns, quiet.recording.end_ns
    assert got.recording.end_ns == near(left + 3 * S + two + 16 * PARAMETERS * 1000 + three)


# ---------------------------------------------------------------------------------------------------------------- zero


@pytest.mark.parametrize(
    ("kind", "states"),
    [
        (Zero1, 4 * PARAMETERS + 12 * PARAMETERS // 4),
        (Zero2, 2 * PARAMETERS + 14 * PARAMETERS // 4),
        (Zero3, 16 * PARAMETERS // 4),
    ],
)
def test_memory_is_the_published_formula(kind, states):
    got = run(kind, fleet(4), 4)
    assert got.strategy.report()["memory_bytes"]["states"] == states
    # beside its part, stage 3 holds two whole layers, here all of them, and what is outside
    assert got.strategy.report()["memory_bytes"]["other"] == (2 * PARAMETERS if kind is Zero3 else 0)


@pytest.mark.parametrize("kind", [Zero1, Zero2])
def test_gradients_are_scattered_and_weights_gathered(kind):
    # a ring of 2: each sends half of the gradients, then half of the weights; half of the optimizer between
    got = run(kind, fleet(2))
    assert seconds(got) == near(READY + PARAMETERS * 1e-6 + STEP / 2 + PARAMETERS * 1e-6)


def test_only_the_first_stage_keeps_gradients_over_micro_batches():
    first, second = run(Zero1, fleet(2), 4), run(Zero2, fleet(2), 4, micro_batch=1)
    assert seconds(first) == near(SEQUENCE + READY + 2 * PARAMETERS * 1e-6 + STEP / 2)
    # gradients of the first micro-batch are still under way when those of the second are ready
    assert seconds(second) == near(READY + 3 * PARAMETERS * 1e-6 + STEP / 2)


def test_the_third_stage_sends_three_times_and_hides_what_it_computes():
    # 1 MB/s: every step sends for longer than it computes: 3 · half of the weights
    got = run(Zero3, fleet(2))
    assert got.recording.end_ns / S == near(3 * PARAMETERS * 1e-6 + STEP / 2)
    rows = got.strategy.table
    assert np.bincount(rows.device, rows.bytes_out).tolist() == [3 * PARAMETERS] * 2


def test_the_third_stage_on_fast_links_computes_all_the_time():
    # 10 GB/s: only the first layer's gather and its gradients' reduction are waited for, with what is outside
    got = run(Zero3, fleet(2, up=8e10))
    assert seconds(got) == near(2 * (PARAMETERS - LAYER) * 1e-10 + SEQUENCE + STEP / 2)


def test_the_third_stage_sends_in_every_micro_batch():
    one, two = run(Zero3, fleet(2)), run(Zero3, fleet(2), 4, micro_batch=1)
    assert seconds(two) - STEP / 2 == near(2 * (seconds(one) - STEP / 2))


@pytest.mark.parametrize("kind", [Zero2, Zero3])
def test_micro_batches_are_as_large_as_memory_holds_because_each_sends(kind):
    def bytes_out(got):
        return got.strategy.report()["plan"]["micro_batch"], int(got.strategy.table.bytes_out.sum())

    passes = {Zero2: 2, Zero3: 3}[kind]  # gradients and weights; of zero3 the weights twice
    assert bytes_out(run(kind, fleet(2), 8)) == (4, passes * 2 * PARAMETERS)
    need = sum(run(kind, fleet(2), 8, micro_batch=2).strategy.report()["memory_bytes"].values())
    again = {Zero2: 2 + 1, Zero3: 2 * 3}[kind]
    assert bytes_out(run(kind, fleet(2, memory=need), 8)) == (2, again * 2 * PARAMETERS)
    assert bytes_out(run(kind, fleet(2, memory=need - 1), 8))[0] == 1


@pytest.mark.parametrize("kind", [Zero1, Zero2, Zero3])
def test_bytes_of_the_stages_do_not_depend_on_speed(kind):
    there = fleet(4, flops=np.array([4e9, 1e9, 2e9, 1e9]))
    got = run(kind, there, 8, micro_batch=1)
    assert got.strategy.report()["plan"]["samples"] == [4, 1, 2, 1]
    rows = got.strategy.table
    times = {Zero1: 2, Zero2: 4 + 1, Zero3: 3 * 4}[kind]  # the largest share is 4 micro-batches
    assert rows.bytes_out.sum() == times * 3 * 2 * PARAMETERS


def test_devices_that_do_not_fit_make_the_parts_of_the_others_larger():
    need = sum(run(Zero3, fleet(3), 3).strategy.report()["memory_bytes"].values())
    there = fleet(4, memory=np.array([need, need, need // 2, need]))
    assert run(Zero3, there, 4).strategy.placement.devices.tolist() == [0, 1, 3]
    with pytest.raises(
        Infeasible, match=r"no device can hold one of 4 parts of tiny: the largest of 4, .*, has .*, needed "
    ):
        run(Zero3, fleet(4, memory=1000), 4)


@pytest.mark.parametrize("kind", [Zero1, Zero2, Zero3])
def test_a_lost_part_is_fetched_from_the_checkpoint(kind):
    # Device 2 of 3 leaves in the middle of the second iteration; 1 s, then both survivors fetch their new parts over
    # 10 GB/s, 2 s; both iterations are done again.
    quiet = run(kind, fleet(3), 3)
    left = int(quiet.recording.end_ns * 1.5)
    there = fleet(3, sessions={2: [(0, left)]})
    got = run(kind, there, 3, 2, detection_s=1.0, setup_s=2.0)
    (x,) = got.strategy.report()["recoveries"]
    states = {Zero1: 10 * PARAMETERS, Zero2: 9 * PARAMETERS, Zero3: 8 * PARAMETERS}[kind]
    assert x["moved_bytes"] == 2 * states
    assert x["moved_ns"] - left == pytest.approx(S + states / 1e10 * S, rel=1e-6)
    assert x["iterations_redone"] == 1
    again = seconds(run(kind, fleet(2), 3))
    assert got.recording.end_ns == near(x["ready_ns"] + 2 * again * S)
    twice = [run(kind, there, 3, 2, 7, detection_s=[0.0, 1.0]).recording.events_sha256 for _ in range(2)]
    assert twice[0] == twice[1]


def test_a_checkpoint_holds_every_state_once():
    got = run(Zero2, fleet(4), 4, 2, checkpoint_every=1)
    saved = [d for d in got.recording.dispatches if d.label.startswith("upkeep")]
    assert [int(d.tasks.bytes_out.sum()) for d in saved] == [16 * PARAMETERS]


@pytest.mark.parametrize("kind", [DdpConfig, ZeroConfig])
def test_micro_batches_of_nothing_are_refused(kind):
    with pytest.raises(ValueError, match="micro_batch: at least 1 sequence, not 0"):
        kind(micro_batch=0)
