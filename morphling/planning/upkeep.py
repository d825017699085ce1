"""What copies and checkpoints, which are sent beside an iteration, cost it: they are first in the queue of an uplink.

What is sent, and what an iteration takes behind it, is a strategy's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np

from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import View
from morphling.planning.placement import Placement
from morphling.types import FloatArray

__all__ = ["Due", "Saving", "expected_s", "mean_iteration_s", "now_and_then", "uplinks_busy_s"]

Due: TypeAlias = tuple[int, int]
"""Copies to other devices, and to the coordinator."""

MOST_COUNTED = 10_000
"""Iterations whose copies are counted; the mean over more is taken to be theirs."""


def now_and_then(every: int, finished: int) -> Due:
    """A checkpoint every so many iterations; 0: none."""
    return 0, int(bool(every) and finished % every == 0)


def uplinks_busy_s(tasks: TaskTable, view: View) -> FloatArray:
    """How long the uplink of each device of the fleet takes for what it sends in ``tasks``, float64[D], seconds.

    As links are estimated, and as if nothing but a device's own link and its receiver's were shared.
    """
    rate = view.uplink_bps[tasks.device]
    to = tasks.peer
    rate = np.where(to >= 0, np.minimum(rate, view.downlink_bps[to]), rate)
    seconds: FloatArray = 8.0 * tasks.bytes_out / rate
    return np.bincount(tasks.device, seconds, minlength=view.fleet.size).astype(np.float64)


def mean_iteration_s(
    alone_s: float, iterations: int, due: Callable[[int], Due], beside_s: Callable[[Due], float]
) -> float:
    """Seconds of an iteration on average, if what is due after an iteration is sent beside the next one.

    alone_s : of an iteration with nothing beside it
    due : what is due after so many iterations; nothing is sent after the last
    beside_s : seconds of an iteration beside that
    """
    counted = min(iterations, MOST_COUNTED)
    times = Counter(found for found in map(due, range(1, counted)) if any(found))
    return alone_s + sum(n * (beside_s(found) - alone_s) for found, n in times.items()) / counted


class Saving(Protocol):
    """What is asked of a strategy: the hooks of `PlannedStrategy` with these names."""

    def estimate(self, placement: Placement, view: View) -> float | None:
        """Seconds of an iteration with nothing beside it."""

    def beside(self, placement: Placement, busy_s: FloatArray, view: View) -> float:
        """Seconds of an iteration with uplinks that are taken at first."""

    def due(self, placement: Placement, finished: int) -> Due:
        """What is due after so many iterations."""

    def upkeep(self, placement: Placement, due: Due, view: View) -> TaskTable:
        """Its rows."""


def expected_s(strategy: Saving, placement: Placement, view: View) -> float | None:
    """Seconds of an iteration on average over the run, copies and checkpoints included; None without an estimate."""

    def beside_s(due: Due) -> float:
        return strategy.beside(placement, uplinks_busy_s(strategy.upkeep(placement, due, view), view), view)

    alone_s = strategy.estimate(placement, view)
    if alone_s is None:
        return None
    return mean_iteration_s(alone_s, view.iterations, lambda finished: strategy.due(placement, finished), beside_s)
