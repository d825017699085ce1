"""The promise of an executor: how long rows take on their devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from morphling.interfaces.tasks import TaskTable
from morphling.types import IntArray

__all__ = ["Executor"]


class Executor(ABC):
    """Gives each row a duration; how it knows is its own matter, and it says so in ``describe``."""

    stationary: bool = True
    """Whether a row's duration depends on the table alone (then the engine asks once per table)."""

    @abstractmethod
    def durations(self, tasks: TaskTable, start_ns: int) -> IntArray:
        """Nanoseconds of computing for each row, int64[n], each >= 0.  ``start_ns`` is when the rows are dispatched."""

    def clocked(self, tasks: TaskTable, durations: IntArray) -> IntArray:
        """Of each row, nanoseconds at full clock that a lower clock stretches, int64[n].

        At clock c (a share of the full one) a row takes ``max(duration, clocked / c)``.  The default is the whole
        duration; a row that waits for memory has less.
        """
        return durations

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Provenance: which rung (analytic, profiled, live), its parameters and sources, as plain JSON values."""
