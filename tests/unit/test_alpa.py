"""Alpa: the planner against all plans, pipelines of groups worked by hand, recovery, and the published formula.

The tiny workload: layers of width 64 and FFN 256, 4 heads, vocabulary 512, sequences of 24 tokens in float16.  FLOPs of
a sequence: a layer forward 2 24 49,152 + 4 24² 64 = 2,506,752, the head 2 24 32,768 = 1,572,864; backward is twice
that.  Activations of a sequence are 24 64 2 = 3072 bytes.  Devices compute 1 GFLOP/s: a FLOP takes 1 ns.
"""

from __future__ import annotations

import types
from dataclasses import replace
from functools import lru_cache
from itertools import product

import numpy as np
import pytest

from morphling.errors import Infeasible, PlanError
from morphling.fleet import Availability
from morphling.fleet.published import cleave_fleet, fleet_from_arrays
from morphling.planning.alpa import AlpaCosts, AlpaDevices, AlpaPlan, AlpaStage, plan_alpa_even, plan_alpa_stages
from morphling.planning.collective_times import MemberLinks
from morphling.planning.layer_costs import layer_costs
from morphling.planning.row_times import Speeds
from morphling.planning.tensor_parallel import shard_parameters
from morphling.strategies.alpa import Alpa, AlpaConfig
from morphling.testing import replay
from morphling.testing.worlds import coming_and_going, tiny_fleet, tiny_workload
from morphling.types import FAR_NS, DType
from morphling.workload import model_named, parameters, training_step

S = 10**9
LAYER, HEAD, SENT = 2_506_752e-9, 1_572_864e-9, 3072


def fleet(count, *, up=8e6, memory=1 << 30, latency_ms=0, sessions=None):
    made = fleet_from_arrays(
        flops=np.full(count, 1e9),
        down_bps=np.full(count, 8e10),
        up_bps=np.full(count, up),
        memory_bytes=memory,
        latency_ns=latency_ms * 10**6,
    )
    if sessions:
        made = replace(made, availability=Availability.of([sessions.get(i, [(0, FAR_NS)]) for i in range(count)]))
    return made


class Given(Alpa):
    """Stages as the test says: (layers, replicas, ways, sharding) each, on devices in order."""

    layout = ()

    def plan(self, view, here):
        out, at, layer = [], 0, 0
        for p, (layers, replicas, ways, sharding) in enumerate(self.layout):
            held = min(len(self.layout) - p, self.config.micro_batches)
            out.append(AlpaStage(at, range(layer, layer + layers), replicas, ways, sharding, 0.0, held))
            at, layer = at + replicas * ways, layer + layers
        plan = AlpaPlan(tuple(out), self.config.micro_batches, 0.0)
        return self._placement(view.workload, plan, np.arange(view.fleet.size), "given")


def given(layout, there, work, micro_batches):
    strategy = Given(AlpaConfig(micro_batches=micro_batches))
    strategy.layout = layout
    return replay(strategy, there, work)


def seconds(run):
    return run.recording.end_ns / S


def near(value):
    return pytest.approx(value, rel=1e-6)


def step(work, layers, ways, *, first, last, replicas=1):
    """Seconds of the optimizer on a member's part."""
    held = shard_parameters(work.model, layers, ways, first=first, last=last)
    return layer_costs(work, 1).optimizer.flops * held / parameters(work.model) / replicas / 1e9


# ------------------------------------------------------------------------------------------------------------- planner


def costs(seed, layers, devices, micro_batches, *, memory=None):
    rng = np.random.default_rng(seed)
    work = tiny_workload(layers, batch_size=4)
    rates = rng.uniform(1e8, 4e9, devices), np.full(devices, np.inf), np.full(devices, 1e-4)
    links = MemberLinks.of(rng.uniform(1e7, 4e9, devices), rng.uniform(1e8, 4e9, devices), 1e-4)
    held = rng.integers(1_500_000, 4_000_000, devices) if memory is None else np.full(devices, memory)
    return AlpaCosts(work, micro_batches, AlpaDevices(Speeds(*rates), links, held))


def compositions(total):
    if total == 0:
        yield ()
    for first in range(1, total + 1):
        yield from ((first, *rest) for rest in compositions(total - first))


