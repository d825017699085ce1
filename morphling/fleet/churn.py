"""Devices that come and go: sessions drawn from distributions, from counts of machines, or from periodic records.

Everything drawn comes from streams of its own, ``availability/…`` (see `morphling.fleet.streams`): which devices are
there says nothing about how fast they are, and a longer horizon begins with the shorter one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from morphling.errors import InputError
from morphling.fleet.availability import Availability
from morphling.fleet.streams import stream
from morphling.types import FAR_NS, SECOND_NS, FloatArray, IntArray

__all__ = ["FITS", "Diurnal", "Lengths", "Renewal", "Spans", "joined", "laid_out", "periodic", "renewal", "spot"]

_DAY_S = 86_400.0
_LONGEST_S = float(1 << 61) / SECOND_NS
_MOST_SESSIONS = 1 << 26
_GRID = 1 << 12
_LEAST_MASS = 1e-3


@dataclass(frozen=True, eq=False)
class Spans:
    """Sessions of many devices: ``device``, ``start_ns``, ``end_ns`` int64[n], sorted by device, then start."""

    device: IntArray
    start_ns: IntArray
    end_ns: IntArray


@dataclass(frozen=True)
class Lengths:
    """A distribution of how long something lasts.

    family : ``weibull`` (``spread`` is its shape) or ``lognormal`` (``spread`` is sigma, ``scale_s`` the median); an
        exponential is a Weibull of shape 1, and its scale is its mean
    scale_s : seconds
    min_s, max_s : bounds, kept by drawing again, never by clipping

    Raises
    ------
    InputError
        The bounds keep less than a thousandth of all draws, or the mean is beyond what can be laid out.
    """

    family: str
    spread: float
    scale_s: float
    min_s: float = 0.0
    max_s: float = math.inf

    def __post_init__(self) -> None:
        if self._mass < _LEAST_MASS:
            raise InputError(f"the bounds keep {self._mass:.2g} of all draws; at least {_LEAST_MASS:g} is needed")
        if not (math.isfinite(self.mean_s) and 0 < self.mean_s < _LONGEST_S):
            raise InputError(f"the mean is {self.mean_s:g} s, beyond what can be laid out; give a max")

    @property
    def _mass(self) -> float:
        low, high = self._tail(np.array([self.min_s, self.max_s])).tolist()
        return float(low - high)

    def _tail(self, x: FloatArray) -> FloatArray:
        """The share of unbounded draws above ``x``."""
        with np.errstate(divide="ignore", over="ignore"):
            if self.family == "weibull":
                weibull: FloatArray = np.exp(-((x / self.scale_s) ** self.spread))
                return weibull
            z = (np.log(x / self.scale_s) / (self.spread * math.sqrt(2))).tolist()
        return np.array([0.5 * math.erfc(v) for v in z], np.float64)

    @cached_property
    def _table(self) -> tuple[FloatArray, FloatArray]:
        """Lengths, and the integral of the (bounded) tail up to each, both float64[grid]."""
        if self.family == "weibull":
            low, high = 1e-12 * self.scale_s, self.scale_s * min(700.0 ** (1 / self.spread), 1e30)
        else:
            wide = self.spread * (10 + self.spread)
            low, high = self.scale_s * math.exp(-wide), self.scale_s * math.exp(wide)
        low, high = max(self.min_s, low), min(self.max_s, high)
        x = np.geomspace(low, high, _GRID)
        last = float(self._tail(np.array([self.max_s]))[0])
        tail = (self._tail(x) - last) / self._mass
        area = low + np.concatenate([np.zeros(1), np.cumsum(np.diff(x) * (tail[1:] + tail[:-1]) / 2)])
        return np.concatenate([np.zeros(1), x]), np.concatenate([np.zeros(1), area])

    @property
    def mean_s(self) -> float:
        """Mean of the bounded distribution, seconds (by quadrature, to about 1e-4 of it)."""
        return float(self._table[1][-1])

    def draw(self, rng: np.random.Generator, count: int) -> FloatArray:
        """``count`` lengths, seconds; those out of bounds are drawn again."""
        x = self._unbounded(rng, count)
        while len(out := np.flatnonzero((x < self.min_s) | (x > self.max_s))):
            x[out] = self._unbounded(rng, len(out))
        return x

    def _unbounded(self, rng: np.random.Generator, count: int) -> FloatArray:
        if self.family == "weibull":
            x: FloatArray = self.scale_s * rng.weibull(self.spread, count)
            return x
        return rng.lognormal(math.log(self.scale_s), self.spread, count)

    def left(self, rng: np.random.Generator, count: int) -> FloatArray:
        """What is left of a length that is found under way at an arbitrary instant (the stationary residual), s."""
        x, area = self._table
        left: FloatArray = np.interp(rng.random(count) * area[-1], area, x)
        return left


@dataclass(frozen=True)
class Diurnal:
    """The rate at which absent devices come, over the day: ``1 + a cos(2π (h - peak_hour) / 24)``, of mean 1.

    ratio : rate at the peak over rate at the trough, at least 1; a = (ratio - 1) / (ratio + 1)
    peak_hour : hour of the peak, [0, 24)
    start_hour : hour of the day at virtual time 0, [0, 24)
    """

    ratio: float
    peak_hour: float
    start_hour: float = 0.0

    def after(self, start_s: FloatArray, gap_s: FloatArray) -> FloatArray:
        """When gaps end that began at ``start_s``: the rate, integrated over the gap, is ``gap_s``."""
        sway = (self.ratio - 1) / (self.ratio + 1) * _DAY_S / (2 * math.pi)
        turn, shift = 2 * math.pi / _DAY_S, (self.peak_hour - self.start_hour) * 3600.0
        goal = start_s + sway * np.sin(turn * (start_s - shift)) + gap_s
        low, high = np.maximum(goal - sway, start_s), goal + sway
        for _ in range(48):
            middle = (low + high) / 2
            early = middle + sway * np.sin(turn * (middle - shift)) < goal
            low, high = np.where(early, middle, low), np.where(early, high, middle)
        return high


@dataclass(frozen=True)
class Renewal:
    """Devices that are there and away in turn, each length drawn anew.

    on, off : distributions of sessions and gaps
    share : alpha and beta of the Beta distribution of each device's share of time online, to which its gaps are
        scaled; None = gaps are as drawn
    diurnal : how gaps end earlier at some hours and later at others; None = at all hours alike
    initial : share of devices online at time 0; None = each device's stationary share
    sources : one line each
    """

    on: Lengths
    off: Lengths
    share: tuple[float, float] | None = None
    diurnal: Diurnal | None = None
    initial: float | None = None
    sources: tuple[str, ...] = field(default=())


FITS: dict[str, Renewal] = {
    "phones-flash": Renewal(
        on=Lengths("lognormal", 1.602, math.exp(6.764), min_s=60.0),
        off=Lengths("lognormal", 2.220, math.exp(7.751), min_s=60.0),
        share=(0.514, 4.907),
        diurnal=Diurnal(ratio=1.37 / 0.63, peak_hour=4.5),
        sources=(
            "phones that are locked, on Wi-Fi and charging: the sample that FLASH (Yang et al., WWW 2021) published",
            "710 usable users of 1,000, 14,139 sessions, 31 January to 6 February 2020",
            "sessions and gaps of at least 60 s: lognormal, maximum likelihood; shares of time: Beta(0.514, 4.907)",
            "rate of coming: 1 + 0.37 cos, most at 04:30 local time",
        ),
    ),
    "desktops-boinc": Renewal(
        on=Lengths("weibull", 0.393, 2.964 * 3600.0),
        off=Lengths("lognormal", 2.844, math.exp(-0.586) * 3600.0),
        sources=(
            "SETI@home hosts: sessions Weibull k 0.393, 2.964 h; gaps lognormal mu -0.586, sigma 2.844 (hours)",
            "as a simulator of BOINC ships them (ComBoS, FGCS 2017); not checked against the measurement itself",
        ),
    ),
}
"""Published fits by name."""


def renewal(what: Renewal, size: int, seed: int, horizon_ns: int) -> Spans:
    """Sessions of ``size`` devices that start before ``horizon_ns``; the last of a device may end after it.

    At time 0 a device is in the middle of a session or gap, as a stationary process is.  Lengths are whole
    nanoseconds, at least one.  Streams: ``availability/share``, ``/initial``, ``/on``, ``/off``.
    """
    initial, on, off = (stream(seed, f"availability/{name}") for name in ("initial", "on", "off"))
    share = np.full(size, what.on.mean_s / (what.on.mean_s + what.off.mean_s))
    scale = np.ones(size)
    if what.share is not None:
        share = stream(seed, "availability/share").beta(*what.share, size)
        with np.errstate(divide="ignore"):
            scale = what.on.mean_s / what.off.mean_s * (1 - share) / share
    # Refused before they are drawn: the steps below may be as many as a device's sessions.
    expected = horizon_ns / SECOND_NS * float((1 / (what.on.mean_s + what.off.mean_s * scale)).sum())
    if expected > 2 * _MOST_SESSIONS:
        _few(math.inf)
    here = initial.random(size) < (share if what.initial is None else what.initial)
    left_on, left_off = what.on.left(initial, size), what.off.left(initial, size)
    first = what.on.draw(on, size)
    start = np.where(here, 0, _gap_end(what, np.zeros(size, np.int64), left_off * scale))
    end = start + np.where(here, _whole(left_on), _whole(first))
    alive = np.flatnonzero(start < horizon_ns)
    found: list[tuple[IntArray, IntArray, IntArray]] = []
    sessions = 0
    while len(alive):
        found.append((alive, start[alive], end[alive]))
        sessions += len(alive)
        _few(sessions)
        # Drawn for all devices, so that no device's next length depends on who has reached the horizon.
        gap, stay = what.off.draw(off, size) * scale, what.on.draw(on, size)
        start[alive] = _gap_end(what, end[alive], gap[alive])
        end[alive] = start[alive] + _whole(stay[alive])
        alive = alive[start[alive] < horizon_ns]
    return _sorted(found)


def _gap_end(what: Renewal, start_ns: IntArray, gap_s: FloatArray) -> IntArray:
    if what.diurnal is None:
        return np.minimum(start_ns, FAR_NS) + _whole(gap_s)
    start = start_ns / SECOND_NS
    late = what.diurnal.after(start, np.minimum(gap_s, _LONGEST_S))
    return np.minimum(start_ns, FAR_NS) + _whole(late - start)


def _whole(seconds: FloatArray) -> IntArray:
    """Nanoseconds, at least 1; beyond 73 years all is one."""
    ns: IntArray = np.maximum(1, np.rint(np.minimum(seconds, _LONGEST_S) * SECOND_NS)).astype(np.int64)
    return ns


def spot(time_ns: IntArray, count: IntArray, size: int, seed: int) -> Spans:
    """Sessions of devices of which ``count[i]`` are there from ``time_ns[i]`` on.

    Who comes and who goes at a step is drawn, all alike, from the stream ``availability/spot``.  Before the first
    step nobody is there; after the last, nobody goes.  Of several counts at one time the last one holds.

    Raises
    ------
    InputError
        More devices are needed than the fleet has.
    """
    if len(count) and int(count.max()) > size:
        raise InputError(f"{int(count.max())} devices are there at once, but the fleet has {size}")
    rng = stream(seed, "availability/spot")
    here = np.zeros(size, bool)
    since = np.zeros(size, np.int64)
    found: list[tuple[IntArray, IntArray, IntArray]] = []
    last = np.append(np.diff(time_ns) > 0, [True] * min(1, len(time_ns)))
    for now, wanted in zip(time_ns[last].tolist(), count[last].tolist(), strict=True):
        change = wanted - int(here.sum())
        who = np.sort(rng.choice(np.flatnonzero(here if change < 0 else ~here), abs(change), replace=False))
        if change < 0:
            found.append((who, since[who], np.full(len(who), now)))
        here[who], since[who] = change > 0, now
    stay = np.flatnonzero(here)
    found.append((stay, since[stay], np.full(len(stay), FAR_NS)))
    return _sorted(found)


def periodic(records: Sequence[tuple[IntArray, IntArray, int]], horizon_ns: int) -> Spans:
    """Sessions of records ``(start_ns, end_ns, period_ns)``, one a device, each repeated until ``horizon_ns``.

    Sessions within a record are sorted and end by its period; where one ends with the period and the next starts with
    it, the two are one.
    """
    found: list[tuple[IntArray, IntArray, IntArray]] = []
    sessions = 0
    for device, (start, end, period) in enumerate(records):
        turns = horizon_ns // period + 1  # what ends at the horizon may go on in the next turn
        sessions += turns * len(start)
        _few(sessions)
        shift = np.repeat(np.arange(turns, dtype=np.int64) * period, len(start))
        starts = np.tile(start, turns) + shift
        found.append((np.full(len(starts), device), starts, np.tile(end, turns) + shift))
    return joined(_sorted(found))


def laid_out(
    spans: Spans, size: int, model: str, horizon_ns: int = FAR_NS, past: str = "hold", until_ns: int | None = None
) -> Availability:
    """The arrays that a run reads.

    Parameters
    ----------
    spans
        Sessions; those that start at the horizon or later are left out.
    horizon_ns, past
        What happens after the horizon: ``hold`` (who is there then stays), ``error`` (the same, but a run that gets
        there stops), ``repeat`` (all starts again, up to ``until_ns``, where a run that goes on stops).
    """
    inside = spans.start_ns < horizon_ns
    device, start, end = spans.device[inside], spans.start_ns[inside], spans.end_ns[inside]
    limit, after = horizon_ns, past
    if past == "repeat":
        if until_ns is None:
            raise InputError("past_horizon: repeat needs run.max_time, up to which the sessions are laid out")
        cut = Spans(device, start, np.minimum(end, horizon_ns))
        turns = -(-until_ns // horizon_ns)
        _few(turns * len(start))
        shift = np.repeat(np.arange(turns, dtype=np.int64) * horizon_ns, len(start))
        found = (np.tile(cut.device, turns), np.tile(cut.start_ns, turns) + shift, np.tile(cut.end_ns, turns) + shift)
        whole = joined(_sorted([found]))
        device, start, end = whole.device, whole.start_ns, whole.end_ns
        limit, after = until_ns, "error"
    end = np.where(end > limit, FAR_NS, end)
    ptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(device, minlength=size))])
    return Availability(ptr.astype(np.int64), start, end, model, limit, after)


def joined(spans: Spans) -> Spans:
    """Sessions of a device of which one ends where the next starts, as one."""
    more = (spans.device[1:] == spans.device[:-1]) & (spans.start_ns[1:] <= spans.end_ns[:-1])
    first, last = np.append([True], ~more)[: len(spans.device)], np.append(~more, [True])[: len(spans.device)]
    return Spans(spans.device[first], spans.start_ns[first], spans.end_ns[last])


def _sorted(found: list[tuple[IntArray, IntArray, IntArray]]) -> Spans:
    if not found:
        none = np.zeros(0, np.int64)
        return Spans(none, none, none)
    device, start, end = (np.concatenate(column).astype(np.int64) for column in zip(*found, strict=True))
    order = np.lexsort((start, device))
    return Spans(device[order], start[order], end[order])


def _few(sessions: float) -> None:
    if sessions > _MOST_SESSIONS:
        raise InputError(f"more than {_MOST_SESSIONS:,} sessions would be laid out; shorten the horizon")
