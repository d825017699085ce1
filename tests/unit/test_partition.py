"""Partitions beside brute force over all compositions, by hand, and what is refused."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

from morphling.errors import Infeasible
from morphling.planning.partition import even_partition, makespan_partition, min_max_partition


def compositions(layers, stages):
    """All ways to cut, as bounds."""
    for cuts in combinations(range(1, layers), stages - 1):
        yield [0, *cuts, layers]


def steps(bounds, time, link):
    """Times of stages and of links under a partition, summed layer by layer."""
    stages = [sum(time[p][bounds[p] : bounds[p + 1]]) for p in range(len(time))]
    return stages, [link[p][bounds[p + 1] - 1] for p in range(len(time) - 1)]


def brute_force(time, link, memory, capacity, value):
    """The smallest value over all partitions that fit; None if none does."""
    best = None
    for bounds in compositions(len(time[0]), len(time)):
        held = [sum(memory[p][bounds[p] : bounds[p + 1]]) for p in range(len(time))]
        if all(h <= c for h, c in zip(held, capacity, strict=True)):
            found = value(*steps(bounds, time, link))
            best = found if best is None else min(best, found)
    return best


@pytest.mark.parametrize("seed", range(60))
def test_both_equal_brute_force(seed):
    r = np.random.default_rng(seed)
    P = int(r.integers(1, 5))
    L = int(r.integers(P, 9))
    M = int(r.integers(1, 20))
    whole = seed % 2  # ties, and no ties
    time = r.integers(1, 6, (P, L)) if whole else r.uniform(0.1, 5, (P, L))
    link = r.integers(0, 6, (P - 1, L - 1)) if whole else r.uniform(0, 5, (P - 1, L - 1))
    memory = r.integers(1, 5, (P, L))
    capacity = r.integers(3, 4 + 4 * L // P, P)
    more = {"transfer_s": link, "memory_bytes": memory, "capacity_bytes": capacity}
    shown = [x.tolist() for x in (time, link, memory, capacity)]

    def makespan(stages, links):
        return sum(stages) + sum(links) + (M - 1) * max([*stages, *links])

    for find, value in (
        (lambda: min_max_partition(time, **more), lambda stages, links: max([*stages, *links])),
        (lambda: makespan_partition(time, M, **more), makespan),
    ):
        expected = brute_force(*shown, value)
        if expected is None:
            with pytest.raises(Infeasible, match=r"stage \d of \d has .* B, needed .* B"):
                find()
            continue
        found = find()
        assert found.value_s == pytest.approx(expected)
        stages, links = steps(found.bounds.tolist(), shown[0], shown[1])
        assert value(stages, links) == pytest.approx(expected)
        assert (found.stage_s, found.transfer_s) == (pytest.approx(stages), pytest.approx(links))
        assert found.bottleneck_s == pytest.approx(max([*stages, *links]))
        held = [memory[p, a:b].sum() for p, (a, b) in enumerate(zip(found.bounds, found.bounds[1:], strict=False))]
        assert (np.array(held) <= capacity).all()


@pytest.mark.parametrize("seed", range(10))
def test_spans_whose_times_do_not_add_up(seed):
    r = np.random.default_rng(seed)
    P, L = 3, 6
    spans = r.uniform(1, 9, (P, L + 1, L + 1))
    values = [max(spans[p, b[p], b[p + 1]] for p in range(P)) for b in compositions(L, P)]
    assert min_max_partition(spans).value_s == pytest.approx(min(values))
    sums = [sum(x := [spans[p, b[p], b[p + 1]] for p in range(P)]) + 7 * max(x) for b in compositions(L, P)]
    assert makespan_partition(spans, 8).value_s == pytest.approx(min(sums))


@pytest.mark.parametrize(("layers", "stages"), [(30, 4), (30, 1), (30, 30), (7, 3), (40, 12)])
def test_no_layer_is_lost_or_doubled(layers, stages):
    time = np.ones((stages, layers))
    for bounds in (
        even_partition(layers, stages),
        min_max_partition(time).bounds,
        makespan_partition(time, 8).bounds,
    ):
        assert (bounds[0], bounds[-1], len(bounds)) == (0, layers, stages + 1)
        held = [layer for a, b in pairwise(bounds) for layer in range(a, b)]
        assert held == list(range(layers))
        assert (bounds[1:] - bounds[:-1]).max() == -(-layers // stages)
    assert even_partition(30, 4).tolist() == [0, 7, 15, 22, 30]


def test_by_hand():
    # Speeds 1, 2, 1: six equal layers go 1-2, 3-4 … the middle stage takes twice as many.
    found = min_max_partition(np.outer([1.0, 0.5, 1.0], np.ones(8)))
    assert (found.layers.tolist(), found.value_s) == ([2, 4, 2], 2.0)
    # Even halves would cost 9 on the link; after layer 0 it is 4, after layer 2 the link is shorter than 3 layers.
    dear = min_max_partition(np.ones((2, 4)), transfer_s=[[4, 9, 1]])
    assert (dear.bounds.tolist(), dear.value_s, dear.transfer_s.tolist()) == ([0, 3, 4], 3.0, [1.0])
    # One slow layer of 6: the sum is the same wherever is cut, so the shortest bottleneck wins: 6 + 4, (M-1)·6.
    slow = makespan_partition(np.tile([1, 1, 6, 1, 1.0], (3, 1)), 5)
    assert (slow.bounds.tolist(), slow.value_s) == ([0, 2, 3, 5], 10 + 4 * 6)
    # A device that is slower in all it does gets little when M is large, and less when the sum counts.
    speeds = np.outer([1.0, 3.0], np.ones(10))
    assert makespan_partition(speeds, 1).layers.tolist() == [9, 1]
    assert makespan_partition(speeds, 1000).layers.tolist() == [8, 2]  # 8 s against 9 s
    # Stage 1 cannot hold more than two layers.
    tight = min_max_partition(np.ones((2, 6)), memory_bytes=10, capacity_bytes=[1000, 25])
    assert (tight.bounds.tolist(), tight.value_s) == ([0, 4, 6], 4.0)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: even_partition(3, 4), Infeasible, "3 layers cannot fill 4 stages"),
        (lambda: min_max_partition(np.ones((31, 30))), Infeasible, "30 layers cannot fill 31 stages"),
        (
            lambda: min_max_partition(np.ones((2, 4)), memory_bytes=[1, 1, 9, 1], capacity_bytes=[5, 5]),
            Infeasible,
            "stage 1 of 2 has 5 B, needed 10 B for layers 2 to 3, with all .* layers 0 to 1$",
        ),
        (
            lambda: makespan_partition(np.ones((2, 4)), 2, memory_bytes=[9, 1, 1, 1], capacity_bytes=[5, 50]),
            Infeasible,
            "stage 0 of 2 has 5 B, needed 9 B for layer 0$",
        ),
        (
            lambda: min_max_partition(np.ones((1, 4)), memory_bytes=10**9, capacity_bytes=[3 * 10**9]),
            Infeasible,
            "stage 0 of 1 has 3 GB, needed 4 GB for layers 0 to 3$",
        ),
        (lambda: min_max_partition(np.full((2, 3, 3), np.inf)), Infeasible, "finite time"),
        (lambda: min_max_partition([1.0, 2.0]), ValueError, "time_s: stages x layers"),
        (lambda: min_max_partition([[1.0, -2.0]]), ValueError, "time_s: numbers from 0 on"),
        (lambda: min_max_partition([[1.0, np.nan]]), ValueError, "time_s: numbers from 0 on"),
        (lambda: min_max_partition(np.ones((2, 3)), transfer_s=[1, 2]), ValueError, "transfer_s: .* 1, or 1 x 2"),
        (
            lambda: min_max_partition(np.ones((2, 3)), capacity_bytes=[1]),
            ValueError,
            "capacity_bytes: one for each of 2",
        ),
        (
            lambda: min_max_partition(np.ones((2, 3)), memory_bytes=np.ones((2, 4)), capacity_bytes=[1, 1]),
            ValueError,
            "memory_bytes: 2 stages of 3 layers",
        ),
        (lambda: makespan_partition(np.ones((2, 3)), 0), ValueError, "micro_batches"),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()
