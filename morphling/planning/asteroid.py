"""Asteroid's planner: hybrid pipeline parallelism, a group of data-parallel devices on each stage.

Ye et al., "Asteroid: resource-efficient hybrid pipeline parallelism for collaborative DNN training on heterogeneous
edge devices" (MobiCom 2024, arXiv 2408.08015).  There is no official code; steps, memory and both algorithms are those
on which public re-implementations agree.  Not the closed form of `morphling.planning.group_costs`.

A round is M micro-batches of B samples.  P stages give 2 P - 1 steps, execution and communication by turns:

    execution      E_f = max over the group of the forward time of its y_d samples, E_b likewise, sum of y_d = B
    communication  E = B times the bytes of the boundary over the slowest link between the two groups
    sync           T_a = 2 (k-1)/k times the weights of the stage over the slowest link within the group of k
    round          T = max over steps s of  sum of E_f before s + T_e(s) + T_a(s), see `round_latency`
    memory         states + K_p y_d activations on each device, K_p = 2 (P-p) - 1 warm-up forwards of stage p
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from morphling.errors import Infeasible, PlanError
from morphling.planning.costs import Rates
from morphling.types import FloatArray, IntArray
from morphling.units import format_bytes

__all__ = ["AsteroidPlan", "LayerProfile", "allocate", "plan_asteroid", "round_latency"]

MOST_CUTS = 64
"""Groups may start at so many places of the device list; all places up to as many devices."""
MOST_STAGES = 16
STATES = 3.0
"""Bytes of weights, gradients and optimizer over those of the weights, as the re-implementations count them."""


@dataclass(frozen=True, eq=False)
class LayerProfile:
    """What Asteroid measures before it plans.

    forward_s, backward_s : float64[D, L, B + 1], seconds of y = 0 … B samples on a device; [..., 0] is 0, never falling
    weight_bytes : float64[L];  output_bytes : float64[L] of one sample, to the next layer
    kept_bytes : float64[L] of one sample, kept for the backward pass

    Raises `PlanError` on other shapes, negative values or times that fall with more samples.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    weight_bytes: FloatArray
    output_bytes: FloatArray
    kept_bytes: FloatArray

    def __post_init__(self) -> None:
        shape = self.forward_s.shape
        if len(shape) != 3 or min(shape) < 1 or shape[2] < 2 or self.backward_s.shape != shape:
            raise PlanError(f"times must be two arrays [D, L, B + 1], not {shape} and {self.backward_s.shape}")
        for name in ("weight_bytes", "output_bytes", "kept_bytes"):
            value = getattr(self, name)
            if value.shape != shape[1:2] or not (np.isfinite(value) & (value >= 0)).all():
                raise PlanError(f"{name} must be {shape[1]} finite numbers, none negative")
        for name in ("forward_s", "backward_s"):
            value = getattr(self, name)
            if not np.isfinite(value).all() or value[..., 0].any() or (np.diff(value, axis=2) < 0).any():
                raise PlanError(f"{name} must be finite, 0 for no sample, and not fall with more samples")

    @classmethod
    def linear(
        cls,
        flops: ArrayLike,
        layer_flops: ArrayLike,
        samples: int,
        *,
        weight_bytes: ArrayLike,
        output_bytes: ArrayLike,
        kept_bytes: ArrayLike,
        backward: float = 2.0,
    ) -> LayerProfile:
        """Times in proportion to samples: ``flops`` [D] FLOP/s, ``layer_flops`` [L] forward FLOPs of one sample.

        ``backward`` : backward FLOPs over forward FLOPs.
        """
        rate, work = np.asarray(flops, np.float64), np.asarray(layer_flops, np.float64)
        if not (rate > 0).all() or samples < 1:
            raise PlanError("compute rates must be above zero and a micro-batch have at least 1 sample")
        forward = work[None, :, None] * np.arange(samples + 1) / rate[:, None, None]
        sizes = (
            np.broadcast_to(np.asarray(x, np.float64), work.shape) for x in (weight_bytes, output_bytes, kept_bytes)
        )
        return cls(forward, backward * forward, *sizes)

    @property
    def samples(self) -> int:
        """B, samples of a micro-batch."""
        return int(self.forward_s.shape[2]) - 1


