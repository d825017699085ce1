"""Batteries: when a device leaves for its own, and when it comes back, by hand-worked numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from morphling.engine import Engine
from morphling.engine import battery as battery_module
from morphling.errors import EngineError
from morphling.fleet import Availability, Battery, Links
from morphling.interfaces.strategy import Cancel, Dispatch, Done, Each, Strategy, WakeAt
from morphling.results import DeviceFacts, Results, metrics, write_run
from morphling.results.battery import battery_notes
from morphling.run import build, replay_scenario
from morphling.scenario import load_scenario
from morphling.types import FAR_NS
from tests.oracle.worlds import FlopsAreNanoseconds, bare_fleet, rows

S = 10**9
IDLE, FULL = 1.0, 5.0


def fleet_of(
    size=1, availability=None, *, capacity=100.0, reserve=20.0, charger=0.0, resume=50.0, initial=None, **more
):
    """Devices of 1 W idle, 5 W at full load, a battery of 100 J and links of 1 Mbit/s."""
    fleet = bare_fleet(Links.constant(np.full(size, 10**6), np.full(size, 10**6)), availability)
    full = (capacity, reserve, charger, resume, capacity if initial is None else initial)
    battery = Battery(*(np.broadcast_to(np.asarray(x, float), size).copy() for x in full))
    return replace(fleet, idle_w=np.full(size, IDLE), max_w=np.full(size, FULL), battery=battery, **more)


class Play(Strategy):
    """Dispatches tables at given seconds and is done at ``end``; writes down what it hears."""

    def __init__(self, end, *sent):
        super().__init__(None)
        self.end, self.sent, self.heard = end, sent, []

    def start(self, view):
        timers = [] if self.end is None else [WakeAt(self.end, "end")]
        return [*(WakeAt(at, table) for at, table in self.sent), *timers]

    def on_timer(self, tag, view):
        return Done() if isinstance(tag, str) else Dispatch(tag, Each())

    def hear(self, what, which, view):
        self.heard.append((what, round(view.now_s, 9), which.tolist()))

    def on_done(self, dispatch, rows, view):
        self.hear("done", rows, view)

    def on_lost(self, dispatch, rows, view):
        self.hear("lost", rows, view)

    def on_left(self, devices, view):
        self.hear("left", devices, view)

    def on_joined(self, devices, view):
        self.hear("joined", devices, view)


def run(fleet, strategy, **options):
    return Engine(fleet, None, strategy, FlopsAreNanoseconds(), **{"compiled": False, **options}).run()


def churn(recording):
    time, device, online = recording.churn
    return [(t, d, o) for t, d, o in zip(time.tolist(), device.tolist(), online.tolist(), strict=True)]


# --------------------------------------------------------------------------------------------------------------- drain


def test_idling_alone_drains_to_the_instant():
    strategy = Play(100.0)
    recording = run(fleet_of(), strategy)
    assert churn(recording) == [(80 * S, 0, False)]  # 80 J at 1 W
    assert strategy.heard == [("left", 80.0, [0])]
    b = recording.battery
    assert (b.final_j[0], b.lowest_j[0]) == pytest.approx((20.0, 20.0))  # away, without a charger: it stays
    assert (b.departures.tolist(), b.online_ns.tolist()) == ([1], [80 * S])


def test_computing_drains_at_full_load_and_the_device_leaves_in_the_middle():
    """From 10 s on 70 J are left above the reserve, and computing takes 5 W: 14 s."""
    strategy = Play(100.0, (10.0, rows(0, 60 * S)))
    recording = run(fleet_of(), strategy)
    assert churn(recording) == [(24 * S, 0, False)]
    assert strategy.heard == [("lost", 24.0, [0]), ("left", 24.0, [0])]
    assert recording.dispatches[0].lost.tolist() == [True]
    assert recording.battery.lowest_j[0] == pytest.approx(20.0)


def test_what_was_computed_counts_afterwards():
    """10 s of computing take 50 J; the 30 J that are left are gone 30 s later."""
    recording = run(fleet_of(), Play(100.0, (0.0, rows(0, 10 * S))))
    assert churn(recording) == [(40 * S, 0, False)]


def test_two_dispatches_with_a_pause_between_them():
    """10 J idling, 25 computing, 5 idling, then 40 J at 5 W."""
    recording = run(fleet_of(), Play(100.0, (10.0, rows(0, 5 * S)), (20.0, rows(0, 60 * S))))
    assert churn(recording) == [(28 * S, 0, False)]


def test_waiting_for_a_transfer_is_idling():
    """The download takes 40 s at 1 W; then 40 J at 5 W."""
    recording = run(fleet_of(), Play(100.0, (0.0, rows(0, 60 * S, down=5_000_000))))
    (time, _, _), *more = churn(recording)
    assert more == []
    assert time == pytest.approx(48 * S, abs=battery_module.SHORTEST_NS)


def test_the_radio_drains_when_transfers_end():
    """1 MB in 8 s at 1 uJ/bit is 8 J, and 2 MB out in 16 s at 2 uJ/bit 32 J: 40 J are left to idle after 24 s."""
    radio = {"radio_down_j": np.array([1e-6]), "radio_up_j": np.array([2e-6])}
    recording = run(fleet_of(**radio), Play(100.0, (0.0, rows(0, down=1_000_000, up=2_000_000))))
    assert churn(recording) == [(40 * S, 0, False)]
    assert recording.battery.lowest_j[0] == pytest.approx(20.0)


def test_a_transfer_that_takes_more_than_is_left():
    """After 8 s at 1 W 92 J are left, and the download takes 80 of them at once: it leaves then, and not later."""
    radio = {"radio_down_j": np.array([1e-5])}
    strategy = Play(100.0, (0.0, rows(0, down=1_000_000)))
    recording = run(fleet_of(**radio), strategy)
    assert churn(recording) == [(8 * S, 0, False)]
    assert strategy.heard == [("done", 8.0, [0]), ("left", 8.0, [0])]
    assert recording.battery.lowest_j[0] == pytest.approx(12.0)


def test_the_radio_of_peers():
    """Device 0 receives 1 MB from device 1 at 1 uJ/bit; sending it takes device 1 2 uJ/bit."""

    class Peers(Play):
        uses_peers = True

    fleet = fleet_of(2, radio_down_j=np.full(2, 1e-6), radio_up_j=np.full(2, 2e-6))
    recording = run(fleet, Peers(20.0, (0.0, rows(0, down=1_000_000, peer=1))))
    assert recording.battery.final_j == pytest.approx([100 - 20 - 8, 100 - 20 - 16])


def test_a_cancelled_row_counts_for_as_long_as_it_ran():
    class Stops(Play):
        def on_timer(self, tag, view):
            return Cancel(0) if tag == "stop" else super().on_timer(tag, view)

        def start(self, view):
            return [*super().start(view), WakeAt(6.0, "stop")]

    recording = run(fleet_of(), Stops(10.0, (0.0, rows(0, 60 * S))))
    assert recording.battery.final_j[0] == pytest.approx(100 - 10 - 6 * 4)


def test_plugged_in_devices_stay():
    fleet = fleet_of(2)
    fleet.battery.capacity_j[1] = np.nan
    for column in ("reserve_j", "charger_w", "resume_j", "initial_j"):
        getattr(fleet.battery, column)[1] = np.nan
    recording = run(replace(fleet, idle_w=np.array([1.0, np.nan])), Play(100.0))
    assert churn(recording) == [(80 * S, 0, False)]
    assert recording.battery.online_ns.tolist() == [80 * S, 100 * S]
    assert np.isnan(recording.battery.final_j[1])


# -------------------------------------------------------------------------------------------------------------- charge


def test_it_charges_and_comes_back():
    """80 s down to 20 J, 15 s at 2 W up to 50 J, 30 s down again, and so on."""
    recording = run(fleet_of(charger=2.0), Play(150.0))
    assert churn(recording) == [
        (80 * S, 0, False), (95 * S, 0, True), (125 * S, 0, False), (140 * S, 0, True)
    ]  # fmt: skip
    assert recording.battery.departures.tolist() == [2]
    assert recording.battery.final_j[0] == pytest.approx(40.0)
    assert recording.battery.online_ns.tolist() == [(80 + 30 + 10) * S]


def test_without_a_charger_no_charge_is_enough_to_come_back():
    recording = run(fleet_of(reserve=60.0, resume=50.0), Play(150.0))
    assert churn(recording) == [(40 * S, 0, False)]


def test_its_sessions_delay_the_return():
    """Charged at 95 s, but here only from 120 s on; meanwhile it charges on, up to 100 J."""
    sessions = Availability.of([[(0, 90 * S), (120 * S, FAR_NS)]])
    recording = run(fleet_of(availability=sessions, charger=2.0), Play(300.0))
    assert churn(recording)[:3] == [(80 * S, 0, False), (120 * S, 0, True), (200 * S, 0, False)]


def test_a_session_that_begins_meanwhile_does_not_bring_it_back_early():
    sessions = Availability.of([[(0, 82 * S), (85 * S, 93 * S), (94 * S, FAR_NS)]])
    recording = run(fleet_of(availability=sessions, charger=2.0), Play(100.0))
    assert churn(recording) == [(80 * S, 0, False), (95 * S, 0, True)]
    ends_as_it_is_full = Availability.of([[(0, 95 * S), (100 * S, FAR_NS)]])
    recording = run(fleet_of(availability=ends_as_it_is_full, charger=2.0), Play(101.0))
    assert churn(recording) == [(80 * S, 0, False), (100 * S, 0, True)]


def test_a_session_that_ends_as_the_battery_is_empty_ends_once():
    sessions = Availability.of([[(0, 80 * S), (81 * S, FAR_NS)]])
    recording = run(fleet_of(availability=sessions, charger=2.0), Play(100.0))
    assert churn(recording) == [(80 * S, 0, False), (95 * S, 0, True)]


def test_it_charges_while_away_for_other_reasons_but_not_above_full():
    """30 J are gone after 30 s, 10 s away bring 20 back; 90 J last until 110 s.  60 s away would bring 120 J."""
    recording = run(fleet_of(availability=Availability.of([[(0, 30 * S), (40 * S, FAR_NS)]]), charger=2.0), Play(111.0))
    assert churn(recording) == [(30 * S, 0, False), (40 * S, 0, True), (110 * S, 0, False)]
    recording = run(fleet_of(availability=Availability.of([[(0, 30 * S), (90 * S, FAR_NS)]]), charger=2.0), Play(171.0))
    assert churn(recording)[-1] == (170 * S, 0, False)


def test_it_begins_with_what_is_said():
    recording = run(fleet_of(initial=30.0), Play(20.0))
    assert churn(recording) == [(10 * S, 0, False)]
    recording = run(fleet_of(initial=10.0, charger=4.0), Play(20.0))  # 40 J at 4 W, never left
    assert churn(recording) == [(10 * S, 0, True)]
    assert recording.battery.departures.tolist() == [0]
    assert recording.battery.online_ns.tolist() == [10 * S]


def test_two_devices_go_their_own_ways():
    """Device 0 computes for 10 s (50 J), then idles; device 1 idles from 60 J; both charge at their own rates."""
    fleet = fleet_of(2, initial=[100.0, 60.0], charger=[2.0, 1.0])
    strategy = Play(75.0, (0.0, rows(0, 10 * S)))
    recording = run(fleet, strategy)
    assert churn(recording) == [
        (40 * S, 0, False), (40 * S, 1, False), (55 * S, 0, True), (70 * S, 1, True)
    ]  # fmt: skip
    assert strategy.heard[1] == ("left", 40.0, [0, 1])


# -------------------------------------------------------------------------------------------------------- with the rest


def test_heat_says_what_computing_takes():
    from tests.unit.test_heat import thermal

    fleet = replace(fleet_of(capacity=10_000.0, reserve=2_000.0), thermal=thermal(1))
    recording = run(fleet, Play(5000.0, (0.0, rows([0] * 400, 10 * S))))
    left = churn(recording)[0][0] / S
    assert recording.heat.lowest_clock[0] < 1.0
    assert left > 8000 / FULL + 1  # at full load it would be gone earlier
    assert left * IDLE + recording.heat.compute_j[0] == pytest.approx(8000, rel=1e-4)
    assert recording.battery.lowest_j[0] == pytest.approx(2000, abs=0.1)


def test_the_same_twice_and_compiled():
    fleet = fleet_of(3, initial=[90.0, 70.0, 60.0], charger=2.0)
    sent = [(float(3 * i), rows([0, 1, 2], 2 * S, down=20_000, up=20_000)) for i in range(40)]
    first, again, compiled = (run(fleet, Play(130.0, *sent), compiled=c) for c in (False, False, True))
    assert len(first.churn[0]) > 6
    for other in (again, compiled):
        assert other.events_sha256 == first.events_sha256
        assert churn(other) == churn(first)
        assert other.battery.final_j.tobytes() == first.battery.final_j.tobytes()


def test_charge_is_kept():
    """What is left is what there was, less what the energy metrics count, and what the charger gave."""
    fleet = fleet_of(2, initial=[90.0, 70.0])
    sent = [(float(3 * i), rows([0, 1], 2 * S)) for i in range(40)]
    recording = run(fleet, Play(130.0, *sent))
    taken = metrics(recording, fleet)["energy_j"]
    assert 160.0 - recording.battery.final_j.sum() == pytest.approx(taken)


# --------------------------------------------------------------------------------------------------------------- errors


def test_everybody_empty_without_a_charger_is_an_error_that_says_so():
    class Waits(Play):
        def on_lost(self, dispatch, rows, view):
            return ()

    with pytest.raises(EngineError) as caught:
        run(fleet_of(2), Waits(None, (0.0, rows([0, 1], 60 * S))))
    said = str(caught.value)
    assert "the last device online left at 16 s and none ever returns; the batteries of 2 of 2 devices are" in said
    assert "are empty (down to the reserve), all without a charger; lost with it: 2 rows" in said


def test_a_run_that_is_too_long_says_when_the_next_comes_back():
    with pytest.raises(
        EngineError, match=r"limit of 90 s .*none returns by 90 s .run.max_time., the next only at 95 s"
    ):
        run(fleet_of(charger=2.0), Play(1000.0), horizon_s=90.0)


def test_timers_alone_do_not_go_on_for_ever(monkeypatch):
    from morphling.engine import engine as engine_module

    class Polls(Play):
        def on_timer(self, tag, view):
            return WakeAt(view.now_s + 1.0, "again")

    monkeypatch.setattr(engine_module, "STANDSTILL", 200)
    with pytest.raises(EngineError, match="has waited for 201 timers with no device online"):
        run(fleet_of(), Polls(1.0))


def test_draining_and_charging_for_ever_is_given_up(monkeypatch):
    monkeypatch.setattr(battery_module, "FRUITLESS", 50)
    with pytest.raises(EngineError, match="come back 50 times without any dispatch"):
        run(fleet_of(charger=2.0), Play(None))


def test_the_closed_lane_and_missing_power_are_refused():
    with pytest.raises(EngineError, match="closed lane cannot serve batteries"):
        run(fleet_of(), Play(1.0), lane="closed")
    with pytest.raises(EngineError, match=r"device 1 .board#1. has a battery, but states no idle and full-load power"):
        run(replace(fleet_of(2), max_w=np.array([5.0, np.nan])), Play(1.0))
    with pytest.raises(EngineError, match=r"device 0 .board#0. would come back with a battery not above its reserve"):
        run(fleet_of(charger=2.0, resume=20.0), Play(1.0))
    with pytest.raises(ValueError, match="not known from their fleet alone"):
        DeviceFacts.of(fleet_of(), 10)


# -------------------------------------------------------------------------------------------------------------- results


def test_the_note_says_what_matters():
    fleet = fleet_of(2, initial=[100.0, 30.0], charger=20.0)
    (note,) = battery_notes(run(fleet, Play(60.0)).battery, fleet)
    assert note == "2 of 2 devices run on batteries; 1 of them left for it, 2 times in all"
    radio = replace(fleet, radio_up_j=np.array([1e-7, np.nan]))
    (note,) = battery_notes(run(radio, Play(5.0)).battery, radio)
    assert note.startswith("2 of 2 devices run on batteries; 0 of them left for it; the radio's energy")


def test_batteries_of_a_scenario(tmp_path):
    """Cleave trains on: device 1 begins 36 J above its reserve, and idling or training takes it at 1 W or more."""
    scenario = {
        "name": "b",
        "workload": {"model": "opt-125m", "batch_size": 4, "sequence_length": 64, "dtype": "float16"},
        "fleet": [
            {
                "profile": {
                    "compute": "1 TFLOP/s", "memory": "8 GB", "power": {"idle": "1 W", "max": "5 W"}, **more
                },
                "link": {"downlink": "80 Mbit/s", "uplink": "20 Mbit/s"},
            }
            for more in ({}, {"battery": {"capacity": "0.1 Wh", "reserve": 0.5, "initial": 0.6}})
        ],
        "strategy": {"name": "cleave"},
    }  # fmt: skip
    loaded = load_scenario(scenario)
    assert load_scenario(loaded.resolved_yaml()).scenario == loaded.scenario
    battery = build(loaded).fleet.battery
    assert battery.has.tolist() == [False, True]
    got = [c[1] for c in (battery.capacity_j, battery.reserve_j, battery.charger_w, battery.initial_j)]
    assert got == pytest.approx([360.0, 180.0, 0.0, 216.0])
    results = replay_scenario(loaded, out=tmp_path / "out", figures=False)
    assert results.metrics["battery_departures"] == 1
    assert results.metrics["iterations"] == 1
    assert 0.48 < results.metrics["lowest_battery_share"] <= 0.5 + 1e-9
    assert "note: 1 of 2 devices run on batteries; 1 of them left for it" in results.notes()
    assert results.recompute() == results.metrics


def test_metrics_and_tables(tmp_path):
    fleet = fleet_of(2, capacity=[100.0, 200.0], charger=2.0, initial=[100.0, 200.0])
    recording = run(fleet, Play(150.0, (0.0, rows([0], S))))
    write_run(tmp_path / "r", recording, fleet, {"name": "r"}, "name: r\n")
    results = Results.open(tmp_path / "r")
    assert results.metrics["battery_departures"] == 2
    assert results.metrics["lowest_battery_share"] == pytest.approx(0.2)
    assert results.recompute() == results.metrics
    devices = results.devices()
    assert devices["battery_departures"].tolist() == [2, 0]
    assert devices["battery_lowest_j"].tolist() == pytest.approx([20.0, 50.0])
    assert devices["battery_final_j"].tolist() == pytest.approx(recording.battery.final_j.tolist())
    assert devices["online_s"].tolist() == [(76 + 30 + 14), 150]
    plain = replace(fleet, battery=None)
    got = metrics(run(plain, Play(1.0)), plain)
    assert got["battery_departures"] is None
    assert got["not_available"]["lowest_battery_share"] == "no device has a battery"
