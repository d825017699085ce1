"""Heat: how a device slows and recovers, by hand, against small steps, in both lanes, and cut in the middle."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest

from morphling.engine import Engine
from morphling.engine.kernels import SOURCES
from morphling.errors import EngineError
from morphling.fleet import Availability, Links, Thermal
from morphling.interfaces.strategy import Cancel, Done, WakeAt
from morphling.run.build import build
from morphling.run.run import _heat_notes
from morphling.scenario import load_scenario
from morphling.types import FAR_NS
from tests.oracle.worlds import Erratic, FlopsAreNanoseconds, Once, World, bare_fleet, rows

S = 10**9
PHONE = {
    "ambient_c": 25.0, "ambient_to_case": 6.0, "case_s": 200.0, "case_cooling_s": 600.0, "junction_to_case": 2.1,
    "junction_s": 3.0, "trip_c": 42.0, "hysteresis_k": 2.0, "clock_floor": 0.55, "power_exponent": 2.0,
    "static_share": 0.28,
}  # fmt: skip
IDLE, FULL = 0.5, 5.0


def thermal(size, steps=0, **changed):
    columns = {name: np.full(size, value) for name, value in {**PHONE, **changed}.items()}
    return Thermal(clock_steps=np.full(size, steps), **columns)


def warm(fleet, **changed):
    n = fleet.size
    return replace(fleet, idle_w=np.full(n, IDLE), max_w=np.full(n, FULL), thermal=thermal(n, **changed))


def phone(size=1, availability=None, **changed):
    return warm(bare_fleet(Links.constant(np.full(size, S), np.full(size, S)), availability), **changed)


def run(fleet, *tables, executor=None, **options):
    options = {"compiled": False, **options}
    return Engine(fleet, None, Once(*tables), executor or FlopsAreNanoseconds(), **options).run()


def spans(recording):
    """How long each row computed, s."""
    return np.concatenate([d.times[7] for d in recording.dispatches]) / S


def test_every_name_of_the_kernels_is_defined_once():
    seen = {}
    for source in SOURCES:
        for name, value in vars(source).items():
            if getattr(value, "__module__", None) == source.__name__:
                assert seen.setdefault(name, source.__name__) == source.__name__


def test_a_sustained_load_falls_to_the_clock_that_the_case_can_bear():
    """25 + 6 P = 42 at P = 17/6 W; 1.4 W are static, so 3.6 c^2 = 17/6 - 1.4 and c = 0.631."""
    clock = math.sqrt((17 / 6 - 1.4) / 3.6)
    recording = run(phone(), *[rows(0, 10 * S)] * 90)
    took = spans(recording)
    assert took[0] == 10.0
    assert took[-1] == pytest.approx(10 / clock, abs=1e-8)
    assert 0.5 <= 10 / took[60] <= 0.75  # after 15 minutes
    assert recording.heat.hottest_c[0] == pytest.approx(42.0, abs=1e-9)
    assert recording.heat.lowest_clock[0] == pytest.approx(clock, abs=1e-9)
    # The idle case is at 28 degC; it is at 42 when 27 e^(-t / 200) = 13.
    full_s = 200 * math.log(27 / 13)
    assert recording.heat.throttled_ns[0] / S == pytest.approx(recording.end_ns / S - full_s, abs=1e-6)
    joules = (5 - 0.5) * full_s + (17 / 6 - 0.5) * (recording.end_ns / S - full_s)
    assert recording.heat.compute_j[0] == pytest.approx(joules, rel=1e-9)


def test_it_recovers_with_the_slower_constant():
    """From 42 degC towards 28 with 600 s: the clock is full again from 40 degC on, after 600 ln(14 / 12) = 92.5 s."""
    heated = [rows(0, 400 * S)]
    back_s = 600 * math.log(14 / 12)
    for wait_s, full in ((back_s - 1, False), (back_s + 1, True)):
        took = spans(run(phone(), *heated, rows(0, S, release_ns=round(wait_s * S))))
        assert (float(took[1]) == 1.0) is full


def test_the_floor_holds():
    took = spans(run(phone(ambient_c=36.0), *[rows(0, 100 * S)] * 20))
    assert took[-1] == pytest.approx(100 / 0.55)


def test_steps_of_the_clock():
    """Nine clocks from 1 to 0.55; the highest that the case bears is 0.606, and a decision takes a second."""
    recording = run(phone(steps=8), *[rows(0, 10 * S)] * 60)
    clocks = recording.heat.curve[:, 2]
    allowed = 1 - np.arange(9) * 0.45 / 8
    assert all(np.abs(allowed - c).min() < 1e-12 for c in clocks)
    assert recording.heat.lowest_clock[0] == pytest.approx(0.60625)
    times = recording.heat.curve[:, 1][np.flatnonzero(np.diff(clocks)) + 1]
    assert np.all(np.diff(times) >= 1 - 1e-6)
    assert 42.0 < recording.heat.hottest_c[0] < 42.3


def test_what_waits_for_memory_is_not_stretched():
    class HalfClocked(FlopsAreNanoseconds):
        def clocked(self, tasks, durations):
            return durations // 2

    took = spans(run(phone(), *[rows(0, 100 * S)] * 9, executor=HalfClocked()))
    assert took.tolist() == [100.0] * 9  # at 0.63 of the clock the computing takes 79 s
    heated = spans(run(phone(clock_floor=0.3, ambient_c=36.0), *[rows(0, 100 * S)] * 9, executor=HalfClocked()))
    assert heated[-1] == pytest.approx(50 / 0.3)


def small_steps(work_s, idle_s, *, steps=0, dt=0.002, **changed):
    """The same by small steps: computing and idling in turn; (seconds of each computing, joules above idle, case)."""
    p = {**PHONE, **changed}
    case = p["ambient_c"] + p["ambient_to_case"] * IDLE
    clock, acts_at, now, joules, took = 1.0, 0.0, 0.0, 0.0, []
    step = (1 - p["clock_floor"]) / steps if steps else None
    for work, idle in zip(work_s, idle_s, strict=True):
        left, began = work, now
        until = None
        while until is None or now < until:
            busy = until is None
            watts = FULL * (p["static_share"] + (1 - p["static_share"]) * clock**2) if busy else IDLE
            target = p["ambient_c"] + p["ambient_to_case"] * watts
            tau = p["case_s"] if target > case else p["case_cooling_s"]
            if now >= acts_at - dt / 2:
                if busy and case >= p["trip_c"] and clock > p["clock_floor"] and target > p["trip_c"] + 1e-9:
                    bears = (p["trip_c"] - p["ambient_c"]) / p["ambient_to_case"] - FULL * p["static_share"]
                    best = math.sqrt(max(bears, 0) / (FULL * (1 - p["static_share"])))
                    clock = max(p["clock_floor"], clock - step if steps else min(clock, best))
                    acts_at = now + 1
                elif case <= p["trip_c"] - p["hysteresis_k"] and clock < 1:
                    clock = min(1.0, clock + step) if steps else 1.0
                    acts_at = now + 1
            case += (target - case) * (1 - math.exp(-dt / tau))
            now += dt
            if busy:
                joules += (watts - IDLE) * dt
                left -= dt * clock
                if left <= 0:
                    took.append(now - began)
                    until = now + idle
    return took, joules, case


@pytest.mark.parametrize("changed", [{}, {"steps": 5}, {"trip_c": 36.0, "clock_floor": 0.2}, {"ambient_c": 38.0}])
def test_the_closed_form_equals_small_steps(changed):
    work, idle = [60, 120, 30, 200, 5, 90], [0, 50, 200, 10, 0, 3]
    tables = [rows(0, w * S, release_ns=i * S) for w, i in zip(work, [0, *idle[:-1]], strict=True)]
    recording = run(phone(**changed), *tables)
    took, joules, _ = small_steps(work, idle, **changed)
    assert spans(recording) == pytest.approx(took, rel=2e-3, abs=0.01)
    assert recording.heat.compute_j[0] == pytest.approx(joules, rel=2e-3)


def story(seed, lane, **options):
    world = World(seed)
    strategy = Erratic(world)
    fleet = warm(world.fleet, trip_c=29.0, hysteresis_k=0.3, case_s=3.0, case_cooling_s=5.0)
    recording = Engine(fleet, None, strategy, FlopsAreNanoseconds(), lane=lane, **options).run()
    return recording, strategy.heard


@pytest.mark.parametrize("seed", range(120))
def test_both_lanes_have_the_same_heat(seed):
    """Worlds with churn, withdrawals and pipelines, and devices that trip within a second."""
    (a, heard_a), (b, heard_b) = story(seed, "closed", compiled=False), story(seed, "events", compiled=False)
    assert heard_a == heard_b
    for x, y in zip(a.dispatches, b.dispatches, strict=True):
        assert all(np.array_equal(p, q) for p, q in zip(x.times, y.times, strict=True))
    assert a.heat.compute_j == pytest.approx(b.heat.compute_j, rel=1e-9, abs=1e-9)
    assert a.heat.hottest_c == pytest.approx(b.heat.hottest_c)


def test_compiled_is_interpreted():
    for lane in ("closed", "events"):
        for seed in range(20):
            one, two = (story(seed, lane, compiled=c)[0] for c in (False, True))
            assert one.events_sha256 == two.events_sha256
            assert one.heat.compute_j.tolist() == two.heat.compute_j.tolist()


@pytest.mark.parametrize("lane", ["closed", "events"])
def test_a_device_that_leaves_has_worked_until_then(lane):
    here = Availability.of([[(0, 50 * S), (150 * S, FAR_NS)]])

    class Again(Once):
        def on_lost(self, dispatch, rows, view):
            return ()

        def on_joined(self, devices, view):
            return self.following()

        def on_done(self, dispatch, rows, view):
            return Done() if dispatch.serial else ()

    strategy = Again(rows(0, 100 * S), rows(0, S))
    recording = Engine(phone(availability=here), None, strategy, FlopsAreNanoseconds(), lane=lane, compiled=False).run()
    # 50 s at 5 W and 1 s more, both at full clock; 100 s in which the case cools with the slower constant
    assert recording.heat.compute_j[0] == pytest.approx(4.5 * 51)
    warm_c = 55 - 27 * math.exp(-50 / 200)
    assert recording.heat.hottest_c[0] == pytest.approx(warm_c)
    cooled = 28 + (warm_c - 28) * math.exp(-100 / 600)
    assert recording.heat.curve[-2, 3] == pytest.approx(cooled)


@pytest.mark.parametrize("lane", ["closed", "events"])
def test_a_withdrawn_row_warms_until_then(lane):
    class Withdraw(Once):
        def start(self, view):
            return [super().start(view), WakeAt(30.0, "cut")]

        def on_timer(self, tag, view):
            return [Cancel(0), Done()]

    recording = Engine(
        phone(), None, Withdraw(rows(0, 100 * S)), FlopsAreNanoseconds(), lane=lane, compiled=False
    ).run()
    assert recording.heat.compute_j[0] == pytest.approx(4.5 * 30)
    assert recording.heat.hottest_c[0] == pytest.approx(55 - 27 * math.exp(-30 / 200))


def test_heat_is_off_on_request_and_without_thermal_constants():
    table = rows(0, 1000 * S)
    cold = run(replace(phone(), thermal=None), table)
    assert cold.heat is None
    assert run(phone(), table, heat=False).events_sha256 == cold.events_sha256
    assert run(replace(phone(), thermal=Thermal.none(1)), table).heat is None
    assert run(phone(), table).end_ns > cold.end_ns


def test_a_device_that_warms_needs_its_power():
    with pytest.raises(EngineError, match=r"device 0 \(board#0\) warms, but states no idle and full-load power"):
        Engine(replace(phone(), max_w=np.full(1, np.nan)), None, Once(rows(0, S)), FlopsAreNanoseconds())


def test_a_long_curve_is_thinned_and_keeps_its_ends():
    recording = run(phone(), *[rows(0, S // 10, release_ns=S)] * 6000, compiled=True)
    curve = recording.heat.curve
    assert 1000 < len(curve) <= 4096
    assert np.all(np.diff(curve[:, 1]) >= 0)
    assert curve[0, 1] < 10
    assert curve[-1, 1] > 0.99 * recording.end_ns / S


SCENARIO = """\
name: warm
workload: {model: opt-125m, batch_size: 1, sequence_length: 16}
fleet:
  - {profile: snapdragon-8-gen-3, count: 2, link: {downlink: 30 Mbit/s, uplink: 8 Mbit/s}}
  - {profile: jetson-orin-nano, link: {downlink: 30 Mbit/s, uplink: 8 Mbit/s}}
strategy: {name: cleave}
"""


def test_a_profile_brings_its_heat_into_the_fleet():
    built = build(load_scenario(SCENARIO))
    t = built.fleet.thermal
    assert built.heat
    assert t.slows.tolist() == [True, True, False]
    got = {f.name: getattr(t, f.name)[0] for f in fields(t)}
    assert got == {**PHONE, "clock_steps": 0}
    assert built.fleet.radio_up_j[:2].tolist() == [1.3e-7] * 2
    assert np.isnan(built.fleet.radio_up_j[2])
    assert not build(load_scenario(SCENARIO + "execution: {heat: false}\n")).heat


def test_a_day_too_hot_to_recover_is_said():
    built = build(load_scenario(SCENARIO))
    assert not any("ever to rise again" in note for note in _heat_notes(built))
    hot = replace(
        built.fleet.thermal, ambient_c=built.fleet.thermal.ambient_c + 13
    )  # 38 degC: 41 at idle, released at 40
    notes = _heat_notes(replace(built, fleet=replace(built.fleet, thermal=hot)))
    assert "heat: 2 of them are too warm at idle for the clock ever to rise again once it has fallen" in notes
