"""The engine against its slow twin and against itself, on random small worlds."""

from __future__ import annotations

import numpy as np
import pytest

from morphling.engine import Engine
from tests.oracle.twin import Twin
from tests.oracle.worlds import Erratic, FlopsAreNanoseconds, World


def engine(world, **options):
    """The story of one world as the engine tells it."""
    strategy = Erratic(world)
    return story(strategy, Engine(world.fleet, None, strategy, FlopsAreNanoseconds(), **options).run())


def twin(world):
    """The story of one world as the slow twin tells it."""
    strategy = Erratic(world)
    return story(strategy, Twin(world.fleet, strategy, FlopsAreNanoseconds()).run())


def story(strategy, recording):
    """Everything that has to be equal: rows with their seven times and whether they are lost, and what was heard."""
    table = []
    for d in recording.dispatches:
        columns = np.stack(d.times[:7]).T.tolist() if len(d.lost) else []
        table += [(d.serial, d.label, d.time_ns, i, *times, bool(d.lost[i])) for i, times in enumerate(columns)]
    heard = {"heard": strategy.heard, "end": recording.end_ns, "iterations": list(recording.iteration_ends_ns)}
    return {"rows": table, **heard}


@pytest.mark.parametrize("seed", range(200))
def test_closed_lane_equals_twin(seed):
    assert engine(World(seed), compiled=False, lane="closed") == twin(World(seed))


@pytest.mark.parametrize("seed", range(150))
def test_event_lane_equals_twin(seed):
    assert engine(World(seed), compiled=False, lane="events") == twin(World(seed))


@pytest.mark.parametrize("seed", [*range(150), 20381])  # the last: two channels decide at an instant with more to come
def test_half_duplex_equals_twin(seed):
    assert engine(World(seed, half_duplex=True), compiled=False) == twin(World(seed, half_duplex=True))


@pytest.mark.parametrize("half_duplex", [False, True])
@pytest.mark.parametrize("seed", range(100))
def test_shared_coordinator_equals_naive_recompute(seed, half_duplex):
    """Shares are reals and every completion is rounded up, so times may differ by a few ns; nothing else may."""
    ours = engine(World(seed, shared=True, half_duplex=half_duplex), compiled=False)
    theirs = twin(World(seed, shared=True, half_duplex=half_duplex))
    assert [(*row[:2], row[3], row[-1]) for row in ours["rows"]] == [
        (*row[:2], row[3], row[-1]) for row in theirs["rows"]
    ]
    assert [heard[1:] for heard in ours["heard"]] == [heard[1:] for heard in theirs["heard"]]
    a, b = (np.array([[*row[2:3], *row[4:11]] for row in x["rows"]], float).reshape(-1, 8) for x in (ours, theirs))
    assert np.array_equal(a < 0, b < 0)
    assert np.all(np.abs(a - b) <= 2 + 1e-9 * b)


@pytest.mark.parametrize("seed", range(60))
def test_closed_lane_equals_event_lane(seed):
    world = 10_000 + seed
    assert engine(World(world), compiled=False, lane="closed") == engine(World(world), compiled=False, lane="events")


@pytest.mark.parametrize(
    "options", [{"lane": "closed"}, {"lane": "events"}, {"half_duplex": True}, {"shared": True}], ids=str
)
def test_compiled_is_interpreted_bit_for_bit(options):
    kind = {k: v for k, v in options.items() if k != "lane"}
    for seed in range(40):
        results = [
            engine(World(seed, **kind), compiled=compiled, lane=options.get("lane")) for compiled in (False, True)
        ]
        assert results[0] == results[1], seed
