"""The engine against its slow twin where links are coupled: cells, transfers between devices, TCP."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.oracle.network import progressive_filling
from tests.oracle.twin import Twin
from tests.oracle.worlds import Erratic, FlopsAreNanoseconds, World
from tests.properties.test_engine_twin import engine, story, twin

WORLDS = [
    {"cells": True},
    {"peers": True},
    {"tcp": True},
    {"cells": True, "half_duplex": True},
    {"cells": True, "tcp": True, "half_duplex": True},
    {"cells": True, "peers": True, "tcp": True},
]


def named(kind):
    """The name of a kind of world."""
    return "-".join(kind)


def times(tale):
    """When rows were dispatched, and their seven times, ns."""
    return np.array([[*row[2:3], *row[4:11]] for row in tale["rows"]], float).reshape(-1, 8)


@pytest.mark.parametrize("seed", range(200))
def test_progressive_filling_is_max_min_fair(seed):
    """Nothing is overfull; every flow is at its limit, or passes a full resource where none has a higher rate."""
    r = random.Random(seed)
    capacity = {c: r.choice([0, r.randint(1, 100)]) for c in "abcdefg"[: r.randint(1, 7)]}
    paths = [r.sample(sorted(capacity), r.randint(1, min(4, len(capacity)))) for _ in range(r.randint(1, 9))]
    limits = [r.choice([None, r.randint(1, 40)]) for _ in paths]
    rates = progressive_filling(paths, limits, capacity)
    load = {c: sum(rate for rate, path in zip(rates, paths, strict=True) if c in path) for c in capacity}
    highest = {c: max((rate for rate, path in zip(rates, paths, strict=True) if c in path), default=0) for c in load}
    assert all(load[c] <= capacity[c] for c in load)
    for rate, path, limit in zip(rates, paths, limits, strict=True):
        assert rate == limit or any(load[c] == capacity[c] and rate == highest[c] for c in path)
        assert limit is None or rate <= limit


@pytest.mark.parametrize("half_duplex", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_network_equals_what_the_twin_does_without_it(seed, shared, half_duplex):
    """The twin against itself: exact links where nothing is shared, and the coordinator's own link shared alone."""
    kind = {"shared": shared, "half_duplex": half_duplex}
    world = World(seed, **kind)
    strategy = Erratic(world)
    strategy.uses_peers = True
    network = Twin(world.fleet, strategy, FlopsAreNanoseconds())
    assert network.network is not None
    assert story(strategy, network.run()) == twin(World(seed, **kind))


# The last four: a window between devices stops at the slower link, and a path without a round trip ends a silence.
@pytest.mark.parametrize("kind", WORLDS, ids=named)
@pytest.mark.parametrize("seed", [*range(100), 106, 132, 191, 283])
def test_network_equals_naive_recompute(seed, kind):
    """Shares are reals and every completion is rounded up, so times may differ by a few ns; nothing else may."""
    ours, theirs = engine(World(seed, **kind), compiled=False), twin(World(seed, **kind))
    assert [(*row[:2], row[3], row[-1]) for row in ours["rows"]] == [
        (*row[:2], row[3], row[-1]) for row in theirs["rows"]
    ]
    assert [heard[1:] for heard in ours["heard"]] == [heard[1:] for heard in theirs["heard"]]
    a, b = times(ours), times(theirs)
    assert np.array_equal(a < 0, b < 0)
    assert np.all(np.abs(a - b) <= 2 + 1e-9 * b)


@pytest.mark.parametrize("kind", WORLDS, ids=named)
def test_compiled_is_interpreted_bit_for_bit(kind):
    for seed in range(40):
        results = [engine(World(seed, **kind), compiled=compiled) for compiled in (False, True)]
        assert results[0] == results[1], seed
