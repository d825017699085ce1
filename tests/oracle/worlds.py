"""Small random worlds for the engine and its slow twin: fleets, tables, churn, and strategies that act at random."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np

from morphling.fleet import Availability, Coordinator, Fleet, Links, LinkTrace, PastEnd, Tcp
from morphling.interfaces.executor import Executor
from morphling.interfaces.strategy import (
    All,
    Cancel,
    Dispatch,
    Done,
    Each,
    IterationDone,
    Notify,
    Quorum,
    Strategy,
    WakeAt,
)
from morphling.interfaces.tasks import TaskTable
from morphling.types import FAR_NS, DType, Kind

__all__ = ["Erratic", "FlopsAreNanoseconds", "Once", "World", "bare_fleet", "coordinator", "rows"]

SECOND = 10**9


class FlopsAreNanoseconds(Executor):
    """The ``flops`` column says how many nanoseconds a row computes."""

    def durations(self, tasks: TaskTable, start_ns: int) -> Any:
        return tasks.flops.astype(np.int64)

    def describe(self) -> dict[str, Any]:
        return {}


def coordinator(uplink_bps: int | None = None, downlink_bps: int | None = None) -> Coordinator:
    """A coordinator whose own link may be narrow."""
    ones = np.ones(len(DType))
    return Coordinator("c", ones, ones, 1 << 40, 1.0, uplink_bps=uplink_bps, downlink_bps=downlink_bps)


def bare_fleet(
    links: Links, availability: Availability | None = None, centre: Coordinator | None = None, memory: int = 1 << 60
) -> Fleet:
    """A fleet of which only links and availability matter."""
    n = links.size
    ones, zero = np.ones((n, len(DType))), np.zeros(n)
    return Fleet(
        profile_names=("board",),
        profile=np.zeros(n, np.int32),
        group=np.zeros(n, np.int32),
        peak_flops=ones,
        efficiency=ones,
        memory_bytes=np.full(n, memory, np.int64),
        memory_bandwidth=np.full(n, np.inf),
        launch_s=zero,
        idle_w=zero,
        max_w=zero,
        links=links,
        availability=availability or Availability.always(n),
        coordinator=centre or coordinator(),
    )


def rows(device: Any, ns: Any = 0, down: Any = 0, up: Any = 0, **more: Any) -> TaskTable:
    """A table whose rows compute ``ns`` nanoseconds and move ``down`` and ``up`` bytes."""
    more = {"resident_bytes": 0, "memory_bytes": 0.0, **more}
    return TaskTable.build(device=device, kind=Kind.TRANSFER, flops=ns, bytes_in=down, bytes_out=up, **more)


class Once(Strategy):
    """Dispatches what it is given, one after another when the one before is settled, and then is done."""

    def __init__(self, *tables: TaskTable) -> None:
        super().__init__(None)
        self.tables = list(tables)

    def start(self, view: Any) -> Any:
        return self.following()

    def on_done(self, dispatch: Any, rows: Any, view: Any) -> Any:
        return self.following()

    def following(self) -> Any:
        """The next dispatch, or the end."""
        return Dispatch(self.tables.pop(0)) if self.tables else Done()


class World:
    """Everything random about one world, drawn from its seed.

    ``grid`` worlds take all quantities from a coarse grid, so that many things happen at one instant.  Where flows
    share links they take their times and payloads from it, and rates that do not divide one another: shares are
    rounded, and two ends that meet by calculation only may come in either order.
    """

    def __init__(
        self,
        seed: int,
        *,
        half_duplex: bool = False,
        shared: bool = False,
        cells: bool = False,
        peers: bool = False,
        tcp: bool = False,
    ) -> None:
        self.seed = seed
        self.random = r = random.Random(seed)
        self.grid = r.random() < 0.5 and not shared
        self.size = r.randint(1, 5)
        self.half_duplex = half_duplex
        self.peers, self.network = peers, cells or peers or tcp
        self.overlaps = [1] if half_duplex else r.choice([[1], [0], [3], [0, 1, 3], [1, 2, 3, 7]])
        links = self.links()
        centre = coordinator()
        if tcp:
            links = self.connections(links)
        if cells:
            links = self.behind_cells(links)
        if shared or (self.network and r.random() < 0.4):
            down, up = (peaks.sum() for peaks in links.peak_bps())
            share, which = r.choice([0.2, 0.5, 0.9]), r.random()
            centre = coordinator(
                int(down * share) if which < 0.7 else None, int(up * share) if which > 0.3 else None
            )  # fmt: skip
        sessions = self.sessions() if r.random() < (0.4 if self.network else 0.7) else Availability.always(self.size)
        self.fleet = bare_fleet(links, sessions, centre)

    def time(self, low: float, high: float) -> int:
        """A span in nanoseconds between two bounds in seconds."""
        if self.grid:
            return round(self.random.uniform(low, high) * 2) * SECOND // 2
        return round(self.random.uniform(low, high) * SECOND)

    def rate(self) -> float:
        """A rate in bit/s, sometimes not whole."""
        if self.grid:
            return float(self.random.choice([4001, 8009, 16033, 32057] if self.network else [4000, 8000, 16000, 32000]))
        return self.random.choice([float(self.random.randint(1_000, 60_000)), self.random.uniform(1_000, 60_000)])

    def payload(self) -> int:
        """A payload in bytes; zero is common."""
        if self.random.random() < 0.3:
            return 0
        return self.random.randint(1, 12) * 1000 if self.grid else self.random.randint(1, 12_000)

    def links(self) -> Links:
        """A link for each device."""
        r, n = self.random, self.size
        traces = self.traces()
        return Links.of(
            traces,
            np.array([r.randrange(len(traces)) for _ in range(n)], np.int32),
            np.array([self.time(0, 5) for _ in range(n)]),
            np.array([r.choice([0, 0, self.time(0, 1)]) for _ in range(n)]),
            np.array([self.half_duplex and r.random() < 0.8 for _ in range(n)]),
        )

    def traces(self) -> list[LinkTrace]:
        """Traces with pauses, that repeat or hold."""
        r = self.random
        traces = []
        for i in range(r.randint(1, 3)):
            starts = [0]
            for _ in range(r.choice([1, 1, 2, 4]) - 1):
                starts.append(starts[-1] + max(1, self.time(0.5, 3)))
            down, up = ([self.rate() if r.random() < 0.8 else 0.0 for _ in starts] for _ in range(2))
            down[-1], up[-1] = self.rate(), self.rate()
            period = starts[-1] + max(1, self.time(0.5, 3))
            past_end = r.choice([PastEnd.REPEAT, PastEnd.HOLD])
            traces.append(LinkTrace(f"t{i}", np.array(starts), np.array(down), np.array(up), period, past_end))
        return traces

    def behind_cells(self, links: Links) -> Links:
        """The links behind cells as wide as a device's link or a few; some devices are behind none."""
        r, count = self.random, self.random.randint(1, 3)
        if r.random() < 0.4:
            cells = Links.constant(*([self.rate() for _ in range(count)] for _ in range(2)))
        else:
            traces = self.traces()
            trace = np.array([r.randrange(len(traces)) for _ in range(count)], np.int32)
            offsets, zero = np.array([self.time(0, 5) for _ in range(count)]), np.zeros(count)
            cells = Links.of(traces, trace, offsets, zero, zero)
        numbers = [r.randrange(count) if r.random() < 0.8 else -1 for _ in range(self.size)]
        return links.behind(cells, np.array(numbers, np.int32))

    def connections(self, links: Links) -> Links:
        """The links with TCP: small windows and long round trips, so that they matter."""
        r, n = self.random, self.size
        latency = [r.choice([0, self.time(0, 1), self.time(0, 1), self.time(0, 0.1)]) for _ in range(n)]
        tcp = Tcp(
            np.array([r.choice([0, 134, 292, 536, 1460]) for _ in range(n)], np.int64),
            np.array([r.choice([1, 1, 2, 4, 10]) for _ in range(n)], np.int64),
            np.array([r.choice([0.0, 0.0, 0.001, 0.02, 0.3]) for _ in range(n)]),
        )
        return replace(links, latency_ns=np.array(latency, np.int64), tcp=tcp)

    def sessions(self) -> Availability:
        """Devices that leave and come back."""
        spans = []
        for _ in range(self.size):
            at = self.random.choice([0, 0, self.time(0, 4)])
            own = []
            for _ in range(self.random.randint(1, 4)):
                end = at + max(1, self.time(2, 15))
                own.append((at, end))
                at = end + max(1, self.time(0.5, 6))
            if self.random.random() < 0.6:
                own[-1] = (own[-1][0], FAR_NS)
            spans.append(own)
        return Availability.of(spans)


