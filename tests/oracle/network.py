"""The network of the slow twin: cells, transfers between devices and TCP, with naive max-min sharing.

Every change recomputes every flow.  Rates are exact fractions of a millibit per second, so the first nanosecond at
which nothing is left to send is exact too, and no two events change places for a rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, sqrt
from typing import Any

import simpy

from morphling.fleet import Coordinator, Links, Tcp
from tests.oracle.exact_link import DOWN, GIGA, UP, Link, StuckError

__all__ = ["Network", "NetworkFlow", "TcpState", "progressive_filling"]

IDLE_NS = GIGA
"""A connection that was silent for longer than this starts slowly again."""

Resource = Hashable


def progressive_filling(
    paths: list[list[Resource]], limits: list[int | None], capacity: dict[Resource, int]
) -> list[Fraction]:
    """Max-min fair rates of flows over the resources of their paths, none above its own limit (None: none).

    The textbook way: raise all flows together until a resource is full or a flow is at its limit, fix those flows,
    and go on with the others.
    """
    rates = [Fraction(0)] * len(paths)
    free = {resource: Fraction(c) for resource, c in capacity.items()}
    rising = set(range(len(paths)))
    while rising:
        users = {r: sum(r in paths[i] for i in rising) for i in rising for r in paths[i]}
        steps = [free[r] / n for r, n in users.items()]
        steps += [limit - rates[i] for i in rising if (limit := limits[i]) is not None]
        step = min(steps)
        for i in rising:
            rates[i] += step
        for resource, n in users.items():
            free[resource] -= n * step
        rising = {i for i in rising if rates[i] != limits[i] and all(free[r] > 0 for r in paths[i])}
    return rates


@dataclass
class TcpState:
    """What a device's connection remembers in one direction."""

    doublings: int = 0
    last_end: int | None = None


