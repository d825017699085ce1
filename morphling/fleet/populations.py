"""Populations of links: every device draws its own mean pair, and then varies in time around it.

The recipe, version 1.  The means of downlink and uplink over devices are a bivariate lognormal; a pair outside the
stated ranges (of each direction, and of their ratio) is drawn again, never moved onto a bound, and means are rounded
to whole kbit/s.  In time, a rate is ``mean · exp(sigma · x - sigma² / 2)`` with ``sigma² = ln(1 + cv²)``, so that it
keeps the drawn mean while the link is up; x is a stationary Gaussian AR(1) of coefficient ``exp(-step / tau)`` whose
two directions have correlation ``rho_in_time``.  Pauses, uniforms, normals and rounding are those of
`morphling.fleet.generate`.  Device i has streams of its own, so its trace does not depend on how many others are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from morphling.errors import TraceError
from morphling.fleet.generate import correlated, pause_words, pauses, uniforms, whole_steps
from morphling.fleet.links import LinkTrace
from morphling.fleet.streams import stream
from morphling.types import BoolArray, FloatArray, IntArray

__all__ = [
    "LINK_POPULATIONS",
    "POPULATION_RECIPE",
    "LinkPopulation",
    "device_traces",
    "link_means",
    "population_header",
]

POPULATION_RECIPE = 1
"""Raised whenever the same population and seed would give other links."""

_KBIT = 1000
_STANDARD = NormalDist()
_AT_ONCE = 256
"""Most devices drawn side by side: enough for array speed."""
_NUMBERS_AT_ONCE = 2_000_000
"""Most steps drawn side by side, so that long traces stay small: some 100 bytes a step while drawing."""
_LONGEST = 10_000_000
"""Most steps of one trace: about a gigabyte while drawing."""
_MAX_TRIES = 1000


@dataclass(frozen=True)
class LinkPopulation:
    """Statistics of the links of many devices; rates are seen from the device.

    down_bps, up_bps : medians over devices of the mean rate, bit/s, before pairs out of range are drawn again
    down_sigma, up_sigma : standard deviations over devices of the natural logarithm
    rho : correlation over devices of the two logarithms
    down_range, up_range : lowest and highest mean rate, bit/s, included
    ratio_range : lowest and highest down/up of one device's means; ``None`` = any
    cv : standard deviation over mean of one device's 1-second rate, both directions
    tau_s : seconds after which the autocorrelation of the logarithm has fallen to 1/e
    rho_in_time : correlation of the two directions' logarithms within one device's trace
    between_s, outage_s : mean time between pauses, and of a pause; ``None`` = the link never pauses
    sources : one line a statistic
    """

    title: str
    down_bps: float
    up_bps: float
    down_sigma: float
    up_sigma: float
    rho: float
    down_range: tuple[int, int]
    up_range: tuple[int, int]
    ratio_range: tuple[float, float] | None
    cv: float
    tau_s: float
    rho_in_time: float
    between_s: float | None
    outage_s: float | None
    sources: tuple[str, ...]


_MBIT = 1_000_000
_NDT = "M-Lab NDT, North America, June 2022, joined tests"
_OOKLA = "11,024 Ookla tests (Narayanan et al., SIGCOMM 2021 artifact)"
_MAHIMAHI = "Mahimahi (Netravali et al., USENIX ATC 2015)"
_AT_REST = (
    "cv: median within-test spread of 15 one-second samples in a MobiPerf 2018 subset, 0.102",
    "tau: assumed",
    "rho in time: assumed equal to that between M-Lab NDT users",
    "pauses: none, assumed for a fixed line",
)

LINK_POPULATIONS: dict[str, LinkPopulation] = {
    "home-wifi-ndt": LinkPopulation(
        title="home connections as M-Lab NDT sees them, at rest",
        down_bps=math.exp(3.739) * _MBIT,
        up_bps=math.exp(2.778) * _MBIT,
        down_sigma=1.320,
        up_sigma=1.277,
        rho=0.403,
        down_range=(1 * _MBIT, 1000 * _MBIT),
        up_range=(_MBIT // 2, 500 * _MBIT),
        ratio_range=None,
        cv=0.1,
        tau_s=10.0,
        rho_in_time=0.4,
        between_s=None,
        outage_s=None,
        sources=(
            f"means: lognormal fit to {_NDT}, with down >= 1 and up >= 0.5 Mbit/s (86 % of 6,492)",
            "ranges: lower ends are those of the fitted subset; upper ends 1000 and 500 Mbit/s, assumed",
            *_AT_REST,
        ),
    ),
    "cleave-2-10x": LinkPopulation(
        title="those home connections whose downlink is 2 to 10 times their uplink, the asymmetry Cleave assumes",
        down_bps=math.exp(3.976) * _MBIT,
        up_bps=math.exp(2.475) * _MBIT,
        down_sigma=1.120,
        up_sigma=1.111,
        rho=0.916,
        down_range=(1 * _MBIT, 1000 * _MBIT),
        up_range=(_MBIT // 2, 500 * _MBIT),
        ratio_range=(2.0, 10.0),
        cv=0.1,
        tau_s=10.0,
        rho_in_time=0.4,
        between_s=None,
        outage_s=None,
        sources=(
            f"means: lognormal fit to {_NDT}, with 2 <= down/up <= 10 (2,006 of 6,492: a third of users)",
            "ranges: as home-wifi-ndt; the ratio is the subset's own",
            *_AT_REST,
        ),
    ),
    "fedscale-like": LinkPopulation(
        title="FedScale's one number per client as downlink, with an uplink split off as M-Lab NDT splits them",
        down_bps=6.1 * _MBIT,
        up_bps=6.1 * _MBIT / math.exp(0.961),
        down_sigma=1.103,
        up_sigma=1.797,
        rho=0.614,
        down_range=(_MBIT // 10, 1000 * _MBIT),
        up_range=(_MBIT // 20, 500 * _MBIT),
        ratio_range=None,
        cv=0.1,
        tau_s=10.0,
        rho_in_time=0.4,
        between_s=None,
        outage_s=None,
        sources=(
            "means, down: published statistics of FedScale's client capacities, median 6.1 Mbit/s and 26 % below 3",
            "means, up: down / r, r lognormal with median 2.61, sigma 1.419: down/up of the fit behind home-wifi-ndt",
            "FedScale: one number per client, without an uplink of its own",
            "ranges: assumed",
            *_AT_REST,
        ),
    ),
    "lte": LinkPopulation(
        title="phones on 4G, at rest or walking",
        down_bps=117.0 * _MBIT,
        up_bps=31.0 * _MBIT,
        down_sigma=0.7,
        up_sigma=0.7,
        rho=0.4,
        down_range=(1 * _MBIT, 1000 * _MBIT),
        up_range=(_MBIT // 2, 200 * _MBIT),
        ratio_range=None,
        cv=0.4,
        tau_s=5.0,
        rho_in_time=0.4,
        between_s=600.0,
        outage_s=2.0,
        sources=(
            f"means, medians: 4G rows of {_OOKLA}",
            "means, sigma 0.7: assumed; rho: that between M-Lab NDT users, assumed",
            "ranges: assumed",
            "cv: median spread of a phone's transfers in FLASH (Yang et al., WWW 2021), 0.37 down and 0.40 up",
            f"tau, rho in time: the LTE traces of {_MAHIMAHI}",
            "pauses: assumed, rarer and shorter than while driving",
        ),
    ),
    "5g": LinkPopulation(
        title="phones on 5G (non-standalone, low band), moving",
        down_bps=118.0 * _MBIT,
        up_bps=72.5 * _MBIT,
        down_sigma=0.7,
        up_sigma=0.7,
        rho=0.4,
        down_range=(1 * _MBIT, 2000 * _MBIT),
        up_range=(_MBIT // 2, 500 * _MBIT),
        ratio_range=None,
        cv=0.4,
        tau_s=3.0,
        rho_in_time=0.4,
        between_s=None,
        outage_s=None,
        sources=(
            f"means, medians: 5G NSA low-band rows of {_OOKLA}",
            "means, sigma 0.7: assumed; rho: that between M-Lab NDT users, assumed",
            "ranges: assumed",
            "cv, tau: 2.5 GHz car run of 5Gophers (Narayanan et al., WWW 2020), 0.39 and 0.73 after 1 s",
            "rho in time: assumed as for LTE",
            "pauses: none, assumed",
        ),
    ),
    "driving-lte": LinkPopulation(
        title="phones on 4G in a moving car",
        down_bps=7.6 * _MBIT,
        up_bps=3.35 * _MBIT,
        down_sigma=0.61,
        up_sigma=1.22,
        rho=0.74,
        down_range=(_MBIT // 2, 200 * _MBIT),
        up_range=(_MBIT // 10, 100 * _MBIT),
        ratio_range=None,
        cv=0.6,
        tau_s=5.0,
        rho_in_time=0.4,
        between_s=180.0,
        outage_s=4.0,
        sources=(
            f"means: logarithms of the mean rates of five LTE downlinks and four uplinks of {_MAHIMAHI}; few, so rough",
            "ranges: assumed",
            "cv, tau, rho in time: 1 s rates of the same traces, 0.49-0.88, 0.52-0.89 after 1 s, 0.14-0.45",
            "pauses: 7 below 2 % of the median in 1,260 s of ATT and T-Mobile LTE driving, 1-9 s long",
        ),
    ),
}
"""By name."""


def link_means(population: str, seed: int, count: int, scope: str | None = None) -> tuple[IntArray, IntArray]:
    """Mean rates of the first ``count`` devices of a population.

    Parameters
    ----------
    population
        A name in `LINK_POPULATIONS`.
    seed
        Whole number >= 0.
    count
        Devices, >= 1.
    scope
        Name of the random stream; left out, that of the population, so that two calls agree.

    Returns
    -------
    tuple
        (down, up), int64[count] each: bit/s, whole kbit/s.

    Raises
    ------
    TraceError
        If the population is unknown, or the count below 1.
    InputError
        If the seed is not a whole number >= 0.
    """
    what = _named(population)
    if count < 1:
        raise TraceError(f"a draw needs at least one device, not {count}")
    rng = stream(seed, f"{_scope(population, scope)}/means")
    rest = math.sqrt(1.0 - what.rho * what.rho)
    down, up = np.empty(count, np.int64), np.empty(count, np.int64)
    for i in range(count):
        for _ in range(_MAX_TRIES):
            first, second = (_STANDARD.inv_cdf(u) for u in uniforms(rng, 2).tolist())
            d = _whole(what.down_bps * math.exp(what.down_sigma * first))
            u = _whole(what.up_bps * math.exp(what.up_sigma * (what.rho * first + rest * second)))
            if _in_range(what, d, u):
                break
        else:
            raise TraceError(f"{population}: {_MAX_TRIES} pairs in a row lie out of range; the ranges are too narrow")
        down[i], up[i] = d, u
    return down, up


def device_traces(
    population: str,
    seed: int,
    count: int,
    duration_s: float = 600.0,
    step_s: float = 1.0,
    *,
    scope: str | None = None,
) -> Iterator[LinkTrace]:
    """Step traces of the first ``count`` devices of a population, one after another.

    Device i is the same however many are drawn; a longer trace begins with the shorter one of the same step.

    Parameters
    ----------
    population, seed, count, scope
        As `link_means`.
    duration_s, step_s
        Seconds above zero; the duration is a whole number of steps.

    Yields
    ------
    LinkTrace
        Named ``population-00000`` and so on; ``duration_s / step_s`` steps in whole kbit/s (as bit/s), 0 in both
        directions during a pause; repeats after its end.  All share one ``start_ns``.

    Raises
    ------
    TraceError
        As `link_means`; or if the duration is not a whole number of steps, or of more than ten million.
    InputError
        If the seed is not a whole number >= 0.
    """
    what = _named(population)
    step_ns, steps = whole_steps(duration_s, step_s)
    if steps > _LONGEST:
        raise TraceError(f"a trace of {steps:,} steps is too long to draw; {_LONGEST:,} steps are the most")
    means = link_means(population, seed, count, scope)
    start = np.arange(steps, dtype=np.int64) * step_ns
    at_once = max(1, min(_AT_ONCE, _NUMBERS_AT_ONCE // steps))
    for first in range(0, count, at_once):
        names = [f"{_scope(population, scope)}/{i}" for i in range(first, min(first + at_once, count))]
        rates, breaks = ([stream(seed, f"{name}/{part}") for name in names] for part in ("rates", "pauses"))
        x, y = correlated(rates, steps, step_s, what.tau_s, what.rho_in_time)
        paused = None
        if what.between_s is not None and what.outage_s is not None:
            paused = pauses(breaks, steps, step_s, what.between_s, what.outage_s)
        span = slice(first, first + len(names))
        down, up = (_rates(what, m[span], v, paused) for m, v in zip(means, (x, y), strict=True))
        for i in range(len(names)):
            yield LinkTrace(f"{population}-{first + i:05d}", start, down[i], up[i], steps * step_ns)


def population_header(population: str, seed: int, device: int, down_bps: int, up_bps: int) -> tuple[str, ...]:
    """Lines that say where the trace of one device, whose means those are, comes from, for `to_csv`.

    ``TraceError`` if the population is unknown.
    """
    what = _named(population)
    return (
        f"{population}: {what.title}. Synthetic: drawn from published statistics, not measured.",
        f"population: {population}",
        f"seed: {seed}",
        f"device: {device}",
        f"recipe: population {POPULATION_RECIPE} (lognormal mean pair a device, lognormal AR(1) in time, whole kbit/s)",
        "unit: bit/s (decimal), seconds",
        "direction: seen from the device; down_bps is what it receives, up_bps what it sends",
        f"medians over devices: down {what.down_bps:.0f} bit/s, up {what.up_bps:.0f} bit/s",
        f"spread over devices: sigma of ln down {what.down_sigma:g}, of ln up {what.up_sigma:g}, rho {what.rho:g}",
        f"means of this device while up: down {down_bps} bit/s, up {up_bps} bit/s",
        (
            f"cv: {what.cv:g}, tau: {what.tau_s:g} s, rho in time: {what.rho_in_time:g}, "
            f"pauses: {pause_words(what.between_s, what.outage_s)}"
        ),
        *(f"source: {line}" for line in what.sources),
    )


def _named(name: str) -> LinkPopulation:
    if name not in LINK_POPULATIONS:
        raise TraceError(f"no population of links is called {name!r}; there are {', '.join(LINK_POPULATIONS)}")
    return LINK_POPULATIONS[name]


def _scope(population: str, scope: str | None) -> str:
    return f"network_traces/{population}" if scope is None else scope


def _whole(bps: float) -> int:
    return math.floor(bps / _KBIT + 0.5) * _KBIT


def _in_range(what: LinkPopulation, down: int, up: int) -> bool:
    (low_down, high_down), (low_up, high_up) = what.down_range, what.up_range
    if not (low_down <= down <= high_down and low_up <= up <= high_up):
        return False
    return what.ratio_range is None or what.ratio_range[0] * up <= down <= what.ratio_range[1] * up


def _rates(what: LinkPopulation, means: IntArray, x: FloatArray, paused: BoolArray | None) -> IntArray:
    variance = math.log1p(what.cv**2)
    kbits = np.floor((means / _KBIT)[:, None] * np.exp(x * math.sqrt(variance) - variance / 2) + 0.5).astype(np.int64)
    if kbits.min() < 1:
        raise TraceError("a drawn rate rounds to 0 kbit/s, which would read as a pause that was not drawn")
    rates = kbits * _KBIT
    if paused is not None:
        rates[paused] = 0
    return rates
