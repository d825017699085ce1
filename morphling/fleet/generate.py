"""Synthetic link traces: named populations with published statistics, and the recipe that draws from them.

The recipe, version 1, for one trace of n steps.  Downlink and uplink are ``median · exp(sigma · x)``, where
``sigma² = ln(1 + cv²)`` and x is a stationary Gaussian AR(1) of coefficient ``exp(-step / tau)``; the two directions'
innovations (and first values) have correlation ``rho``.  A two-state chain, which starts without a pause, pauses both
directions: it enters a pause with probability ``1 - exp(-step / between)`` a step and leaves it with
``1 - exp(-step / outage)``.
Rates are rounded to whole kbit/s.

Every byte is the same on every platform: uniforms are taken from the raw 64-bit words of PCG64 (which numpy keeps for
ever, as it does not keep the output of its samplers), normals are their inverse cdf, and rounding to kbit/s removes
what the last digit of a mathematical library could change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from morphling.errors import TraceError
from morphling.fleet.links import LinkTrace
from morphling.fleet.streams import stream
from morphling.types import SECOND_NS, BoolArray, FloatArray, IntArray, ns_from_s

__all__ = [
    "POPULATIONS",
    "RECIPE_VERSION",
    "Population",
    "correlated",
    "generate",
    "pause_words",
    "pauses",
    "recipe_header",
    "to_csv",
    "uniforms",
    "whole_steps",
]

RECIPE_VERSION = 1
"""Raised whenever the same population and seed would give other bytes."""

_KBIT = 1000
_STANDARD = NormalDist()


@dataclass(frozen=True)
class Population:
    """Statistics of a kind of link; rates are seen from the device.

    down_bps, up_bps : medians while the link is up, bit/s
    cv : standard deviation over mean of the 1-second rate, both directions
    tau_s : seconds after which the autocorrelation of the logarithm has fallen to 1/e
    rho : correlation of the two directions' logarithms
    between_s, outage_s : mean time between pauses, and of a pause; ``None`` = the link never pauses
    sources : one line a statistic
    """

    title: str
    down_bps: int
    up_bps: int
    cv: float
    tau_s: float
    rho: float
    between_s: float | None
    outage_s: float | None
    sources: tuple[str, ...]


POPULATIONS: dict[str, Population] = {
    "mobiperf-lte": Population(
        title="a phone on 4G, moving",
        down_bps=117_000_000,
        up_bps=31_000_000,
        cv=0.6,
        tau_s=5.0,
        rho=0.4,
        between_s=180.0,
        outage_s=4.0,
        sources=(
            "medians: 4G rows of 11,024 Ookla tests (Narayanan et al., SIGCOMM 2021 artifact)",
            "cv: 1 s rates of the Mahimahi LTE driving and short traces, 0.49-0.88",
            "tau: log autocorrelation of the same traces, 0.52-0.89 after 1 s and 0.1-0.8 after 5 s",
            "rho: down against up of the same traces, 0.14-0.45, and 0.40 between M-Lab NDT users",
            "pauses: 7 below 2 % of the median in 1,260 s of ATT and T-Mobile LTE driving, 1-9 s long",
        ),
    ),
    "mobiperf-wifi": Population(
        title="a phone on home Wi-Fi, at rest",
        down_bps=37_200_000,
        up_bps=13_900_000,
        cv=0.1,
        tau_s=10.0,
        rho=0.4,
        between_s=None,
        outage_s=None,
        sources=(
            "medians: 6,492 joined M-Lab NDT tests, North America, June 2022, artefact rows and 2.5 % tails removed",
            "cv: median within-test spread of 15 one-second samples in a MobiPerf 2018 subset, 0.102",
            "tau: assumed",
            "rho: between M-Lab NDT users, 0.40, assumed to hold over time",
        ),
    ),
    "mobiperf-5g": Population(
        title="a phone on 5G (non-standalone, low band), moving",
        down_bps=118_000_000,
        up_bps=72_500_000,
        cv=0.4,
        tau_s=3.0,
        rho=0.4,
        between_s=None,
        outage_s=None,
        sources=(
            "medians: 5G NSA low-band rows of 11,024 Ookla tests (Narayanan et al., SIGCOMM 2021 artifact)",
            "cv: 2.5 GHz car run of 5Gophers (Narayanan et al., WWW 2020), 0.39",
            "tau: log autocorrelation of the same run, 0.73 after 1 s and 0.23 after 5 s",
            "rho: assumed as for LTE",
        ),
    ),
}
"""By name.  The names say what the traces stand in for; no value in them is a MobiPerf measurement."""


def generate(population: str, seed: int, duration_s: float = 600.0, step_s: float = 1.0) -> LinkTrace:
    """Draw one trace.

    A longer trace with the same seed and step begins with the shorter one.

    Parameters
    ----------
    population
        A name in `POPULATIONS`.
    seed
        Whole number >= 0.
    duration_s, step_s
        Seconds above zero; the duration is a whole number of steps.

    Returns
    -------
    LinkTrace
        ``duration_s / step_s`` steps, rates in whole kbit/s (as bit/s), 0 during a pause; repeats after its end.

    Raises
    ------
    TraceError
        If the population is unknown, or the duration is not a whole number of steps.
    InputError
        If the seed is not a whole number >= 0.
    """
    what = _population(population)
    step_ns, steps = whole_steps(duration_s, step_s)
    rates, breaks = ([stream(seed, f"network_traces.{population}.{name}")] for name in ("rates", "pauses"))
    down, up = (series[0] for series in correlated(rates, steps, step_s, what.tau_s, what.rho))
    paused = np.zeros(steps, np.bool_)
    if what.between_s is not None and what.outage_s is not None:
        paused = pauses(breaks, steps, step_s, what.between_s, what.outage_s)[0]
    sigma = math.sqrt(math.log1p(what.cv**2))
    return LinkTrace(
        name=population,
        start_ns=np.arange(steps, dtype=np.int64) * step_ns,
        down_bps=_rates(what.down_bps, sigma, down, paused),
        up_bps=_rates(what.up_bps, sigma, up, paused),
        period_ns=steps * step_ns,
    )


def recipe_header(population: str, seed: int) -> tuple[str, ...]:
    """Lines that say where a generated trace comes from, for `to_csv`; `TraceError` if the population is unknown."""
    what = _population(population)
    return (
        f"{population}: {what.title}. Synthetic: drawn from published statistics, not measured.",
        f"population: {population}",
        f"seed: {seed}",
        f"recipe: {RECIPE_VERSION} (correlated lognormal AR(1), whole kbit/s; see network_traces/README.md)",
        "unit: bit/s (decimal), seconds",
        "direction: seen from the device; down_bps is what it receives, up_bps what it sends",
        f"medians: down {what.down_bps} bit/s, up {what.up_bps} bit/s",
        (
            f"cv: {what.cv:g}, tau: {what.tau_s:g} s, rho: {what.rho:g}, "
            f"pauses: {pause_words(what.between_s, what.outage_s)}"
        ),
        *(f"source: {line}" for line in what.sources),
    )


def to_csv(trace: LinkTrace, header: Sequence[str] = ()) -> str:
    """The trace as text: comment lines, the duration, the column names, one line a step.

    Parameters
    ----------
    trace
        Any step trace.
    header
        Comment lines without ``# `` and line ends.

    Raises
    ------
    TraceError
        If a header line holds a line break.
    """
    if any("\n" in line or "\r" in line for line in header):
        raise TraceError("a header line of a trace must not hold a line break")
    comments = [*header, f"duration_s: {_seconds(trace.period_ns)}"]
    columns = zip(trace.start_ns.tolist(), trace.down_bps.tolist(), trace.up_bps.tolist(), strict=True)
    rows = [f"{_seconds(start)},{down},{up}" for start, down, up in columns]
    return "\n".join([*(f"# {line}" for line in comments), "time_s,down_bps,up_bps", *rows, ""])


def _population(name: str) -> Population:
    if name not in POPULATIONS:
        raise TraceError(f"no population of traces is called {name!r}; there are {', '.join(POPULATIONS)}")
    return POPULATIONS[name]


def whole_steps(duration_s: float, step_s: float) -> tuple[int, int]:
    """Nanoseconds of a step, and how many fill the duration; `TraceError` unless they do so exactly."""
    if not (math.isfinite(duration_s) and math.isfinite(step_s) and duration_s > 0 and step_s > 0):
        raise TraceError(f"duration {duration_s:g} s and step {step_s:g} s must both be finite and above zero")
    duration_ns, step_ns = ns_from_s(duration_s), ns_from_s(step_s)
    if step_ns == 0 or duration_ns % step_ns:
        raise TraceError(f"duration {duration_s:g} s is not a whole number of steps of {step_s:g} s")
    return step_ns, duration_ns // step_ns


def uniforms(rng: np.random.Generator, count: int) -> FloatArray:
    """``count`` numbers strictly between 0 and 1: the middles of 2^52 cells, chosen by the top 52 bits of a word."""
    words = np.asarray(rng.bit_generator.random_raw(count), np.uint64)
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def correlated(
    rngs: Sequence[np.random.Generator], steps: int, step_s: float, tau_s: float, rho: float
) -> tuple[FloatArray, FloatArray]:
    """Two stationary AR(1) series of unit variance for each stream, float64[streams, steps] (down, up).

    tau_s : seconds after which the autocorrelation has fallen to 1/e
    rho : correlation of the two
    """
    z = np.empty((len(rngs), 2 * steps))
    for row, rng in zip(z, rngs, strict=True):
        row[:] = list(map(_STANDARD.inv_cdf, uniforms(rng, 2 * steps).tolist()))
    phi = math.exp(-step_s / tau_s)
    fresh, rest = math.sqrt(1.0 - phi * phi), math.sqrt(1.0 - rho * rho)
    # One multiplication or addition a statement of numpy: no compiler fuses them, so every machine rounds alike.
    x, y = np.ascontiguousarray(z[:, 0::2].T), np.ascontiguousarray(z[:, 1::2].T)
    y = x * rho + y * rest
    for series in (x, y):
        series[1:] *= fresh
        for i in range(1, steps):
            series[i] += series[i - 1] * phi
    return x.T, y.T


def pauses(
    rngs: Sequence[np.random.Generator], steps: int, step_s: float, between_s: float, outage_s: float
) -> BoolArray:
    """Where each stream's link pauses, bool[streams, steps]; ``between_s`` and ``outage_s`` as in `Population`."""
    enter, leave = -math.expm1(-step_s / between_s), -math.expm1(-step_s / outage_s)
    u = np.stack([uniforms(rng, steps) for rng in rngs])
    paused = np.zeros(u.shape, np.bool_)
    for i in range(1, steps):
        paused[:, i] = np.where(paused[:, i - 1], u[:, i] >= leave, u[:, i] < enter)
    return paused


def pause_words(between_s: float | None, outage_s: float | None) -> str:
    """How a header tells of pauses."""
    return "none" if between_s is None else f"mean {outage_s:g} s, every {between_s:g} s on average"


def _rates(median_bps: int, sigma: float, x: FloatArray, paused: BoolArray) -> IntArray:
    kbits = [math.floor(median_bps / _KBIT * math.exp(sigma * v) + 0.5) for v in x.tolist()]
    if min(kbits) < 1:
        raise TraceError("a drawn rate rounds to 0 kbit/s, which would read as a pause that was not drawn")
    return np.where(paused, 0, np.array(kbits, np.int64) * _KBIT)


def _seconds(ns: int) -> str:
    whole, rest = divmod(ns, SECOND_NS)
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".") if rest else str(whole)
