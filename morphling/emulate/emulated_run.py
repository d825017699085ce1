"""What an emulated script runs on: fleet, workload, strategy, executor, and how they are replayed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from morphling.engine import Engine
from morphling.fleet import Fleet
from morphling.interfaces.executor import Executor
from morphling.interfaces.strategy import Strategy
from morphling.workload import Workload

__all__ = ["EmulatedRun"]


@dataclass(frozen=True, eq=False)
class EmulatedRun:
    """As a scenario says.

    workload : of an iteration, for strategies that plan by layers; others get one for each product
    made : makes the scenario's strategy anew
    horizon_s : virtual time at which a run is ended with an error; None: at the end of what is known of the fleet
    heat : whether devices warm
    """

    fleet: Fleet
    workload: Workload
    made: Callable[[], Strategy]
    executor: Executor
    seed: int = 0
    horizon_s: float | None = None
    heat: bool = True

    def engine(self, strategy: Strategy, iterations: int = 1) -> Engine:
        """A new engine, with ``strategy`` around those that are made."""
        return Engine(
            self.fleet,
            self.workload,
            strategy,
            self.executor,
            seed=self.seed,
            iterations=iterations,
            horizon_s=self.horizon_s,
            heat=self.heat,
        )
