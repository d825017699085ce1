"""The engine by hand: small fleets whose times can be worked out on paper, and everything it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from morphling.engine import Engine, closed_lane
from morphling.engine.links import link_arrays
from morphling.errors import Deserted, EngineError, PlanError
from morphling.fleet import Availability, Links, LinkTrace, PastEnd
from morphling.interfaces.strategy import All, Cancel, Dispatch, Done, Each, IterationDone, Quorum, Strategy, WakeAt
from morphling.types import FAR_NS
from tests.oracle.worlds import Erratic, FlopsAreNanoseconds, Once, World, bare_fleet, coordinator, rows

S = 10**9
MEGABIT = 10**6
LANES = pytest.mark.parametrize("lane", ["closed", "events"])


class Script(Strategy):
    """Decides what a test says, and writes down what it hears."""

    def __init__(self, *first, **hooks):
        super().__init__(None)
        self.first, self.hooks, self.heard = first, hooks, []

    def hear(self, hook, view, *what):
        self.heard.append((hook, round(view.now_s * S), *what))
        reply = self.hooks.get(hook, ())
        return reply(*what) if callable(reply) else reply

    def start(self, view):
        return self.first

    def on_done(self, dispatch, rows, view):
        return self.hear("done", view, dispatch.serial, rows.tolist())

    def on_lost(self, dispatch, rows, view):
        return self.hear("lost", view, dispatch.serial, rows.tolist())

    def on_left(self, devices, view):
        return self.hear("left", view, devices.tolist())

    def on_joined(self, devices, view):
        return self.hear("joined", view, devices.tolist())

    def on_timer(self, tag, view):
        return self.hear("timer", view, tag)


def links(*, down=MEGABIT, up=MEGABIT, devices=1, latency=0, half_duplex=False):
    return Links.constant(np.full(devices, down), np.full(devices, up), latency, half_duplex)


def traced(starts_s, down, up, period_s, past_end=PastEnd.REPEAT, offset=0):
    trace = LinkTrace("t", np.array(starts_s) * S, np.array(down), np.array(up), period_s * S, past_end)
    return Links.of([trace], np.zeros(1), np.array([offset]), np.zeros(1), np.zeros(1, bool))


def engine(fleet, strategy, **options):
    return Engine(fleet, None, strategy, FlopsAreNanoseconds(), compiled=False, **options)


def times(fleet, table, lane="closed"):
    """The seven time columns of each row, seconds."""
    dispatch = engine(fleet, Once(table), lane=lane).run().dispatches[0]
    return (np.stack(dispatch.times[:7]).T / S).tolist()


# ---------------------------------------------------------------------------------------------------------------- links


@LANES
@pytest.mark.parametrize(
    ("payload", "seconds"), [(1_250_000, 10), (1_250_001, 15.000004), (1_500_000, 16), (3_750_000, 25)]
)
def test_rate_changes_are_integrated_exactly(lane, payload, seconds):
    # 1 Mbit/s for 10 s, nothing for 5 s, then 2 Mbit/s
    fleet = bare_fleet(traced([0, 10, 15], [MEGABIT, 0, 2 * MEGABIT], [1, 1, 1], 100))
    assert times(fleet, rows([0], down=payload), lane)[0][1] == seconds


@LANES
def test_repeat_hold_and_offset(lane):
    steps = [0, 10], [MEGABIT, 2 * MEGABIT], [1, 1], 20
    payload = rows([0], down=125_000 * 50)  # 50 Mbit
    assert times(bare_fleet(traced(*steps)), payload, lane)[0][1] == 35  # 10 + 20 + 10 Mbit, then 10 of 20
    assert times(bare_fleet(traced(*steps, PastEnd.HOLD)), payload, lane)[0][1] == 30
    assert times(bare_fleet(traced(*steps, offset=10 * S)), payload, lane)[0][1] == 30  # 20 + 10 + 20


@LANES
def test_directions_are_not_swapped(lane):
    fleet = bare_fleet(links(down=8 * MEGABIT, up=2 * MEGABIT))
    row = times(fleet, rows([0], S, 1_000_000, 1_000_000), lane)[0]
    assert row == [0, 1, 1, 2, 2, 6, 6]


def test_coordinator_uplink_limits_downloads():
    fleet = bare_fleet(links(devices=2, down=8 * MEGABIT, up=8 * MEGABIT), centre=coordinator(uplink_bps=8 * MEGABIT))
    row = times(fleet, rows([0, 1], 0, 1_000_000, 1_000_000), None)[0]
    assert row == [0, 2, 2, 2, 2, 3, 3]


def test_unequal_caps_share_what_the_slow_one_leaves():
    down = np.array([MEGABIT, 10 * MEGABIT, 10 * MEGABIT])
    fleet = bare_fleet(Links.constant(down, down), centre=coordinator(uplink_bps=9 * MEGABIT))
    ends = [row[1] for row in times(fleet, rows([0, 1, 2], 0, [125_000, 500_000, 1_000_000]), None)]
    # 1, 4 and 4 Mbit/s; at 1 s the first two are through and the third has 4 Mbit left, alone
    assert ends == pytest.approx([1, 1, 1 + 4 / 9], abs=2e-9)


@LANES
def test_latency_does_not_occupy_the_link(lane):
    fleet = bare_fleet(links(latency=S // 2))
    first, second = times(fleet, rows([0, 0], S, 125_000, 125_000), lane)
    assert first == [0, 1.5, 1.5, 2.5, 2.5, 4, 4]
    assert second == [1, 2.5, 2.5, 3.5, 3.5, 5, 5]


@LANES
def test_an_empty_payload_is_instant_and_has_no_latency(lane):
    fleet = bare_fleet(links(latency=S))
    assert times(fleet, rows([0], 3 * S), lane)[0] == [0, 0, 0, 3, 3, 3, 3]


@LANES
def test_rows_on_the_coordinator_have_no_link(lane):
    fleet = bare_fleet(links(latency=S))
    assert times(fleet, rows([1, 1], S, overlap=[5, 0]), lane) == [[0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 2, 2, 2, 2]]


def test_half_duplex_shares_one_channel():
    fleet = bare_fleet(links(half_duplex=True))
    table = rows([0, 0, 0], S, 250_000, 250_000)
    # at 4 s the second row's download holds the channel; the third asked at 0 s, before the first row's upload (3 s)
    assert [row[0] for row in times(fleet, table, None)] == [0, 2, 4]
    assert [row[4] for row in times(fleet, table, None)] == [6, 8, 10]


# --------------------------------------------------------------------------------------------------------------- queues


@LANES
def test_release_and_dependencies(lane):
    fleet = bare_fleet(links(devices=3))
    table = rows([0, 1, 2], [S, 2 * S, S], release_ns=[5 * S, 0, 0], dependencies=[[], [], [0, 1]])
    assert [row[2] for row in times(fleet, table, lane)] == [5, 0, 6]


@LANES
def test_a_row_that_is_not_ready_holds_up_its_queue(lane):
    fleet = bare_fleet(links())
    table = rows([0, 0, 0], S, [125_000, 125_000, 0], release_ns=[3 * S, 0, 0])
    late, held, empty = times(fleet, table, lane)
    assert (late[0], held[0]) == (3, 4)
    assert (empty[0], empty[2]) == (0, 6)  # it stands in no download queue, but in the compute queue


@LANES
def test_stages_of_different_rows_overlap(lane):
    fleet = bare_fleet(links())
    table = rows([0, 0, 0], 2 * S, 125_000, 125_000)
    assert [row[6] for row in times(fleet, table, lane)] == [4, 6, 8]


@LANES
def test_tiles_fill_and_drain_the_pipeline(lane):
    fleet = bare_fleet(links())
    # four tiles of 1 s down, 1 s compute, 1 s up
    assert times(fleet, rows([0], 4 * S, 500_000, 500_000, overlap=4), lane)[0] == [0, 4, 1, 5, 2, 6, 6]


@LANES
def test_perfect_overlap_takes_the_longest_stage(lane):
    fleet = bare_fleet(links(latency=S // 4))
    assert times(fleet, rows([0], 4 * S, 250_000, 125_000, overlap=0), lane)[0] == [0, 2.25, 0, 4, 0, 1.25, 4]


# ---------------------------------------------------------------------------------------------------------------- churn


def leaving(*sessions):
    return Availability.of([[(a * S, b * S if b else FAR_NS) for a, b in own] for own in sessions])


@LANES
def test_leaving_in_the_middle_loses_rows_at_that_instant(lane):
    fleet = bare_fleet(links(devices=2), leaving([(0, 3)], [(0, None)]))
    table = rows([0, 0, 0, 1, 1], S, 250_000, dependencies=[[], [], [], [1], []])
    script = Script(Dispatch(table, Each()), WakeAt(50.0), timer=Done())
    dispatch = engine(fleet, script, lane=lane).run().dispatches[0]
    assert script.heard == [
        ("lost", 3 * S, 0, [1, 2, 3]),
        ("done", 3 * S, 0, [0]),  # it ended at the very instant
        ("left", 3 * S, [0]),
        ("done", 6 * S, 0, [4]),  # its queue was free as soon as row 3 was lost
        ("timer", 50 * S, None),
    ]
    columns = np.stack(dispatch.times[:7]).T.tolist()
    assert columns[1] == [2 * S, -1, -1, -1, -1, -1, 3 * S]
    assert columns[2] == [-1] * 6 + [3 * S]
    assert columns[4][0] == 3 * S
    assert dispatch.lost.tolist() == [False, True, True, True, False]


@LANES
def test_a_device_comes_back_with_empty_queues(lane):
    fleet = bare_fleet(links(), leaving([(0, 3), (5, None)]))
    table = rows([0, 0], 10 * S)
    script = Script(Dispatch(table), joined=Dispatch(rows([0], S)), done=lambda serial, _: Done() if serial else ())
    recording = engine(fleet, script, lane=lane).run()
    assert script.heard[-1] == ("done", 6 * S, 1, [0])
    assert [x.tolist() for x in recording.churn] == [[3 * S, 5 * S], [0, 0], [False, True]]


@LANES
def test_rows_for_an_absent_device_are_lost_at_once(lane):
    fleet = bare_fleet(links(devices=2), leaving([(5, None)], [(0, None)]))
    script = Script(Dispatch(rows([0, 1, 1], [0, S, S], dependencies=[[], [0], []])), done=Done())
    engine(fleet, script, lane=lane).run()
    assert script.heard == [("lost", 0, 0, [0, 1]), ("done", S, 0, [2])]


@LANES
def test_cancelling_after_a_return_does_not_revive_lost_rows(lane):
    # device 0 is back when the dispatch that it had left is cancelled
    fleet = bare_fleet(links(devices=2), leaving([(0, 3), (5, None)], [(0, None)]))
    script = Script(
        Dispatch(rows([0, 1], 20 * S)), WakeAt(6.0, "send"), WakeAt(7.0, "cancel"),
        timer=lambda tag: Dispatch(rows([0], 4 * S)) if tag == "send" else Cancel(0),
        done=Done(),
    )  # fmt: skip
    recording = engine(fleet, script, lane=lane).run()
    assert recording.dispatches[0].times[6].tolist() == [3 * S, 7 * S]
    assert recording.end_ns == 10 * S


# -------------------------------------------------------------------------------------------------------------- notices


@LANES
def test_each_all_and_quorum(lane):
    fleet = bare_fleet(links(devices=3))
    table = rows([0, 1, 2], [S, 2 * S, 2 * S])
    script = Script(
        Dispatch(table, All()), Dispatch(table, Each()), Dispatch(table, Quorum(1)), WakeAt(9.0), timer=Done()
    )
    engine(fleet, script, lane=lane).run()
    assert script.heard == [
        ("done", 2 * S, 0, [0, 1, 2]),
        ("done", 2 * S, 1, [0]),
        ("done", 3 * S, 2, [0]),
        ("done", 4 * S, 1, [1, 2]),
        ("timer", 9 * S, None),
    ]


@LANES
def test_cancel_frees_the_queue_and_keeps_silent(lane):
    fleet = bare_fleet(links())
    script = Script(
        Dispatch(rows([0], 10 * S), Each()), Dispatch(rows([0], S)), WakeAt(4.0), timer=Cancel(0), done=Done()
    )  # fmt: skip
    recording = engine(fleet, script, lane=lane).run()
    assert script.heard == [("timer", 4 * S, None), ("done", 5 * S, 1, [0])]
    assert [d.lost.tolist() for d in recording.dispatches] == [[True], [False]]
    assert recording.dispatches[0].times[3].tolist() == [-1]


@LANES
def test_cancel_leaves_the_past_alone(lane):
    # the finished dispatch 1 ran between the rows of 0 and 2 on device 0; withdrawing 0 must not move row 2 forward
    fleet = bare_fleet(links(devices=2))
    script = Script(
        Dispatch(rows([0, 1], [5 * S, 100 * S])), Dispatch(rows([0], 5 * S)), Dispatch(rows([0], 10 * S)),
        WakeAt(15.0), timer=Cancel(0), done=lambda serial, _: Done() if serial == 2 else (),
    )  # fmt: skip
    recording = engine(fleet, script, lane=lane).run()
    assert recording.dispatches[2].times[2].tolist() == [10 * S]
    assert recording.end_ns == 20 * S


@LANES
def test_rows_that_finish_at_an_instant_already_told_are_told_too(lane):
    fleet = bare_fleet(links(devices=2))
    script = Script(
        Dispatch(rows([0], 10 * S)), Dispatch(rows([1, 0], [S, 0]), Each()), WakeAt(20.0),
        done=lambda serial, found: Cancel(0) if found == [0] else (), timer=Done(),
    )  # fmt: skip
    engine(fleet, script, lane=lane).run()
    assert script.heard[:2] == [("done", S, 1, [0]), ("done", S, 1, [1])]


@LANES
def test_an_empty_dispatch_is_done_at_once(lane):
    script = Script(Dispatch(rows([])), done=[IterationDone(), Done()])
    recording = engine(bare_fleet(links()), script, lane=lane).run()
    assert script.heard == [("done", 0, 0, [])]
    assert recording.iteration_ends_ns == [0]


@LANES
def test_done_withdraws_what_still_runs(lane):
    script = Script(Dispatch(rows([0], 10 * S)), WakeAt(2.5), timer=Done())
    recording = engine(bare_fleet(links()), script, lane=lane).run()
    assert recording.end_ns == 2.5 * S
    assert recording.dispatches[0].lost.tolist() == [True]


# --------------------------------------------------------------------------------------------------------------- guards


def refused(strategy, words, fleet=None, of=EngineError, **options):
    with pytest.raises(of, match=words):
        engine(fleet or bare_fleet(links()), strategy, **options).run()


def test_nothing_left_to_happen_names_what_is_pending():
    refused(
        Script(),
        "nothing is left to happen at 0 s and Script has not said Done: 1 of 1 devices .*; no rows are pending",
    )
    away = bare_fleet(links(), leaving([(0, 1)]))
    late = Script(Dispatch(rows([0], 2 * S), label="late"))
    refused(late, "nothing is left.*the last device online left at 1 s and none ever returns", away, of=Deserted)


def test_a_clock_that_stands_still():
    refused(Script(WakeAt(0.0), timer=WakeAt(0.0)), "the clock stands still at 0 s")


@LANES
def test_a_link_that_never_delivers(lane):
    fleet = bare_fleet(links(down=0, latency=S))
    refused(
        Once(rows([0], 0, 1)),
        r"row 0 on device 0 \(board\) can never finish: its link delivers nothing more",
        fleet,
        lane=lane,
    )


@LANES
def test_a_trace_that_has_ended(lane):
    fleet = bare_fleet(traced([0], [MEGABIT], [MEGABIT], 10, PastEnd.ERROR))
    assert times(fleet, rows([0], 0, 1_250_000), lane)[0][1] == 10
    refused(
        Once(rows([0], 0, 1_250_001)), "row 0 on device 0.*can never finish.*trace has ended.*link t", fleet, lane=lane
    )


def test_rows_beyond_a_device_s_memory():
    table = rows([0, 0], S, resident_bytes=60)
    refused(Once(table), "device 0 would hold 120 bytes of 100 bytes", bare_fleet(links(), memory=100))


@pytest.mark.parametrize("device", [2, 7])
def test_a_device_that_is_not_there(device):
    refused(Once(rows([device], S)), f"a row names device {device} of a fleet of 1")


@pytest.mark.parametrize("decision", ["now", 3, None])
def test_an_unknown_decision(decision):
    refused(Script(decision), "which is no Dispatch, StandingOrder, Cancel, WakeAt, IterationDone or Done")


def test_other_decisions_that_make_no_sense():
    refused(Script(Cancel(0)), r"Cancel\(0\): there is no such dispatch")
    refused(Script(WakeAt(5.0), timer=WakeAt(4.0)), "that time is past, it is 5 s")
    refused(Script(Dispatch(rows([0], S), Quorum(2))), "a quorum of 2 of 1 rows")
    refused(Once(rows([1], 0, 5)), "rows on the coordinator have no link")
    refused(Once(rows([0], S)), "limit of 0.5 s", horizon_s=0.5)
    refused(Once(rows([0], S)), "cannot serve", bare_fleet(links(half_duplex=True)), lane="closed")
    half = bare_fleet(links(half_duplex=True))
    refused(Once(rows([0], S, 1, overlap=0)), "perfect overlap is impossible", half, of=PlanError)


# ------------------------------------------------------------------------------------------------------- repeatability

PRINT = """
from tests.unit.test_engine import digest
print(digest(int({first})), digest(5))
"""


def digest(seed):
    world = World(seed, shared=seed % 2 == 0)
    recording = Engine(world.fleet, None, Erratic(world), FlopsAreNanoseconds(), compiled=False).run()
    return recording.events_sha256


def test_same_fingerprint_in_any_process_alone_or_after_another_run():
    root = Path(__file__).parents[2]
    found = set()
    for hash_seed, first in (("0", 5), ("12345", 8)):
        out = subprocess.run(
            [sys.executable, "-c", PRINT.format(first=first)], cwd=root, check=True, capture_output=True, text=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)},
        )  # fmt: skip
        found.add(out.stdout.split()[1])
    assert found == {digest(5)}


def test_parts_side_by_side_are_the_same_to_the_bit(monkeypatch):
    """Large tables are resolved in parts by threads; devices have nothing in common, so nothing may change."""
    dice = np.random.default_rng(5)
    n, size = 900, 13
    fleet = bare_fleet(
        Links.constant(dice.integers(10**5, 10**8, size), dice.integers(10**5, 10**8, size), dice.integers(0, S, size)),
        Availability.of([[(0, int(dice.integers(S, 90 * S)))] for _ in range(size)]),
    )
    table = rows(
        dice.integers(0, size + 1, n),
        dice.integers(0, S, n),
        dice.integers(0, 2, n) * dice.integers(1, 10**6, n),
        dice.integers(0, 2, n) * dice.integers(1, 10**6, n),
        overlap=dice.choice([0, 1, 4], n),
    )
    central = table.device == size
    table.bytes_in[central] = table.bytes_out[central] = 0

    def run():
        return Engine(fleet, None, Once(table, table), FlopsAreNanoseconds(), compiled=True, lane="closed").run()

    alone = run()
    monkeypatch.setattr(closed_lane, "ROWS_A_THREAD", 10)
    monkeypatch.setattr(closed_lane.os, "cpu_count", lambda: 3)
    assert closed_lane.ClosedLane(link_arrays(fleet.links), size, compiled=True).parts_of(table)[1] == 3
    assert run().events_sha256 == alone.events_sha256


def test_now_is_never_past():
    """After months a float of seconds is coarser than 1 ns; a strategy that passes ``now_s`` on means now."""
    months = 110 * 86_400 * S + 1
    assert round(months / 1e9 * 1e9) == months - 1
    fleet = bare_fleet(links(devices=2), Availability.of([[(0, FAR_NS)], [(0, months)]]))
    script = Script(left=lambda _: WakeAt(months / 1e9, "now"), timer=Done())
    recording = engine(fleet, script).run()
    assert recording.end_ns == months
    assert [hook for hook, *_ in script.heard] == ["left", "timer"]
