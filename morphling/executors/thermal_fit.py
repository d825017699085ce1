"""Constants of heat fitted to the first part of a log, and how well they foretell the rest of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from morphling.errors import InputError
from morphling.executors.least_squares import least_squares
from morphling.executors.thermal_model import case_temperatures, junction_temperatures
from morphling.executors.thermal_numbers import Estimate, Misfit, misfit, noise, spreads
from morphling.fleet.thermal_log import ThermalLog
from morphling.types import FloatArray

__all__ = ["ThermalFit", "fit_thermal"]

_LEAST = 20
_LEAST_MOVE_K = 1.0
_WIDEST = 0.3
_WIDEST_AMBIENT_K = 3.0
_COARSE: Final = 300
_SOFT: Final = 1.5
"""Residuals beyond this many standard deviations count less and less (soft L1)."""


@dataclass(frozen=True, eq=False)
class ThermalFit:
    """What a log says of a device's heat.

    estimates : name of a column of `morphling.fleet.Thermal` → value, spread, and why it cannot be told from this log.
        Without a known power the two resistances are instead ``case_rise_k`` and ``junction_rise_k``, K from idle to
        full load; ``idle_case_c``, degC, is where the case settles when idle and ``junction_idle_k``, K, how far the
        junction is above it then.  Where what warms the device never changes and no ambient is given,
        ``settled_case_c`` is where the case settles, degC, and without a power ``junction_above_k``, K, how far the
        junction is above it.
    split : number of the first sample that was held out
    case_c, junction_c : float64[n]   simulated; from ``split`` on, from the measurement there.  NaN where a constant is
        needed that the fitted part does not tell
    fitted, held_out : sensor → how far the simulation is off
    unchanged : sensor → how far off it would be to say that nothing changes after the first held-out sample
    """

    estimates: dict[str, Estimate]
    split: int
    case_c: FloatArray
    junction_c: FloatArray | None
    fitted: dict[str, Misfit]
    held_out: dict[str, Misfit]
    unchanged: dict[str, Misfit]


@dataclass(frozen=True, eq=False)
class _Constants:
    """NaN: not known."""

    base_c: float
    case_k: float  # per unit of drive
    warming_s: float
    cooling_s: float
    junction_k: float = math.nan
    junction_s: float = math.nan
    junction_base_k: float = 0.0


_LOGS: Final = ("case_k", "warming_s", "cooling_s", "junction_k", "junction_s")


@dataclass
class _Problem:
    """A log, what drives it, and the numbers that are looked for: ``free``, then the temperatures at the starts."""

    log: ThermalLog
    drive: FloatArray
    last: int
    in_watts: bool
    base_c: float | None
    settled: bool
    tied: bool = False
    sigma: dict[str, float] = field(default_factory=lambda: {"case": 1.0, "junction": 1.0})

    @property
    def free(self) -> list[str]:
        names = ["warming_s"] if self.tied else ["warming_s", "cooling_s"]
        if not self.settled:
            names.append("case_k")
        if self.base_c is None:
            names.append("base_c")
        if self.log.junction_c is not None:
            names += ["junction_k", "junction_s"]
            if not (self.in_watts or self.settled):  # what the idle power adds
                names.append("junction_base_k")
        return names

    @property
    def sensors(self) -> dict[str, FloatArray]:
        found = {"case": self.log.case_c}
        return found if self.log.junction_c is None else {**found, "junction": self.log.junction_c}

    def constants(self, x: FloatArray) -> _Constants:
        named = dict(zip(self.free, x.tolist(), strict=False))
        named = {k: math.exp(v) if k in _LOGS else v for k, v in named.items()}
        if self.tied:
            named["cooling_s"] = named["warming_s"]
        if self.base_c is not None:
            named["base_c"] = self.base_c
        return _Constants(**{"case_k": 0.0, **named})

    def simulated(self, c: _Constants, first: int, last: int, starts: list[dict[str, float]]) -> dict[str, FloatArray]:
        """Temperatures over ``first:last``; ``starts`` has a mapping for each stretch."""
        parts: dict[str, list[FloatArray]] = {name: [] for name in self.sensors}
        for (a, b), start in zip(self.log.stretches(first, last), starts, strict=True):
            time, drive = self.log.time_s[a:b], self.drive[a:b]
            target = c.base_c + _times(c.case_k, drive)
            if self.settled:  # where it would settle under another drive, nobody has seen
                target = np.where(np.abs(drive - self.drive[0]) <= 1e-9 * abs(self.drive[0]), c.base_c, math.nan)
            case = case_temperatures(time, target, warming_s=c.warming_s, cooling_s=c.cooling_s, start_c=start["case"])
            parts["case"].append(case)
            if "junction" in parts:
                above = c.junction_base_k + _times(c.junction_k, drive)
                junction = junction_temperatures(
                    time,
                    case,
                    target,
                    above,
                    warming_s=c.warming_s,
                    cooling_s=c.cooling_s,
                    junction_s=c.junction_s,
                    start_c=start["junction"],
                )
                parts["junction"].append(junction)
        return {name: np.concatenate(found) for name, found in parts.items()}

    def starts(self, x: FloatArray) -> list[dict[str, float]]:
        found = x[len(self.free) :].reshape(-1, len(self.sensors))
        return [dict(zip(self.sensors, row, strict=True)) for row in found.tolist()]

    def run(self, x: FloatArray) -> dict[str, FloatArray]:
        return self.simulated(self.constants(x), 0, self.last, self.starts(x))

    def residuals(self, x: FloatArray) -> FloatArray:
        simulated = self.run(x)
        parts = [
            (simulated[name] - measured[: self.last])[~np.isnan(measured[: self.last])] / self.sigma[name]
            for name, measured in self.sensors.items()
        ]
        return np.concatenate(parts)

    def begin(self, warming_s: float, slower: float) -> FloatArray:
        """Where to look from, with that time constant of the case, and one of cooling ``slower`` times as long."""
        case = self.log.case_c[: self.last]
        top, low = np.nanpercentile(case, 95), float(np.nanmin(case))
        drive = max(float(self.drive[: self.last].max()), 1e-9)
        base = low if self.base_c is None else self.base_c
        first = {
            "warming_s": warming_s, "cooling_s": slower * warming_s, "base_c": top if self.settled else base - 1,
            "case_k": max(top - base, 1.0) / drive, "junction_s": max(self.span_s / 100, self.step_s),
            "junction_base_k": 0.0,
        }  # fmt: skip
        if self.log.junction_c is not None:
            apart = np.nanpercentile(self.log.junction_c[: self.last] - case, 90)
            first["junction_k"] = max(float(apart), 1.0) / drive
        x = [math.log(first[k]) if k in _LOGS else first[k] for k in self.free]
        for a, b in self.log.stretches(0, self.last):
            x += [_first_reading(measured[a:b]) for measured in self.sensors.values()]
        return np.array(x, dtype=np.float64)

    @property
    def span_s(self) -> float:
        return float(self.log.time_s[self.last - 1] - self.log.time_s[0])

    @property
    def step_s(self) -> float:
        return float(np.median(np.diff(self.log.time_s[: self.last])))

    def bounds(self, size: int) -> tuple[FloatArray, FloatArray]:
        span = self.span_s
        drive = max(float(self.drive[: self.last].max()), 1e-9)
        limits = {
            "warming_s": (self.step_s / 10, 30 * span), "cooling_s": (self.step_s / 10, 30 * span),
            "junction_s": (self.step_s / 20, span), "case_k": (1e-3 / drive, 1e3 / drive),
            "junction_k": (1e-3 / drive, 1e3 / drive), "base_c": (-100.0, 300.0),
            "junction_base_k": (-50.0, 100.0),
        }  # fmt: skip
        low, high = np.full(size, -200.0), np.full(size, 400.0)
        for i, name in enumerate(self.free):
            low[i], high[i] = (math.log(v) for v in limits[name]) if name in _LOGS else limits[name]
        return low, high


def fit_thermal(
    log: ThermalLog,
    drive: FloatArray,
    *,
    in_watts: bool,
    ambient_c: float | None = None,
    hold_out: float = 0.3,
) -> ThermalFit:
    """Fit the first part of ``log`` by robust least squares and simulate the rest of it freely from its first sample.

    drive : float64[n]   what warms the device from each sample to the next: power, W, or the share of full load
    in_watts : bool      which of the two
    ambient_c : float    degC, if it is known.  Of use only with a power
    hold_out : float     share of the time, at the end, that is not fitted, in (0, 1)

    A spread is one standard deviation from the curvature of the fit, widened by the integrated autocorrelation of the
    residuals.

    A constant counts as told by the log if the case moves by 1 K and three standard deviations of the sensor in the
    direction that the constant is about, and its spread is at most 30 % (3 K for a temperature).

    Raises
    ------
    InputError
        Too few samples, or the temperature of the case does not move.
    RunError
        scipy is not installed.
    """
    split = int(np.searchsorted(log.time_s, log.time_s[-1] - hold_out * (log.time_s[-1] - log.time_s[0])))
    while split < log.size - 1 and any(np.isnan(m[split]) for m in (log.case_c, log.junction_c) if m is not None):
        split += 1  # the simulation begins at a reading
    _enough(log, split)
    constant = bool(np.ptp(drive[:split]) <= 1e-9 * abs(drive[0])) and drive[0] > 0
    known = ambient_c if in_watts else None
    problem = _Problem(log, drive, split, in_watts, known, settled=constant and known is None)
    x, solution = _solved(problem)
    moves = _moves(problem, problem.run(x)["case"])
    threshold = max(_LEAST_MOVE_K, 3 * problem.sigma["case"])
    still = [name for name, move in moves.items() if move < threshold]
    if len(still) == 2:
        raise InputError(f"the case moves by less than {threshold:.2g} K in the fitted part: nothing to fit")
    if still:
        problem.tied = True
        x, solution = _solved(problem)
    names = _columns(problem, in_watts=in_watts)
    estimates = _estimates(problem, x, solution, still, names, in_watts=in_watts)
    return _told(problem, x, estimates, names, still, threshold)


def _enough(log: ThermalLog, split: int) -> None:
    for what, a, b, least in (("fitted", 0, split, _LEAST), ("held-out", split, log.size, 2)):
        found = int(np.count_nonzero(~np.isnan(log.case_c[a:b])))
        if found < least:
            raise InputError(f"the {what} part has {found} temperatures of the case; at least {least} are needed")


def _times(per_drive: float, drive: FloatArray) -> FloatArray:
    """Nothing times an unknown number is nothing."""
    return np.where(drive == 0, 0.0, per_drive * drive)


def _first_reading(measured: FloatArray) -> float:
    return float(measured[~np.isnan(measured)][0])


def _solved(problem: _Problem) -> tuple[FloatArray, Any]:
    options: dict[str, Any] = {"loss": "soft_l1", "f_scale": _SOFT, "x_scale": "jac"}
    tried, begun = [], _thinned(problem)
    for share in (0.03, 0.1, 0.3, 1.0):  # several places to look from: the cost has more than one valley
        for slower in (1.0,) if problem.tied else (1.0, 3.0):
            x = begun.begin(share * begun.span_s, slower)
            bounds = begun.bounds(len(x))
            coarse = {**options, "ftol": 1e-5, "xtol": 1e-5, "max_nfev": 60}
            tried.append(least_squares(begun.residuals, np.clip(x, *bounds), bounds=bounds, **coarse))
    best = min(tried, key=lambda found: found.cost)
    for _ in range(2):  # the sensors' noise is known only after a fit
        simulated = problem.run(best.x)
        for name, measured in problem.sensors.items():
            problem.sigma[name] = max(noise(simulated[name] - measured[: problem.last]), 0.02)
        bounds = problem.bounds(len(best.x))
        start = np.clip(best.x, *bounds)
        best = least_squares(problem.residuals, start, bounds=bounds, ftol=1e-7, xtol=1e-7, max_nfev=60, **options)
    return best.x, best


def _thinned(problem: _Problem) -> _Problem:
    """The same with a few hundred samples, to find where to look; what drives the device is averaged between them."""
    log = problem.log
    kept = []
    for a, b in log.stretches(0, problem.last):
        every = max(1, problem.last // _COARSE)
        kept.append(np.unique(np.append(np.arange(a, b - 1, every), b - 1)))
    at = np.concatenate(kept)
    heat = np.append(0.0, np.cumsum(problem.drive[:-1] * np.diff(log.time_s)))
    drive = problem.drive[at].copy()
    drive[:-1] = np.diff(heat[at]) / np.diff(log.time_s[at])
    if problem.settled:
        drive[:] = problem.drive[0]
    junction = None if log.junction_c is None else log.junction_c[at]
    starts = np.cumsum([0, *map(len, kept)])[:-1]
    thin = ThermalLog(log.time_s[at], log.case_c[at], junction, None, None, None, starts)
    return replace(problem, log=thin, drive=drive, last=len(at), sigma=dict(problem.sigma))


def _moves(problem: _Problem, case: FloatArray) -> dict[str, float]:
    """How many kelvins the simulated case rises and falls in all."""
    steps = np.concatenate([np.diff(case[a:b]) for a, b in problem.log.stretches(0, problem.last)])
    return {"warming_s": float(steps[steps > 0].sum()), "cooling_s": float(-steps[steps < 0].sum())}


_NAMES: Final = {
    "warming_s": "case_s", "cooling_s": "case_cooling_s", "case_k": "ambient_to_case", "base_c": "ambient_c",
    "junction_k": "junction_to_case", "junction_s": "junction_s", "junction_base_k": "junction_idle_k",
}  # fmt: skip
_SHARES: Final = {"case_k": "case_rise_k", "junction_k": "junction_rise_k", "base_c": "idle_case_c"}


def _columns(problem: _Problem, *, in_watts: bool) -> dict[str, str]:
    names = _NAMES if in_watts else {**_NAMES, **_SHARES}
    if problem.settled:
        names = {**names, "base_c": "settled_case_c"}
        if not in_watts:  # per share of the load there is, which is one only: what it makes in all
            names["junction_k"] = "junction_above_k"
    return names


def _estimates(
    problem: _Problem, x: FloatArray, solution: Any, still: list[str], names: dict[str, str], *, in_watts: bool
) -> dict[str, Estimate]:
    by_sensor = [(problem.run(x)[name] - measured[: problem.last]) for name, measured in problem.sensors.items()]
    found = spreads(solution, by_sensor)
    out: dict[str, Estimate] = {}
    for i, name in enumerate(problem.free):
        value, spread, edge = float(x[i]), float(found[i]), bool(solution.active_mask[i])
        widest, shown = (_WIDEST, f"{spread:.0%}") if name in _LOGS else (_WIDEST_AMBIENT_K, f"{spread:.2g} K")
        why = ""
        if math.isinf(spread):
            why, value = "nothing in the fitted part depends on it", math.nan
        elif edge or spread > widest:
            why = "the fitted part does not pin it down" + ("" if edge else f": spread {shown}")
        if name in _LOGS:
            value = math.exp(value)
            spread *= value
        if names[name] == "junction_above_k":
            value, spread = value * problem.drive[0], spread * problem.drive[0]
        out[names[name]] = Estimate(value, spread, why)
    for name in still:
        way = "warms" if name == "warming_s" else "cools"
        other = out["case_s"]
        out[names[name]] = Estimate(math.nan, math.nan, f"the case never {way} in the fitted part")
        if name == "warming_s":  # the one time constant that was fitted is that of cooling
            out["case_cooling_s"] = other
    if problem.settled:
        why = "what warms the device never changes in the fitted part, and no ambient is given"
        out[names["case_k"]] = Estimate(math.nan, math.nan, why)
        if in_watts:
            out["ambient_c"] = Estimate(math.nan, math.nan, why)
    return out


def _told(
    problem: _Problem,
    x: FloatArray,
    estimates: dict[str, Estimate],
    names: dict[str, str],
    still: list[str],
    threshold: float,
) -> ThermalFit:
    log, split = problem.log, problem.last
    starts = [
        {name: _first_reading(measured[a:b]) for name, measured in problem.sensors.items()}
        for a, b in log.stretches(split, log.size)
    ]
    unknown = {n: math.nan for n, column in names.items() if n in problem.free and math.isnan(estimates[column].value)}
    constants = replace(problem.constants(x), **unknown)
    after = problem.simulated(constants, split, log.size, starts)
    if still:
        steps = np.diff(after["case"])
        used = float(-steps[steps < 0].sum() if still == ["cooling_s"] else steps[steps > 0].sum())
        if not used < threshold:  # what the fitted part does not tell is not made up for the rest
            after = problem.simulated(replace(constants, **{still[0]: math.nan}), split, log.size, starts)
    before = problem.run(x)
    errors: list[dict[str, Misfit]] = [{}, {}, {}]
    whole: dict[str, FloatArray] = {}
    for name, measured in problem.sensors.items():
        whole[name] = np.concatenate((before[name], after[name]))
        held = np.concatenate(
            [np.full(b - a, s[name]) for (a, b), s in zip(log.stretches(split, log.size), starts, strict=True)]
        )
        errors[0][name] = misfit(before[name], measured[:split])
        errors[1][name] = misfit(after[name], measured[split:])
        errors[2][name] = misfit(held, np.where(np.isnan(after[name]), math.nan, measured[split:]))
    return ThermalFit(estimates, split, whole["case"], whole.get("junction"), *errors)