def best_of_all(c):
    """Least T over every division of layers, of devices by powers of two, and every option."""
    layers, devices, best = c.workload.model.layers, len(c.devices), np.inf
    for cut in compositions(layers):
        for sizes in product([n for n in (1, 2, 4, 8) if n <= devices], repeat=len(cut)):
            if sum(sizes) > devices:
                continue
            for chosen in product(*(c.options(n) for n in sizes)):
                total, longest, at = 0.0, 0.0, 0
                for p, (count, size, option) in enumerate(zip(cut, sizes, chosen, strict=True)):
                    timed = c.stage(size, count, option, first=p == 0, last=p == len(cut) - 1)
                    if timed.most[at] < min(len(cut) - p, c.micro_batches):
                        total = np.inf
                        break
                    total, longest, at = total + timed.seconds[at], max(longest, timed.seconds[at]), at + size
                best = min(best, total + (c.micro_batches - 1) * longest)
    return best


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("layers", "devices", "micro_batches"), [(3, 4, 1), (3, 4, 2), (4, 5, 4), (2, 8, 2)])
def test_the_dynamic_program_finds_the_best_of_all_plans(seed, layers, devices, micro_batches):
    c = costs(seed, layers, devices, micro_batches)
    wanted = best_of_all(c)
    if wanted == np.inf:
        with pytest.raises(Infeasible, match=f"no division of {layers} layers of tiny over {devices} devices fits"):
            plan_alpa_stages([c], gap=0.0)
        return
    assert plan_alpa_stages([c], gap=0.0).total_s == pytest.approx(wanted, rel=1e-12)
    assert plan_alpa_stages([c], gap=0.05).total_s <= wanted / 0.95


def best_by_frontiers(c):
    """The same by all pairs (Σ t, max t) of which neither is beaten, for cases with too many plans to list."""
    L, D = c.workload.model.layers, len(c.devices)
    sizes = [1 << i for i in range(D.bit_length()) if 1 << i <= D]

    @lru_cache(None)
    def pairs(stages, layer, at):
        """Of the layers from ``layer`` on, on devices from ``at`` on, in that many stages."""
        if not stages:
            return ((0.0, 0.0),) if layer == L else ()
        found = []
        for count, size in product(range(1, L - layer + 1), [n for n in sizes if at + n <= D]):
            behind = pairs(stages - 1, layer + count, at + size)
            for option in c.options(size) if behind else ():
                timed = c.stage(size, count, option, first=layer == 0, last=layer + count == L)
                if timed.most[at] >= min(stages, c.micro_batches):
                    t = timed.seconds[at]
                    found += [(t + total, max(t, longest)) for total, longest in behind]
        kept, least = [], np.inf
        for total, longest in sorted(found):
            if longest < least:
                kept.append((total, longest))
                least = longest
        return tuple(kept)

    every = [x for stages in range(1, min(L, D) + 1) for x in pairs(stages, 0, 0)]
    return min((total + (c.micro_batches - 1) * longest for total, longest in every), default=np.inf)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("layers", "devices", "micro_batches"), [(3, 4, 2), (8, 8, 4), (6, 13, 2), (5, 16, 4)])
def test_the_dynamic_program_on_more_devices(seed, layers, devices, micro_batches):
    c = costs(seed, layers, devices, micro_batches)
    wanted = best_by_frontiers(c)
    if (layers, devices) == (3, 4):
        assert wanted == pytest.approx(best_of_all(c), rel=1e-12)
    if wanted == np.inf:
        with pytest.raises(Infeasible):
            plan_alpa_stages([c], gap=0.0)
        return
    assert plan_alpa_stages([c], gap=0.0).total_s == pytest.approx(wanted, rel=1e-12)


def test_a_plan_that_is_known_is_returned_if_none_is_better():
    c, roomy = costs(1, 3, 4, 2), costs(1, 3, 4, 2, memory=1 << 30)
    best = plan_alpa_stages([roomy])
    for plan in (plan_alpa_stages, plan_alpa_even):
        assert plan([roomy], best=best) is best
        worse = replace(best, total_s=2 * best.total_s)
        assert plan([roomy], best=worse).total_s < worse.total_s
        assert plan([costs(1, 3, 4, 2, memory=1000)], best=best) is best  # nothing fits there
    assert plan_alpa_stages([c], best=best) is best


