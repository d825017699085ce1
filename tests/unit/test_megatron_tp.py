"""Tensor parallelism worked by hand.

The tiny workload: 2 layers of width 64 and FFN 256, 4 heads, vocabulary 512, 2 sequences of 24 tokens in float16.
Matrix weights: 2 (4 64² + 2 64 256) + 512 64 = 131,072; FLOPs: 48 tokens (6 131,072 + 12 2 24 64) = 39,518,208.
An all-reduce of activations carries 48 64 2 = 6144 bytes: around a ring of 2 each sends 6144, of 4 each 9216.
There are 10 of them: embedding, 2 for each of 2 layers, and the same backward with the head in place of the embedding;
and the head's loss, 48 3 4 = 576 bytes.
"""

from __future__ import annotations

import types
from dataclasses import replace

import numpy as np
import pytest

from morphling.errors import Infeasible
from morphling.fleet import Availability
from morphling.fleet.published import fleet_from_arrays
from morphling.planning.collective_times import tensor_parallel_bytes
from morphling.planning.layer_costs import layer_costs
from morphling.planning.tensor_parallel import allowed_ways, shard_parameters
from morphling.strategies.megatron_tp import MegatronTp, MegatronTpConfig
from morphling.testing import replay
from morphling.testing.worlds import tiny_workload
from morphling.types import FAR_NS, DType
from morphling.workload import activation_bytes, model_named, parameters, training_step

S = 10**9
WORK = tiny_workload()
FLOPS = 39_518_208
STEP = layer_costs(WORK, 2).optimizer.flops
"""FLOPs of the optimizer, for all parameters."""


def fleet(count, *, flops=1e9, up=8e6, memory=1 << 30, latency_ms=0, sessions=None):
    made = fleet_from_arrays(
        flops=np.full(count, flops) if np.isscalar(flops) else flops,
        down_bps=np.full(count, 8e7),
        up_bps=np.full(count, up) if np.isscalar(up) else up,
        memory_bytes=memory,
        latency_ns=latency_ms * 10**6,
    )
    if sessions:
        made = replace(made, availability=Availability.of([sessions.get(i, [(0, FAR_NS)]) for i in range(count)]))
    return made


def run(there, work=WORK, iterations=1, seed=0, **config):
    return replay(MegatronTp(MegatronTpConfig(**config)), there, work, iterations=iterations, seed=seed)


def seconds(run):
    return run.recording.end_ns / S


def shard(ways):
    return shard_parameters(WORK.model, 2, ways)


def step(ways):
    """Seconds of the optimizer on 1 GFLOP/s."""
    return STEP * shard(ways) / parameters(WORK.model) / 1e9


def test_the_flops_of_the_header():
    assert WORK.dag.gemm_flops() == FLOPS


@pytest.mark.parametrize(("ways", "sent"), [(2, 6144 * 10 + 576), (4, 9216 * 10 + 864)])
def test_an_iteration_is_computing_and_all_reduces_in_turn(ways, sent):
    # 1 GFLOP/s and 1 MB/s up: computing FLOPS/t ns, and every byte sent 1000 ns; nothing overlaps
    got = run(fleet(ways))
    assert seconds(got) == pytest.approx(FLOPS / ways / 1e9 + sent / 1e6 + step(ways), rel=1e-6)
    assert got.strategy.report()["estimate_s"] == pytest.approx(seconds(got), rel=1e-6)


def test_each_step_of_a_ring_pays_the_latency():
    # 11 collectives of 2 (t-1) = 2 steps, each 1 ms to the backbone and 1 ms from it; the second step is a byte of its
    # own, which takes 1 us
    there = fleet(2, latency_ms=1)
    assert seconds(run(there)) - seconds(run(fleet(2))) == pytest.approx(11 * (2 * 0.002 + 1e-6), rel=1e-6)


def test_bytes_of_opt_13b_are_the_published_formula():
    work = training_step(model_named("opt-13b"), 128, 1024, DType.FLOAT16)
    there = fleet(8, memory=1 << 45)
    strategy = MegatronTp(MegatronTpConfig(tensor_parallel=8))
    table = run_table(strategy, there, work)
    sent = np.bincount(table.device, table.bytes_out, minlength=8)
    loss = 128 * 1024 * 12 * 2 * 7 / 8
    # 2 for each layer and direction, the embedding's and the head's
    each_layer = (sent - loss) / 162 * 4
    assert each_layer == pytest.approx(np.full(8, 9.395e9), rel=1e-4)
    assert each_layer == pytest.approx(np.full(8, tensor_parallel_bytes(128, 1024, 5120, 8)), rel=1e-6)


