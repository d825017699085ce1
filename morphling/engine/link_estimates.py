"""What the coordinator has learned of each device's link from the transfers that it has seen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from morphling.engine.links import nic_can_bind
from morphling.engine.running import Running
from morphling.fleet import Fleet
from morphling.types import BoolArray, FloatArray, IntArray

__all__ = ["LinkEstimates"]

WEIGHT = 0.5
"""Weight of the newest observation in the running estimate of a link's rate."""

FULL = 0.9
"""Part of its rate from which on the coordinator's link is taken to have been full while a transfer lasted.

Transfers are reckoned at their mean rates, which blurs what was carried when; a link that is full from end to end comes
out a little below 1.
"""

EVEN = 0.99
"""Part of an even share of the coordinator's rate below which a transfer is said to have had less than that."""


class LinkEstimates:
    """Running estimates of the rates of the devices' own links.

    A link is taken at its nominal rate until a transfer has been observed, then at a running mean of what was observed.
    While the coordinator's own link is full, a transfer says only that the device's link is at least that fast: it may
    raise an estimate and does not lower it.  A device that had less than an even share of the coordinator's rate is
    limited by its own link even then, since max-min fairness gives an even share to all who can use one.

    What the coordinator carried is reckoned from transfers with the devices in dispatches that are over: those still
    under way when an estimate is asked for are not known.  One that was cut off, by a departure or since it was
    withdrawn, may have carried as much as its link is thought to.
    """

    def __init__(self, fleet: Fleet) -> None:
        centre = fleet.coordinator
        out_binds, in_binds = nic_can_bind(fleet.links, centre)
        down, up = fleet.links.nominal_bps()
        self.latency_ns = fleet.links.latency_ns
        self.down = Direction(down.copy(), centre.uplink_bps if out_binds else None)
        self.up = Direction(up.copy(), centre.downlink_bps if in_binds else None)

    def learn(self, over: Iterable[Running], since_ns: int) -> None:
        """Learn from dispatches that are ``over``; transfers that become known later begin at ``since_ns`` or after."""
        seen: tuple[list[Transfers], list[Transfers]] = ([], [])
        for running in over:
            tasks, t = running.tasks, running.times
            here = (tasks.device < len(self.latency_ns)) & (tasks.peer < 0)
            lag = self.latency_ns[np.where(here, tasks.device, 0)]
            # an upload cut into tiles pauses between them, so only whole ones measure the link
            for side, link, size, start, end, whole in (
                (0, self.down, tasks.bytes_in, t[0], t[1], np.ones(len(tasks), np.bool_)),
                (1, self.up, tasks.bytes_out, t[4], t[5], tasks.overlap <= 1),
            ):
                arrived = end >= 0
                until = np.where(arrived, end - lag, t[6])
                x = np.flatnonzero(here & (size > 0) & (start >= 0) & (until > start) & (arrived | (running.lost > 0)))
                device = tasks.device[x].astype(np.int64)
                most = link.rate_bps[device] * (until[x] - start[x]) / 8e9
                moved = np.where(arrived[x], size[x], np.minimum(size[x], most))
                seen[side].append(Transfers(device, moved, start[x], until[x], whole[x] & (running.lost[x] == 0)))
        self.down.learn(seen[0], since_ns)
        self.up.learn(seen[1], since_ns)


@dataclass(frozen=True, eq=False)
class Transfers:
    """Transfers of ``size`` bytes with a ``device``, whose first bit left at ``start`` and last at ``end``, ns.

    Latency comes behind: it is no part of the span in which the bits share links with others.

    ``whole`` : from end to end and without pauses, so that it measures the link.
    """

    device: IntArray
    size: FloatArray
    start: IntArray
    end: IntArray
    whole: BoolArray

    @property
    def rate_bps(self) -> FloatArray:
        """Mean rate of each, float64[n]."""
        rate: FloatArray = self.size * 8e9 / (self.end - self.start)
        return rate

    def take(self, rows: IntArray | BoolArray) -> Transfers:
        """The chosen ones."""
        return Transfers(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    @classmethod
    def concat(cls, parts: Iterable[Transfers]) -> Transfers:
        """All of them."""
        parts = list(parts)
        return cls(*(np.concatenate([getattr(x, name) for x in parts]) for name in cls.__dataclass_fields__))


@dataclass(eq=False)
class Direction:
    """Links in one direction: ``rate_bps`` float64[N] is the estimate.

    ``limit_bps`` : the coordinator's rate where all devices together could use more; None where they cannot.
    """

    rate_bps: FloatArray
    limit_bps: float | None
    observed: BoolArray = field(init=False)
    recent: list[Transfers] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Nothing has been observed."""
        self.observed = np.zeros(len(self.rate_bps), np.bool_)

    def learn(self, dispatches: list[Transfers], since_ns: int) -> None:
        """Fold the transfers of each dispatch into the estimates, in order."""
        if self.limit_bps is None:
            for seen in dispatches:
                self._fold(seen.take(seen.whole))
            return
        everything = Transfers.concat([*self.recent, *dispatches])
        whole = [seen.take(seen.whole) for seen in dispatches]
        carried, count = load(everything, Transfers.concat(whole))
        start = 0
        for measures in whole:
            rate, part = measures.rate_bps, slice(start, start := start + len(measures.size))
            least = (carried[part] >= FULL * self.limit_bps) & (rate * count[part] >= EVEN * self.limit_bps)
            self._fold(measures.take(~least))
            np.maximum.at(self.rate_bps, measures.device[least], rate[least])
        self.recent = [everything.take(everything.end > since_ns)]

    def _fold(self, seen: Transfers) -> None:
        device, rate = seen.device, seen.rate_bps
        old = np.where(self.observed[device], self.rate_bps[device], rate)
        self.rate_bps[device] = (1 - WEIGHT) * old + WEIGHT * rate
        self.observed[device] = True


def load(everything: Transfers, during: Transfers) -> tuple[FloatArray, FloatArray]:
    """What was carried while each of ``during`` lasted, mean bit/s, and how many transfers that were in the mean."""
    if not len(during.size):
        return np.zeros(0), np.zeros(0)
    marks = np.concatenate([everything.start, everything.end])
    order = np.argsort(marks, kind="stable")
    at, rate, one = marks[order], everything.rate_bps, np.ones(len(everything.size))
    first, last = np.searchsorted(at, during.start), np.searchsorted(at, during.end)
    span = during.end - during.start

    def mean(each: FloatArray) -> FloatArray:
        now = np.cumsum(np.concatenate([each, -each])[order])
        so_far = np.concatenate([[0.0], np.cumsum(now[:-1] * np.diff(at))])
        out: FloatArray = (so_far[last] - so_far[first]) / span
        return out

    return mean(rate), mean(one)