def test_some_of_those_cases_need_a_pipeline_and_some_fit_nowhere():
    found = [best_of_all(costs(seed, 3, 4, 2)) for seed in range(6)]
    assert np.isfinite(found).any()
    pipelines = [plan_alpa_stages([costs(seed, 3, 4, 2)]) for seed in range(6) if np.isfinite(found[seed])]
    assert max(len(p.stages) for p in pipelines) > 1


def test_the_best_division_of_the_batch_is_chosen():
    each = [plan_alpa_stages([costs(1, 3, 4, m, memory=1 << 30)]).total_s for m in (1, 2, 4)]
    choices = [costs(1, 3, 4, m, memory=1 << 30) for m in (1, 2, 4)]
    assert plan_alpa_stages(choices).total_s == min(each)


@pytest.mark.parametrize("seed", range(4))
def test_even_plans_are_not_better(seed):
    choices = [costs(seed, 4, 6, m, memory=1 << 30) for m in (1, 4)]
    even, best = plan_alpa_even(choices), plan_alpa_stages(choices)
    assert even.total_s >= best.total_s
    layers = [len(s.layers) for s in even.stages]
    assert max(layers) - min(layers) <= 1
    assert len({(s.replicas, s.ways, s.sharding) for s in even.stages}) == 1


def test_t_of_two_stages_by_hand():
    # two devices, one layer each, 4 micro-batches of a sequence, 1 MB/s: what crosses takes 2 · 3.072 ms, so that the
    # first stage takes 13.7 ms, and the last 12.2 ms; T = Σ t + 3 max t
    work = tiny_workload(2, batch_size=4)
    same = Speeds(np.full(2, 1e9), np.full(2, np.inf), np.zeros(2)), MemberLinks.of([8e6, 8e6], 8e9)
    c = AlpaCosts(work, 4, AlpaDevices(*same, np.full(2, 1 << 30)))
    plan = plan_alpa_even([replace(c, devices=AlpaDevices(*same, np.full(2, 2_600_000)))])
    assert [len(s.layers) for s in plan.stages] == [1, 1]
    first, last = 3 * LAYER + 2 * SENT / 1e6, 3 * (LAYER + HEAD)
    assert plan.total_s == near(first + last + 3 * first)
    # as one stage all of it in turn
    assert plan_alpa_stages([replace(c, devices=AlpaDevices(*same, np.full(2, 1 << 30)))]).total_s == near(
        min(plan.total_s, 4 * 3 * (2 * LAYER + HEAD))
    )


# ---------------------------------------------------------------------------------------------------------------- rows


def test_a_pipeline_of_two_devices():
    # 2 layers, 2 micro-batches of one sequence, 1 GB/s: the second stage is the slower one.  Its first forward waits
    # for the first stage's, then it is longest; the last gradients cross, and the first stage's last backward ends it.
    work = tiny_workload(2, batch_size=2)
    got = given([(1, 1, 1, "none"), (1, 1, 1, "none")], fleet(2, up=8e9), work, 2)
    cross = SENT / 1e9
    wanted = LAYER + cross + 2 * 3 * (LAYER + HEAD) + cross + 2 * LAYER
    assert seconds(got) == near(wanted + step(work, 1, 1, first=True, last=False))
    assert got.strategy.report()["estimate_s"] == near(seconds(got))


def test_a_stage_of_tensor_parallel_devices():
    # one stage of 2 ways: computing halves; 10 all-reduces of 2 sequences, each device sends 6144 bytes in each, and
    # the loss 576: what `megatron-tp` does
    got = given([(2, 1, 2, "none")], fleet(2), tiny_workload(2, batch_size=2), 1)
    assert seconds(got) == near(
        3 * (2 * LAYER + HEAD) + (6144 * 10 + 576) / 1e6 + step(tiny_workload(), 2, 2, first=True, last=True)
    )


def test_replicas_reduce_and_gather_once():
    # one stage of 2 replicas, 2 micro-batches: each computes two sequences; then each sends half of the gradients,
    # steps half, and sends half of the weights
    work = tiny_workload(2, batch_size=4)
    got = given([(2, 2, 1, "zero-1")], fleet(2), work, 2)
    half = step(work, 2, 1, first=True, last=True, replicas=2)
    assert seconds(got) == near(2 * 3 * (2 * LAYER + HEAD) + 2 * parameters(work.model) / 1e6 + half)