def run_table(strategy, there, work):
    """The rows of one iteration, without a replay."""
    view = types.SimpleNamespace(
        fleet=there, workload=work, uplink_bps=np.full(there.size, 8e6), downlink_bps=np.full(there.size, 8e7)
    )
    return strategy.tasks(strategy.plan(view, np.arange(there.size)), view)


def test_all_wait_for_the_slowest_of_a_group():
    # one device computes at half the speed of the others: the group takes twice the time to compute
    got = run(fleet(4, flops=np.array([1e9, 1e9, 5e8, 1e9])), tensor_parallel="most")
    assert seconds(got) == pytest.approx(FLOPS / 4 / 5e8 + (9216 * 10 + 864) / 1e6 + 2 * step(4), rel=1e-6)


def test_replicas_add_gradients_at_the_end():
    # two groups of 2, one sequence each: half the computing and half of each all-reduce, then a ring of 2 for each
    # rank, in which each sends the gradients of its part once
    got = run(fleet(4), tensor_parallel=2)
    gradients = shard(2) * 2
    sent = 3072 * 10 + 288 + gradients
    assert seconds(got) == pytest.approx(FLOPS / 4 / 1e9 + sent / 1e6 + step(2), rel=1e-6)
    assert got.strategy.report()["plan"] == {
        "tensor_parallel": 2,
        "data_parallel": 2,
        "samples": [1, 1],
        "micro_batch": 1,
    }


def test_a_slow_group_is_left_out_unless_it_is_asked_for():
    there = fleet(4, flops=np.array([1e9, 1e9, 1e8, 1e8]))
    assert run(there, tensor_parallel=2).strategy.report()["plan"]["samples"] == [2]
    assert run(there, tensor_parallel=2, data_parallel=2).strategy.report()["plan"]["samples"] == [1, 1]


def test_groups_are_made_of_devices_with_like_links():
    got = run(fleet(4, up=np.array([8e6, 4e6, 8e6, 4e6])), tensor_parallel=2)
    assert got.strategy.placement.own.groups.tolist() == [[0, 2], [1, 3]]


def test_micro_batches_take_turns_and_less_memory():
    two, one = run(fleet(2)), run(fleet(2), micro_batch=1)
    assert seconds(one) == pytest.approx(seconds(two), rel=1e-9)
    held = [x.strategy.report()["memory_bytes"]["activations"] for x in (two, one)]
    assert held[0] == 2 * held[1]


def test_auto_takes_the_largest_micro_batch_that_fits():
    work = tiny_workload(batch_size=8)
    whole = run(fleet(4), work, tensor_parallel=4).strategy.report()
    assert whole["plan"]["micro_batch"] == 8
    least = sum(whole["memory_bytes"].values())
    assert run(fleet(4, memory=least - 1), work, tensor_parallel=4).strategy.report()["plan"]["micro_batch"] == 4


def test_auto_takes_the_fastest_number_of_parts_that_fits():
    """Of 64 sequences a device of 2 x 2 sends half of the activations, and gradients; of 4 all of the activations."""
    work = tiny_workload(batch_size=64)
    two, four = (run(fleet(4), work, tensor_parallel=ways) for ways in (2, 4))
    assert seconds(two) < seconds(four)
    assert run(fleet(4), work).strategy.report()["plan"]["tensor_parallel"] == 2
    need = sum(run(fleet(4), work, tensor_parallel=2, micro_batch=1).strategy.report()["memory_bytes"].values())
    small = run(fleet(4, memory=need - 1), work)
    assert small.strategy.report()["plan"]["tensor_parallel"] == 4
    assert run(fleet(4), work, tensor_parallel="most").strategy.report()["plan"]["tensor_parallel"] == 4
    # one part is no tensor parallelism, unless there is only one device
    assert run(fleet(1), work).strategy.report()["plan"]["tensor_parallel"] == 1


def test_full_recomputation_reduces_again():
    # the forward's two all-reduces of each layer once more; the layers' FLOPs once more
    again = run(fleet(2), recompute="full")
    work = training_step(WORK.model, 2, 24, DType.FLOAT16, recompute="full")
    assert seconds(again) - seconds(run(fleet(2))) == pytest.approx(
        (work.dag.gemm_flops() - FLOPS) / 2 / 1e9 + 4 * 6144 / 1e6, rel=1e-6
    )


