"""Pipeline schedules: in which order each stage runs its forward and backward passes.

Orders only.  How long they take is in `morphling.planning.pipeline_times`, their rows in
`morphling.planning.pipeline_rows`.

P stages, M micro-batches, v chunks (model parts of a stage).  With chunks, the model runs through the virtual stages
q = chunk·P + stage in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from morphling.types import Int32Array, IntArray, Phase

__all__ = [
    "Pass",
    "Schedule",
    "early_warm_up",
    "gpipe",
    "in_flight",
    "interleaved",
    "naive",
    "one_f_one_b",
    "pipedream",
    "zero_bubble_h1",
]

F, B, W = Phase.FORWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT

Pass: TypeAlias = tuple[int, int, int]
"""(phase, micro-batch, chunk)."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """What each stage runs, in its order: entries ``ptr[p]:ptr[p+1]`` of the columns are those of stage p.

    phase : int8[n]    `Phase`: FORWARD, BACKWARD_INPUT (the whole backward pass where the schedule does not split it),
        BACKWARD_WEIGHT (only where it does)
    micro_batch, chunk : int32[n]
    flush : whether the weights are updated once, after all micro-batches; else after each (asynchronous)
    """

    name: str
    stages: int
    micro_batches: int
    chunks: int
    ptr: IntArray
    phase: NDArray[np.int8]
    micro_batch: Int32Array
    chunk: Int32Array
    flush: bool = True

    def __len__(self) -> int:
        return len(self.phase)

    @property
    def split(self) -> bool:
        """Whether gradients of the weights are passes of their own."""
        return bool((self.phase == W).any())

    @property
    def stage(self) -> Int32Array:
        """int32[n], the stage of each entry."""
        return np.repeat(np.arange(self.stages, dtype=np.int32), np.diff(self.ptr))

    @classmethod
    def of(
        cls, name: str, orders: Sequence[Sequence[Pass]], micro_batches: int, *, chunks: int = 1, flush: bool = True
    ) -> Schedule:
        """A schedule from the list of each stage.

        Raises ``ValueError`` unless every stage runs each micro-batch of each chunk exactly once in each phase, the
        backward pass after the forward pass and the weights' gradient after that.  Whether the stages' orders fit
        together shows when they are timed.
        """
        flat = np.array([x for order in orders for x in order], np.int64).reshape(-1, 3)
        ptr = np.cumsum([0, *(len(order) for order in orders)]).astype(np.int64)
        phases = [F, B, W] if (flat[:, 0] == W).any() else [F, B]
        wanted = {(int(x), m, c) for x in phases for m in range(micro_batches) for c in range(chunks)}
        for p, order in enumerate(orders):
            listed = [(int(x), int(m), int(c)) for x, m, c in order]
            place = {x: i for i, x in enumerate(listed)}
            if len(place) != len(listed) or set(place) != wanted:
                odd = set(place) ^ wanted or {x for x in place if listed.count(x) > 1}
                raise ValueError(f"{name}: stage {p}: pass {min(odd)} (phase, micro-batch, chunk) is not there once")
            for (x, m, c), i in place.items():
                if x > F and i < place[x - 1, m, c]:
                    raise ValueError(f"{name}: stage {p}: pass {(x, m, c)} comes before {(x - 1, m, c)}")
        columns = flat[:, 0].astype(np.int8), flat[:, 1].astype(np.int32), flat[:, 2].astype(np.int32)
        return cls(name, len(orders), micro_batches, chunks, ptr, *columns, flush=flush)


def in_flight(schedule: Schedule) -> IntArray:
    """int64[P]: the most activations that a stage holds at one time, in (micro-batch, chunk) units.

    Held from the start of the forward pass to the end of the backward pass (of the weights' gradient, where that is a
    pass of its own).  With v chunks a unit is one chunk, 1/v of the stage.  For an asynchronous schedule this is also
    the number of versions of the weights.
    """
    last = W if schedule.split else B
    change = np.where(schedule.phase == F, 1, np.where(schedule.phase == last, -1, 0))
    peaks = [np.cumsum(change[a:b]).max() for a, b in zip(schedule.ptr, schedule.ptr[1:], strict=False)]
    return np.array(peaks, np.int64)


def naive(stages: int, micro_batches: int) -> Schedule:
    """Model parallelism without a pipeline: a micro-batch goes forward and back before the next one starts."""
    _check(stages, micro_batches)
    order = [x for m in range(micro_batches) for x in ((F, m, 0), (B, m, 0))]
    return Schedule.of("naive", [order] * stages, micro_batches)


def gpipe(stages: int, micro_batches: int) -> Schedule:
    """All forward passes, then all backward passes.  Source: Huang et al. 2019 (GPipe)."""
    _check(stages, micro_batches)
    order = [(x, m, 0) for x in (F, B) for m in range(micro_batches)]
    return Schedule.of("gpipe", [order] * stages, micro_batches)


def early_warm_up(stages: int) -> IntArray:
    """int64[P]: K_p = 2(P - p) - 1, which hides a round trip over the links.

    Source: Ye et al. 2024 (Asteroid), as four public re-implementations agree.
    """
    return 2 * (stages - np.arange(stages)) - 1


def one_f_one_b(stages: int, micro_batches: int, warm_up: Callable[[int], int] | ArrayLike | None = None) -> Schedule:
    """1F1B with a flush: K_p forward passes, then one backward and one forward in turn, then the remaining backward.

    warm_up : int[P] or a function of p, K_p >= 1 (more than M counts as M); None is P - p

    Raises ``ValueError`` where a stage has a smaller K than the next one: it would wait for a gradient for ever.
    Sources: Narayanan et al. 2019 (PipeDream), 2021 (PipeDream-flush), Fan et al. 2021 (DAPPLE).
    """
    _check(stages, micro_batches)
    return Schedule.of("1f1b", _one_f_one_b(stages, micro_batches, warm_up), micro_batches)


def pipedream(stages: int, micro_batches: int, warm_up: Callable[[int], int] | ArrayLike | None = None) -> Schedule:
    """Asynchronous 1F1B: the order of `one_f_one_b` over a run of M mini-batches, weights updated after each.

    The bubble is that of the start and the end of the run.  Source: Narayanan et al. 2019 (PipeDream).
    """
    _check(stages, micro_batches)
    return Schedule.of("pipedream", _one_f_one_b(stages, micro_batches, warm_up), micro_batches, flush=False)


def interleaved(stages: int, micro_batches: int, chunks: int) -> Schedule:
    """Interleaved 1F1B: each stage has v >= 2 chunks of the model, M a multiple of P.

    2(P - p - 1) + (v - 1)P forward passes to warm up.  Source: Narayanan et al. 2021 (Megatron-LM), its code.
    """
    _check(stages, micro_batches)
    if chunks < 2:
        raise ValueError(f"interleaved: at least 2 chunks are needed, not {chunks}; with 1 this is 1f1b")
    if micro_batches % stages:
        below = micro_batches - micro_batches % stages
        near = f"{below} or {below + stages}" if below else f"{stages}"
        raise ValueError(
            f"interleaved: {micro_batches} micro-batches are no multiple of {stages} stages; nearest: {near}"
        )
    P, v, total = stages, chunks, micro_batches * chunks
    forward, backward = [], []
    for k in range(total):
        group, place = divmod(k, P * v)
        chunk, m = place // P, group * P + place % P
        forward.append((F, m, chunk))
        backward.append((B, m, v - 1 - chunk))
    orders = [_alternate(forward, backward, 2 * (P - p - 1) + (v - 1) * P + 1) for p in range(P)]
    return Schedule.of("interleaved", orders, micro_batches, chunks=v)


def zero_bubble_h1(stages: int, micro_batches: int) -> Schedule:
    """ZB-H1: the weights' gradients fill the bubble, with the memory of 1F1B's first stage on every stage.

    Stage p: P - p forward; (B, F) for the first p backward passes; (B, W, F); (B, W); the remaining W.
    Source: Qi et al. 2023 ("Zero Bubble Pipeline Parallelism").
    """
    _check(stages, micro_batches)
    M, orders = micro_batches, []
    for p in range(stages):
        warm = min(stages - p, M)
        order: list[Pass] = [(F, m, 0) for m in range(warm)]
        for m in range(M):
            order.append((B, m, 0))
            if m >= p:
                order.append((W, m - p, 0))
            if warm + m < M:
                order.append((F, warm + m, 0))
        order += [(W, m, 0) for m in range(max(M - p, 0), M)]
        orders.append(order)
    return Schedule.of("zb-h1", orders, M)


def _check(stages: int, micro_batches: int) -> None:
    for name, value in (("stages", stages), ("micro_batches", micro_batches)):
        if value < 1:
            raise ValueError(f"{name}: at least 1 is needed, not {value}")


def _one_f_one_b(stages: int, micro_batches: int, warm_up: Callable[[int], int] | ArrayLike | None) -> list[list[Pass]]:
    if callable(warm_up):
        warm_up = [warm_up(p) for p in range(stages)]
    depth = np.asarray(stages - np.arange(stages) if warm_up is None else warm_up)
    if depth.shape != (stages,) or depth.dtype.kind not in "iu" or depth.min() < 1:
        raise ValueError(f"warm_up: a whole number from 1 on is needed for each of {stages} stages, not {warm_up!r}")
    depth = np.minimum(depth, micro_batches)
    p = int(np.argmax(np.append(np.diff(depth), 1) > 0))
    if p < stages - 1:
        raise ValueError(
            f"warm_up: stage {p} starts with {depth[p]} forward passes and stage {p + 1} needs {depth[p + 1]} before it"
            " sends a gradient; the depth may not grow along the pipeline"
        )
    forward, backward = ([(x, m, 0) for m in range(micro_batches)] for x in (F, B))
    return [_alternate(forward, backward, k) for k in depth.tolist()]


def _alternate(forward: Sequence[Pass], backward: Sequence[Pass], depth: int) -> list[Pass]:
    """``depth`` forward passes, then backward and forward in turn, then the remaining backward passes."""
    depth = min(depth, len(forward))
    order = list(forward[:depth])
    for i, x in enumerate(backward):
        order.append(x)
        order += forward[depth + i : depth + i + 1]
    return order
