"""Links, cells and TCP of a scenario as arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from morphling.engine.links import MAX_RATE_BPS
from morphling.engine.network import LONGEST_TCP_LATENCY_NS
from morphling.errors import InputError, TraceError
from morphling.fleet import Links, LinkTrace, PastEnd, Tcp
from morphling.fleet.populations import device_traces, link_means
from morphling.fleet.streams import stream
from morphling.scenario import (
    CellChoice,
    ConstantRates,
    LoadedScenario,
    PopulationRates,
    Rates,
    fleet_draw,
)
from morphling.types import FAR_NS, SECOND_NS, FloatArray, Int32Array, IntArray

__all__ = ["Draws", "fleet_links"]

_MOST_STEPS = 100_000_000
"""Most steps of the traces that a population gives one group: 2.4 GB."""


class Draws:
    """Sampled fields of one entry of ``fleet`` or ``cells``.

    Each field has a random stream of its own, so that none moves another.
    """

    def __init__(self, loaded: LoadedScenario, place: tuple[str, int], count: int) -> None:
        self.loaded, self.place, self.count = loaded, place, count
        self.one = "cell" if place[0] == "cells" else "device"

    def scope(self, field: str) -> str:
        """The name of a field's random stream."""
        return f"{self.place[0]}/{self.place[1]}/{field}"

    def fault(self, field: str, reason: str) -> InputError:
        """An error about a field."""
        return self.loaded.fault((*self.place, *field.split(".")), reason)

    def __call__(self, field: str, value: Any) -> FloatArray:
        """The value of a field for each of the entry's devices or cells, float64[count]."""
        rng = stream(self.loaded.scenario.seed, self.scope(field))
        try:
            return fleet_draw(value).sample(rng, self.count)
        except InputError as error:
            raise self.fault(field, str(error)) from None

    def whole(self, field: str, value: Any, unit: str, most: int, *, least: int = 0, scale: float = 1.0) -> IntArray:
        """Draws times ``scale`` as whole numbers from ``least`` to ``most``; never clipped: outside is an error."""
        exact = self(field, value) * scale
        drawn = np.floor(exact) if unit == "bytes" else np.rint(exact)
        outside = ~((drawn >= least) & (drawn <= most))
        if outside.any():
            i = int(np.argmax(outside))
            raise self.fault(
                field,
                f"{self.one} {i} of {self.count} gets {drawn[i]:g} {unit}; it must be {least} to {most:g} {unit}: "
                "give other values, or bound the distribution with min and max",
            )
        return drawn.astype(np.int64)


class _Columns:
    """Traces, and who follows which, while groups are laid one after another."""

    def __init__(self, size: int) -> None:
        self.offset = np.zeros(size, np.int64)
        self.latency = np.zeros(size, np.int64)
        self.half = np.zeros(size, bool)
        self.traces: list[LinkTrace] = []
        self.trace_index: dict[Any, int] = {}
        self.trace = np.zeros(size, np.int32)

    def library(self, key: Any, make: Callable[[], LinkTrace]) -> int:
        """The number of a trace, added to the library the first time."""
        if key not in self.trace_index:
            self.trace_index[key] = len(self.traces)
            self.traces.append(make())
        return self.trace_index[key]

    def links(self) -> Links:
        """All of it."""
        return Links.of(self.traces, self.trace, self.offset, self.latency, self.half)


def fleet_links(loaded: LoadedScenario) -> Links:
    """The links of all devices, the cells that they are behind, and what TCP adds.

    Raises ``ScenarioError`` (file:line:col) for what only now shows to be wrong.
    """
    s = loaded.scenario
    c = _Columns(s.size)
    start = 0
    for number, entry in enumerate(s.fleet):
        span = slice(start, start + entry.count)
        draw = Draws(loaded, ("fleet", number), entry.count)
        c.latency[span] = draw.whole("link.latency", entry.link.latency, "ns", FAR_NS - 1, scale=SECOND_NS)
        c.half[span] = entry.link.duplex == "half"
        _rates(c, span, draw, entry.link)
        start += entry.count
    links = c.links()
    if s.cells:
        links = links.behind(_cell_links(loaded), _cells_of(loaded))
    tcp = _tcp(loaded, links)
    return links if tcp is None else links.over(tcp)


def _cell_links(loaded: LoadedScenario) -> Links:
    """The links of the cells, of one entry after another."""
    cells = loaded.scenario.cells
    c = _Columns(sum(entry.count for entry in cells))
    start = 0
    for number, entry in enumerate(cells):
        _rates(c, slice(start, start + entry.count), Draws(loaded, ("cells", number), entry.count), entry.link)
        start += entry.count
    return c.links()