def test_sequence_parallelism_has_the_same_traffic_and_less_memory():
    plain, cut = run(fleet(4)), run(fleet(4), sequence_parallel=True)
    assert seconds(plain) == seconds(cut)
    # 4 b s h t elements and masks that were whole on each device: (34 / t against 10 + 24 / t) b s h, in 2 layers
    saved = 2 * (
        activation_bytes(WORK.model, 2, 24, tensor_parallel=4)
        - activation_bytes(WORK.model, 2, 24, tensor_parallel=4, sequence_parallel=True)
    )
    assert saved == 2 * 48 * 64 * 10 * 3 // 4
    a, b = (x.strategy.report()["memory_bytes"]["activations"] for x in (plain, cut))
    # and the mask of the embedding's dropout, and 2 inputs of 2 bytes at the head
    assert a - b == saved + 48 * 64 * 3 // 4 + 4 * 48 * 64 * 3 // 4


@pytest.mark.parametrize(
    ("model", "devices", "ways"),
    [("opt-13b", 256, 40), ("llama-2-70b", 256, 8), ("opt-1.3b", 10, 8), ("gpt2-xl", 8, 5)],
)
def test_the_largest_number_of_parts(model, devices, ways):
    assert allowed_ways(model_named(model), 1024, devices)[-1] == ways


def test_a_sequence_is_cut_too():
    assert allowed_ways(model_named("opt-13b"), 1024, 256, sequence_parallel=True)[-1] == 8


def test_parts_of_the_parameters_add_up():
    model = model_named("opt-13b")
    assert shard_parameters(model, model.layers, 1) == parameters(model) == 12_853_473_280
    # whole on each member: two norms and two biases of h a layer, 2050 positions, the final norm
    whole = 40 * 6 * 5120 + 2050 * 5120 + 2 * 5120
    assert shard_parameters(model, model.layers, 8) == (parameters(model) - whole) // 8 + whole
    # two stages: the tied table is on both
    split = shard_parameters(model, 20, 1, last=False) + shard_parameters(model, 20, 1, first=False)
    assert split == parameters(model) + 50272 * 5120


@pytest.mark.parametrize(
    ("there", "config", "words"),
    [
        (fleet(4), {"tensor_parallel": 3}, "4 heads of tiny cannot be cut into 3 equal parts; possible are 1, 2, 4"),
        (fleet(3), {"tensor_parallel": 4}, "4 devices are needed for a group, 3 are here"),
        (fleet(4), {"tensor_parallel": 2, "data_parallel": 3}, "3 groups of 2 devices need 6 devices"),
        (
            fleet(4, memory=1000),
            {},
            "no device can hold one of 4 parts of tiny: the largest of 4, .* has 1 kB, needed ",
        ),
    ],
)
def test_what_cannot_be_is_said_in_words(there, config, words):
    with pytest.raises(Infeasible, match=words):
        run(there, **config)


def test_sequences_that_do_not_divide():
    with pytest.raises(Infeasible, match="25 tokens of a sequence of tiny cannot be cut into 4"):
        run(fleet(4), tiny_workload(sequence_length=25), tensor_parallel=4, sequence_parallel=True)


@pytest.mark.parametrize("name", ["tensor_parallel", "data_parallel", "micro_batch"])
def test_counts_of_nothing_are_refused(name):
    with pytest.raises(ValueError, match=f"{name}: a whole number from 1 on, or auto, not 0"):
        MegatronTpConfig(**{name: 0})


def test_a_departure_restarts_all_from_the_checkpoint():
    # Device 3 of 4 leaves in the second iteration; noticed after 1 s, planned at once; the other three make one group
    # of 2 (heads do not divide by 3), whose members fetch their halves of the states at 10 MB/s; 2 s to start; then
    # both iterations are done again.
    quiet = run(fleet(4))
    left = int(quiet.recording.end_ns * 1.5)
    there = fleet(4, sessions={3: [(0, left)]})
    got = run(there, iterations=2, detection_s=1.0, setup_s=2.0)
    (x,) = got.strategy.report()["recoveries"]
    assert x["lost_ns"] == left
    assert x["detected_ns"] - left == x["planned_ns"] - left == S
    states = shard(2) * 16
    assert x["moved_bytes"] == 2 * states
    assert x["moved_ns"] - x["planned_ns"] == pytest.approx(states / 1e7 * S, rel=1e-6)
    assert x["ready_ns"] - x["moved_ns"] == 2 * S
    assert x["iterations_redone"] == 1
    again = seconds(run(fleet(2)))
    assert got.recording.end_ns == pytest.approx(x["ready_ns"] + 2 * again * S, rel=1e-6)
    assert run(there, iterations=2).recording.events_sha256 == run(there, iterations=2).recording.events_sha256
