"""How long a pipeline schedule takes: an exact replay with links, and a closed form."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from morphling.planning.schedules import Schedule
from morphling.types import BoolArray, FloatArray, Phase

__all__ = ["Duplex", "Timing", "dominant_step_s", "per_chunk", "round_s", "simulate"]

Duplex: TypeAlias = Literal["full", "half", "uplink"]
"""What takes one transfer at a time, first come first served: each direction between two stages, both directions
together, or all that a stage sends (one uplink to two neighbours)."""

F, B, W = Phase.FORWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT


@dataclass(frozen=True, eq=False)
class Timing:
    """When each pass ran; columns in the order of the schedule's, in the unit of the given times.

    start, end : [n], whole numbers if all given times are;  makespan : the latest end
    busy : float64[P], time that each stage computes
    """

    start: NDArray[Any]
    end: NDArray[Any]
    makespan: float
    busy: FloatArray

    @property
    def bubble(self) -> FloatArray:
        """float64[P], time in which each stage does not compute."""
        return self.makespan - self.busy

    @property
    def bubble_ratio(self) -> float:
        """The share of all stages' time that is bubble."""
        return float(self.bubble.sum() / (self.makespan * len(self.busy))) if self.makespan else 0.0


def per_chunk(name: str, value: ArrayLike, schedule: Schedule) -> NDArray[Any]:
    """[P, v] of a scalar or [P] (whole stages, divided evenly over their chunks), or of [P, v] as it is.

    Raises ``ValueError`` on another shape and on values that are negative or not finite.
    """
    P, v = schedule.stages, schedule.chunks
    found = np.asarray(value)
    if found.shape not in {(), (P,), (P, v)}:
        raise ValueError(f"{name}: a number, or one for each of {P} stages, or {P} x {v}, not shape {found.shape}")
    if found.dtype.kind not in "iuf" or not (np.isfinite(found).all() and (found >= 0).all()):
        raise ValueError(f"{name}: finite numbers from 0 on are needed, found {value!r}")
    if found.ndim == 2:
        return found
    whole = np.broadcast_to(found[..., None], (P, v))
    return whole if v == 1 else whole / v


def simulate(
    schedule: Schedule,
    forward: ArrayLike,
    backward: ArrayLike,
    weight: ArrayLike = 0,
    *,
    transfer: ArrayLike = 0,
    transfer_back: ArrayLike | None = None,
    latency: ArrayLike = 0,
    duplex: Duplex = "full",
    free: ArrayLike = 0,
    uplink_free: ArrayLike = 0,
) -> Timing:
    """Replay a schedule: a stage runs its next pass when it is free and the pass's input has arrived.

    forward, backward, weight : time of one micro-batch on a stage, as `per_chunk` reads it.  ``backward`` is the whole
        backward pass unless the schedule splits it; ``weight`` is then the gradient of the weights
    transfer : time that one micro-batch occupies the link from stage p to p + 1, scalar or [P-1]; with chunks [P], the
        last from the last stage to the first.  Links are first-in-first-out, by the time at which the pass ended, and
        of those by the time at which it began
    transfer_back : the same for gradients from p + 1 to p; None: as ``transfer``
    latency : time from the last bit to its arrival, as ``transfer``, both ways; it occupies nothing, so that
        ``transfer=0`` with a latency is a link without limit of capacity
    duplex : `Duplex`
    free, uplink_free : before when a stage computes nothing, and before when it sends nothing, scalar or [P]

    Whole numbers stay whole: in nanoseconds the replay is exact.  Raises ``ValueError`` if the orders of the stages do
    not fit together.
    """
    if duplex not in get_args(Duplex):
        raise ValueError(f"duplex: {duplex!r} is none of {', '.join(get_args(Duplex))}")
    times = [per_chunk(n, x, schedule) for n, x in (("forward", forward), ("backward", backward), ("weight", weight))]
    if times[W].any() and not schedule.split:
        raise ValueError(f"weight: {schedule.name} does not split the backward pass; add it to backward")
    hops = [
        _hops(n, x, schedule)
        for n, x in (
            ("transfer", transfer),
            ("transfer_back", transfer if transfer_back is None else transfer_back),
            ("latency", latency),
        )
    ]
    at_first = [np.broadcast_to(np.asarray(x), schedule.stages).tolist() for x in (free, uplink_free)]
    start, end = _Replay(schedule, [t.tolist() for t in times], hops, duplex, at_first).run()
    cost = np.stack(np.broadcast_arrays(*times))[schedule.phase, schedule.stage, schedule.chunk]
    busy = np.bincount(schedule.stage, cost, minlength=schedule.stages).astype(np.float64)
    return Timing(np.array(start), np.array(end), max(end), busy)


