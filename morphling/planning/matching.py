"""Pairs and routes: bottleneck matchings between two groups of devices, and the cheapest open path through groups.

Both are the inner problems of DT-FM's planner.  Which costs go in is decided by the planners.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from morphling.types import BoolArray, FloatArray, IntArray

__all__ = ["EXACT_ROUTE", "bottleneck_matching", "bottleneck_value", "cheapest_path"]

EXACT_ROUTE = 12
"""Most groups whose cheapest path is found exactly, if the caller does not say otherwise (2^P P cells are filled)."""


def bottleneck_value(cost: FloatArray) -> float:
    """The smallest c such that a perfect matching uses only entries <= c; ``cost`` is float64[g, g], finite.

    The same number as deleting the heaviest entries until no perfect matching is left (DT-FM, section 3.2 of the
    paper, arXiv 2206.01288), found by a binary search over the distinct entries.
    """
    return _matched(cost)[0]


def bottleneck_matching(cost: FloatArray) -> tuple[float, IntArray]:
    """`bottleneck_value` and one perfect matching that reaches it: int64[g], column of each row."""
    value, columns = _matched(cost)
    return value, np.array(columns, np.int64)


def _matched(cost: FloatArray) -> tuple[float, list[int]]:
    if cost.ndim != 2 or cost.shape[0] != cost.shape[1] or not cost.size:
        raise ValueError(f"a matching needs a square matrix, not one of shape {cost.shape}")
    if not np.isfinite(cost).all():
        raise ValueError("the costs of a matching must be finite")
    # No matching is below the cheapest entry of a row or a column; most matrices of a few regions end right there.
    low = float(max(cost.min(axis=1).max(), cost.min(axis=0).max()))
    columns = _extended(cost, low, [-1] * len(cost))
    if -1 not in columns:
        return low, columns
    levels = np.unique(cost[cost > low]).tolist()
    first, last, best = 0, len(levels), columns
    while first < last:  # levels[last] is enough, below levels[first] is not; what was matched there is a start
        middle = (first + last) // 2
        found = _extended(cost, levels[middle], columns)
        if -1 in found:
            first, columns = middle + 1, found
        else:
            last, best = middle, found
    return float(levels[last]), best


def _extended(cost: FloatArray, limit: float, columns: list[int]) -> list[int]:
    """Column of each row in a largest matching on entries <= limit, grown from ``columns`` (-1 = none).

    Stops at the first row that no augmenting path can serve, as only perfect matchings are asked for.
    """
    size, allowed = len(cost), _bits(cost <= limit)
    column_of, row_of, free = list(columns), [-1] * size, (1 << size) - 1
    for row, column in enumerate(column_of):
        if column >= 0:
            row_of[column] = row
            free &= ~(1 << column)
    for row in range(size):
        if column_of[row] >= 0:
            continue
        parent, unseen, frontier, end = [-1] * size, (1 << size) - 1, [row], -1
        while frontier and end < 0:
            here = frontier.pop()
            reach = allowed[here] & unseen
            unseen &= ~reach
            if reach & free:
                end = _lowest(reach & free)
                parent[end] = here
            while reach and end < 0:
                column = _lowest(reach)
                reach &= reach - 1
                parent[column] = here
                frontier.append(row_of[column])
        if end < 0:
            return column_of
        free &= ~(1 << end)
        while end >= 0:  # turn the path round, back to the row that had no column
            here = parent[end]
            row_of[end], column_of[here], end = here, end, column_of[here]
    return column_of


def _bits(allowed: BoolArray) -> list[int]:
    """Each row as a whole number, column c as bit c."""
    packed = np.packbits(allowed, axis=1, bitorder="little")
    if packed.shape[1] <= 8:  # one machine word
        words = np.zeros((len(allowed), 8), np.uint8)
        words[:, : packed.shape[1]] = packed
        return words.view("<u8")[:, 0].tolist()  # type: ignore[no-any-return] # of a one-dimensional array
    return [int.from_bytes(row.tobytes(), "little") for row in packed]


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def cheapest_path(cost: FloatArray, exact: int = EXACT_ROUTE) -> tuple[float, IntArray, bool]:
    """The order of P groups with the least sum of costs between neighbours; ``cost`` is float64[P, P], symmetric.

    Returns the sum, the order (int64[P]) and whether it is proven the best.  Up to ``exact`` groups by Held and Karp's
    dynamic program over subsets (as DT-FM, all starts); beyond that nearest neighbours from every start, improved by
    reversing and moving parts until nothing gains (ours: the publication has no rule for many groups).
    """
    size = len(cost)
    if cost.shape != (size, size) or not size:
        raise ValueError(f"a route needs a square matrix, not one of shape {cost.shape}")
    if size == 1:
        return 0.0, np.zeros(1, np.int64), True
    if size <= exact:
        return *_held_karp(cost), True
    return *_local_path(cost), False


def _subsets(size: int) -> Iterator[tuple[int, IntArray]]:
    """(last group, subsets that hold it) in growing size of the subset, from two groups up."""
    subsets = np.arange(1 << size)
    counts = np.bitwise_count(subsets)
    for count in range(2, size + 1):
        of_size = subsets[counts == count]
        for last in range(size):
            yield last, of_size[(of_size >> last) & 1 == 1]


@lru_cache(maxsize=8)
def _kept_subsets(size: int) -> tuple[tuple[int, IntArray], ...]:
    return tuple(_subsets(size))


def _held_karp(cost: FloatArray) -> tuple[float, IntArray]:
    size = len(cost)
    best = np.full((1 << size, size), np.inf)  # cheapest path through a subset that ends in a group
    best[1 << np.arange(size), np.arange(size)] = 0.0
    for last, subsets in _kept_subsets(size) if size <= EXACT_ROUTE else _subsets(size):
        best[subsets, last] = (best[subsets ^ (1 << last)] + cost[:, last]).min(axis=1)
    subset = (1 << size) - 1
    order = [int(np.argmin(best[subset]))]
    total = float(best[subset, order[0]])
    while len(order) < size:
        subset ^= 1 << order[-1]
        order.append(int(np.argmin(best[subset] + cost[:, order[-1]])))
    return total, np.array(order[::-1], np.int64)


def _length(cost: FloatArray, order: IntArray) -> float:
    return float(cost[order[:-1], order[1:]].sum())


def _local_path(cost: FloatArray) -> tuple[float, IntArray]:
    starts = [_nearest(cost, start) for start in range(len(cost))]
    lengths = [_length(cost, order) for order in starts]
    # The three best starts: more of them seldom help, and a planner asks for many routes.
    chosen = np.argsort(lengths, kind="stable")[:3].tolist()
    improved = [_improved(cost, starts[i]) for i in chosen]
    order = min(improved, key=lambda found: _length(cost, found))
    return _length(cost, order), order


def _nearest(cost: FloatArray, start: int) -> IntArray:
    order, left = [start], cost.copy()
    for _ in range(len(cost) - 1):
        left[:, order[-1]] = np.inf
        order.append(int(np.argmin(left[order[-1]])))
    return np.array(order, np.int64)


def _improved(cost: FloatArray, order: IntArray) -> IntArray:
    """Reverse a part, or move one group elsewhere, as long as the path gets shorter by more than rounding."""
    size = len(order)
    tiny = 1e-12 * max(1.0, float(np.abs(cost[np.isfinite(cost)]).max()))
    while True:
        # Two ends of nothing stand outside, at cost 0, so that a part at an end is a part like any other.
        wide = np.zeros((size + 2, size + 2))
        wide[1:-1, 1:-1] = cost[np.ix_(order, order)]
        steps = np.diagonal(wide, 1)
        before, after = wide[:-2, 1:-1], wide[1:-1, 2:]
        gain = steps[:-1, None] + steps[None, 1:] - before - after  # of reversing order[i:j+1]
        gain = np.triu(gain, 1)
        i, j = np.unravel_index(int(np.argmax(gain)), gain.shape)
        if gain[i, j] > tiny:
            order = np.concatenate([order[:i], order[i : j + 1][::-1], order[j + 1 :]])
            continue
        # Taking group i out and putting it between p and p + 1.
        out = steps[:-1] + steps[1:] - np.diagonal(wide, 2)
        put = wide[:-1, 1:-1].T + wide[1:, 1:-1].T - steps[None, :]  # [group, gap]
        gain = out[:, None] - put
        gain[np.arange(size), np.arange(size)] = gain[np.arange(size), np.arange(1, size + 1)] = -np.inf
        i, p = np.unravel_index(int(np.argmax(gain)), gain.shape)
        if gain[i, p] <= tiny:
            return order
        order = np.insert(np.delete(order, i), p - (p > i), order[i])
