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


@pytest.mark.parametrize("seed", range(120))
def test_event_lane_equals_twin(seed):
    assert engine(World(seed), compiled=False, lane="events") == twin(World(seed))


@pytest.mark.parametrize("seed", range(120))
def test_half_duplex_equals_twin(seed):
    assert engine(World(seed, half_duplex=True), compiled=False) == twin(World(seed, half_duplex=True))
