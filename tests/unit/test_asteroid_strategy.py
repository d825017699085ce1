"""Asteroid as a strategy: who computes what, what a round takes, and both recoveries, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from morphling.errors import Infeasible
from morphling.fleet import Availability
from morphling.planning.asteroid import plan_asteroid
from morphling.planning.group_costs import asteroid
from morphling.planning.pipeline_times import simulate
from morphling.planning.schedules import early_warm_up, one_f_one_b
from morphling.strategies.asteroid import Asteroid, AsteroidConfig
from morphling.testing import replay
from morphling.types import FAR_NS, Kind
from morphling.workload import model_named, training_step
from morphling.workload.models import layer_parameters
from tests.unit.test_pipelines import BOUNDARY, FORWARD, HEAD, fleet, passes, workload

S = 10**9


def made(**more):
    return Asteroid(AsteroidConfig(**{"micro_batch": 1, "detection_s": 10.0, **more}))


def leaving(where, *devices, at_s):
    sessions = [[(0, round(at_s * S) if d in devices else FAR_NS)] for d in range(where.size)]
    return replace(where, availability=Availability.of(sessions))


def test_a_line_of_single_devices_is_replayed_with_its_own_warm_up():
    # Boundaries of 3 kB are cheap beside 100 kB of weights a layer, so no stage has two devices.
    s = made()
    run = replay(s, fleet(4), workload(4, 8))
    plan = s.report()["plan"]
    assert (plan["layers"], plan["groups"]) == ([1, 1, 1, 1], [[0], [1], [2], [3]])
    forward, backward = [FORWARD] * 3 + [FORWARD + HEAD], [2 * FORWARD] * 3 + [2 * (FORWARD + HEAD)]
    schedule = one_f_one_b(4, 8, early_warm_up(4))
    timing = simulate(schedule, forward, backward, transfer=BOUNDARY * 1000, duplex="uplink")
    assert passes(run)[2].max() == timing.makespan


def test_a_group_divides_samples_by_speed_and_sums_its_gradients():
    # Links of 8 Gbit/s: weights cost nothing, and one stage of both devices has no bubble; 3 : 1.
    s = made(micro_batch=4)
    run = replay(s, fleet(2, up=8e9, down=8e9, flops=[3e9, 1e9]), workload(2, 4))
    plan = s.report()["plan"]
    assert (plan["groups"], plan["samples"], plan["layers"]) == ([[0, 1]], [[3, 1]], [2])
    t = run.dispatches[0].tasks
    flops = [t.flops[(t.device == d) & (t.kind == Kind.GEMM)].sum() for d in (0, 1)]
    assert flops[0] == 3 * flops[1] == 3 * 3 * (2 * FORWARD + HEAD)
    # a ring of two: each sends all weights once, less the byte that goes around as a token
    assert t.bytes_out.max() == 2 * (s.placement.memory[0].states // 16)


def test_the_weights_of_a_plan_are_those_of_the_planner(monkeypatch):
    seen = {}

    def spy(profile, rates, micro_batches, **more):
        seen.update(profile=profile, rates=rates, more=more, found=plan_asteroid(profile, rates, micro_batches, **more))
        return seen["found"]

    monkeypatch.setattr("morphling.strategies.asteroid.plan_asteroid", spy)
    w = workload(2, 4)
    s = made(micro_batch=2)
    replay(s, fleet(2), w)
    each = layer_parameters(w.model)
    assert seen["profile"].weight_bytes[0] == 2 * (each + 8 * 64 + w.model.position_rows * 64)
    assert seen["profile"].output_bytes.tolist() == [BOUNDARY] * 2
    assert seen["profile"].forward_s[0, 0, 1:].tolist() == pytest.approx([FORWARD / 1e9, 2 * FORWARD / 1e9])
    assert seen["more"]["states"] == 8.0  # 16 bytes of states for 2 of weights
    assert s.report()["plan"]["planned_round_s"] == seen["found"].latency_s


def test_light_replay_takes_the_layers_from_the_copy_on_the_next_stage():
    # Device 1 leaves in the second round.  Layers 0 | 1 | 2 | 3 on devices 0 to 3 become 0 | 1, 2 | 3 on 0, 2, 3, and
    # device 2 has a copy of layer 1: nothing moves.
    quiet = replay(made(), fleet(4), workload(4, 8)).recording.end_ns / S
    s = made()
    run = replay(s, leaving(fleet(4), 1, at_s=1.5 * quiet), workload(4, 8), iterations=3)
    report = s.report()
    (entry,) = report["recoveries"]
    assert (report["plan"]["groups"], report["plan"]["layers"]) == ([[0], [2], [3]], [1, 2, 1])
    assert report["plan"]["replayed"] == "light"
    assert entry["moved_bytes"] == 0
    assert entry["detected_ns"] - entry["lost_ns"] == 10 * S
    assert entry["ready_ns"] == entry["moved_ns"] == entry["planned_ns"] == entry["detected_ns"]
    assert entry["replayed_ns"] - entry["ready_ns"] == pytest.approx(0.5 * quiet * S, abs=2)
    assert entry["iterations_redone"] == 0
    assert len(run.recording.iteration_ends_ns) == 3


def test_light_replay_moves_shifted_layers_at_the_same_time():
    # Of six layers on three devices, 2 each, device 0 leaves; its copy is on device 1.  Layers 0-2 and 3-5 are left:
    # device 1 has 2, 3 and the copy of 0, 1; device 2 needs layer 3 from it: 2 bytes a parameter, 1 us a byte.
    w = workload(6, 6)
    s = made()
    quiet = replay(made(), fleet(3), w).recording.end_ns / S
    replay(s, leaving(fleet(3), 0, at_s=quiet / 2), w)
    (entry,) = s.report()["recoveries"]
    assert s.report()["plan"]["layers"] == [3, 3]
    layer = 2 * layer_parameters(w.model)
    assert entry["moved_bytes"] == layer
    assert entry["moved_ns"] - entry["planned_ns"] == layer * 1000
    whole = made(copied="states")
    replay(whole, leaving(fleet(3), 0, at_s=quiet / 2), w)
    assert whole.report()["recoveries"][0]["moved_bytes"] == 16 * layer_parameters(w.model)


def test_heavy_replay_gathers_and_scatters_all_layers():
    # As above, but all six layers go up, at most four of them from one device (its own and the copy), at 1 us a byte,
    # and then come down where the new plan has them, at 8 bytes a microsecond.
    w = workload(6, 6)
    s = made(replay="heavy", planning_s=2.0)
    quiet = replay(made(), fleet(3), w).recording.end_ns / S
    replay(s, leaving(fleet(3), 0, at_s=quiet / 2), w)
    report = s.report()
    (entry,) = report["recoveries"]
    layer, model = 2 * layer_parameters(w.model), w.model
    first = 2 * (8 * 64 + model.position_rows * 64)
    last = 2 * (2 * 64 + 8 * 64)
    assert report["plan"]["layers"] == [3, 3]
    assert entry["moved_bytes"] == 2 * (6 * layer + first + last)
    assert entry["planned_ns"] - entry["planning_ns"] == 2 * S
    up, down = (4 * layer + first) * 1000, (3 * layer + first) * 125
    assert entry["moved_ns"] - entry["planned_ns"] == up + down


def test_without_a_copy_all_restart_from_the_checkpoint():
    # Devices 1 and 2 leave together: layer 1 was on 1, its copy on 2.  The initial states are the last checkpoint.
    quiet = replay(made(), fleet(4), workload(4, 8)).recording.end_ns / S
    s = made(checkpoint_every=0)
    replay(s, leaving(fleet(4), 1, 2, at_s=1.5 * quiet), workload(4, 8), iterations=2)
    (entry,) = s.report()["recoveries"]
    assert entry["iterations_redone"] == 1
    assert entry["moved_bytes"] == sum(m.states for m in s.placement.memory)


def test_copies_are_sent_when_they_are_due():
    # After rounds 2 and 4 of 5; each of four stages sends its weights to the next, and the last to the first.
    s = made(replicate_every=2, checkpoint_every=0)
    run = replay(s, fleet(4), workload(4, 8), iterations=5)
    sent = [d for d in run.dispatches if d.label.startswith("upkeep")]
    assert [d.label for d in sent] == ["upkeep/after iteration 2", "upkeep/after iteration 4"]
    t = sent[0].tasks
    assert (t.device.tolist(), t.peer.tolist()) == ([0, 1, 2, 3], [1, 2, 3, 0])
    assert t.bytes_out[1] == 2 * layer_parameters(workload(4, 8).model)
    assert s.saved == 0  # no checkpoint


def test_the_published_formula_stands_for_the_run():
    w = training_step(model_named("opt-125m"), 8, 128, workload(1, 1).dtype)
    where = fleet(4, flops=1e12)
    s = Asteroid(AsteroidConfig(model="paper", quirks=False))
    run = replay(s, where, w, iterations=2)
    rates = {"flops": np.full(4, 1e12), "down": np.full(4, 8e6), "up": np.full(4, 1e6)}
    from morphling.planning.costs import Rates

    wanted = asteroid(w.model, 8, 128, Rates.of(**rates), quirks=False)
    assert run.recording.iteration_ends_ns[0] == round(wanted.total_s * 1e9)
    assert s.report()["parts_s"] == wanted.parts


def test_what_does_not_fit_says_so():
    with pytest.raises(Infeasible, match="no pipeline of up to 4 stages fits: "):
        replay(made(), fleet(4, memory=100_000), workload(4, 8))


def test_the_same_seed_gives_the_same_events():
    where = leaving(fleet(4), 1, at_s=0.1)
    runs = [replay(Asteroid(AsteroidConfig()), where, workload(4, 8), seed=3).recording.events_sha256 for _ in range(2)]
    assert runs[0] == runs[1]