@dataclass(frozen=True, eq=False)
class AsteroidPlan:
    """A pipeline and its round.

    latency_s : of a round of ``micro_batches``;  groups : device ids of each stage;  layers : [first, end) of each
    samples : of a micro-batch, on each device of each group;  warm_up : K_p of each stage
    forward_s, backward_s, sync_s : float64[2 P - 1], E_f, E_b and T_a of each step
    restricted : groups could not start everywhere in the device list (more devices than cuts)
    """

    latency_s: float
    micro_batches: int
    groups: tuple[tuple[int, ...], ...]
    layers: tuple[tuple[int, int], ...]
    samples: tuple[tuple[int, ...], ...]
    warm_up: tuple[int, ...]
    forward_s: FloatArray
    backward_s: FloatArray
    sync_s: FloatArray
    restricted: bool


def round_latency(forward_s: ArrayLike, backward_s: ArrayLike, sync_s: ArrayLike, micro_batches: int) -> float:
    """T of a round over steps with E_f, E_b and T_a, each [S], seconds.

    With e = E_f + E_b, the dominant step dm maximises M e_c + sum of e before c; T_e(s) = M e_dm + sum of e from s to
    before dm (s < dm) or - sum from dm to before s (s > dm); T = max of (sum of E_f before s) + T_e(s) + T_a(s).
    That is max(M e_c + sum of e before c) + max(T_a(s) - sum of E_b before s), which is what is computed.
    """
    forward, backward, sync = (np.asarray(x, np.float64) for x in (forward_s, backward_s, sync_s))
    both = forward + backward
    before = np.cumsum(both) - both
    return float((micro_batches * both + before).max() + (sync - (np.cumsum(backward) - backward)).max())


def allocate(times_s: FloatArray, most: IntArray, samples: int) -> IntArray:
    """Algorithm 1: samples of a micro-batch for each device of a group, int64[k].

    ``times_s`` float64[k, >= samples + 1], seconds of y samples, never falling; ``most`` int64[k], that memory allows.
    First shares in proportion to speed, capped, what is left over again among the others; then samples move one at a
    time from the slowest device to the one that is the least slow with one more, as long as that helps.  Which is then
    the least possible longest time, as any better division gives somebody one more.  Raises `Infeasible` where all
    devices together cannot hold the samples.
    """
    most = np.minimum(np.asarray(most, np.int64), samples)
    if most.sum() < samples:
        raise Infeasible(f"a group of {len(most)} devices has memory for {most.sum()} of {samples} samples")
    given = _proportional(1.0 / np.maximum(times_s[:, samples], 1e-300), most, samples)
    ids = np.arange(len(most))
    while True:
        now = times_s[ids, given]
        slowest = int(np.argmax(np.where(given > 0, now, -np.inf)))
        then = np.where(given < most, times_s[ids, np.minimum(given + 1, samples)], np.inf)
        then[slowest] = np.inf
        target = int(np.argmin(then))
        if not then[target] < now[slowest]:
            return given
        given[slowest] -= 1
        given[target] += 1


def _proportional(speed: FloatArray, most: IntArray, samples: int) -> IntArray:
    given = np.zeros(len(most), np.int64)
    while (left := samples - int(given.sum())) > 0:
        room = most - given
        share = np.where(room > 0, speed, 0.0)
        # Scaled first: the speed of layers without work is as good as infinite.
        exact = left * (share / share.max()) / (share / share.max()).sum()
        more = np.minimum(np.floor(exact).astype(np.int64), room)
        if not more.any():
            # Only fractions are left: the largest one gets a sample.
            more[int(np.argmax(np.where(room > 0, exact, -1.0)))] = 1
        given += more
    return given


