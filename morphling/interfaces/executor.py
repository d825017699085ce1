"""The promise of an executor: how long rows take on their devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from morphling.interfaces.recording import Recording
from morphling.interfaces.strategy import Dispatch, Strategy
from morphling.interfaces.tasks import TaskTable
from morphling.types import DType, IntArray
from morphling.workload import Workload

__all__ = ["Executor"]


class Executor(ABC):
    """Gives each row a duration; how it knows is its own matter, and it says so in ``describe``.

    It is made as ``Class(config, fleet=fleet)``, ``config`` an instance of ``Config`` (as with a strategy) that is read
    from the other keys of ``execution`` in the scenario.
    """

    Config: ClassVar[type]

    stationary: bool = True
    """Whether a row's duration depends on the table alone (then the engine asks once per table)."""

    @abstractmethod
    def durations(self, tasks: TaskTable, start_ns: int) -> IntArray:
        """Nanoseconds of computing for each row, int64[n], each >= 0.  ``start_ns`` is when the rows are dispatched."""

    def estimate(self, tasks: TaskTable) -> IntArray:
        """Nanoseconds of each row for a planner that only asks, int64[n]: nothing of it is run or counted."""
        return self.durations(tasks, 0)

    def clocked(self, tasks: TaskTable, durations: IntArray) -> IntArray:
        """Of each row, nanoseconds at full clock that a lower clock stretches, int64[n].

        At clock c (a share of the full one) a row takes ``max(duration, clocked / c)``.  The default is the whole
        duration; a row that waits for memory has less.
        """
        return durations

    def check(self, dtype: DType) -> None:  # noqa: B027 - most executors time any dtype
        """Whether GEMM rows of the workload's dtype can be timed; ``InputError`` as ``field: reason`` if not."""

    def sent(self, serial: int, dispatch: Dispatch, strategy: Strategy) -> None:  # noqa: B027 - most need not know
        """A dispatch was decided, and will have this serial in the recording; its rows are timed next."""

    def finish(self, recording: Recording, workload: Workload) -> None:  # noqa: B027 - most have nothing to check
        """The run is over; ``RunError`` if what was executed for it turns out wrong."""

    def notes(self) -> tuple[str, ...]:
        """What a reader of the numbers should know, once the rows have been timed; one line each."""
        return ()

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Provenance: which rung (analytic, profiled, live), its parameters and sources, as plain JSON values."""