def _cells_of(loaded: LoadedScenario) -> Int32Array:
    """The cell of each device; -1 = none.  Groups behind the same cells go on where the one before ended."""
    s = loaded.scenario
    first = dict(zip([x.name for x in s.cells], np.cumsum([0, *(x.count for x in s.cells)]).tolist(), strict=False))
    count = {x.name: x.count for x in s.cells}
    taken = dict.fromkeys(count, 0)
    out = np.full(s.size, -1, np.int32)
    start = 0
    for number, entry in enumerate(s.fleet):
        span = slice(start, start + entry.count)
        start += entry.count
        if entry.cell is None:
            continue
        choice = entry.cell if isinstance(entry.cell, CellChoice) else CellChoice(name=entry.cell)
        cells, device = count[choice.name], np.arange(entry.count)
        if choice.assign == "draw":
            place = stream(s.seed, f"fleet/{number}/cell").integers(0, cells, entry.count)
        elif choice.assign == "blocks":
            place = device * cells // entry.count
        else:
            place = (device + taken[choice.name]) % cells
            taken[choice.name] += entry.count
        out[span] = first[choice.name] + place
    return out


def _tcp(loaded: LoadedScenario, links: Links) -> Tcp | None:
    """What TCP adds, or None where no group asks for it."""
    fleet = loaded.scenario.fleet
    if all(entry.link.tcp is None for entry in fleet):
        return None
    group = np.repeat(np.arange(len(fleet)), [entry.count for entry in fleet])
    each = [entry.link.tcp for entry in fleet]
    slow = np.array([x is not None for x in each])[group] & (links.latency_ns > LONGEST_TCP_LATENCY_NS)
    if slow.any():
        d = int(np.argmax(slow))
        raise loaded.fault(
            ("fleet", int(group[d]), "link", "latency"),
            f"{links.latency_ns[d] / 1e9:g} s: with tcp at most {LONGEST_TCP_LATENCY_NS / 1e9:g} s",
        )
    return Tcp(
        segment_bytes=np.array([0 if x is None else x.segment for x in each], np.int64)[group],
        initial_window=np.array([1 if x is None else x.initial_window for x in each], np.int64)[group],
        loss=np.array([0.0 if x is None else x.loss for x in each])[group],
    )


def _rates(c: _Columns, span: slice, draw: Draws, link: Rates) -> None:
    if isinstance(link, PopulationRates):
        _population(c, span, draw, link)
        return
    if not isinstance(link, ConstantRates):
        trace = draw.loaded.trace(link)
        if (peak := int(max(trace.down_bps.max(), trace.up_bps.max()))) > MAX_RATE_BPS:
            raise draw.fault(
                "link.trace", f"the highest rate is {peak} bit/s; links go up to {MAX_RATE_BPS} bit/s (1.1 Tbit/s)"
            )
        # By identity, not by name: files of the same name in two folders are two traces.
        c.trace[span] = c.library(id(trace), lambda: trace)
        c.offset[span] = draw.whole("link.offset", link.offset, "ns", FAR_NS - 1, scale=SECOND_NS)
        return
    down = draw.whole("link.downlink", link.downlink, "bit/s", MAX_RATE_BPS, least=1)
    up = draw.whole("link.uplink", link.uplink, "bit/s", MAX_RATE_BPS, least=1)
    _constants(c, span, down, up)


def _population(c: _Columns, span: slice, draw: Draws, link: PopulationRates) -> None:
    seed, scope = draw.loaded.scenario.seed, draw.scope("link.population")
    if not link.variation:
        _constants(c, span, *link_means(link.population, seed, draw.count, scope))
        return
    first, steps = len(c.traces), draw.count * link.duration / link.step
    if steps > _MOST_STEPS:
        raise draw.fault(
            "link.duration",
            f"{draw.count:,} {draw.one}s times duration / step make {steps:,.0f} steps, 24 bytes each;"
            f" {_MOST_STEPS:,} are the most: take a longer step, a shorter duration, or variation: false",
        )
    try:
        c.traces += device_traces(link.population, seed, draw.count, link.duration, link.step, scope=scope)
    except TraceError as error:
        raise draw.fault("link.duration", str(error)) from None
    c.trace[span] = np.arange(first, first + draw.count)


def _constants(c: _Columns, span: slice, down: IntArray, up: IntArray) -> None:
    pairs, which = np.unique(np.stack([down, up]), axis=1, return_inverse=True)
    numbers = np.array([c.library(pair, lambda p=pair: _constant(*p)) for pair in zip(*pairs.tolist(), strict=True)])  # type: ignore[misc]
    c.trace[span] = numbers[which.ravel()]


def _constant(down: int, up: int) -> LinkTrace:
    zero: NDArray[np.int64] = np.zeros(1, np.int64)
    return LinkTrace("constant", zero, np.array([down]), np.array([up]), 1, PastEnd.HOLD)