def plan_asteroid(
    profile: LayerProfile,
    rates: Rates,
    micro_batches: int,
    *,
    stages: int = MOST_STAGES,
    cuts: int = MOST_CUTS,
    states: float = STATES,
) -> AsteroidPlan:
    """Algorithm 2: the best pipeline over layers and devices, up to ``stages`` stages.

    Devices are sorted by memory, most first.  Q(l, n, p) is the best round of the last l layers on the last n devices
    in p stages; a head stage is put before each, with samples as `allocate` divides them.  As published, only the best
    tail of each Q is extended, so that the plan need not be the best of all.  Of ``rates``, links and memory count:
    transfers between i and j run at min(up_i, down_j), activations forward and gradients backward.

    Ours, against O(L² D² P) stages to be judged: beyond ``cuts`` devices groups start at ``cuts`` evenly spread places
    only (the plan says so), and equal layers are judged once.  Raises `Infeasible` where nothing fits, `PlanError` on
    wrong sizes or devices without a link.
    """
    devices, layers, _ = profile.forward_s.shape
    if len(rates) != devices or micro_batches < 1 or stages < 1 or cuts < 1:
        raise PlanError(
            f"the profile has {devices} devices, the rates {len(rates)}; micro-batches, stages and cuts are at least 1"
        )
    if devices > 1 and not (rates.up.all() and rates.down.all()):
        raise PlanError("a device without a link cannot be on a pipeline")
    search = _Search(profile, rates, micro_batches, cuts, states)
    most = min(stages, search.places, layers)
    best = [search.extend(left) for left in range(1, most + 1)]
    if not np.isfinite(best).any():
        need = states * profile.weight_bytes + profile.kept_bytes
        raise Infeasible(
            f"no pipeline of up to {most} stages fits: with one sample the largest layer takes "
            f"{format_bytes(need.max())}, all layers {format_bytes(need.sum())}; the largest of {devices} devices has "
            f"{format_bytes(rates.memory_bytes.max())}, all of them {format_bytes(rates.memory_bytes.sum())}; more "
            "stages (most_stages), recompute: full or an optimizer with fewer states need less"
        )
    return search.plan(int(np.argmin(best)) + 1)


