"""Estimates with checkpoints and copies beside training: worked by hand, and against the engine for every strategy."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from importlib.metadata import entry_points

import numpy as np
import pytest

from morphling.fleet.published import fleet_from_arrays
from morphling.planning.collective_times import MemberLinks, ring_all_reduce_s, ring_behind_s
from morphling.planning.pipeline_times import simulate
from morphling.planning.schedules import gpipe, one_f_one_b
from morphling.planning.upkeep import mean_iteration_s
from morphling.testing import replay, tiny_fleet, tiny_workload

ITERATIONS = 6


# --------------------------------------------------------------------------------------------------------- by hand


def test_a_run_of_six_iterations_has_five_that_may_have_something_beside_them():
    def due(finished):
        return finished % 2, finished % 4 == 0

    # after 1, 3 and 5: copies; after 4: a checkpoint; after 2: nothing
    longer = {(1, 0): 16.0, (0, 1): 22.0}
    assert mean_iteration_s(10.0, 6, due, lambda what: longer[what]) == 10.0 + (3 * 6.0 + 12.0) / 6
    assert mean_iteration_s(10.0, 1, due, lambda what: longer[what]) == 10.0
    # an endless run: each in its share, to the last of ten thousand iterations
    endless = mean_iteration_s(10.0, 1 << 40, due, lambda what: longer[what])
    assert endless == pytest.approx(10.0 + 6.0 / 2 + 12.0 / 4, rel=1e-3)


def test_a_ring_waits_for_the_uplink_that_is_free_last():
    # Three members, 3 MB: each sends 4 MB; at 8, 16 and 8 Mbit/s that is 4, 2 and 4 s.
    links = MemberLinks.of([8e6, 16e6, 8e6], 1e9)
    size = 3_000_000
    assert ring_behind_s(links, size, 1.0, 0.0) == 1.0 + ring_all_reduce_s(links, size) == 5.0
    assert ring_behind_s(links, size, 1.0, [0.0, 2.5, 0.0]) == 5.0  # the fast one has time
    assert ring_behind_s(links, size, 1.0, [0.0, 4.0, 0.0]) == 6.0
    assert ring_behind_s(links, size, [1.0, 1.0, 3.0], [2.0, 0.0, 0.0]) == 7.0
    # latency of the steps: 4 steps of 2 x 10 ms behind all
    late = MemberLinks.of([8e6, 16e6, 8e6], 1e9, 0.01)
    assert ring_behind_s(late, size, 0.0, 7.0) == pytest.approx(11.0 + 4 * 0.02)


def test_a_stage_that_may_not_yet_send_computes_ahead():
    # Two stages, two micro-batches, passes of 1 forward and 2 back, sends of 1.  All forward passes first: stage 0 is
    # done with both at 2, sends from 10 to 11 and to 12; stage 1 ends them at 13, goes back until 15 and 17; the last
    # gradient arrives at 18, and stage 0 is done at 20.
    late = simulate(gpipe(2, 2), 1, 2, transfer=1, duplex="uplink", uplink_free=[10, 0])
    assert late.makespan == 20
    assert simulate(gpipe(2, 2), 1, 2, transfer=1, duplex="uplink").makespan == 11
    # Only the way back waits: the gradients leave at 10 and 11, and are used until 13 and 15.
    assert simulate(gpipe(2, 2), 1, 2, transfer=1, duplex="uplink", uplink_free=[0, 10]).makespan == 15
    # A stage that begins to compute at 5 holds up all by as much as that is later than what it waited for.
    assert simulate(one_f_one_b(2, 1), 1, 2, transfer=1, free=[0, 5]).makespan == 5 + 1 + 2 + 1 + 2


# ------------------------------------------------------------------------------------------------ against the engine

BOTH = {"checkpoint_every": 1}
CASES = [
    ("ddp", BOTH, 0.01),
    ("ddp", {"checkpoint_every": 2, "micro_batch": 2}, 0.01),
    ("zero1", BOTH, 0.01),
    ("zero2", BOTH, 0.01),
    ("zero3", BOTH, 0.01),
    ("megatron-tp", BOTH, 0.01),
    ("alpa", BOTH, 0.01),
    ("alpa", {"search": "even", "micro_batches": 2, **BOTH}, 0.01),
    ("gpipe", BOTH, 0.1),
    ("gpipe", {"stages": 2, **BOTH}, 0.1),
    ("1f1b", BOTH, 0.1),
    ("1f1b", {"stages": 2, "checkpoint_every": 3}, 0.1),
    ("interleaved", {"stages": "fewest", **BOTH}, 0.1),
    ("interleaved", {"stages": 2, **BOTH}, 0.1),
    ("dtfm", {"offspring": 20, **BOTH}, 0.1),
    ("dtfm", {"offspring": 20, "stages": 2, "reduction": "ring", **BOTH}, 0.1),
    ("asteroid", {"micro_batch": 2, **BOTH}, 0.1),
    ("asteroid", {"micro_batch": 2, "replicate_every": 1, "checkpoint_every": 2}, 0.1),
    ("confidant", {"micro_batch": 1, "neighbour_every": 8, "central_every": 8}, 0.1),
    ("confidant", {"micro_batch": 1, "neighbour_every": 5, "central_every": 16}, 0.1),
    ("swarm", BOTH, 0.2),
    ("swarm", {"stages": 2, "compression": "none", **BOTH}, 0.2),
]


def quick(devices, flops=1e9, latency_ns=0):
    """1 GFLOP/s, 1 MB/s up, 10 MB/s down: computing and sending take about as long."""
    return fleet_from_arrays(
        flops=np.full(devices, flops), down_bps=8e7, up_bps=8e6, memory_bytes=1 << 30, latency_ns=latency_ns
    )


def slow(devices):
    """A tenth of that speed, and 1 ms of latency: checkpoints are hidden behind computing in part."""
    return quick(devices, 1e8, 10**6)


def installed():
    return {entry.name: entry.load() for entry in entry_points(group="morphling.strategies")}


@pytest.mark.parametrize("world", [tiny_fleet, quick, slow], ids=["tiny", "quick", "slow"])
@pytest.mark.parametrize(("name", "config", "margin"), CASES)
def test_the_estimate_has_what_is_sent_beside_training(name, config, margin, world):
    cls = installed()[name]
    fleet = world(6 if name == "swarm" else 4)
    if name == "alpa":  # so that there are stages
        fleet = replace(fleet, memory_bytes=np.full(fleet.size, 3_500_000))
    run = replay(cls(cls.Config(**config)), fleet, tiny_workload(4, batch_size=8), iterations=ITERATIONS)
    took = run.recording.iteration_ends_ns[-1] / 1e9 / ITERATIONS
    assert any(d.label.startswith("upkeep") for d in run.recording.dispatches)
    assert run.strategy.report()["estimate_s"] == pytest.approx(took, rel=margin)


def test_every_strategy_with_checkpoints_is_among_them():
    saving = {
        name
        for name, cls in installed().items()
        if is_dataclass(cls.Config) and {"checkpoint_every", "central_every"} & {f.name for f in fields(cls.Config)}
    }
    assert saving == {name for name, _, _ in CASES}