class NetworkFlow:
    """One transfer in progress; ``left`` counts billionths of a millibit."""

    def __init__(self, network: Network, row: Any, side: int, millibits: int, done: simpy.Event) -> None:
        self.row, self.side, self.done = row, side, done
        self.path = network.path(row.device, row.peer, side)
        self.left = Fraction(millibits * GIGA)
        self.rate = Fraction(0)
        self.finish: int | None = None
        self.rtt = 2 * network.latency(row.device, row.peer)
        self.state = network.states[row.device, side]
        self.grows_at: int | None = None
        self.window, self.mathis = network.tcp_rates(row.device, row.peer, self.rtt)
        ends = [(row.device, side)] + [(row.peer, 1 - side)] * (row.peer >= 0)
        self.enough = min(network.peak(device, way) for device, way in ends)
        if self.mathis is not None:
            self.enough = min(self.enough, self.mathis)

    def begin(self, now: int) -> None:
        """The first bit leaves now."""
        state = self.state
        if state.last_end is None or now - state.last_end > IDLE_NS:
            state.doublings = 0
        self.watch(now)

    def watch(self, now: int) -> None:
        """When the window grows next, if it has to."""
        grows = self.window is not None and self.window_rate() < self.enough
        self.grows_at = now + self.rtt if grows else None

    def window_rate(self) -> int:
        """Windows per round trip, whole millibit/s."""
        assert self.window is not None
        return max(1, (self.window << self.state.doublings) * GIGA // self.rtt)

    def grow(self, now: int) -> None:
        """A round trip is over."""
        if self.grows_at == now:
            self.state.doublings += 1
            self.watch(now)

    def limit(self) -> int | None:
        """What TCP allows now, millibit/s."""
        if self.window is None:
            return None
        return self.window_rate() if self.mathis is None else min(self.window_rate(), self.mathis)


class Network:
    """All links, cells and the coordinator's own link; every change recomputes every flow."""

    def __init__(self, env: simpy.Environment, links: Links, coordinator: Coordinator) -> None:
        self.env = env
        self.devices = [Link(links, d) for d in range(links.size)]
        self.cell = [-1] * links.size if links.cell is None else [int(c) for c in links.cell]
        self.cells = [] if links.cells is None else [Link(links.cells, c) for c in range(links.cells.size)]
        limits = (coordinator.uplink_bps, coordinator.downlink_bps)  # what devices download, the coordinator uploads
        self.centre = [None if bps is None else round(Fraction(bps) * 1000) for bps in limits]
        self.tcp: Tcp | None = links.tcp
        self.states = {(d, side): TcpState() for d in range(links.size) for side in (DOWN, UP)}
        self.flows: list[NetworkFlow] = []
        self.since = 0
        self.version = 0

    # -------------------------------------------------------------------------------------------------- paths and TCP

    def path(self, device: int, peer: int, side: int) -> list[Resource]:
        """The resources that a transfer passes: (what, which one, direction)."""
        out = self.last_hop(device, side)
        if peer >= 0:
            return out + self.last_hop(peer, 1 - side)
        return out if self.centre[side] is None else [*out, ("centre", 0, side)]

    def last_hop(self, device: int, side: int) -> list[Resource]:
        """A device's own link and that of its cell."""
        cell = self.cell[device]
        return [("device", device, side)] + [("cell", cell, side)] * (cell >= 0)

    def latency(self, device: int, peer: int) -> int:
        """One way, nanoseconds."""
        return self.devices[device].latency + (self.devices[peer].latency if peer >= 0 else 0)

    def peak(self, device: int, side: int) -> int:
        """The highest rate of a device's trace, millibit/s."""
        return max(rates[side] for rates in self.devices[device].rates)

    def tcp_rates(self, device: int, peer: int, rtt: int) -> tuple[int | None, int | None]:
        """The first window in millibits and the Mathis limit in millibit/s; None where TCP limits nothing."""
        if self.tcp is None or rtt == 0 or self.tcp.segment_bytes[device] == 0:
            return None, None
        segment, loss = int(self.tcp.segment_bytes[device]) * 8000, float(self.tcp.loss[device])
        if peer >= 0:
            loss = 1 - (1 - loss) * (1 - float(self.tcp.loss[peer]))
        mathis = max(1, int(segment * 1e9 / rtt * sqrt(1.5 / loss))) if loss else None
        return int(self.tcp.initial_window[device]) * segment, mathis

    def forget(self, device: int) -> None:
        """The device is as new."""
        for side in (DOWN, UP):
            self.states[device, side] = TcpState()

    # ---------------------------------------------------------------------------------------------------------- flows

    def add(self, row: Any, side: int, millibits: int) -> NetworkFlow:
        """A transfer starts now."""
        flow = NetworkFlow(self, row, side, millibits, self.env.event())
        self.catch_up()
        flow.begin(int(self.env.now))
        self.flows.append(flow)
        self.recompute()
        return flow

    def drop(self, flow: NetworkFlow) -> None:
        """A transfer is cut now."""
        if flow in self.flows:
            self.catch_up()
            self.leave(flow)
            self.recompute()

    def leave(self, flow: NetworkFlow) -> None:
        """The flow is over, whole or cut."""
        self.flows.remove(flow)
        flow.state.last_end = int(self.env.now)

    def catch_up(self) -> None:
        """Account for what was delivered since the last change."""
        passed = int(self.env.now) - self.since
        for flow in self.flows:
            flow.left -= flow.rate * passed
        self.since = int(self.env.now)

    def rate(self, resource: Any) -> tuple[int, int | None]:
        """What a resource carries now, and until when."""
        what, index, side = resource
        if what == "centre":
            capacity = self.centre[side]
            assert capacity is not None
            return capacity, None
        link = (self.devices if what == "device" else self.cells)[index]
        rate, until = link.rate(side, int(self.env.now))
        return rate, None if all(rates[side] == 0 for rates in link.rates) else until

    def recompute(self) -> None:
        """Give every flow its fair rate and set the alarm for the next change."""
        now = int(self.env.now)
        self.version += 1
        used = {resource: self.rate(resource) for flow in self.flows for resource in flow.path}
        rates = progressive_filling(
            [flow.path for flow in self.flows],
            [flow.limit() for flow in self.flows],
            {resource: capacity for resource, (capacity, _) in used.items()},
        )
        changes: list[int | None] = []
        for flow, rate in zip(self.flows, rates, strict=True):
            flow.rate = rate
            flow.finish = now + max(0, ceil(flow.left / rate)) if rate else None
            if (0, None) not in [used[resource] for resource in flow.path]:  # else it will never move again
                changes += [flow.finish, flow.grows_at, *(used[resource][1] for resource in flow.path)]
        due = [change for change in changes if change is not None]
        if due:
            alarm = self.env.timeout(min(due) - now)
            alarm.callbacks.append(self.ring(self.version))

    def ring(self, version: int) -> Callable[[object], None]:
        """The alarm: flows that are through leave, windows grow, all get new rates."""

        def change(_: object) -> None:
            if version != self.version:
                return
            self.catch_up()
            now = int(self.env.now)
            for flow in [f for f in self.flows if f.left <= 0]:
                self.leave(flow)
                flow.done.succeed()
            for flow in self.flows:
                flow.grow(now)
            self.recompute()

        return change


def next_step(env: simpy.Environment) -> None:
    """One step of the simulation; raises `StuckError` where nothing is left to happen."""
    try:
        env.step()
    except simpy.core.EmptySchedule:
        raise StuckError("nothing is left to happen") from None
