"""``model: paper`` of four group strategies: DT-FM, Asteroid, Confidant (spelt Confident there) and Alpa.

The closed forms by which the authors of Cleave put these strategies beside their own, restated from the artifact
repository netsys-edinburgh/wasp, ``wasp/placement`` (commit 4c8353e): one batch in seconds, from compute rates and
links alone.  They are not the strategies' own models (`morphling.planning.dtfm`, `.asteroid`, `.confidant`); a formula
with other physics does not belong here.

Quirks of the artifact that all four keep, because the published comparison has them:

* a multiply-add counts as one FLOP, so that compute takes half of its real time; the LM head is not counted;
* a GiB is divided by a rate in units of 10^9 (DT-FM, Asteroid, Confidant): the bytes take 1000/1024 of their time;
* every pair of devices has a path of its own, min(uplink of the sender, downlink of the receiver), not shared.

``quirks`` of `asteroid` and `confident` concerns the gigabits: the artifact divides gigabytes by a rate in Gbit/s
without the 8, so that their network is eight times too fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import ArrayLike

from morphling.errors import Infeasible, PlanError
from morphling.planning.costs import Rates
from morphling.planning.matching import bottleneck_value, cheapest_path
from morphling.types import FloatArray, IntArray
from morphling.units import format_bytes
from morphling.workload.models import Model, layer_linears

__all__ = ["GroupCost", "alpa", "asteroid", "confident", "dtfm", "layer_flops"]

GIB_OVER_GB = 1000.0 / 1024.0
"""Bytes counted in GiB over a rate counted in thousands of MB/s: what remains of their time."""
ASTEROID_MEMORY_BYTES = 32 * 2**30
"""Memory of every device in the artifact's default; far above a phone's."""
HELD_KARP_BYTES = 2**30
"""Largest table of DT-FM's route; the artifact takes what its machine can allocate (16 groups from 32 devices up)."""
ASTEROID_CANDIDATES = 1_500_000_000
"""Most candidate stages of Asteroid's plan that are compared: 512 devices with 40 layers have 0.86e9."""
ALPA_LEAST_WAYS = 16
"""Least tensor-parallel degree that the artifact tries."""
ASTEROID_MOST_STAGES = 8


ASSUMED = {
    "dtfm": ["consecutive devices form groups", "compute waits for the slowest device everywhere"],
    "alpa": [
        "uniform tensor parallelism, no pipeline",
        "the slowest uplink counts for all; downlinks and latency do not count",
        "compute is tripled again",
    ],
    "asteroid": [
        "devices have 32 GiB each",
        "a stage's computing, transfer and all-reduce add up, the all-reduce in every micro-batch",
    ],
    "confident": ["memory is not looked at"],
}
"""What a reader of each formula's numbers should know; and of all: `ASSUMED_BY_ALL`."""
ASSUMED_BY_ALL = [
    "a multiply-add counts as one FLOP, and the LM head is not counted",
    "GiB are divided by rates in units of 10^9",
    "every pair of devices has a path of its own; the coordinator's network is unlimited",
]


@dataclass(frozen=True)
class GroupCost:
    """What a published formula says about one batch.

    system : the strategy;  total_s : seconds of one batch;  parts : seconds by name, they sum to ``total_s``
    stages, micro_batches : of the pipeline;  bottleneck_s : the slowest stage, for one micro-batch (NaN: no such term)
    groups : device ids of each stage in the order of the pipeline;  layers : layers of each stage (empty: L / P each)
    samples : of one micro-batch, on each device of each group (empty where the formula gives none)
    """

    system: str
    total_s: float
    parts: dict[str, float]
    stages: int
    micro_batches: float
    bottleneck_s: float = float("nan")
    groups: tuple[tuple[int, ...], ...] = ()
    layers: tuple[int, ...] = ()
    samples: tuple[tuple[int, ...], ...] = ()

    def assumptions(self) -> list[str]:
        """Sentences for the report; none of a formula that is not of this file."""
        return [*ASSUMED_BY_ALL, *ASSUMED[self.system]] if self.system in ASSUMED else []


