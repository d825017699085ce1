"""Alpa's planner: layers as pipeline stages on submeshes, each with its own mix of data and tensor parallelism.

Inter-op: T = Σ t_i + (M-1)·max t_i over M micro-batches, minimised by a dynamic program for bounds on max t_i.  What
crosses to the next stage counts in t_i: 1F1B keeps as many micro-batches in flight as there are stages left, so that a
round trip over them is not hidden.
Intra-op: of the ways to use a submesh of n = g·t devices (g replicas of t-way tensor parallelism, states whole, divided
over the replicas, or weights divided too) the cheapest that fits memory, by closed forms of its collectives, in place
of the published integer program over sharding specifications.  Rows are in `morphling.planning.staged_rows`.

Source: Zheng et al. 2022 (Alpa, OSDI), the structure of its inter-op pass as in alpa-projects/alpa.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from morphling.errors import Infeasible
from morphling.planning.collective_times import MemberLinks, boundary_bytes
from morphling.planning.lacking import has_and_needed
from morphling.planning.layer_costs import layer_costs
from morphling.planning.partition import even_partition
from morphling.planning.row_times import Speeds
from morphling.planning.tensor_parallel import allowed_ways, shard_memory, shard_parameters
from morphling.planning.training_memory import Sharding
from morphling.types import FloatArray, IntArray, Phase, item_bytes
from morphling.units import format_bytes
from morphling.workload import Workload
from morphling.workload.build import Recompute
from morphling.workload.counts import Optimizer

__all__ = ["AlpaCosts", "AlpaDevices", "AlpaPlan", "AlpaStage", "plan_alpa_even", "plan_alpa_stages"]

NEVER = np.inf


@dataclass(frozen=True)
class AlpaStage:
    """Layers ``layers`` on ``replicas`` x ``ways`` devices from place ``start`` on in the order of the devices.

    sharding : what the replicas divide
    seconds : t of one micro-batch, with its part of the synchronisation of gradients
    in_flight : micro-batches whose activations it keeps
    """

    start: int
    layers: range
    replicas: int
    ways: int
    sharding: Sharding
    seconds: float
    in_flight: int

    @property
    def size(self) -> int:
        """Devices."""
        return self.replicas * self.ways


@dataclass(frozen=True)
class AlpaPlan:
    """Stages in the order of the pipeline; ``total_s`` is T."""

    stages: tuple[AlpaStage, ...]
    micro_batches: int
    total_s: float


class AlpaDevices:
    """D devices in the order in which stages take them, and the worst of any of them that follow each other.

    memory_bytes : int64[D]
    """

    def __init__(self, speeds: Speeds, links: MemberLinks, memory_bytes: IntArray) -> None:
        self.memory_bytes = memory_bytes
        self.columns = (
            (speeds.flops, True),
            (speeds.bandwidth, True),
            (np.minimum(links.uplink_bps, links.downlink_bps) / 8.0, True),
            (np.asarray(memory_bytes, np.float64), True),
            (speeds.launch_s, False),
            (links.latency_s, False),
        )
        self.known: dict[int, list[FloatArray]] = {}

    def __len__(self) -> int:
        return len(self.memory_bytes)

    def worst(self, size: int) -> list[FloatArray]:
        """Of ``size`` devices from each place on, float64[D-size+1] each: the least FLOP/s, bytes/s of memory, bytes/s
        of links and bytes of memory, and the longest launch and latency, seconds.
        """
        if size not in self.known:
            windows = [(np.lib.stride_tricks.sliding_window_view(x, size), least) for x, least in self.columns]
            self.known[size] = [w.min(axis=1) if least else w.max(axis=1) for w, least in windows]
        return self.known[size]


class _Timed(NamedTuple):
    """t and the most micro-batches in flight of a stage, from each place on."""

    seconds: FloatArray
    most: IntArray


@dataclass(frozen=True, eq=False)
class AlpaCosts:
    """What stages cost for a division of the batch into ``micro_batches``."""

    workload: Workload
    micro_batches: int
    devices: AlpaDevices
    optimizer: Optimizer = "adam-mixed"
    recompute: Recompute = "none"
    known: dict[Any, _Timed] = field(default_factory=dict, repr=False)

    @property
    def batch(self) -> int:
        """Sequences of a micro-batch."""
        return self.workload.batch_size // self.micro_batches

    def options(self, size: int) -> Iterator[tuple[int, int, Sharding]]:
        """(replicas, ways, sharding) of a submesh: whole sequences for each replica, equal parts for each way."""
        for ways in allowed_ways(self.workload.model, self.workload.sequence_length, size):
            if size % ways == 0 and self.batch % (size // ways) == 0:
                replicas = size // ways
                for sharding in shardings(replicas):
                    yield replicas, ways, sharding

    def stage(self, size: int, layers: int, option: tuple[int, int, Sharding], *, first: bool, last: bool) -> _Timed:
        """Of such a stage from each place on: t (float64[D-size+1], seconds), and most micro-batches in flight (int64).

        All members are as slow, and all links as narrow and as late, as the worst in the stage.  Seconds: computing
        forward and backward, the all-reduces of tensor parallelism, gathers and reductions of divided weights, the
        boundary to the next stage and back, and 1/M of the synchronisation of gradients.
        """
        key = size, layers, option, first, last
        if key not in self.known:
            self.known[key] = self._stage(size, layers, option, first=first, last=last)
        return self.known[key]

    def _stage(self, size: int, layers: int, option: tuple[int, int, Sharding], *, first: bool, last: bool) -> _Timed:
        replicas, ways, sharding = option
        w = self.workload
        costs = layer_costs(w, self.batch // replicas, recompute=self.recompute)
        width = item_bytes(w.dtype)
        activation = boundary_bytes(costs.batch_size, w.sequence_length, w.model.hidden_size, item_bytes=width)
        rate, bandwidth, link, memory, launch, latency = self.devices.worst(size)
        hop = 2.0 * latency
        seconds = np.zeros(len(rate))
        for phases in ((Phase.FORWARD,), (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)):
            flops = sum(
                layers * costs.flops[x, 0] + first * costs.first[x, 0] + last * costs.last[x, 0] for x in phases
            )
            moved = sum(
                layers * costs.memory_bytes[x, 0] + first * costs.first[x, 1] + last * costs.last[x, 1] for x in phases
            )
            seconds += launch + np.maximum(flops / ways / rate, moved / ways / bandwidth)
        reduces = layers * (6 if self.recompute == "full" else 4) + first + last
        seconds += _ring(2 * reduces, ways, activation, link, hop)
        if not last:  # both ways, gathered on either side of the boundary
            seconds += 2.0 * (activation / ways / link + hop) + _ring(2, ways, activation, link, hop)
        weights = shard_parameters(w.model, layers, ways, first=first, last=last) * width
        if sharding == "zero-3":
            seconds += _ring(3, replicas, weights, link, hop)
        else:
            seconds += _ring(2, replicas, weights, link, hop) / self.micro_batches
        # What a micro-batch in flight keeps, and how many the smallest memory holds beside the rest.
        one, two = (self.need(layers, option, n, first=first, last=last) for n in (1, 2))
        held = np.floor((memory - (2 * one - two)) / (two - one)).astype(np.int64)
        return _Timed(seconds, held)

    def need(self, layers: int, option: tuple[int, int, Sharding], in_flight: int, *, first: bool, last: bool) -> int:
        """Bytes of a member of such a stage."""
        replicas, ways, sharding = option
        return shard_memory(
            self.workload,
            self.optimizer,
            self.batch // replicas,
            ways,
            layers=layers,
            first=first,
            last=last,
            in_flight=in_flight,
            recompute=self.recompute,
            sharding=sharding,
            replicas=replicas,
        ).total


def shardings(replicas: int) -> tuple[Sharding, ...]:
    """What replicas may divide: optimizer states, at no cost, or weights too."""
    return ("zero-1", "zero-3") if replicas > 1 else ("none",)


def plan_alpa_stages(choices: Sequence[AlpaCosts], *, gap: float = 1e-3, best: AlpaPlan | None = None) -> AlpaPlan:
    """The best plan by the dynamic program, over the given divisions of the batch.

    Submeshes have a power of two of devices, consecutive in the given order; devices at the end may stay idle.
    gap : by how much, relatively, T may miss the least
    best : a plan that is known; it is returned if none is better

    The time is about proportional to L³ D log D for each of the bounds that are tried, of which most can be left out
    once a good plan is known.  Raises ``Infeasible`` if no division of layers fits memory.
    """
    best = _better(best, _best_even(choices))
    searches = [_Search(costs, gap) for costs in choices]
    for search in searches:
        best = _better(best, search.plan)
    for search in sorted(searches, key=lambda x: x.plan.total_s if x.plan else NEVER):
        best = search.run(best)
    if best is None:
        raise Infeasible(_nothing_fits(choices))
    return best


def plan_alpa_even(choices: Sequence[AlpaCosts], *, best: AlpaPlan | None = None) -> AlpaPlan:
    """The best of even plans: P stages with as many layers each (to within one), on g·t devices with the same option.

    All P, t and g with P·g·t devices or fewer are tried, where g divides the sequences of a micro-batch.  Devices are
    taken in the given order, so that groups have like links.  ``best`` and ``Infeasible`` as of `plan_alpa_stages`.
    """
    best = _better(best, _best_even(choices))
    if best is None:
        raise Infeasible(_nothing_fits(choices))
    return best


def _best_even(choices: Sequence[AlpaCosts]) -> AlpaPlan | None:
    best: AlpaPlan | None = None
    for costs in choices:
        for stages, option in _even_plans(costs):
            best = _better(best, _even(costs, stages, option))
    return best


def _even_plans(costs: AlpaCosts) -> Iterator[tuple[int, tuple[int, int, Sharding]]]:
    """Numbers of stages, and the option that all of them have."""
    w = costs.workload
    for stages in range(1, min(len(costs.devices), w.model.layers) + 1):
        most = len(costs.devices) // stages
        for ways in allowed_ways(w.model, w.sequence_length, most):
            for replicas in (g for g in range(1, most // ways + 1) if costs.batch % g == 0):
                for sharding in shardings(replicas):
                    yield stages, (replicas, ways, sharding)


def _even(costs: AlpaCosts, count: int, option: tuple[int, int, Sharding]) -> AlpaPlan | None:
    """The even plan with that many stages and that option; None if it does not fit memory."""
    replicas, ways, sharding = option
    size, made = replicas * ways, []
    cuts = even_partition(costs.workload.model.layers, count).tolist()
    for p, (begin, end) in enumerate(pairwise(cuts)):
        timed, at = costs.stage(size, end - begin, option, first=p == 0, last=p == count - 1), p * size
        held = min(count - p, costs.micro_batches)
        if timed.most[at] < held:
            return None
        made.append(AlpaStage(at, range(begin, end), replicas, ways, sharding, float(timed.seconds[at]), held))
    return _plan(made, costs.micro_batches)


def _plan(stages: Sequence[AlpaStage], micro_batches: int) -> AlpaPlan:
    times = [s.seconds for s in stages]
    return AlpaPlan(tuple(stages), micro_batches, sum(times) + (micro_batches - 1) * max(times))


def _better(one: AlpaPlan | None, other: AlpaPlan | None) -> AlpaPlan | None:
    """The faster of two plans; the first of equals."""
    if one is None or other is None:
        return other if one is None else one
    return other if other.total_s < one.total_s else one


class _Search:
    """The dynamic program F(s, l, d): least Σ t of layers from l on, on devices from d on, in s stages."""

    def __init__(self, costs: AlpaCosts, gap: float) -> None:
        self.costs, self.gap = costs, gap
        self.layers, self.devices = costs.workload.model.layers, len(costs.devices)
        self.most = min(self.layers, self.devices)
        self.sizes = [1 << i for i in range(self.devices.bit_length()) if 1 << i <= self.devices]
        self.options = {n: list(costs.options(n)) for n in self.sizes}
        self.listed = {
            (size, count): self._choices(size, count)
            for size in self.sizes
            for count in range(1, self.layers + 1)
            if self.options[size]
        }
        self.bounds = np.unique(np.concatenate([c.seconds.ravel() for c in self.listed.values()]))
        self.least, self.plan = self._solve(float(self.bounds[-1]))

    def _choices(self, size: int, count: int) -> _Choices:
        """Times of ``count`` layers on ``size`` devices: only the ends of the model differ by layer."""
        whole = count == self.layers
        kinds = [(True, True)] if whole else [(True, False), (False, False), (False, True)]
        timed = [
            self.costs.stage(size, count, option, first=first, last=last)
            for option in self.options[size]
            for first, last in kinds
        ]
        shape = len(self.options[size]), len(kinds), self.devices - size + 1
        return _Choices(*(np.stack(column).reshape(shape) for column in zip(*timed, strict=True)))

    def run(self, best: AlpaPlan | None) -> AlpaPlan | None:
        """The better of ``best`` and of the best plan found."""
        return self._between(0, len(self.bounds) - 1, self.least, _better(best, self.plan))

    def _between(self, low: int, high: int, least: float, best: AlpaPlan | None) -> AlpaPlan | None:
        """Bounds from ``low`` to below ``high``, where Σ t is ``least``: none below has a smaller Σ t.

        A half is left out if even that sum with the half's smallest bound is not better than the best plan.
        """
        if low >= high or least == NEVER:
            return best
        if best is not None:
            slowest = max(float(self.bounds[low]), least / self.most)
            if least + (self.costs.micro_batches - 1) * slowest >= best.total_s * (1.0 - self.gap):
                return best
        middle = (low + high) // 2
        here, plan = self._solve(float(self.bounds[middle]))
        best = self._between(middle + 1, high, least, _better(best, plan))
        return self._between(low, middle, here, best)

    def _solve(self, bound: float) -> tuple[float, AlpaPlan | None]:
        """Least Σ t with no t above ``bound``, and its plan.

        Tables are [l, d].  The last stage ends with the model, the first begins with it on the first device; all others
        have layers before them and, one for each stage, behind them.
        """
        L, D = self.layers, self.devices
        tables = [np.full((L + 1, D + 1), NEVER)]
        tables[0][L] = 0.0
        firsts = {key: self._cheapest(key, bound, 1) for key in self.listed}
        for s in range(1, self.most + 1):
            held = min(s, self.costs.micro_batches)
            # What was cheapest stays so while memory holds one micro-batch more.
            firsts = {k: c if c.enough >= held else self._cheapest(k, bound, held) for k, c in firsts.items()}
            firsts = {k: c for k, c in firsts.items() if c.enough}
            before, table = tables[-1], np.full((L + 1, D + 1), NEVER)
            for (size, count), (t, _, _) in firsts.items():
                table[0, 0] = min(table[0, 0], t[0, 0] + before[count, size])
                if s == 1:
                    here = table[L - count, : D - size + 1]
                    np.minimum(here, t[-1], out=here)
                    continue
                stop, wide = L - count - s + 2, D - size - s + 2
                if stop > 1 and wide > 1:
                    here = table[1:stop, 1:wide]
                    total = t[1, 1:wide] + before[1 + count : stop + count, 1 + size : wide + size]
                    np.minimum(here, total, out=here)
            tables.append(table)
        stages = int(np.argmin([NEVER, *(float(t[0, 0]) for t in tables[1:])]))
        least = float(tables[stages][0, 0])
        return least, self._trace(tables[: stages + 1], bound) if least < NEVER else None

    def _cheapest(self, key: tuple[int, int], bound: float, held: int) -> _Cheapest:
        """Of the options within the bound and memory."""
        c = self.listed[key]
        seconds = np.where((c.seconds <= bound) & (c.most >= held), c.seconds, NEVER)
        chosen = seconds.argmin(axis=0)[None]
        least = np.take_along_axis(seconds, chosen, 0)[0]
        enough = np.take_along_axis(c.most, chosen, 0)[0][least < NEVER]
        return _Cheapest(least, chosen[0], int(enough.min()) if len(enough) else 0)

    def _trace(self, tables: list[FloatArray], bound: float) -> AlpaPlan:
        """The stages of the value at layer 0 and device 0 of the last table."""
        layer, d, stages = 0, 0, []
        for left in range(len(tables) - 1, 0, -1):
            held = min(left, self.costs.micro_batches)
            for size, length in self.listed:
                behind, after = layer + length, d + size
                if behind > self.layers or after > self.devices:
                    continue
                kind = 0 if layer == 0 else 2 if behind == self.layers else 1
                t, chosen, _ = self._cheapest((size, length), bound, held)
                if t[kind, d] + tables[left - 1][behind, after] == tables[left][layer, d] < NEVER:
                    break
            option = self.options[size][int(chosen[kind, d])]
            stages.append(AlpaStage(d, range(layer, behind), *option, float(t[kind, d]), held))
            layer, d = behind, after
        return _plan(stages, self.costs.micro_batches)


class _Choices(NamedTuple):
    """t and the most in flight, as [option, kind, first device].

    Kinds: the model's first layers, others, its last; or, of all layers, one kind.
    """

    seconds: FloatArray
    most: IntArray


class _Cheapest(NamedTuple):
    """As [kind, first device]: the least t, and its option; and how many may be in flight everywhere, 0 if nowhere."""

    seconds: FloatArray
    option: IntArray
    enough: int


def _ring(passes: int, members: int, size: float, rate: FloatArray, hop: FloatArray) -> FloatArray:
    """passes·(n-1)(α + X / (n·bw)), seconds; rates in bytes/s."""
    return passes * (members - 1) * (hop + size / members / rate) if members > 1 and size else np.zeros(len(rate))


def _nothing_fits(choices: Sequence[AlpaCosts]) -> str:
    """The plan that needs least on its fullest stage, beside what there is."""
    leanest: tuple[int, str] | None = None
    for costs in choices:
        layers = costs.workload.model.layers
        for stages, option in _even_plans(costs):
            cuts = even_partition(layers, stages)
            held = min(stages, costs.micro_batches)
            ends = [(0, held)] if stages == 1 else [(0, held), (stages - 1, 1)]
            need = max(
                costs.need(int(cuts[p + 1] - cuts[p]), option, n, first=p == 0, last=p == stages - 1) for p, n in ends
            )
            if leanest is None or need < leanest[0]:
                replicas, ways, _ = option
                parts = f"stages {stages}, devices of a stage {replicas} x {ways}, micro-batches {costs.micro_batches}"
                leanest = need, parts
    assert leanest is not None  # noqa: S101 - one stage of one device is always a plan
    memory = choices[0].devices.memory_bytes
    return (
        f"no division of {choices[0].workload.model.layers} layers of {choices[0].workload.model.name} over"
        f" {len(memory)} devices fits: {has_and_needed(float(memory.min()), leanest[0], 'the smallest of them')} for"
        f" the leanest of even plans ({leanest[1]}); the largest has {format_bytes(float(memory.max()))}; recompute:"
        " full or an optimizer with fewer states needs less"
    )