def _hops(name: str, value: ArrayLike, schedule: Schedule) -> list[Any]:
    count = schedule.stages - 1 if schedule.chunks == 1 else schedule.stages
    found = np.asarray(value)
    if found.shape not in {(), (count,)}:
        raise ValueError(f"{name}: a number, or one for each of {count} links, not shape {found.shape}")
    if found.dtype.kind not in "iuf" or not (np.isfinite(found).all() and (found >= 0).all()):
        raise ValueError(f"{name}: finite numbers from 0 on are needed, found {value!r}")
    listed: list[Any] = np.broadcast_to(found, (count,)).tolist()
    return listed


class _Replay:
    """The state of one replay: what has arrived, which stage is free when, which link until when."""

    def __init__(
        self, schedule: Schedule, times: list[Any], hops: list[list[Any]], duplex: Duplex, at_first: list[list[Any]]
    ) -> None:
        self.schedule, self.times, self.duplex = schedule, times, duplex
        self.transfer, self.latency = hops[:2], hops[2]
        self.P = schedule.stages
        self.last = schedule.stages * schedule.chunks - 1
        self.passes = list(
            zip(schedule.phase.tolist(), schedule.micro_batch.tolist(), schedule.chunk.tolist(), strict=True)
        )
        self.next, self.stop = schedule.ptr[:-1].tolist(), schedule.ptr[1:].tolist()
        self.free, self.uplink_free = at_first
        self.idle = [True] * self.P
        self.until: dict[tuple[int, int], Any] = {}
        self.arrived: dict[tuple[int, int, int], Any] = {(F, 0, m): 0 for m in range(schedule.micro_batches)}
        self.start: list[Any] = [-1] * len(self.passes)
        self.end: list[Any] = [-1] * len(self.passes)
        self.heap: list[tuple[Any, Any, int, int, int]] = []
        self.pushed = 0

    def run(self) -> tuple[list[Any], list[Any]]:
        """Start and end of each pass."""
        for p in range(self.P):
            self.begin(p)
        while self.heap:
            now, _, _, p, i = heappop(self.heap)
            self.idle[p] = True
            self.send(p, i, now)
            self.begin(p)
        for p in range(self.P):
            if self.next[p] < self.stop[p]:
                x, m, c = self.passes[self.next[p]]
                raise ValueError(
                    f"{self.schedule.name}: stage {p} waits for ever for the input of pass {(x, m, c)}"
                    " (phase, micro-batch, chunk)"
                )
        return self.start, self.end

    def begin(self, p: int) -> None:
        """Start the next pass of a stage if the stage is free and the time of its input is known."""
        i = self.next[p]
        if not self.idle[p] or i == self.stop[p]:
            return
        x, m, c = self.passes[i]
        ready = 0 if x == W else self.arrived.get((x, c * self.P + p, m))
        if ready is None:
            return
        self.next[p] += 1
        self.idle[p] = False
        self.start[i] = max(self.free[p], ready)
        self.free[p] = self.end[i] = self.start[i] + self.times[x][p][c]
        heappush(self.heap, (self.end[i], self.start[i], self.pushed, p, i))
        self.pushed += 1

    def send(self, p: int, i: int, now: Any) -> None:
        """Hand on what a pass that ends now has made."""
        x, m, c = self.passes[i]
        q = c * self.P + p
        if x == W or (x == B and q == 0):
            return
        if x == F and q == self.last:
            self.arrived[B, q, m] = now
            return
        target = q + 1 if x == F else q - 1
        to = target % self.P
        if to == p:  # a pipeline of one stage
            self.arrived[x, target, m] = now
            return
        hop = p if x == F else to
        link = (p, to) if self.duplex == "full" else (min(p, to), max(p, to)) if self.duplex == "half" else (p, p)
        over = max(self.until.get(link, 0), self.uplink_free[p], now) + self.transfer[x][hop]
        self.until[link] = over
        self.arrived[x, target, m] = over + self.latency[hop]
        self.begin(to)