def test_divided_weights_travel_three_times_a_micro_batch():
    work = tiny_workload(2, batch_size=4)
    got = given([(2, 2, 1, "zero-3")], fleet(2), work, 2)
    half = step(work, 2, 1, first=True, last=True, replicas=2)
    assert seconds(got) == near(2 * (3 * (2 * LAYER + HEAD) + 3 * parameters(work.model) / 1e6) + half)


@pytest.mark.parametrize("latency_ms", [0, 1])
@pytest.mark.parametrize("up", [8e7, 8e9])
@pytest.mark.parametrize(
    ("micro_batches", "layout"),
    [
        (4, [(2, 4, 1, "zero-1"), (2, 1, 4, "none")]),
        (4, [(2, 1, 2, "none"), (2, 2, 1, "zero-3")]),
        (2, [(1, 2, 2, "zero-1"), (1, 1, 1, "none"), (1, 4, 2, "zero-3"), (1, 1, 4, "none")]),
        (8, [(1, 2, 2, "zero-1")] * 4),
    ],
)
def test_mixed_stages_agree_with_the_schedule(layout, micro_batches, up, latency_ms):
    work = tiny_workload(4, batch_size=16)
    size = sum(g * t for _, g, t, _ in layout)
    got = given(layout, fleet(size, up=up, latency_ms=latency_ms), work, micro_batches)
    assert got.strategy.report()["estimate_s"] == pytest.approx(seconds(got), rel=0.05)
    rows = got.strategy.table
    assert rows.flops[rows.kind == 0].sum() == pytest.approx(work.dag.gemm_flops(), rel=1e-9)


