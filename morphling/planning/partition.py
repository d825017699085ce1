"""Contiguous partitions of L layers over P stages in order: the best bottleneck, the best makespan.

Exact dynamic programmes over given costs; where the costs are from is the caller's business.  Every stage gets at
least one layer; who wants fewer stages asks with fewer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from morphling.errors import Infeasible
from morphling.types import FloatArray, IntArray
from morphling.units import format_bytes

__all__ = ["Partition", "even_partition", "makespan_partition", "min_max_partition"]


@dataclass(frozen=True, eq=False)
class Partition:
    """Stage p has layers ``bounds[p]`` to ``bounds[p + 1] - 1``.

    bounds : int64[P+1], from 0 to L;  value_s : what was minimised, seconds
    stage_s : float64[P], time of each stage;  transfer_s : float64[P-1], of each link between stages
    """

    bounds: IntArray
    value_s: float
    stage_s: FloatArray
    transfer_s: FloatArray

    @property
    def layers(self) -> IntArray:
        """int64[P], layers of each stage."""
        return self.bounds[1:] - self.bounds[:-1]

    @property
    def bottleneck_s(self) -> float:
        """The longest stage or link, seconds."""
        return float(max(self.stage_s.max(), self.transfer_s.max(initial=0.0)))


def even_partition(layers: int, stages: int) -> IntArray:
    """int64[P+1]: bounds of stages whose numbers of layers differ by at most one.  ``Infeasible`` if L < P."""
    _check_counts(layers, stages)
    return np.array([layers * p // stages for p in range(stages + 1)], np.int64)


def min_max_partition(
    time_s: ArrayLike,
    *,
    transfer_s: ArrayLike = 0.0,
    memory_bytes: ArrayLike = 0,
    capacity_bytes: ArrayLike | None = None,
) -> Partition:
    """The partition with the shortest bottleneck: min over cuts of max(stages' times, links' times).

    time_s : float64[P, L], time of layer l on stage p (of all that a micro-batch does there); or float64[P, L+1, L+1],
        entry [p, i, j] the time of layers i to j-1 together, where times do not add up (inf: impossible)
    transfer_s : scalar, [P-1], or [P-1, L-1]: time of the link from stage p to p + 1 if it carries the output of layer
        l; links work beside the stages, so their times are alternatives under the max
    memory_bytes : bytes on stage p, by layer or by span as ``time_s``;  capacity_bytes : int[P], what each stage has

    Raises ``Infeasible``, with the stage, what it needs and what it has, if no partition fits; ``ValueError`` on wrong
    shapes.
    Source: the partition of Confidant and FTPipeHD (qyy2003/FTPipeHD), dp[j][p] = min_i max(dp[i][p-1], link, stage).
    """
    cost, link = _costs(time_s, transfer_s, memory_bytes, capacity_bytes)
    return _solved(cost, link, np.maximum, 0)


def makespan_partition(
    time_s: ArrayLike,
    micro_batches: int,
    *,
    transfer_s: ArrayLike = 0.0,
    memory_bytes: ArrayLike = 0,
    capacity_bytes: ArrayLike | None = None,
) -> Partition:
    """The partition with the shortest pipeline: Σ t + (M - 1)·max t over stages, and links where they take time.

    Arguments as for `min_max_partition`.  For each bound on the longest step the smallest sum is a dynamic programme;
    the bounds are gone through from above, each time to the next one that changes anything, which is exact.
    Source: Zheng et al. 2022 (Alpa), section 5, there from below over all distinct times.
    """
    if micro_batches < 1:
        raise ValueError(f"micro_batches: at least 1 is needed, not {micro_batches}")
    cost, link = _costs(time_s, transfer_s, memory_bytes, capacity_bytes)
    least = _solved(cost, link, np.maximum, 0).value_s
    best: Partition | None = None
    bound = np.inf
    while bound > least:
        allowed, open_link = np.where(cost < bound, cost, np.inf), np.where(link < bound, link, np.inf)
        found = _solved(allowed, open_link, np.add, micro_batches - 1)
        if best is None or found.value_s < best.value_s:
            best = found
        bound = found.bottleneck_s
        if found.value_s - (micro_batches - 1) * (bound - least) >= best.value_s:
            break  # sums only grow from here on, and no step gets shorter than the least bottleneck
    assert best is not None  # noqa: S101 - the first bound is infinite
    return best


def _solved(cost: FloatArray, link: FloatArray, joined: Any, weight: int) -> Partition:
    """Minimise the steps joined by ``max`` or ``+``, stage after stage; value + ``weight`` · longest step is told."""
    P, n = cost.shape[0], cost.shape[1]
    best = cost[0, 0]
    choice = np.zeros((P, n), np.int64)
    for p in range(1, P):
        values = joined(joined(best, link[p - 1])[:, None], cost[p])
        choice[p] = values.argmin(axis=0)
        best = values[choice[p], np.arange(n)]
    if not np.isfinite(best[-1]):
        raise Infeasible("no partition has a finite time")
    bounds = np.zeros(P + 1, np.int64)
    bounds[P] = n - 1
    for p in range(P - 1, 0, -1):
        bounds[p] = choice[p, bounds[p + 1]]
    stage = cost[np.arange(P), bounds[:-1], bounds[1:]]
    transfer = link[np.arange(P - 1), bounds[1:-1]]
    longest = float(max(stage.max(), transfer.max(initial=0.0)))
    return Partition(bounds, float(best[-1]) + weight * longest, stage, transfer)


def _costs(
    time_s: ArrayLike, transfer_s: ArrayLike, memory_bytes: ArrayLike, capacity_bytes: ArrayLike | None
) -> tuple[FloatArray, FloatArray]:
    """[P, L+1, L+1] seconds of spans, infinite where a span is empty or does not fit; [P-1, L+1] of links by cut."""
    time = _spans("time_s", np.asarray(time_s, np.float64))
    P, n = time.shape[:2]
    layers = n - 1
    _check_counts(layers, P)
    links = np.asarray(transfer_s, np.float64)
    if links.shape not in {(), (P - 1,), (P - 1, layers - 1)} or not (links >= 0).all():
        raise ValueError(
            f"transfer_s: seconds from 0 on, one number, {P - 1}, or {P - 1} x {layers - 1}, not shape {links.shape}"
        )
    link = np.full((P - 1, n), np.inf)
    link[:, 1:-1] = links if links.ndim != 1 else links[:, None]
    i = np.arange(n)
    cost = np.where(i[:, None] < i, time, np.inf)
    if capacity_bytes is not None:
        capacity = np.asarray(capacity_bytes)
        if capacity.shape != (P,):
            raise ValueError(f"capacity_bytes: one for each of {P} stages, not shape {capacity.shape}")
        needed = _memory(np.asarray(memory_bytes), P, layers)
        _check_memory(needed, capacity, layers)
        cost = np.where(needed <= capacity[:, None, None], cost, np.inf)
    return cost, link


def _memory(memory: NDArray[Any], stages: int, layers: int) -> NDArray[Any]:
    if memory.ndim < 2:
        memory = np.broadcast_to(memory, (stages, layers))
    spans = _spans("memory_bytes", memory)
    if spans.shape != (stages, layers + 1, layers + 1):
        raise ValueError(f"memory_bytes: {stages} stages of {layers} layers are needed, not shape {memory.shape}")
    return spans


def _spans(name: str, by_layer: NDArray[Any]) -> NDArray[Any]:
    """[P, L+1, L+1] sums over spans of layers, if they are not given as such."""
    square = by_layer.ndim == 3 and by_layer.shape[1] == by_layer.shape[2]
    if (by_layer.ndim != 2 and not square) or not by_layer.size:
        raise ValueError(f"{name}: stages x layers, or stages x cuts x cuts, are needed, not shape {by_layer.shape}")
    if not (by_layer >= 0).all() or (not square and not np.isfinite(by_layer).all()):
        raise ValueError(f"{name}: numbers from 0 on are needed")
    if square:
        return by_layer
    zero = np.zeros((len(by_layer), 1), by_layer.dtype)
    ends = np.concatenate([zero, np.cumsum(by_layer, axis=1)], axis=1)
    sums: NDArray[Any] = ends[:, None, :] - ends[:, :, None]
    return sums


def _check_counts(layers: int, stages: int) -> None:
    if stages < 1 or layers < 1:
        raise ValueError(f"at least one layer and one stage are needed, not {layers} and {stages}")
    if layers < stages:
        raise Infeasible(f"{layers} layers cannot fill {stages} stages; at most {layers} stages have a layer each")


def _check_memory(needed: NDArray[Any], capacity: NDArray[Any], layers: int) -> None:
    """Go through the stages with every cut that memory allows; say where there is none left."""
    P = len(capacity)
    i = np.arange(layers + 1)
    cuts = np.array([0])
    for p in range(P):
        fits = (needed[p] <= capacity[p]) & (i[:, None] < i)
        room = i <= layers - (P - 1 - p)  # a layer for each stage that follows
        if p == P - 1:
            room = i == layers
        reached = np.flatnonzero(fits[cuts].any(axis=0) & room)
        if not len(reached):
            _refuse(needed, capacity, p, cuts, layers)
        cuts = reached


def _refuse(needed: NDArray[Any], capacity: NDArray[Any], p: int, cuts: IntArray, layers: int) -> NoReturn:
    """Name the stage at which no cut is left, and the least that it would have to hold."""
    stops = np.full(len(cuts), layers) if p == len(capacity) - 1 else cuts + 1
    least = int(np.argmin(needed[p, cuts, stops]))
    start, stop = int(cuts[least]), int(stops[least])
    what = f"layer {start}" if stop == start + 1 else f"layers {start} to {stop - 1}"
    before = f", with all that the stages before it can hold, layers 0 to {start - 1}" if start else ""
    raise Infeasible(
        f"stage {p} of {len(capacity)} has {format_bytes(float(capacity[p]))}, needed"
        f" {format_bytes(float(needed[p, start, stop]))} for {what}{before}"
    )