def dominant_step_s(
    forward: ArrayLike, backward: ArrayLike, micro_batches: int, synchronisation: ArrayLike = 0
) -> float:
    """Latency of one round by Asteroid's step model: max over steps of waiting + execution + synchronisation.

    forward, backward : float64[2P-1], time of one micro-batch in each step: stage 0, link 0, stage 1, …
    synchronisation : float64[2P-1], all-reduce of each step after the round (0 for links)

    The dominant step is the first that maximises M(E_f + E_b) plus all of E_f + E_b before it.  The published text
    allows the reading argmax(E_f + E_b), which contradicts a replay; it is not used.
    Source: Ye et al. 2024 (Asteroid, MobiCom), step model.
    """
    f, b, sync = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(x, np.float64)) for x in (forward, backward, synchronisation))
    )
    both = f + b
    before = np.concatenate([[0.0], np.cumsum(both)])
    dominant = int(np.argmax(micro_batches * both + before[:-1]))
    waiting = np.concatenate([[0.0], np.cumsum(f)[:-1]])
    execution = micro_batches * both[dominant] + before[dominant] - before[:-1]
    return float((waiting + execution + sync).max())


def round_s(
    forward: FloatArray,
    backward: FloatArray,
    uplink: FloatArray,
    downlink: FloatArray,
    latency: FloatArray,
    held: ArrayLike,
    schedule: Schedule,
) -> tuple[float, FloatArray]:
    """A round in closed form, and how long before its end each stage runs its last backward pass, float64[P]; seconds.

    forward, backward : float64[P, v], of a micro-batch on a chunk
    uplink, downlink, latency : float64[P], a stage's link for the bytes of one boundary, and one way to the backbone
    held : int[P], activations in flight (`schedules.in_flight`)

    One micro-batch goes there and back in R_0; M - 1 more follow at the pace of the slowest of: a stage's passes, what
    it sends (both ways through one uplink), what it receives, and, if K_p < M, R_p / K_p, because stage p has only K_p
    micro-batches on the way there and back through the stages behind it.  Where all forward passes come first (K_p = M
    everywhere) both directions have a pace of their own.  With v chunks, the first P micro-batches fill the pipeline at
    the pace of single chunks, and activations stay for (v + 1) / 2v of the way on average.  Equal to a replay of equal
    stages for GPipe, and near it for the others.
    """
    P, v = forward.shape
    M, depth = schedule.micro_batches, np.asarray(held) / v
    hop = np.maximum(uplink[:-1], downlink[1:]) + latency[:-1] + latency[1:]
    home = np.maximum(uplink[1:], downlink[:-1]) + latency[:-1] + latency[1:]
    wrap = np.zeros(2)
    if v > 1 and P > 1:
        wrap += latency[0] + latency[-1]
        wrap += max(uplink[-1], downlink[0]), max(uplink[0], downlink[-1])
    first, last = np.arange(P) == 0, np.arange(P) == P - 1
    there, back = forward.sum(axis=1), backward.sum(axis=1)
    ways = v * np.concatenate([hop + home, [0.0]])
    ways[-1] += (v - 1) * wrap.sum()
    path = (there + back + ways)[::-1].cumsum()[::-1]  # from each stage to the end and back

    def sends(at_ends: BoolArray) -> FloatArray:
        out: FloatArray = np.where(at_ends, v - 1.0, float(v)) if P > 1 else np.zeros(P)
        return out

    onward, homeward = sends(last), sends(first)
    paces_there = np.maximum(there, np.maximum(onward * uplink, homeward * downlink))
    paces_back = np.maximum(back, np.maximum(homeward * uplink, onward * downlink))
    both = np.maximum(there + back, (onward + homeward) * np.maximum(uplink, downlink))
    ahead = min(P, M) if v > 1 else 1
    fill = (ahead - 1) / v
    if v == 1 and (depth >= M).all():
        whole = path[0] + (M - 1) * (paces_there.max() + paces_back.max())
    else:
        stay = path * (v + 1) / (2 * v)  # of a chunk's activations, on average
        pace = max(both.max(), float(np.where(depth < M, stay / depth, 0.0).max()))
        whole = path[0] + (M - ahead) * pace + fill * (paces_there.max() + paces_back.max())
    turn = np.concatenate([[0.0], np.cumsum(backward[:-1, 0] + home)])
    return float(whole), turn
