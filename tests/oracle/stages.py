"""Rows of the slow twin, the queues they stand in, and how they move through download, compute and upload."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import Any

import simpy

from morphling.interfaces.strategy import Notify, Sent
from tests.oracle.exact_link import DOWN, UP, Flow, Link, SharedSide
from tests.oracle.network import Network, NetworkFlow

__all__ = ["COMPUTE", "END", "SETTLED", "STAGES", "START", "Batch", "Channel", "Place", "Row", "Stages"]

COMPUTE = 2
STAGES = (DOWN, COMPUTE, UP)
START = {DOWN: 0, COMPUTE: 2, UP: 4}
END = {DOWN: 1, COMPUTE: 3, UP: 5}
SETTLED = 6

Steps = Generator[Any, Any, None]


class Row:
    """One sub-task."""

    def __init__(self, env: simpy.Environment, batch: Batch, index: int) -> None:
        table = batch.sent.tasks
        self.batch, self.index = batch, index
        self.device, self.peer = int(table.device[index]), int(table.peer[index])
        self.size = {DOWN: int(table.bytes_in[index]) * 8000, UP: int(table.bytes_out[index]) * 8000}
        self.tiles = int(table.overlap[index])
        self.nanoseconds = int(batch.durations[index])
        self.times = [-1] * 7
        self.lost = False
        self.waits = int(table.dep_ptr[index + 1] - table.dep_ptr[index]) + 1
        self.followers: list[Row] = []
        self.ready = env.event()
        self.ready_ns = -1
        self.asks: dict[int, Any] = {}
        self.places: dict[int, tuple[simpy.Resource, Any]] = {}
        self.flows: list[tuple[SharedSide, Flow] | tuple[Network, NetworkFlow]] = []

    @property
    def over(self) -> bool:
        """Done or lost."""
        return self.times[SETTLED] >= 0

    @property
    def needs_peer(self) -> bool:
        """Whether bits have still to arrive from or at the peer."""
        return self.peer >= 0 and any(self.size[side] and self.times[END[side]] < 0 for side in (DOWN, UP))

    @property
    def key(self) -> tuple[int, int]:
        """Issue order."""
        return self.batch.sent.serial, self.index


class Batch:
    """One dispatch in flight."""

    def __init__(self, env: simpy.Environment, sent: Sent, notify: Notify, durations: Any) -> None:
        self.sent, self.notify, self.durations = sent, notify, durations
        self.time_ns = int(env.now)
        table = sent.tasks
        self.rows = [Row(env, self, i) for i in range(len(table))]
        for row in self.rows:
            for j in table.dep_idx[table.dep_ptr[row.index] : table.dep_ptr[row.index + 1]]:
                self.rows[int(j)].followers.append(row)
        self.left, self.done = len(self.rows), 0
        self.fresh: list[Row] = []
        self.noticed = False
        self.told = False
        self.withdrawn = False

    @property
    def over(self) -> bool:
        """Whether every row is done or lost."""
        return self.left == 0


class Place:
    """A device: three in-order queues, and the rows that stand in them."""

    def __init__(self, env: simpy.Environment) -> None:
        self.queues = {stage: simpy.Resource(env, 1) for stage in STAGES}
        self.rows: list[Row] = []


class Channel:
    """A half-duplex radio: one transfer at a time; of those at the front, whoever asked first."""

    def __init__(self, twin: Stages) -> None:
        self.twin = twin
        self.holder: Row | None = None
        self.waiting: list[tuple[tuple[int, int, int], Row, simpy.Event]] = []
        self.deciding = False

    def ask(self, row: Row, asked_ns: int) -> simpy.Event:
        """An event that fires when the row may send."""
        granted = self.twin.env.event()
        self.waiting.append(((asked_ns, *row.key), row, granted))
        self.decide()
        return granted

    def free(self, row: Row) -> None:
        """The row no longer sends, or no longer wants to."""
        self.waiting = [w for w in self.waiting if w[1] is not row]
        if self.holder is row:
            self.holder = None
        self.decide()

    def decide(self) -> None:
        """Pick the next sender once everything else at this instant has happened."""
        if not self.deciding:
            self.deciding = True
            self.twin.when_quiet(self.pick)

    def pick(self) -> None:
        """Whoever asked first goes."""
        self.deciding = False
        if self.holder is None and self.waiting:
            first = min(self.waiting, key=lambda w: w[0])
            self.waiting.remove(first)
            self.holder = first[1]
            first[2].succeed()


class Stages(ABC):
    """How rows move; what settling and losing them means is the business of the twin."""

    env: simpy.Environment
    links: list[Link]
    places: list[Place]
    channels: list[Channel | None]
    shared: dict[int, SharedSide]
    network: Network | None

    @abstractmethod
    def settle(self, row: Row) -> None:
        """The row is done."""

    @abstractmethod
    def when_quiet(self, call: Callable[[], None]) -> None:
        """Call once everything else at this instant has happened to the rows."""

    def enter(self, row: Row) -> None:
        """A row takes its places and comes alive."""
        place = self.places[row.device]
        place.rows.append(row)
        for stage in STAGES:
            if stage == COMPUTE or row.tiles == 0 or row.size[stage]:
                queue = place.queues[stage]
                row.asks[stage] = request = queue.request()
                row.places[stage] = queue, request
        if row.tiles == 0:
            self.env.process(self.together(row))
            return
        arrived = [self.env.event() for _ in range(row.tiles)]
        computed = [self.env.event() for _ in range(row.tiles)]
        self.env.process(self.download(row, arrived))
        self.env.process(self.compute(row, arrived, computed))
        self.env.process(self.upload(row, computed))

    def loosen(self, row: Row) -> None:
        """One thing fewer to wait for."""
        row.waits -= 1
        if row.waits == 0 and not row.over:
            row.ready_ns = int(self.env.now)
            row.ready.succeed()

    def stamp(self, row: Row, *columns: int) -> None:
        """Write down that something happened now."""
        for column in columns:
            row.times[column] = int(self.env.now)

    def leave_queue(self, row: Row, stage: int) -> None:
        """The stage is free for the next row."""
        if stage in row.places:
            queue, request = row.places.pop(stage)
            if request.triggered:
                queue.release(request)
            else:
                request.cancel()

    def free(self, row: Row) -> None:
        """A lost row lets go of all that it holds."""
        for medium, flow in row.flows:
            medium.drop(flow)  # type: ignore[arg-type]
        for stage in STAGES:
            self.leave_queue(row, stage)
        channel = self.channels[row.device] if row.device < len(self.channels) else None
        if channel is not None:
            channel.free(row)
        if row in self.places[row.device].rows:
            self.places[row.device].rows.remove(row)

    def send(self, row: Row, side: int, millibits: int, asked_ns: int) -> Steps:
        """Move bits until the last one has left the sender."""
        link, channel = self.links[row.device], self.channels[row.device]
        if channel is not None:
            yield channel.ask(row, asked_ns)
            if row.over:
                return
        if row.times[START[side]] < 0:
            self.stamp(row, START[side])
        if self.network is not None:
            transfer = self.network.add(row, side, millibits)
            row.flows.append((self.network, transfer))
            yield transfer.done
        elif side in self.shared:
            flow = Flow(link, millibits, self.env.event())
            row.flows.append((self.shared[side], flow))
            self.shared[side].add(flow)
            yield flow.done
        else:
            now = int(self.env.now)
            yield self.env.timeout(link.end(side, now, millibits) - now)
        if channel is not None and not row.over:
            channel.free(row)

    def latency(self, row: Row) -> int:
        """One way between the row's device and the other end of its transfers, nanoseconds."""
        return self.links[row.device].latency + (self.links[row.peer].latency if row.peer >= 0 else 0)

    def download(self, row: Row, arrived: list[simpy.Event]) -> Steps:
        """Tile after tile, once the row is ready and first in the queue."""
        yield row.ready
        if row.over:
            return
        if not row.size[DOWN]:
            self.stamp(row, START[DOWN], END[DOWN])
            for tile in arrived:
                tile.succeed()
            return
        yield row.asks[DOWN]
        for j, tile in enumerate(arrived):
            if row.over:
                return
            yield from self.send(row, DOWN, _tile(row.size[DOWN], j, row.tiles), row.ready_ns)
            if row.over:
                return
            self.env.process(self.arrive(row, DOWN, tile, last=j + 1 == row.tiles))
        self.leave_queue(row, DOWN)

    def arrive(self, row: Row, side: int, tile: simpy.Event, *, last: bool) -> Steps:
        """The last bit of a tile is at the other end one latency later."""
        yield self.env.timeout(self.latency(row))
        if row.over:
            return
        if last:
            self.stamp(row, END[side])
        tile.succeed()

    def compute(self, row: Row, arrived: list[simpy.Event], computed: list[simpy.Event]) -> Steps:
        """Tile after tile, as they arrive, once the row is first in the queue."""
        yield row.asks[COMPUTE]
        for j in range(row.tiles):
            yield arrived[j]
            if row.over:
                return
            if j == 0:
                self.stamp(row, START[COMPUTE])
            yield self.env.timeout(_tile(row.nanoseconds, j, row.tiles))
            if row.over:
                return
            if j + 1 == row.tiles:
                self.stamp(row, END[COMPUTE])
                self.leave_queue(row, COMPUTE)
            computed[j].succeed(int(self.env.now))

    def upload(self, row: Row, computed: list[simpy.Event]) -> Steps:
        """Tile after tile, as they are computed, once the row is first in the queue."""
        if not row.size[UP]:
            yield computed[-1]
            if not row.over:
                self.stamp(row, START[UP], END[UP])
                self.settle(row)
            return
        yield row.asks[UP]
        arrived = [self.env.event() for _ in computed]
        for j, tile in enumerate(computed):
            asked_ns = yield tile
            if row.over:
                return
            yield from self.send(row, UP, _tile(row.size[UP], j, row.tiles), asked_ns)
            if row.over:
                return
            self.env.process(self.arrive(row, UP, arrived[j], last=j + 1 == row.tiles))
        self.leave_queue(row, UP)
        yield arrived[-1]
        if not row.over:
            self.settle(row)

    def together(self, row: Row) -> Steps:
        """Perfect overlap: all three stages start at one instant."""
        yield row.ready
        for stage in STAGES:
            yield row.asks[stage]
            if row.over:
                return
        yield self.env.all_of([self.env.process(self.alone(row, stage)) for stage in STAGES])
        if not row.over:
            self.settle(row)

    def alone(self, row: Row, stage: int) -> Steps:
        """One stage of a perfectly overlapped row."""
        if row.over:
            return
        self.stamp(row, START[stage])
        if stage == COMPUTE:
            yield self.env.timeout(row.nanoseconds)
        elif row.size[stage]:
            yield from self.send(row, stage, row.size[stage], row.ready_ns)
        if row.over:
            return
        self.leave_queue(row, stage)
        if stage != COMPUTE and row.size[stage]:
            yield self.env.timeout(self.latency(row))
        if not row.over:
            self.stamp(row, END[stage])


def _tile(total: int, j: int, tiles: int) -> int:
    """Size of tile ``j``: the remainder is spread over the tiles."""
    return total * (j + 1) // tiles - total * j // tiles