def layer_flops(model: Model, batch: float, sequence: int) -> float:
    """What the artifact calls the FLOPs of one layer and one batch: 3 (4 T h² + 2 T h f + 2 B h s²), T = B s.

    Forward and twice that backward; multiply-adds count once, a gated MLP as if it were plain, all KV heads as if full.
    """
    h, f, tokens = model.hidden_size, model.ffn_size, batch * sequence
    return 3.0 * (4 * tokens * h**2 + 2 * tokens * h * f + 2 * batch * h * sequence**2)


def dtfm(
    model: Model,
    batch: int,
    sequence: int,
    rates: Rates,
    *,
    groups: ArrayLike | None = None,
    table_bytes: int = HELD_KARP_BYTES,
) -> GroupCost:
    """DT-FM: data-parallel groups of g devices, one a stage; P = N/g stages with L/P layers each.

    g is the smallest divisor of N from 2 up with P <= L and a Held-Karp table (8 P 2^P bytes) within ``table_bytes``.
    total = DP + comm_pp + compute, with the costs of `morphling.planning.dtfm` on c_dp = layer bytes L / P and
    c_pp = 2 T h / g bytes; m = B/P; comm_pp = 2 (PP (m-1) + PP g) / m; compute = FLOPs of the model x 1.5 (recompute)
    over N times the slowest device.

    ``groups`` : int[P, g], who is in which group; consecutive ids if not given.  The artifact searches for it with a
    population of 1 and 1 trial, unseeded: other groups differ by some 7 %.

    Quirks: only sends from the lower to the higher group are costed, and count in both directions; compute waits for
    the slowest device everywhere.  Raises `Infeasible` if no divisor will do, `PlanError` on wrong ``groups``.
    """
    _check(model, batch, sequence, rates)
    size = len(rates)
    g = _group_size(size, model.layers, table_bytes)
    stages = size // g
    members = np.arange(size).reshape(stages, g) if groups is None else np.asarray(groups, np.int64)
    if members.shape != (stages, g) or not np.array_equal(np.sort(members, axis=None), np.arange(size)):
        raise PlanError(f"groups must hold each of {size} devices once, as int[{stages}, {g}]")
    gradient = _layer_bytes(model) * model.layers / stages
    activation = 2.0 * batch * sequence * model.hidden_size / g
    within = 2.0 * _seconds(gradient / g, rates, members[:, :, None], members[:, None, :])
    within[:, np.arange(g), np.arange(g)] = 0.0
    data_parallel = float(within.sum(axis=2).max())
    between = np.zeros((stages, stages))
    for x in range(stages):
        for y in range(x + 1, stages):
            pairs = _seconds(activation, rates, members[x][:, None], members[y][None, :])
            between[x, y] = between[y, x] = bottleneck_value(pairs)
    route, order, _ = cheapest_path(between, exact=stages)
    m = batch / stages
    parts = {
        "data_parallel": data_parallel,
        "pipeline": 2.0 * route / m * (m - 1.0 + g),
        "compute": layer_flops(model, batch, sequence) * model.layers * 1.5 / (size * float(rates.flops.min())),
    }
    return GroupCost("dtfm", sum(parts.values()), parts, stages, m, groups=_tuples(members[order]))


def _group_size(size: int, layers: int, table_bytes: int) -> int:
    for g in (d for d in range(2, size + 1) if size % d == 0):
        stages = size // g
        if stages <= layers and stages * 2**stages * 8 <= table_bytes:
            return g
    raise Infeasible(
        f"dtfm: no divisor of {size} devices from 2 up leaves at most {layers} groups with a route table of at most "
        f"{table_bytes} bytes"
    )