def test_what_crosses_is_sent_once():
    # 4 replicas of one sequence each to a group of 4 and back: every sequence crosses once in each direction
    work = tiny_workload(2, batch_size=4)
    got = given([(1, 4, 1, "zero-1"), (1, 1, 4, "none")], fleet(8), work, 1)
    pipeline = got.strategy._pipeline(got.strategy.placement, _view(fleet(8), work))
    there, back = pipeline.sends[0, 0], pipeline.sends[1, 1]
    assert (there.size.sum(), back.size.sum()) == (4 * SENT, 4 * SENT)
    assert there.sender.tolist() == [0, 1, 2, 3]
    assert there.target.tolist() == [0] * 4  # one replica that needs them all
    assert back.target.tolist() == [r for r in range(4) for _ in range(4)]  # each of 4 members sends to each replica
    assert back.size.tolist() == [SENT // 4] * 16


def _view(there, work):
    rates = {"uplink_bps": np.full(there.size, 8e6), "downlink_bps": np.full(there.size, 8e10)}
    return types.SimpleNamespace(fleet=there, workload=work, **rates)


# ------------------------------------------------------------------------------------------------------------ strategy


def test_small_memory_makes_a_pipeline():
    need = 16 * parameters(tiny_workload(4).model)
    got = replay(Alpa(), fleet(4, up=8e9, memory=need * 6 // 10), tiny_workload(4, batch_size=4))
    report = got.strategy.report()
    assert sum(report["plan"]["layers"]) == 4
    assert report["devices_used"] > 1
    assert report["plan"]["search"] == "stages"
    assert report["estimate_s"] == pytest.approx(seconds(got), rel=0.05)
    even = replay(
        Alpa(AlpaConfig(search="even")), fleet(4, up=8e9, memory=need * 6 // 10), tiny_workload(4, batch_size=4)
    )
    assert even.strategy.report()["plan"]["search"] == "even"


def test_devices_with_little_memory_and_good_links_are_left_out_where_that_is_faster():
    """Alone, a device with room for all only computes; a stage on one of the small ones would cost sends."""
    work = tiny_workload()
    alone = replay(Alpa(AlpaConfig(micro_batches=1)), fleet(1), work)
    need = sum(alone.strategy.report()["memory_bytes"].values())
    memory = np.where(np.arange(4) < 2, need - 1, need)
    there = fleet(4, up=np.array([9e4, 9e4, 8e4, 8e4]), memory=memory)
    got = replay(Alpa(AlpaConfig(micro_batches=1)), there, work)
    assert got.strategy.placement.devices.tolist() == [2]
    assert got.recording.end_ns == alone.recording.end_ns


def test_a_lost_stage_restarts_all_from_the_checkpoint():
    need = 16 * parameters(tiny_workload(4).model)
    work = tiny_workload(4, batch_size=4)
    size = fleet(4, up=8e9, memory=need * 6 // 10)
    quiet = replay(Alpa(), size, work)
    gone = int(quiet.strategy.placement.devices[0])
    left = int(quiet.recording.end_ns * 1.5)
    there = fleet(4, up=8e9, memory=need * 6 // 10, sessions={gone: [(0, left)]})
    got = replay(Alpa(AlpaConfig(detection_s=1.0, setup_s=2.0)), there, work, iterations=2)
    (x,) = got.strategy.report()["recoveries"]
    assert (x["lost_ns"], x["detected_ns"], x["planned_ns"]) == (left, left + S, left + S)
    states = [m.states for m in got.strategy.placement.memory]
    assert x["moved_bytes"] == sum(states)
    assert x["moved_ns"] - x["planned_ns"] == pytest.approx(max(states) / 1e10 * S, rel=1e-3)
    assert x["ready_ns"] - x["moved_ns"] == 2 * S
    assert x["iterations_redone"] == 1
    again = replay(Alpa(), fleet(3, up=8e9, memory=need * 6 // 10), work).recording.end_ns
    assert got.recording.end_ns == pytest.approx(x["ready_ns"] + 2 * again, rel=1e-6)


def test_a_checkpoint_holds_every_state_once():
    work = tiny_workload(4, batch_size=16)
    strategy = Given(AlpaConfig(micro_batches=2))
    strategy.layout = [(2, 4, 1, "zero-1"), (2, 2, 2, "zero-3")]
    placed = strategy.plan(_view(fleet(8), work), np.arange(8))
    ends = shard_parameters(work.model, 2, 1, last=False), shard_parameters(work.model, 2, 2, first=False)
    assert placed.saved_bytes[:4].sum() == pytest.approx(16 * ends[0], abs=64)
    assert placed.saved_bytes[4:].sum() == pytest.approx(2 * 16 * ends[1], abs=64)


def test_what_cannot_be_is_said_in_words():
    words = r"no division of 2 layers of tiny over 4 devices fits: .* has 1 kB, needed 1\.1\d* MB .*\(stages 1,"
    with pytest.raises(Infeasible, match=words):
        replay(Alpa(), fleet(4, memory=1000), tiny_workload())
    with pytest.raises(Infeasible, match="micro_batches: 4 sequences cannot be divided into 3; the nearest is 2"):
        replay(Alpa(AlpaConfig(micro_batches=3)), fleet(4), tiny_workload(batch_size=4))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"micro_batches": 0}, "micro_batches: a whole number from 1 on, or auto, not 0"),
        ({"most_devices": -1}, "most_devices: 0 or more devices, not -1"),
        ({"model": "paper", "search": "even"}, "search: model: paper does not know it"),
        ({"model": "paper", "micro_batches": 4}, "micro_batches: model: paper does not know it"),
    ],
)
def test_configs_that_mean_nothing_are_refused(config, words):
    with pytest.raises(ValueError, match=words):
        AlpaConfig(**config)


def test_the_published_formula():
    # OPT-13B, 256 devices of the published fleet: 5400 s
    there = cleave_fleet(256)
    work = training_step(model_named("opt-13b"), 128, 1024, DType.FLOAT16)
    got = replay(Alpa(AlpaConfig(model="paper")), there, work, iterations=2)
    ends = np.array(got.recording.iteration_ends_ns) / S
    assert ends == pytest.approx([5400, 10800], rel=0.01)
    assert got.strategy.report()["model"] == "paper"
    assert "not_replayed" in got.strategy.report()
    unquiet = replace(tiny_fleet(16), availability=coming_and_going(16, S))
    with pytest.raises(PlanError, match="model: paper knows no devices that come and go"):
        replay(Alpa(AlpaConfig(model="paper")), unquiet, tiny_workload())