class _Search:
    """Tables over [layers left, first place]; places are where a group may start in the sorted device list."""

    def __init__(self, profile: LayerProfile, rates: Rates, micro_batches: int, cuts: int, states: float) -> None:
        devices, self.layers, _ = profile.forward_s.shape
        self.order = np.argsort(-rates.memory_bytes, kind="stable")
        self.profile, self.rates, self.m, self.states = profile, rates.take(self.order), micro_batches, states
        self.places = min(cuts, devices)
        self.at = np.arange(self.places + 1) * devices // self.places  # the last one is the end
        self.least_up, self.least_down, self.latest = self._links()
        self.kind, self.kinds = self._layer_ranges()
        # Each [left - 1] holds, for the best tail with so many stages: T, its two maxima, where the next stage starts.
        self.latency: list[FloatArray] = []
        self.seen: dict[tuple[int, int, bytes], FloatArray] = {}
        self.maxima: list[tuple[FloatArray, FloatArray]] = []
        self.next: list[tuple[IntArray, IntArray]] = []

    def _links(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Slowest uplink and downlink and longest latency of each group, float64[first place, end place]."""
        n, at = self.places, self.at
        up, down, late = np.full((n, n + 1), np.inf), np.full((n, n + 1), np.inf), np.zeros((n, n + 1))
        for a in range(n):
            up[a, a + 1 :] = np.minimum.accumulate(np.minimum.reduceat(self.rates.up, at[a:n]))
            down[a, a + 1 :] = np.minimum.accumulate(np.minimum.reduceat(self.rates.down, at[a:n]))
            late[a, a + 1 :] = np.maximum.accumulate(np.maximum.reduceat(self.rates.latency_s, at[a:n]))
        return up, down, late

    def _layer_ranges(self) -> tuple[IntArray, list[tuple[int, int]]]:
        """Number of each range [first, end) of layers, int64[L, L + 1], equal ones once, and a range of each number."""
        p = self.profile
        same: dict[tuple[object, ...], int] = {}
        of = [
            same.setdefault(
                (p.forward_s[:, i].tobytes(), p.backward_s[:, i].tobytes(), p.weight_bytes[i], p.kept_bytes[i]), i
            )
            for i in range(self.layers)
        ]
        number: dict[tuple[int, ...], int] = {}
        kind = np.zeros((self.layers, self.layers + 1), np.int64)
        kinds: list[tuple[int, int]] = []
        for first in range(self.layers):
            for end in range(first + 1, self.layers + 1):
                key = tuple(sorted(of[first:end]))
                if key not in number:
                    number[key] = len(kinds)
                    kinds.append((first, end))
                kind[first, end] = number[key]
        return kind, kinds

    def times(self, first: int, end: int) -> tuple[FloatArray, FloatArray]:
        """Forward and backward seconds of 0 … B samples on each device, float64[D, B + 1], sorted devices."""
        p = self.profile
        return p.forward_s[self.order, first:end].sum(axis=1), p.backward_s[self.order, first:end].sum(axis=1)

    def most(self, first: int, end: int, left: int) -> IntArray:
        """Samples of a micro-batch that each device can hold with ``left`` stages to the end, int64[D]."""
        p = self.profile
        free = self.rates.memory_bytes - self.states * p.weight_bytes[first:end].sum()
        each = (2 * left - 1) * p.kept_bytes[first:end].sum()
        counts = np.where(free < 0, 0.0, np.where(each > 0, free / max(each, 1e-300), np.inf))
        return np.floor(np.minimum(counts, p.samples)).astype(np.int64)

    def judged(self, first: int, end: int, left: int) -> FloatArray:
        """E_f and E_b of the layers on every group, float64[2, first place, end place]; inf where memory is short.

        The least longest time comes from handing out the cheapest (device, y-th sample) first, as `allocate` ends.
        """
        most, b, n = self.most(first, end, left), self.profile.samples, self.places
        if most.sum() < b:  # no group can hold them
            return np.full((2, n, n + 1), np.inf)
        key = first, end, most.tobytes()
        if key not in self.seen:  # the same for any number of stages to the end, unless memory says otherwise
            self.seen[key] = self._judged(first, end, most)
        return self.seen[key]

    def _judged(self, first: int, end: int, most: IntArray) -> FloatArray:
        forward, backward = self.times(first, end)
        b, n = self.profile.samples, self.places
        y = np.arange(1, b + 1)
        pair = np.where(y <= most[:, None], (forward + backward)[:, 1:], np.inf)
        entries = np.stack([pair, forward[:, 1:], backward[:, 1:]])
        out = np.full((2, n, n + 1), np.inf)
        blocks = np.stack([_cheapest(entries[:, self.at[a] : self.at[a + 1]].reshape(3, 1, -1), b)[:, 0]
                           for a in range(n)], axis=1)  # fmt: skip
        queue, starts = np.full((3, n, b), np.inf), np.arange(n)
        for more in range(n):
            starts = starts[: n - more]
            queue = _cheapest(np.concatenate([queue[:, : n - more], blocks[:, more:]], axis=2), b)
            full = np.isfinite(queue[0]).all(axis=1)
            for row in (0, 1):
                out[row, starts, starts + more + 1] = np.where(full, queue[row + 1].max(axis=1), np.inf)
        return out

    def sync(self, weights: FloatArray, a: int, b: IntArray | int) -> FloatArray:
        """T_a of groups [a, b) of places with ``weights`` bytes, seconds."""
        k = np.maximum(self.at[b] - self.at[a], 1)
        slow = np.where(k > 1, np.minimum(self.least_up[a, b], self.least_down[a, b]), np.inf)
        out: FloatArray = 2.0 * (k - 1) / k * weights / slow
        return out

    def hop(self, size: FloatArray, a: int, b: IntArray | int, end: IntArray | int) -> tuple[FloatArray, FloatArray]:
        """Communication of ``size`` bytes from group [a, b) to group [b, end) and back, seconds."""
        late = self.latest[a, b] + self.latest[b, end]
        there = size / np.minimum(self.least_up[a, b], self.least_down[b, end]) + late
        back = size / np.minimum(self.least_up[b, end], self.least_down[a, b]) + late
        return there, back

    def extend(self, left: int) -> float:
        """Fill the tables for ``left`` stages; the round of all layers on all devices in so many, or inf."""
        n, layers, weights = self.places, self.layers, np.concatenate([[0.0], np.cumsum(self.profile.weight_bytes)])
        judged = np.stack([self.judged(*which, left) for which in self.kinds], axis=1)  # [2, kind, first, end]
        shape = (layers + 1, n)
        latency, high, low = np.full(shape, np.inf), np.full(shape, np.inf), np.full(shape, np.inf)
        rest, start = np.zeros(shape, np.int64), np.full(shape, n)
        taken = np.arange(1, layers + 1)  # layers left, head included
        head = layers - taken
        for a in range(n):
            if left == 1:
                forward, backward = judged[:, self.kind[head, layers], a, n]
                high[1:, a] = self.m * (forward + backward)
                low[1:, a] = self.sync(weights[layers] - weights[head], a, n)
                latency[1:, a] = high[1:, a] + low[1:, a]
            elif a < n - 1:
                b, tail = np.arange(a + 1, n), np.arange(1, layers)
                end = layers - tail  # where the head stage ends
                kind = np.where(head[:, None] < end[None, :], self.kind[head[:, None], end[None, :]], -1)
                forward, backward = judged[:, kind[:, :, None], a, b]
                forward = np.where(kind[:, :, None] >= 0, forward, np.inf)
                sync = self.sync((weights[end] - weights[head[:, None]])[:, :, None], a, b)
                size = self.profile.samples * self.profile.output_bytes[end - 1]
                there, back = self.hop(size[:, None], a, b, self.next_end(left - 1, tail, b))
                up, down = (table[tail[:, None], b] for table in self.maxima[-1])
                up, down = np.maximum(self.m * (there + back), there + back + up), np.maximum(0.0, down - back)
                both = forward + backward
                first = np.maximum(self.m * both, both + up[None])
                second = np.maximum(sync, down[None] - np.where(np.isfinite(backward), backward, 0.0))
                total = (first + second).reshape(layers, -1)
                at, rows = np.argmin(total, axis=1), np.arange(layers)
                latency[1:, a], high[1:, a] = total[rows, at], first.reshape(layers, -1)[rows, at]
                low[1:, a] = second.reshape(layers, -1)[rows, at]
                rest[1:, a], start[1:, a] = tail[at // len(b)], b[at % len(b)]
        self.latency.append(latency)
        self.maxima.append((high, low))
        self.next.append((rest, start))
        return float(latency[layers, 0])

    def next_end(self, left: int, tail: IntArray, b: IntArray) -> IntArray:
        """Where the head group of the best tail ends, int64[tail, b]."""
        return self.next[left - 1][1][tail[:, None], b]

    def plan(self, stages: int) -> AsteroidPlan:
        left_layers, a, parts = self.layers, 0, []
        for left in range(stages, 0, -1):
            rest, b = (int(table[left_layers, a]) for table in self.next[left - 1])
            parts.append((self.layers - left_layers, self.layers - rest, a, b, left))
            left_layers, a = rest, b
        samples, steps = [], []
        for i, (first, end, a, b, left) in enumerate(parts):
            group = slice(self.at[a], self.at[b])
            forward, backward = (x[group] for x in self.times(first, end))
            given = allocate(forward + backward, self.most(first, end, left)[group], self.profile.samples)
            samples.append(tuple(given.tolist()))
            ids, weights = np.arange(len(given)), self.profile.weight_bytes[first:end].sum()
            steps.append((forward[ids, given].max(), backward[ids, given].max(), float(self.sync(weights, a, b))))
            if left > 1:
                size = self.profile.samples * self.profile.output_bytes[end - 1]
                steps.append((*self.hop(size, a, b, parts[i + 1][3]), 0.0))
        forward, backward, sync = np.array(steps, np.float64).T
        return AsteroidPlan(
            round_latency(forward, backward, sync, self.m), self.m,
            groups=tuple(tuple(self.order[self.at[a] : self.at[b]].tolist()) for _, _, a, b, _ in parts),
            layers=tuple((first, end) for first, end, *_ in parts), samples=tuple(samples),
            warm_up=tuple(2 * left - 1 for *_, left in parts),
            forward_s=forward, backward_s=backward, sync_s=sync,
            restricted=len(self.order) > self.places,
        )  # fmt: skip


def _cheapest(entries: FloatArray, count: int) -> FloatArray:
    """The ``count`` columns with the smallest first row, float64[3, n, count], filled up with inf."""
    if entries.shape[2] < count:
        fill = np.full((*entries.shape[:2], count - entries.shape[2]), np.inf)
        entries = np.concatenate([entries, fill], axis=2)
    chosen = np.argsort(entries[0], axis=1, kind="stable")[:, :count]
    return np.take_along_axis(entries, chosen[None], axis=2)
