"""Heat constants fitted to logs that the model itself made, and the rule of the clock read off a log."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from morphling.errors import InputError
from morphling.executors.governor_fit import read_governor
from morphling.executors.thermal_fit import fit_thermal
from morphling.executors.thermal_model import case_temperatures, computing_share, junction_temperatures
from tests.thermal_logs import KNOWN, bursts, known_log


@pytest.fixture(scope="module")
def cycled():
    """Five rounds of load and rest, in whole kelvins."""
    log = known_log(bursts(2700, 540, 360))
    return log, fit_thermal(log, log.power_w, in_watts=True)


def test_the_case_of_a_step_of_load_by_hand():
    # 25 + 3 K/W * 5 W = 40; after one time constant 1 - 1/e of the way from 27 is gone, then two of 600 s towards 26.5.
    time, target = np.array([0.0, 200.0, 1400.0]), np.array([40.0, 26.5, 26.5])
    case = case_temperatures(time, target, warming_s=200.0, cooling_s=600.0, start_c=27.0)
    top = 40 - 13 / math.e
    assert case == pytest.approx([27.0, top, 26.5 + (top - 26.5) * math.exp(-2)])


@pytest.mark.parametrize("junction_s", [3.0, 50.0, 200.0, 600.0])
def test_the_junction_is_that_of_tiny_steps_of_euler(junction_s):
    time = np.array([0.0, 7.0, 100.0, 101.0, 400.0])
    target, above = np.array([40.0, 40.0, 26.5, 26.5, 26.5]), np.array([10.0, 10.0, 1.0, 1.0, 1.0])
    case = case_temperatures(time, target, warming_s=200.0, cooling_s=600.0, start_c=27.0)
    found = junction_temperatures(
        time, case, target, above, warming_s=200.0, cooling_s=600.0, junction_s=junction_s, start_c=29.0
    )
    c, j, out, fine = 27.0, 29.0, [29.0], 1e-3
    for i in range(len(time) - 1):
        for _ in range(round((time[i + 1] - time[i]) / fine)):
            c, j = (
                c + fine * (target[i] - c) / (200.0 if target[i] >= c else 600.0),
                j + fine * (c + above[i] - j) / junction_s,
            )
        out.append(j)
    assert found == pytest.approx(out, abs=0.01)


def test_steps_that_are_cut_change_nothing():
    time = np.linspace(0, 500, 11)
    target = np.where(time < 250, 40.0, 26.0)
    coarse = case_temperatures(time[::5], target[::5], warming_s=200.0, cooling_s=600.0, start_c=27.0)
    fine = case_temperatures(time, target, warming_s=200.0, cooling_s=600.0, start_c=27.0)
    assert fine[::5] == pytest.approx(coarse, rel=1e-12)


def test_power_share_by_hand():
    # Half load at half clock: 0.5 * (0.28 + 0.72 * 0.25).
    share = computing_share(np.array([0.5, 1.0]), np.array([0.5, 1.0]), exponent=2, static_share=0.28)
    assert share == pytest.approx([0.23, 1.0])


@pytest.mark.parametrize(
    ("constant", "share"),
    [
        ("case_s", 0.05),
        ("case_cooling_s", 0.15),
        ("ambient_to_case", 0.1),
        ("junction_to_case", 0.02),
        ("junction_s", 0.1),
        ("ambient_c", 0.06),
    ],
)
def test_constants_of_a_log_in_whole_kelvins_are_found(cycled, constant, share):
    estimate = cycled[1].estimates[constant]
    assert estimate.told, estimate.why
    assert estimate.value == pytest.approx(KNOWN[constant], rel=share)
    assert abs(estimate.value - KNOWN[constant]) < 4 * estimate.spread
    assert estimate.spread < 0.3 * KNOWN[constant]


def test_the_held_out_part_is_foretold_within_the_sensors_step(cycled):
    log, fit = cycled
    assert fit.split == 1890  # the first sample after 70 % of 2699 s
    for sensor in ("case", "junction"):
        # Rounding to 1 K alone makes an error of 0.25 K on average; noise of 0.3 K a little more.
        assert fit.held_out[sensor].mean_k < 0.5
        assert fit.fitted[sensor].mean_k < 0.4
        assert fit.held_out[sensor].mean_k < 0.4 * fit.unchanged[sensor].mean_k
        assert fit.held_out[sensor].count == log.size - fit.split


def test_the_held_out_part_is_not_fitted(cycled):
    log, fit = cycled
    spoilt = log.case_c.copy()
    spoilt[fit.split + 1 :] += 20
    again = fit_thermal(replace(log, case_c=spoilt), log.power_w, in_watts=True)
    assert again.estimates == fit.estimates
    assert again.held_out["case"].mean_k == pytest.approx(20, abs=1)


def test_a_known_ambient_is_kept_and_tightens_the_rest():
    log = known_log(bursts(1500, 500, 250), junction=False)
    fit = fit_thermal(log, log.power_w, in_watts=True, ambient_c=25.0)
    assert "ambient_c" not in fit.estimates
    assert fit.estimates["ambient_to_case"].value == pytest.approx(3.0, rel=0.03)
    assert fit.junction_c is None


def test_without_a_power_only_rises_are_told():
    log = known_log(bursts(2700, 540, 360))
    fit = fit_thermal(log, log.load, in_watts=False)
    assert {"ambient_to_case", "junction_to_case", "ambient_c"} & set(fit.estimates) == set()
    # 4.5 W more than idle: 13.5 K of the case, 9.45 K of the junction; idle itself is worth 1.5 K and 1.05 K.
    assert fit.estimates["case_rise_k"].value == pytest.approx(13.5, rel=0.1)
    assert fit.estimates["idle_case_c"].value == pytest.approx(26.5, abs=1.5)
    assert fit.estimates["junction_rise_k"].value == pytest.approx(9.45, rel=0.02)
    assert fit.estimates["junction_idle_k"].value == pytest.approx(1.05, abs=0.15)


def test_a_log_without_cooling_tells_no_time_of_cooling():
    log = known_log(np.ones(1200))
    fit = fit_thermal(log, log.power_w, in_watts=True)
    assert fit.estimates["case_cooling_s"].why == "the case never cools in the fitted part"
    assert math.isnan(fit.estimates["case_cooling_s"].value)
    assert fit.estimates["case_s"].value == pytest.approx(200, rel=0.05)
    # One power throughout: where it settles, but not how much of that is the ambient.
    assert fit.estimates["settled_case_c"].value == pytest.approx(40, abs=0.5)
    assert not fit.estimates["ambient_to_case"].told
    assert not fit.estimates["ambient_c"].told
    assert fit.estimates["junction_to_case"].value == pytest.approx(2.1, rel=0.05)
    with_ambient = fit_thermal(log, log.power_w, in_watts=True, ambient_c=25.0)
    assert with_ambient.estimates["ambient_to_case"].value == pytest.approx(3.0, rel=0.05)


def test_a_log_without_warming_tells_no_time_of_warming_and_no_resistance():
    log = known_log(np.zeros(2000), junction=False)
    warm = replace(log, case_c=np.round(26.5 + 20 * np.exp(-log.time_s / 600.0)), power_w=np.zeros(2000))
    fit = fit_thermal(warm, warm.power_w, in_watts=True)
    assert fit.estimates["case_s"].why == "the case never warms in the fitted part"
    assert fit.estimates["case_cooling_s"].value == pytest.approx(600, rel=0.05)
    assert fit.estimates["ambient_to_case"].why == "nothing in the fitted part depends on it"


def test_what_the_fitted_part_does_not_tell_is_not_made_up_for_the_rest():
    # Load until the fitted part ends, rest after it: the time of cooling is unknown when it is needed.
    log = known_log((np.arange(1500) < 1100).astype(float))
    fit = fit_thermal(log, log.power_w, in_watts=True, ambient_c=25.0)
    rest = fit.case_c[fit.split :]
    assert np.isnan(rest[log.time_s[fit.split :] > 1101]).all()
    assert not np.isnan(rest[log.time_s[fit.split :] < 1100]).any()
    assert fit.held_out["case"].missing == np.isnan(rest).sum()


def test_missing_readings_and_gaps_are_no_matter():
    log = known_log(bursts(2700, 540, 360), junction=False)
    case = log.case_c.copy()
    case[100:160] = math.nan
    keep = np.ones(2700, bool)
    keep[700:1000] = False
    holed = replace(
        log, time_s=log.time_s[keep], case_c=case[keep], power_w=log.power_w[keep], starts=np.array([0, 700])
    )
    fit = fit_thermal(holed, holed.power_w, in_watts=True, ambient_c=25.0)
    assert fit.fitted["case"].missing == 60
    assert fit.estimates["case_s"].value == pytest.approx(200, rel=0.06)
    assert fit.estimates["ambient_to_case"].value == pytest.approx(3, rel=0.05)


def test_a_few_wild_readings_do_not_spoil_the_fit():
    log = known_log(bursts(2700, 540, 360), junction=False)
    case = log.case_c.copy()
    case[::20] += 30  # 5 %
    fit = fit_thermal(replace(log, case_c=case), log.power_w, in_watts=True, ambient_c=25.0)
    assert fit.estimates["ambient_to_case"].value == pytest.approx(3, rel=0.1)
    assert fit.estimates["case_s"].value == pytest.approx(200, rel=0.1)


def test_logs_that_tell_nothing_are_refused():
    still = known_log(np.zeros(300), noise_k=0.05, grain_k=0.1, junction=False)
    flat = replace(still, case_c=np.full(300, 26.5) + 0.01 * (np.arange(300) % 2))
    with pytest.raises(InputError, match="moves by less than 1 K"):
        fit_thermal(flat, flat.power_w, in_watts=True)
    short = known_log(np.ones(20), junction=False)
    with pytest.raises(InputError, match="the fitted part has 14 temperatures"):
        fit_thermal(short, short.power_w, in_watts=True)


def governed(count=3000, trip=42.0, hysteresis=3.0, floor=0.4, step=0.05):
    """Clock and case of a device that slows by a step a sample from ``trip`` on and recovers below the hysteresis."""
    case, clock, cases, clocks = 30.0, 1.0, [], []
    for _ in range(count):
        if case >= trip:
            clock = max(floor, clock - step)
        elif case < trip - hysteresis:
            clock = min(1.0, clock + step)
        cases.append(case)
        clocks.append(clock)
        target = 25 + 6 * 5 * (0.28 + 0.72 * clock**2)
        case = target + (case - target) * math.exp(-1 / (200 if target >= case else 100))
    return np.array(clocks), np.array(cases)


def test_trip_hysteresis_and_floor_are_read_off():
    clock, case = governed()
    found = read_governor(clock, case)
    assert found["trip_c"].value == pytest.approx(42.0, abs=0.2)
    assert found["hysteresis_k"].value == pytest.approx(3.0, abs=0.3)
    assert found["clock_floor"].value == pytest.approx(0.4)
    assert all(e.told for e in found.values())
    rough = read_governor(clock + 0.01 * np.sin(np.arange(3000)), np.round(case))
    assert rough["trip_c"].value == pytest.approx(42.0, abs=1)
    assert rough["trip_c"].spread >= 0.5
    assert rough["hysteresis_k"].value == pytest.approx(3.0, abs=1.1)


def test_an_idle_device_is_not_taken_for_a_warm_one():
    clock, case = governed()
    load = np.ones(3000)
    clock[:50], case[:50], load[:50] = 0.1, 30.0, 0.0
    found = read_governor(clock, case, load)
    assert found["clock_floor"].value == pytest.approx(0.4)
    assert found["trip_c"].value == pytest.approx(42.0, abs=0.2)


@pytest.mark.parametrize(
    ("clock", "case", "why"),
    [
        (np.ones(50), np.linspace(30, 50, 50), {"trip_c": "the clock never falls"}),
        (np.full(50, 0.5), np.linspace(30, 50, 50), {"trip_c": "the clock is low from the first sample on"}),
        (np.linspace(1, 0.5, 50), np.linspace(30, 50, 50), {"hysteresis_k": "the clock never rises again"}),
        (
            np.repeat([1.0, 0.6, 1.0], 10),
            np.repeat([40.0, 42.0, 43.0], 10),
            {"hysteresis_k": "the clock rises again at 43 degC, not below the trip"},
        ),
        (np.tile([1.0, 0.5], 20), np.linspace(30, 50, 40), {"clock_floor": "is held for 1 samples only"}),
        (
            np.tile(np.repeat([1.0, 0.5], 4), 5),
            np.linspace(30, 50, 40),
            {"trip_c": "the clock begins to fall anywhere between 32.1 and 48.5 degC of the case"},
        ),
    ],
)
def test_what_a_clock_does_not_tell_is_said(clock, case, why):
    found = read_governor(clock, case)
    for name, reason in why.items():
        assert reason in found[name].why
