"""Virtual time of a script under a strategy that places whole iterations: data parallelism.

Such a strategy plans by the layers of a model, so a training step takes as long as an iteration of the scenario's
workload.  The script's products are cut by the samples of each device all the same: rows of the batch where it is a
side of the result, partial sums where it is the inner dimension (weight gradients), whole products where it is a batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from morphling.emulate.clock import Work
from morphling.emulate.emulated_run import EmulatedRun
from morphling.emulate.tiles import ProductShape, inner_split, product_split, row_split
from morphling.errors import PlanError
from morphling.interfaces.recording import Recording
from morphling.interfaces.strategy import Decisions, Done, IterationDone, Strategy
from morphling.interfaces.wrapping import WrappedStrategy
from morphling.types import SECOND_NS, DType, IntArray, Phase

__all__ = ["ReplicaClock"]

ENDLESS = 1 << 40
"""Iterations that the strategy is asked for: the script knows how many there are."""


class _Paused(WrappedStrategy):
    """The strategy, with a pause after each iteration: what it decided then is carried out when the script goes on."""

    counted: ClassVar[str] = "steps of the script"
    """What an engine's messages count, instead of iterations out of those asked for."""

    def __init__(self, inner: Strategy) -> None:
        super().__init__(inner)
        self.held: Decisions | None = None

    def passed(self, decisions: Decisions | None) -> Decisions:
        """All up to the end of an iteration."""
        listed = [] if decisions is None else list(decisions) if isinstance(decisions, Iterable) else [decisions]
        for place, decision in enumerate(listed):
            if isinstance(decision, IterationDone):
                self.held = listed[place + 1 :]
                return [*listed[: place + 1], Done("a step of the script")]
        return listed


class ReplicaClock:
    """The fleet training replicas; virtual time goes on when an optimizer steps, by one iteration.

    Attributes
    ----------
    now_ns : virtual time
    varying : empty; every iteration is replayed anyway
    replayed, repeated : iterations that the engine replayed; none is taken from an earlier one
    """

    def __init__(self, run: EmulatedRun) -> None:
        self.fleet, self.now_ns, self.replayed, self.repeated = run.fleet, 0, 0, 0
        self.strategy = _Paused(run.made())
        self.engine = run.engine(self.strategy, ENDLESS)
        self.varying = ""
        self.kept: dict[Any, Work] = {}
        self.shares: tuple[IntArray, IntArray] | None = None
        self.engine.start_churn()

    def product(self, name: str, shape: ProductShape, dtype: DType, phase: Phase) -> Work:  # noqa: ARG002 - one time
        """The product cut by the samples of each device."""
        if self.shares is None:
            self._begin()
        key = shape, phase == Phase.BACKWARD_WEIGHT
        if key not in self.kept:
            assert self.shares is not None  # noqa: S101 - known from the beginning on
            cut = product_split if shape.batch > 1 else inner_split if key[1] else row_split
            tiles = cut(shape, *self.shares)
            tiles.check(f"the replicas of {self.strategy.inner.name}")
            self.kept[key] = Work(tiles, 0, self.now_ns, [])
        return self.kept[key]

    def central(self, name: str, flops: float, dtype: DType) -> None:
        """Nothing of its own: an iteration of the workload has all operations in it."""

    def step(self) -> None:
        """A training step ended: one iteration passes."""
        if self.shares is None:
            self._begin()
        held, self.strategy.held = self.strategy.held, None
        self.engine.proceed(held)
        self.now_ns = self.engine.now_ns
        self.replayed += 1
        self._read_shares()

    def _begin(self) -> None:
        """The strategy plans at virtual time 0; its rows are under way when the first step ends."""
        self.strategy.held = self.strategy.start(self.engine.view)
        self._read_shares()

    def _read_shares(self) -> None:
        shares = self.strategy.inner.shares()
        if shares is None:
            if self.shares is None:
                name = self.strategy.inner.name or type(self.strategy.inner).__name__
                why = self.strategy.waiting_for or "it has no plan yet"
                raise PlanError(
                    f"{name} has to share the batch before the script's first step, at {self.now_ns / SECOND_NS:g} s,"
                    f" and cannot: {why}. A data-parallel fleet needs devices (availability) and a plan from then on"
                )
            return  # it is making a new plan; the old shares are as good for the numbers
        if self.shares is None or any(not np.array_equal(a, b) for a, b in zip(shares, self.shares, strict=True)):
            self.shares = shares
            self.kept.clear()

    def finish(self) -> Recording:
        """The run is over: everything that happened."""
        self.engine.lane.stop()
        return self.engine.recording()

    def report(self) -> dict[str, Any]:
        """What the strategy says of the run."""
        report = self.strategy.inner.report()
        mine = "a step of the script takes as long as an iteration of the scenario's workload"
        return {**report, "assumptions": [mine, *report.get("assumptions", [])]}