class Erratic(Strategy):
    """Dispatches, cancels and waits at random, and writes down all that it hears."""

    def __init__(self, world: World) -> None:
        super().__init__(None)
        self.world = world
        self.uses_peers = world.peers
        self.random = world.random = random.Random(world.seed * 7 + 1)
        self.heard: list[tuple[Any, ...]] = []
        self.budget = self.random.randint(2, 8)
        self.sent = 0
        self.sent_at: list[float] = []

    def table(self) -> TaskTable:
        """A few rows, with dependencies and releases."""
        w, r = self.world, self.random
        n = r.randint(1, 12)
        device = [r.randrange(w.size + (r.random() < 0.1)) for _ in range(n)]
        link = [d < w.size for d in device]
        return rows(
            device,
            [0 if r.random() < 0.15 else w.time(0, 3) for _ in range(n)],
            [w.payload() * on for on in link],
            [w.payload() * on for on in link],
            overlap=[r.choice(w.overlaps) for _ in range(n)],
            release_ns=[w.time(0, 4) if r.random() < 0.2 else 0 for _ in range(n)],
            dependencies=[[j for j in range(i) if r.random() < 0.12] for i in range(n)],
            peer=[self.peer(d) for d in device],
        )

    def peer(self, device: int) -> int:
        """Another device at random, or the coordinator."""
        w, r = self.world, self.random
        others = [p for p in range(w.size) if p != device]
        return r.choice(others) if w.peers and others and device < w.size and r.random() < 0.6 else -1

    def dispatch(self, table: TaskTable | None = None) -> Dispatch:
        """A dispatch of one of the three kinds."""
        self.budget -= 1
        self.sent += 1
        self.sent_at.append(self.heard[-1][0])
        table = table or self.table()
        kinds: list[Notify] = [All(), Each(), Quorum(self.random.randint(1, len(table)))]
        notify = self.random.choice(kinds)
        return Dispatch(table, notify, tag=self.sent, label=f"d{self.sent}")

    def act(self) -> list[Any]:
        """Something at random."""
        out: list[Any] = []
        earlier = [serial for serial, time in enumerate(self.sent_at) if time < self.heard[-1][0]]
        if earlier and self.random.random() < 0.25:
            out.append(Cancel(self.random.choice(earlier)))
        if self.budget > 0 and self.random.random() < 0.6:
            out.append(self.dispatch())
        if self.random.random() < 0.2:
            out.append(IterationDone())
        return out

    def hear(self, view: Any, *what: Any) -> None:
        """Write down what was told."""
        self.heard.append((round(view.now_s * 1e9), *what, tuple(view.online.tolist())))

    def start(self, view: Any) -> Any:
        self.hear(view, "start")
        times = sorted(self.world.time(0, 20) for _ in range(self.random.randint(0, 5)))
        wakes = [WakeAt(t / 1e9, "act") for t in times]
        end = WakeAt(self.random.choice([30.0, 4000.0, 4000.0]), "end")
        return [*(self.dispatch() for _ in range(self.random.randint(1, 3))), *wakes, end]

    def on_done(self, dispatch: Any, rows: Any, view: Any) -> Any:
        self.hear(view, "done", dispatch.serial, dispatch.label, tuple(rows.tolist()))
        return self.act()

    def on_lost(self, dispatch: Any, rows: Any, view: Any) -> Any:
        self.hear(view, "lost", dispatch.serial, dispatch.label, tuple(rows.tolist()))
        here = np.flatnonzero(view.online)
        if self.budget > 0 and len(here) and self.random.random() < 0.7:
            again = dispatch.tasks.take(rows)
            again.device[:] = [self.random.choice(here.tolist()) for _ in rows]
            again.peer[:] = [self.peer(int(device)) for device in again.device]
            return self.dispatch(again)
        return self.act()

    def on_left(self, devices: Any, view: Any) -> Any:
        self.hear(view, "left", tuple(devices.tolist()))
        return self.act() if self.random.random() < 0.3 else ()

    def on_joined(self, devices: Any, view: Any) -> Any:
        self.hear(view, "joined", tuple(devices.tolist()))
        return self.act() if self.random.random() < 0.5 else ()

    def on_timer(self, tag: Any, view: Any) -> Any:
        self.hear(view, "timer", tag)
        return Done() if tag == "end" else self.act()