def alpa(model: Model, batch: int, sequence: int, rates: Rates) -> GroupCost:
    """Alpa as the artifact's ``alpa_dag`` has it: uniform tensor parallelism of w ways, d = N/w data-parallel copies.

    total = min over d of 4 L · 2 (T h 2 / d) (w-1)/w / U + 3 compute + (d > 1: 2 (model bytes / w) (d-1)/d / U),
    compute = 1.5 L · 3 (4 T h² + 2 T h f + 2 B h s² + 4 T f h) / (N min F).

    Quirks: only the slowest uplink counts, downlinks and latency are ignored; fewer than 16 ways are never tried;
    compute is tripled again; there is no pipeline.  Raises `Infeasible` if no divisor of N leaves 16 ways or more.
    """
    _check(model, batch, sequence, rates)
    size, tokens = len(rates), batch * sequence
    up, model_bytes = float(rates.up.min()), _layer_bytes(model) * model.layers
    flops = layer_flops(model, batch, sequence) + 12.0 * tokens * model.ffn_size * model.hidden_size
    compute = 3.0 * 1.5 * flops * model.layers / (size * float(rates.flops.min()))
    best: GroupCost | None = None
    for copies in (d for d in range(1, size // ALPA_LEAST_WAYS + 1) if size % d == 0):
        ways = size // copies
        activation = 2.0 * tokens * model.hidden_size / copies
        parts = {
            "tensor_parallel": 2.0 * activation * (ways - 1) / ways / up * model.layers * 4,
            "compute": compute,
            "data_parallel": 2.0 * model_bytes / ways * (copies - 1) / copies / up,
        }
        total = sum(parts.values())
        if best is None or total < best.total_s:
            groups = _tuples(np.arange(size).reshape(copies, ways))
            best = GroupCost("alpa", total, parts, 1, 1.0, groups=groups, layers=(model.layers,))
    if best is None:
        raise Infeasible(f"alpa: {size} devices have no tensor-parallel degree of at least {ALPA_LEAST_WAYS}")
    return best


def confident(model: Model, batch: int, sequence: int, rates: Rates, *, quirks: bool = True) -> GroupCost:
    """Confidant: P = min(N, L) stages of one device each, device p is stage p; further devices stay idle.

    Layers are cut so that the slowest of layers · c / F_p + activation / bandwidth(p-1 -> p) is least; total =
    (M + P - 1) · slowest, M = max(1, B // 4) micro-batches.  Of several best cuts the first in the artifact's order.

    Quirks (``quirks=True``): compute c and activations of the whole batch for every micro-batch, and gigabytes over
    Gbit/s.  ``quirks=False``: those of B / M sequences, and bytes over bytes.  Memory is never looked at.
    """
    _check(model, batch, sequence, rates)
    stages, count = min(len(rates), model.layers), max(1, batch // 4)
    share = batch if quirks else batch / count
    per_layer = layer_flops(model, share, sequence) / rates.flops[:stages]
    activation = 2.0 * share * sequence * model.hidden_size / (8.0 if quirks else 1.0)
    ids = np.arange(stages)
    incoming = np.zeros(stages)
    incoming[1:] = _seconds(activation, rates, ids[:-1], ids[1:])
    cuts, slowest = _least_slowest(per_layer, incoming, model.layers)
    layers = np.diff(cuts)
    times = layers * per_layer + incoming
    rounds, at = count + stages - 1, int(np.argmax(times))
    parts = {"compute": rounds * layers[at] * per_layer[at], "transfer": rounds * incoming[at]}
    return GroupCost(
        "confident", rounds * slowest, {k: float(v) for k, v in parts.items()}, stages, float(count), slowest,
        groups=tuple((p,) for p in range(stages)), layers=tuple(layers.tolist()),
    )  # fmt: skip


def _least_slowest(per_layer: FloatArray, incoming: FloatArray, layers: int) -> tuple[IntArray, float]:
    """Cuts int64[P + 1] of ``layers`` equal layers, at least one a stage, with the least slowest stage; its seconds."""
    stages = len(per_layer)
    best = np.full((stages, layers + 1), np.inf)
    came = np.zeros((stages, layers + 1), np.int64)
    best[0, 1:] = np.arange(1, layers + 1) * per_layer[0]
    for p in range(1, stages):
        for end in range(p + 1, layers + 1):
            cut = np.arange(p, end)
            slowest = np.maximum(best[p - 1, cut], (end - cut) * per_layer[p] + incoming[p])
            at = int(np.argmin(slowest))
            best[p, end], came[p, end] = slowest[at], cut[at]
    cuts = [layers]
    for p in range(stages - 1, 0, -1):
        cuts.append(int(came[p, cuts[-1]]))
    return np.array([*cuts, 0][::-1], np.int64), float(best[-1, layers])


def asteroid(
    model: Model,
    batch: int,
    sequence: int,
    rates: Rates,
    *,
    quirks: bool = True,
    memory_bytes: float = ASTEROID_MEMORY_BYTES,
    candidates: int = ASTEROID_CANDIDATES,
) -> GroupCost:
    """Asteroid: pipeline of P <= min(8, N, L) groups of consecutive devices; total = (M + P - 1) · slowest stage.

    M = max(1, B // 4) micro-batches of ceil(B / M) sequences.  A stage of k devices takes compute (samples go one by
    one to the device that finishes first) + its outgoing activations over the slowest pair to the next group + a ring
    all-reduce 2 (k-1)/k · (weights of the stage / k) over the slowest pair within.  Devices must hold
    3 W + K · activations with K = 2 (P-p) - 1, in ``memory_bytes`` each.

    Quirks: the three times are summed, and the all-reduce is paid at every micro-batch; the weights are divided by k
    twice; activations travel one way only; the plan of the tail that is extended is the best one, with whatever head
    group it has; weights are those of a plain MLP.  ``quirks=True`` divides gigabytes by Gbit/s, ``False`` plans with
    the 8.

    Raises `Infeasible` if no pipeline fits into memory, or if the plan needs more than ``candidates`` stages to be
    compared (a count, so that the answer does not depend on the machine; the published comparison waits 60 s).
    """
    _check(model, batch, sequence, rates)
    size, layers, count = len(rates), model.layers, max(1, batch // 4)
    most = min(ASTEROID_MOST_STAGES, size, layers)
    work = most * size * (size + 1) // 2 * layers * (layers + 1) // 2
    if work > candidates:
        raise Infeasible(
            f"asteroid: {size} devices and {layers} layers give {work} candidate stages, more than {candidates}; "
            "the published comparison marks a planner that runs beyond its time-out as not available"
        )
    search = _AsteroidSearch(model, -(-batch // count), sequence, rates, memory_bytes, 1.0 if quirks else 8.0)
    found = [(p, *search.plan(p)) for p in range(1, most + 1) if search.extend(p)]
    if not found:
        raise Infeasible(
            f"asteroid: no pipeline of up to {most} stages fits: each device has {format_bytes(memory_bytes)}, and a "
            f"layer keeps three times its {format_bytes(search.weights)} of weights"
        )
    stages, slowest, groups, counts = min(found, key=lambda plan: (count + plan[0] - 1) * plan[1])
    rounds = count + stages - 1
    times = [search.stage_parts(groups, counts, p) for p in range(stages)]
    worst = max(times, key=lambda part: sum(part.values()))
    return GroupCost(
        "asteroid", rounds * slowest, {name: rounds * value for name, value in worst.items()}, stages, float(count),
        slowest, groups=tuple(tuple(range(a, b)) for a, b in groups), layers=tuple(counts),
        samples=tuple(search.samples(*group, counts[p], stages - p) for p, group in enumerate(groups)),
    )  # fmt: skip


class _AsteroidSearch:
    """The artifact's dynamic program over (layers left, first device, stages left); see `asteroid`."""

    def __init__(self, model: Model, size: int, sequence: int, rates: Rates, memory_bytes: float, bits: float) -> None:
        self.rates, self.size, self.layers, self.devices = rates, size, model.layers, len(rates)
        self.memory, self.unit = memory_bytes, bits / 8.0 * GIB_OVER_GB
        self.flops = layer_flops(model, 1, sequence)
        self.sample = 2.0 * sequence * model.hidden_size
        self.weights = 2.0 * (4 * model.hidden_size**2 + 2 * model.hidden_size * model.ffn_size)
        n = self.devices
        self.least_up, self.least_down, self.latest = (
            np.full((n, n + 1), np.inf),
            np.full((n, n + 1), np.inf),
            np.zeros((n, n + 1)),
        )
        for a in range(n):
            self.least_up[a, a + 1 :] = np.minimum.accumulate(rates.up[a:])
            self.least_down[a, a + 1 :] = np.minimum.accumulate(rates.down[a:])
            self.latest[a, a + 1 :] = np.maximum.accumulate(rates.latency_s[a:])
        self.share: dict[int, FloatArray] = {}
        self.best: list[FloatArray] = []  # [stages left - 1][layers left, first device], seconds of the slowest stage
        self.split: list[tuple[IntArray, IntArray]] = []  # layers and first device of what follows the head
        self.ends: list[IntArray] = []  # where the head group ends

    def most_samples(self, layers: int, left: int) -> int:
        """Samples of a micro-batch that a device can hold on a stage of ``layers`` layers with ``left`` stages left."""
        free = self.memory - 3.0 * self.weights * layers
        return int(min(max(free // ((2 * left - 1) * self.sample * layers), 0), self.size))

    def shares(self, most: int) -> FloatArray:
        """Compute time of one micro-batch over that of 1 FLOP/s-second a sample, float64[first, end]; inf = too little.

        Samples go to whoever finishes first, at most ``most`` to a device; it is the size-th smallest of all y / F.
        """
        if most not in self.share:
            n = self.devices
            out = np.full((n, n + 1), np.inf)
            for a in range(n if most else 0):
                queue = np.empty(0)
                for b in range(a + 1, n + 1):
                    own = np.arange(1, most + 1) / self.rates.flops[b - 1]
                    queue = np.sort(np.concatenate([queue, own]))[: self.size]
                    if len(queue) == self.size:
                        out[a, b] = queue[-1]
            self.share[most] = out
        return self.share[most]

    def samples(self, a: int, b: int, layers: int, left: int) -> tuple[int, ...]:
        """How many samples of a micro-batch each device of a group takes."""
        given, most = np.zeros(b - a, np.int64), self.most_samples(layers, left)
        for _ in range(self.size):
            given[np.argmin(np.where(given < most, (given + 1) / self.rates.flops[a:b], np.inf))] += 1
        return tuple(given.tolist())

    def reduce_s(self) -> FloatArray:
        """Ring all-reduce of one layer, seconds, float64[first, end]."""
        first, end = np.ogrid[: self.devices, : self.devices + 1]
        k = np.maximum(end - first, 1)
        slow = np.minimum(self.least_up, self.least_down)
        out: FloatArray = 2.0 * (k - 1) / k * (self.weights / k) / slow * self.unit
        return out

    def stage_layers(self, left: int) -> FloatArray:
        """Compute and all-reduce, seconds, float64[layers + 1, first, end]."""
        out = np.full((self.layers + 1, self.devices, self.devices + 1), np.inf)
        reduce = self.reduce_s()
        for k in range(1, self.layers + 1):
            out[k] = k * self.flops * self.shares(self.most_samples(k, left)) + k * reduce
        return out

    def extend(self, left: int) -> bool:
        """Fill the tables for ``left`` stages; whether all layers fit on all devices in so many."""
        n, layers = self.devices, self.layers
        own = self.stage_layers(left)
        best = np.full((layers + 1, n), np.inf)
        ends = np.full((layers + 1, n), n)
        rest, start = np.zeros((layers + 1, n), np.int64), np.full((layers + 1, n), n)
        if left == 1:
            best = own[:, :, n].copy()
        else:
            before, its_end = self.best[-1], self.ends[-1]
            for a in range(n - 1):
                # The artifact compares layers left (few first), then devices left (few first); the first best stays.
                b = np.arange(n - 1, a, -1)
                stop = its_end[:, b]
                slow = np.minimum(self.least_up[a, b], self.least_down[b, stop])
                send = self.size * self.sample / slow * self.unit + (self.latest[a, b] + self.latest[b, stop])
                tails, heads = before[:, b], own[:, a, b]
                for taken in range(left, layers + 1):
                    others = slice(left - 1, taken)  # layers of the tail; the head has the rest, most first
                    stage = heads[taken - left + 1 : 0 : -1] + send[others]
                    slowest = np.maximum(tails[others], stage)
                    at = int(slowest.argmin())
                    best[taken, a] = slowest.flat[at]
                    row, column = divmod(at, len(b))
                    rest[taken, a], start[taken, a], ends[taken, a] = row + left - 1, b[column], b[column]
        self.best.append(best)
        self.ends.append(ends)
        self.split.append((rest, start))
        return isfinite(best[layers, 0])

    def plan(self, stages: int) -> tuple[float, list[tuple[int, int]], list[int]]:
        """Seconds of the slowest stage, [first, end) of each group and the layers of each stage."""
        groups, counts, layers, first = [], [], self.layers, 0
        for left in range(stages, 0, -1):
            rest, start = (int(table[layers, first]) for table in self.split[left - 1])
            groups.append((first, start))
            counts.append(layers - rest)
            layers, first = rest, start
        return float(self.best[stages - 1][self.layers, 0]), groups, counts

    def stage_parts(self, groups: list[tuple[int, int]], counts: list[int], p: int) -> dict[str, float]:
        """Compute, transfer and all-reduce of stage p for one micro-batch, seconds."""
        (a, b), k, left = groups[p], counts[p], len(groups) - p
        transfer = 0.0
        if left > 1:
            c, d = groups[p + 1]
            slow = min(self.least_up[a, b], self.least_down[c, d])
            transfer = self.size * self.sample / slow * self.unit + self.latest[a, b] + self.latest[c, d]
        return {
            "compute": float(k * self.flops * self.shares(self.most_samples(k, left))[a, b]),
            "transfer": float(transfer),
            "all_reduce": float(k * self.reduce_s()[a, b]),
        }


def _seconds(size: float, rates: Rates, source: IntArray, target: IntArray) -> FloatArray:
    """Time of ``size`` bytes from ``source`` to ``target``, as GiB over 10^9 (shared quirk), plus both latencies."""
    slow = np.minimum(rates.up[source], rates.down[target])
    out: FloatArray = size / slow * GIB_OVER_GB + rates.latency_s[source] + rates.latency_s[target]
    return out


def _layer_bytes(model: Model) -> float:
    """Weights of one layer's linears in two bytes each, without biases."""
    return 2.0 * sum(rows * columns for _, rows, columns in layer_linears(model))


def _tuples(groups: IntArray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(group) for group in groups.tolist())


def _check(model: Model, batch: int, sequence: int, rates: Rates) -> None:
    if batch < 1 or sequence < 1:
        raise PlanError(f"batch {batch} and sequence {sequence} of {model.name} must be at least 1")
    if not len(rates):
        raise Infeasible("there is no device; at least one is needed")
    unfit = np.isnan(rates.flops) | (rates.up <= 0) | (rates.down <= 0)
    if unfit.any():
        raise PlanError(f"device {int(np.argmax(unfit))} has no compute rate or no link; the formula needs both")
