"""Links of the slow twin: traces walked segment by segment in big integers, and naive max-min sharing.

Nothing here is taken from the engine: only the records of `morphling.fleet` are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from math import ceil

import simpy

from morphling.fleet import Links, PastEnd

__all__ = ["DOWN", "UP", "Flow", "Link", "SharedSide", "StuckError", "max_min"]

DOWN, UP = 0, 1
GIGA = 10**9


class StuckError(Exception):
    """A transfer that never ends, or a trace that ended in ``error`` mode."""


class Link:
    """One device's link: rates in whole millibit/s at any virtual time."""

    def __init__(self, links: Links, device: int) -> None:
        trace = int(links.trace[device])
        steps = range(int(links.trace_ptr[trace]), int(links.trace_ptr[trace + 1]))
        self.starts = [int(links.start_ns[i]) for i in steps]
        self.rates = [(round(Fraction(links.down_bps[i].item()) * 1000), round(Fraction(links.up_bps[i].item()) * 1000))
                      for i in steps]  # fmt: skip
        self.period = int(links.period_ns[trace])
        self.past_end = PastEnd(int(links.past_end[trace]))
        self.offset = int(links.offset_ns[device])
        self.latency = int(links.latency_ns[device])
        self.half_duplex = bool(links.half_duplex[device])

    def segments(self, at: int) -> Iterator[tuple[tuple[int, int], int | None]]:
        """From virtual time ``at`` on: (down, up) rates and the virtual time until which they hold (None: for ever)."""
        lap, inside = divmod(at + self.offset, self.period)
        if lap and self.past_end is not PastEnd.REPEAT:
            if self.past_end is PastEnd.ERROR:
                raise StuckError("the trace has ended")
            yield self.rates[-1], None
            return
        i = max(j for j, start in enumerate(self.starts) if start <= inside)
        while True:
            last = i + 1 == len(self.starts)
            if last and self.past_end is PastEnd.HOLD:
                yield self.rates[i], None
                return
            until = self.period if last else self.starts[i + 1]
            yield self.rates[i], lap * self.period + until - self.offset
            i += 1
            if last:
                if self.past_end is PastEnd.ERROR:
                    raise StuckError("the trace has ended")
                lap, i = lap + 1, 0

    def rate(self, side: int, at: int) -> tuple[int, int | None]:
        """The rate at an instant and until when it holds."""
        rates, until = next(self.segments(at))
        return rates[side], until

    def end(self, side: int, at: int, millibits: int) -> int:
        """First nanosecond at which the integral of the rate since ``at`` reaches ``millibits``."""
        if all(rates[side] == 0 for rates in self.rates):
            raise StuckError("the link never delivers")
        need = millibits * GIGA
        for rates, until in self.segments(at):
            rate = rates[side]
            if until is None and rate == 0:
                raise StuckError("the link never delivers")
            if rate and (until is None or need <= rate * (until - at)):
                return at + -(-need // rate)
            assert until is not None
            need -= rate * (until - at)
            at = until
        raise AssertionError


def max_min(caps: list[int], capacity: float) -> list[float]:
    """Textbook progressive filling: everyone gets the fair share, or their own cap where that is less."""
    rates = [0.0] * len(caps)
    left, hungry = float(capacity), len(caps)
    for i in sorted(range(len(caps)), key=lambda j: caps[j]):
        rates[i] = min(float(caps[i]), left / hungry)
        left -= rates[i]
        hungry -= 1
    return rates


class Flow:
    """One transfer in progress on a shared side."""

    def __init__(self, link: Link, millibits: int, done: simpy.Event) -> None:
        self.link, self.left, self.done = link, float(millibits), done
        self.rate = 0.0
        self.finish: int | None = None


class SharedSide:
    """One direction of the coordinator's own link; every change recomputes every flow."""

    def __init__(self, env: simpy.Environment, side: int, capacity_bps: float) -> None:
        self.env, self.side, self.capacity = env, side, float(round(Fraction(capacity_bps) * 1000))
        self.flows: list[Flow] = []
        self.since = 0
        self.version = 0

    def add(self, flow: Flow) -> None:
        """A transfer starts now."""
        self.catch_up()
        self.flows.append(flow)
        self.recompute()

    def drop(self, flow: Flow) -> None:
        """A transfer is cut now."""
        if flow in self.flows:
            self.catch_up()
            self.flows.remove(flow)
            self.recompute()

    def catch_up(self) -> None:
        """Account for what was delivered since the last change."""
        passed = int(self.env.now) - self.since
        for flow in self.flows:
            flow.left -= flow.rate * passed / GIGA
        self.since = int(self.env.now)

    def recompute(self) -> None:
        """Give every flow its fair rate and set the alarm for the next change."""
        now = int(self.env.now)
        self.version += 1
        if not self.flows:
            return
        caps, changes = [], []
        for flow in self.flows:
            cap, until = flow.link.rate(self.side, now)
            caps.append(cap)
            if until is not None:
                changes.append(until)
        for flow, rate in zip(self.flows, max_min(caps, self.capacity), strict=True):
            flow.rate = rate
            flow.finish = now + max(0, ceil(flow.left / rate * GIGA)) if rate > 0 else None
        changes += [flow.finish for flow in self.flows if flow.finish is not None]
        if not changes:
            raise StuckError("the link never delivers")
        alarm = self.env.timeout(min(changes) - now)
        alarm.callbacks.append(self.ring(self.version))

    def ring(self, version: int) -> Callable[[object], None]:
        """The alarm: flows that are through leave, the others get new rates."""

        def change(_: object) -> None:
            if version != self.version:
                return
            self.catch_up()
            now = int(self.env.now)
            through = [f for f in self.flows if f.finish is not None and f.finish <= now]
            self.flows = [f for f in self.flows if f not in through]
            for flow in through:
                flow.done.succeed()
            self.recompute()

        return change
