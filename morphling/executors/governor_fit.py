"""What a log tells of the rule by which a device slows when it is warm: trip, hysteresis and lowest clock."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from morphling.executors.thermal_numbers import Estimate
from morphling.types import BoolArray, FloatArray

__all__ = ["read_governor"]

_JITTER: Final = 0.02
"""Changes of the clock of up to this share of the full one are no decision."""
_HELD: Final = 3
"""Samples for which the lowest clock is held, at least, to be a floor."""
_WIDEST_K: Final = 3.0
_FULL: Final = 0.98


def read_governor(clock: FloatArray, case_c: FloatArray, load: FloatArray | None = None) -> dict[str, Estimate]:
    """``trip_c`` (degC), ``hysteresis_k`` (K) and ``clock_floor`` (share of the full clock) of a log.

    clock : float64[n]   share of the full clock
    case_c : float64[n]  degC; NaN is a missing reading
    load : float64[n]    in [0, 1].  Samples below 0.5 are left out: an idle device lowers its clock for other reasons

    The trip is the median temperature of the case at which the clock begins to fall; where it begins to rise again is
    the hysteresis below that.  Spreads are standard deviations of those temperatures, and half their resolution at
    least.  Changes of up to 2 % of the full clock count as none.
    """
    busy = ~np.isnan(case_c) if load is None else ~np.isnan(case_c) & (load >= 0.5)
    begins = (busy & ~np.append(False, busy[:-1]))[busy]
    clock, case = clock[busy], case_c[busy]
    if not len(clock):
        return _none("no sample has a load of 0.5 or more")
    falls, rises = _turns(clock, begins)
    if not falls.any():
        low = "the clock never falls" if clock.max() >= _FULL else "the clock is low from the first sample on"
        return _none(low)
    grain = _resolution(case)
    trip = _temperature(case[falls], grain, "the clock begins to fall")
    back = _temperature(case[rises], grain, "the clock rises again")
    return {"trip_c": trip, "hysteresis_k": _between(trip, back, bool(rises.any())), "clock_floor": _floor(clock)}


def _none(why: str) -> dict[str, Estimate]:
    return {name: Estimate(math.nan, math.nan, why) for name in ("trip_c", "hysteresis_k", "clock_floor")}


def _turns(clock: FloatArray, begins: BoolArray) -> tuple[BoolArray, BoolArray]:
    """Where the clock begins to fall, and where it begins to rise after a fall, bool[n].

    ``begins``, bool[n], is where something was left out just before: what happened in between nobody has seen.
    """
    falls, rises = np.zeros(len(clock), bool), np.zeros(len(clock), bool)
    level, falling = float(clock[0]), False
    for i, now in enumerate(clock.tolist()):
        if begins[i]:
            level, falling = now, False
        elif now < level - _JITTER:
            falls[i] = not falling
            level, falling = now, True
        elif now > level + _JITTER:
            rises[i] = falling
            level, falling = now, False
    return falls, rises


def _resolution(case: FloatArray) -> float:
    steps = np.abs(np.diff(case))
    steps = steps[steps > 1e-6]
    return float(steps.min()) if len(steps) else 1.0


def _temperature(case: FloatArray, grain: float, what: str) -> Estimate:
    if not len(case):
        return Estimate(math.nan, math.nan, f"nothing shows where {what}")
    scatter = float(case.std(ddof=1)) if len(case) > 1 else 0.0
    why = ""
    if scatter > _WIDEST_K:
        why = f"{what} anywhere between {case.min():.3g} and {case.max():.3g} degC of the case"
    return Estimate(float(np.median(case)), max(scatter, grain / 2), why)


def _between(trip: Estimate, back: Estimate, rose: bool) -> Estimate:
    if not rose:
        return Estimate(math.nan, math.nan, "the clock never rises again")
    value = trip.value - back.value
    why = trip.why or back.why
    if not why and value <= 0:
        why = f"the clock rises again at {back.value:.3g} degC, not below the trip"
    return Estimate(value, math.hypot(trip.spread, back.spread), why)


def _floor(clock: FloatArray) -> Estimate:
    low = float(clock.min())
    at = np.flatnonzero(clock <= low + _JITTER)
    runs = np.split(at, np.flatnonzero(np.diff(at) > 1) + 1)
    longest = max(len(run) for run in runs)
    if longest < _HELD:
        return Estimate(
            low, math.nan, f"the lowest clock, {low:.3g} of the full one, is held for {longest} samples only"
        )
    held = clock[at]
    return Estimate(float(np.median(held)), max(float(held.std()), 1e-4))
