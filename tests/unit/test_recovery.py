"""Recovery of Cleave under churn, split into detection, planning, re-dispatch and recompute: scenarios worked by hand.

Identical devices of 100 MFLOP/s on links of 1 MB/s each way, without latency, and a coordinator that is free.  All
scenarios are about the level ``forward/layer 0/o_proj`` of opt-125m with 128 tokens: C is 128 x 768, k = 768, fp16.  A
device that covers m x n of it receives 1536 (m + n) bytes, computes 1536 m n FLOP and returns 2 m n bytes: for m = 128
that is 1.536 (128 + n) ms, 1.96608 n ms and 0.256 n ms, one after another (``overlap: none``).
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import morphling
from morphling.engine import Engine
from morphling.errors import EngineError, ScenarioError
from morphling.executors.analytic import Analytic
from morphling.fleet import Availability
from morphling.fleet.published import cleave_fleet, fleet_from_arrays
from morphling.fleet.streams import stream
from morphling.results import metrics
from morphling.run import build
from morphling.scenario import load_scenario
from morphling.strategies.cleave import Cleave, CleaveConfig
from morphling.types import FAR_NS, DType, Kind
from morphling.workload import Place, model_named, training_step

S = 10**9
WORK = training_step(model_named("opt-125m"), 2, 64, DType.FLOAT16)
LEVEL = "forward/layer 0/o_proj"
TAKEN = {3: 3_082_813_440, 4: 2_361_262_080}
"""When the level is dispatched with that many devices: the end of the one before it (128 x 2304)."""
PARTS = ("detection", "planning", "waiting", "redispatch", "recompute")


def fleet(size, sessions):
    """``sessions``: device -> its sessions, ns; the others are always here."""
    always = fleet_from_arrays(
        flops=np.full(size, 1e8), down_bps=np.full(size, 8e6), up_bps=np.full(size, 8e6), memory_bytes=4 << 30
    )
    return replace(always, availability=Availability.of([sessions.get(i, [(0, FAR_NS)]) for i in range(size)]))


def replay(size, sessions, *, lane=None, seed=0, **config):
    there = fleet(size, sessions)
    strategy = Cleave(CleaveConfig(**{"overlap": "none", "detection_s": 0.1, "planning_s": 0.25, **config}))
    recording = Engine(there, WORK, strategy, Analytic(fleet=there), seed=seed, lane=lane).run()
    gemms = sum(
        float(d.tasks.flops[~d.lost & (d.tasks.device < size) & (d.tasks.kind == Kind.GEMM)].sum())
        for d in recording.dispatches
    )
    assert gemms == WORK.dag.gemm_flops(place=Place.DEVICES)  # whatever was lost, everything was done once
    report = strategy.report()
    got = metrics(recording, there, 1.0, report)
    total = round(got["recovery_time_s"] * S) if got["recovery_time_s"] is not None else 0
    parts = {name: got[f"recovery_{name}_s"] for name in PARTS}
    known = [round(value * S) for name, value in parts.items() if value is not None and name != "waiting"]
    assert sum(known) == total
    return recording, report, got, parts


def entries(report, start_ns):
    """Lost, detected, planning begun, planned (seconds after ``start_ns``), rows."""
    names = ("lost_ns", "detected_ns", "planning_ns", "planned_ns")
    return [(*((x[name] - start_ns) / S for name in names), x["rows"]) for x in report["recoveries"]]


@pytest.mark.parametrize("lane", ["closed", "events"])
def test_one_device_leaves(lane):
    """Device 2 leaves while it computes; the survivors are idle when its 128 x 256 comes to them as 128 x 128 each."""
    left = TAKEN[3] + 700_000_000
    recording, report, got, parts = replay(3, {2: [(0, left)]}, lane=lane)
    assert [d.time_ns for d in recording.dispatches if d.label == LEVEL] == [TAKEN[3]]
    assert entries(report, left) == [(0, 0.1, 0.1, 0.35, 1)]
    assert parts == {
        "detection": 0.1,
        "planning": 0.25,
        "waiting": 0.0,
        "redispatch": 0.393216,  # 1.536 (128 + 128) ms
        "recompute": 0.28442624,  # (1.96608 + 0.256) 128 ms
    }
    assert (got["recovery_time_s"], got["loss_instants"], got["unrecovered_losses"]) == (1.02764224, 1, 0)
    again = next(d for d in recording.dispatches if d.label.startswith("recovery"))
    assert (again.time_ns - left, again.settled_ns - left) == (350_000_000, 1_027_642_240)


@pytest.mark.parametrize("lane", ["closed", "events"])
def test_two_losses_at_one_instant_are_noticed_and_planned_together(lane):
    """Each survivor gets 128 x 96 of both blocks: inputs one after another, the second is computed when it is there."""
    left = TAKEN[4] + 600_000_000
    recording, report, got, parts = replay(4, {2: [(0, left)], 3: [(0, left)]}, lane=lane)
    assert entries(report, left) == [(0, 0.1, 0.1, 0.35, 2)]
    assert parts == {
        "detection": 0.1,
        "planning": 0.25,
        "waiting": 0.0,
        "redispatch": 0.688128,  # 2 x 1.536 (128 + 96) ms
        "recompute": 0.21331968,  # (1.96608 + 0.256) 96 ms
    }
    assert sum(d.label.startswith("recovery") for d in recording.dispatches) == 1
    assert (got["loss_instants"], got["lost_rows"], report["rows_planned_again"]) == (1, 2, 2)


@pytest.mark.parametrize("lane", ["closed", "events"])
def test_a_loss_during_detection(lane):
    """Device 3 leaves; 50 ms later device 2 does, before the first loss is noticed.

    The first plan (0.1 s to 0.35 s) still counts on device 2, so its part of it, 128 x 64, is lost when it is sent; by
    then the coordinator knows, and it needs no other detection.  The loss of device 2 waits from 0.15 s to 0.35 s for
    the first plan, and what was lost of that plan from 0.35 s to 0.6 s for the second.
    """
    left = TAKEN[4] + 600_000_000
    recording, report, got, parts = replay(4, {2: [(0, left + 50_000_000)], 3: [(0, left)]}, lane=lane)
    assert entries(report, left) == [
        (0, 0.1, 0.1, 0.35, 1),
        (0.05, 0.15, 0.35, 0.6, 1),
        (0.35, 0.35, 0.6, 0.85, 1),
    ]
    # 128 x 64, 128 x 96 and 64 x 64 on each of devices 0 and 1, downloaded from 0.35, 0.644912 and 0.988976 s on
    moved, ended = (0.644912, 0.988976, 1.185584), (0.78712512, 1.20229568, 1.25669056)
    sent = [d for d in recording.dispatches if d.label.startswith("recovery")]
    assert [(d.settled_ns - left) / S for d in sent] == list(ended)
    assert [d.lost.tolist() for d in sent] == [[False, False, True], [False, False], [False, False]]
    assert parts == {
        "detection": pytest.approx(0.1 + 0.1 + 0, abs=1e-12),
        "planning": pytest.approx(0.25 + 0.45 + 0.5, abs=1e-12),
        "waiting": pytest.approx(0 + 0.2 + 0.25, abs=1e-12),
        "redispatch": pytest.approx(sum(moved) - 0.35 - 0.6 - 0.85, abs=1e-12),
        "recompute": pytest.approx(sum(ended) - sum(moved), abs=1e-12),
    }
    assert got["recovery_time_s"] == 2.84611136
    assert (got["loss_instants"], got["unrecovered_losses"]) == (3, 0)


def test_a_loss_during_planning_waits_for_the_next_plan():
    """As before, but device 2 leaves while the first plan is made, and that is noticed only after it is sent."""
    left = TAKEN[4] + 600_000_000
    _, report, _, parts = replay(4, {2: [(0, left + 300_000_000)], 3: [(0, left)]})
    # device 2 has settled its own row at 0.31815936 - 0.3: it loses that, and its part of the first recovery, 128 x 64
    assert entries(report, left) == [
        (0, 0.1, 0.1, 0.35, 1),
        (0.3, 0.4, 0.4, 0.65, 1),
        (0.35, 0.4, 0.4, 0.65, 1),
    ]
    assert (parts["detection"], parts["planning"], parts["waiting"]) == (0.25, 0.75, 0.0)


def test_rows_of_a_recovery_are_lost():
    """Device 1 leaves while it computes its half of what device 2 lost; device 0 does that half alone."""
    left = TAKEN[3] + 700_000_000
    _, report, got, parts = replay(3, {2: [(0, left)], 1: [(0, left + 850_000_000)]})
    assert entries(report, left) == [(0, 0.1, 0.1, 0.35, 1), (0.85, 0.95, 0.95, 1.2, 1)]
    assert parts == {
        "detection": 0.2,
        "planning": 0.5,
        "waiting": 0.0,
        "redispatch": 2 * 0.393216,
        "recompute": 2 * 0.28442624,
    }
    assert (got["loss_instants"], got["unrecovered_losses"]) == (2, 0)


def test_a_recovery_of_which_nothing_was_done_counts_as_re_dispatch():
    """Devices 0 and 1 leave at 0.5 s, 0.15 s after they were sent the rest of device 2, and come back at 5 s."""
    left = TAKEN[3] + 700_000_000
    away = [(0, left + S // 2), (left + 5 * S, FAR_NS)]
    _, report, _, parts = replay(3, {2: [(0, left)], 1: away, 0: away})
    assert entries(report, left) == [(0, 0.1, 0.1, 0.35, 1), (0.5, 0.6, 5, 5.25, 2)]
    assert parts["planning"] == 0.25 + 4.65
    assert parts["waiting"] == 4.4
    # 128 x 128 twice, cut into 128 x 64 on two devices: the second pair of inputs has arrived after 2 x 294.912 ms
    assert parts["redispatch"] == pytest.approx(0.15 + 0.589824, abs=1e-12)
    assert parts["recompute"] == pytest.approx(0.14221312, abs=1e-12)


def test_all_leave_and_one_returns():
    """Three blocks of 128 x 256 for one device; nothing can be planned until it is there."""
    left = TAKEN[3] + 700_000_000
    sessions = {0: [(0, left), (left + 10 * S, FAR_NS)], 1: [(0, left)], 2: [(0, left)]}
    _, report, got, parts = replay(3, sessions)
    assert entries(report, left) == [(0, 0.1, 10, 10.25, 3)]
    assert parts == {
        "detection": 0.1,
        "planning": 10.15,
        "waiting": 9.9,
        "redispatch": 1.769472,  # 3 x 1.536 (128 + 256) ms
        "recompute": 0.56885248,  # (1.96608 + 0.256) 256 ms
    }
    assert got["recovery_time_s"] == 12.58832448


def test_nobody_returns():
    left = TAKEN[3] + 700_000_000
    with pytest.raises(EngineError):
        replay(3, {device: [(0, left)] for device in range(3)})


def test_a_device_that_is_back_before_it_is_missed_takes_part():
    left = TAKEN[3] + 700_000_000
    recording, report, _, parts = replay(3, {2: [(0, left), (left + 50_000_000, FAR_NS)]})
    assert entries(report, left) == [(0, 0.1, 0.1, 0.35, 1)]
    again = next(d for d in recording.dispatches if d.label.startswith("recovery"))
    assert sorted(set(again.tasks.device.tolist())) == [0, 1, 2]
    assert parts["detection"] == 0.1


def test_a_device_that_leaves_as_a_level_begins_is_sent_its_row_and_loses_it():
    recording, report, _, _ = replay(3, {2: [(0, TAKEN[3])]})
    assert entries(report, TAKEN[3]) == [(0, 0.1, 0.1, 0.35, 1)]
    level = next(d for d in recording.dispatches if d.label == LEVEL)
    assert level.lost.tolist() == [False, False, True]
    assert level.column("settled_ns")[2] == TAKEN[3]


def test_without_delays_only_moving_and_computing_are_left():
    left = TAKEN[3] + 700_000_000
    _, report, _, parts = replay(3, {2: [(0, left)]}, detection_s=0, planning_s=0)
    assert entries(report, left) == [(0, 0, 0, 0, 1)]
    assert (parts["detection"], parts["planning"]) == (0.0, 0.0)
    assert parts["redispatch"] == 0.393216


def test_detection_is_drawn_once_for_each_instant_from_its_own_stream():
    left = TAKEN[4] + 600_000_000
    gone = {2: [(0, left)], 3: [(0, left)], 1: [(0, left + 20 * S)]}
    first, second = (replay(4, gone, seed=5, detection_s=[0.05, 0.2]) for _ in range(2))
    assert first[0].events_sha256 == second[0].events_sha256
    assert first[1]["recoveries"] == second[1]["recoveries"]
    draws = stream(5, "strategy/detection").uniform(0.05, 0.2, 2)
    found = [x["detected_ns"] - x["lost_ns"] for x in first[1]["recoveries"]]
    assert [abs(ns - d * S) <= 1 for ns, d in zip(found, draws, strict=True)] == [True, True]
    assert CleaveConfig().detection_s == [0.05, 0.2]
    assert any("0.05 to 0.2 s" in text for text in first[1]["assumptions"])


def test_measured_planning_adds_up_and_says_so():
    left = TAKEN[3] + 700_000_000
    _, report, _, parts = replay(3, {2: [(0, left)]}, planning_s="measured")
    assert parts["planning"] > 0
    assert sum("two runs of this scenario differ" in text for text in report["assumptions"]) == 1


def test_nothing_is_said_of_recovery_where_nobody_leaves():
    _, report, got, parts = replay(3, {})
    assert report["recoveries"] == []
    assert not any("leaves" in text for text in report["assumptions"])
    assert set(parts.values()) == {None}
    assert got["not_available"]["recovery_planning_s"] == "no row was lost"


@pytest.mark.parametrize("gemms", ["linear", "artifact"])
def test_the_published_model_does_all_products_of_a_lost_row_again(gemms):
    """A row stands for several products, of which the row's shape names one: all of them come again."""
    base = cleave_fleet(8)
    work = training_step(model_named("opt-125m"), 8, 128, DType.FLOAT16)

    def go(sessions):
        there = replace(base, availability=Availability.of(sessions))
        strategy = Cleave(CleaveConfig(model="paper", gemms=gemms, planning_s=0.01))
        recording = Engine(there, work, strategy, Analytic(fleet=there), seed=1).run()
        done = sum(float(d.tasks.flops[~d.lost].sum()) for d in recording.dispatches)
        return recording, done, metrics(recording, there, 1.0, strategy.report())

    quiet, everything, _ = go([[(0, FAR_NS)]] * 8)
    end = quiet.end_ns
    leaving = [[(0, end * i // 9)] if i in {3, 4, 5} else [(0, FAR_NS)] for i in range(8)]
    leaving[6] = [(0, end // 2), (end * 2 // 3, FAR_NS)]
    _, done, got = go(leaving)
    assert got["lost_rows"] > 0
    assert done == pytest.approx(everything, rel=1e-9)
    parts = [got[f"recovery_{name}_s"] for name in PARTS if name != "waiting"]
    assert sum(round(x * S) for x in parts) == round(got["recovery_time_s"] * S)


# --------------------------------------------------------------------------------------- what the results make of it


@pytest.fixture(scope="module")
def run_of_three():
    left = TAKEN[3] + 700_000_000
    recording, report, _, _ = replay(3, {2: [(0, left)]})
    return recording, fleet(3, {}), report["recoveries"][0]


def test_a_strategy_that_reports_no_recoveries_has_the_sum_alone(run_of_three):
    recording, there, _ = run_of_three
    for report in (None, {}, {"estimate_s": 1.0}):
        got = metrics(recording, there, 1.0, report)
        assert got["recovery_time_s"] == 1.02764224
        assert [got[f"recovery_{name}_s"] for name in PARTS] == [None] * 5
        assert got["not_available"]["recovery_redispatch_s"] == "the strategy reports no recoveries"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"lost_ns": 5}, "no row was lost at the 5 ns of entry 0"),
        ({"planned_ns": 9 * S, "detected_ns": 8 * S}, "the times of entry 0 do not rise"),
        ({"planned_ns": 90 * S}, f"no dispatch labelled recovery was made at the {90 * S} ns of entry 0"),
        ({"detected_ns": 1.5}, "entry 0 lacks lost_ns, detected_ns or planned_ns in whole nanoseconds"),
        ({"detected_ns": None}, "entry 0 lacks"),
    ],
)
def test_reports_that_do_not_fit_the_events_are_not_believed(run_of_three, change, why):
    recording, there, entry = run_of_three
    got = metrics(recording, there, 1.0, {"recoveries": [{**entry, **change}]})
    assert got["recovery_detection_s"] is None
    assert why in got["not_available"]["recovery_detection_s"]
    assert got["recovery_time_s"] == 1.02764224
    assert metrics(recording, there, 1.0, {"recoveries": "none"})["recovery_waiting_s"] is None


def test_what_was_never_sent_again_is_unrecovered(run_of_three):
    recording, there, entry = run_of_three
    got = metrics(recording, there, 1.0, {"recoveries": [{**entry, "planned_ns": None}]})
    assert (got["unrecovered_losses"], got["recovery_time_s"], got["recovery_planning_s"]) == (1, None, None)
    bare = {name: entry[name] for name in ("lost_ns", "detected_ns", "planned_ns")}
    assert metrics(recording, there, 1.0, {"recoveries": [bare]})["recovery_waiting_s"] == 0


SCENARIO = """
name: leaving
seed: 3
workload: {model: opt-125m, batch_size: 2, sequence_length: 64}
fleet:
  - profile: {compute: 100 MFLOP/s, memory: 4 GiB}
    count: 3
    link: {downlink: 8 Mbit/s, uplink: 8 Mbit/s, latency: 0 s}
availability: {model: sessions, sessions: [{device: 2, end: 3782813440 ns}]}
strategy: {name: cleave, overlap: none, detection_s: 0.1, planning_s: 0.25}
"""


def test_a_run_folder_gives_the_same_parts_and_prints_them(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    results = morphling.run(path, out=tmp_path / "r", figures=False)
    assert results.metrics["recovery_detection_s"] == 0.1
    assert results.recompute() == results.metrics
    assert [x["rows"] for x in results.manifest["strategy"]["recoveries"]] == [1]
    assert ("recovery_planning_s", 0.25, "s") in results.summary()
    shown = subprocess.run(
        [sys.executable, "-m", "morphling", "report", str(tmp_path / "r")], capture_output=True, text=True, check=True
    ).stdout
    for word in ("recovery_detection_s", "100.0 ms", "recovery_redispatch_s", "recovery_recompute_s", "charged 0.25 s"):
        assert word in shown
    assert "recovery_waiting_s" not in shown  # 0: nothing waited
    plain = subprocess.run(
        [sys.executable, "-m", "morphling", "report", "--json", str(tmp_path / "r")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert json.loads(plain)["metrics"]["recovery_recompute_s"] == results.metrics["recovery_recompute_s"]


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ("detection_s: -0.1", "strategy.detection_s: seconds from 0 on, and finite, not -0.1"),
        ("detection_s: .nan", "strategy.detection_s: seconds from 0 on, and finite, not nan"),
        ("detection_s: [0.3, 0.2]", "did you mean [0.2, 0.3]?"),
        ("detection_s: [0.1]", "strategy.detection_s: a list needs two values"),
        ("detection_s: [0.1, .inf]", "finite, not inf"),
        ("detection_s: soon", "strategy.detection_s: a number is needed, or a list is needed, found 'soon'"),
        ("detection_s: [0.1, 'x']", "strategy.detection_s.1: a number is needed, found 'x'"),
        ("planning_s: -1", "strategy.planning_s: seconds from 0 on"),
        ("planning_s: [0.1, 0.2]", "strategy.planning_s: a number is needed, or must be one of measured, found a list"),
        (
            "planning_s: measure",
            "a number is needed, or must be one of measured, found 'measure', did you mean 'measured'?",
        ),
        ("planning_s: true", "strategy.planning_s"),
    ],
)
def test_delays_are_checked_with_their_place(tmp_path, keys, why):
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.replace("detection_s: 0.1, planning_s: 0.25", keys))
    with pytest.raises(ScenarioError) as caught:
        build(load_scenario(path))
    assert "s.yaml:10:" in str(caught.value)
    assert why in str(caught.value)
