"""A strategy around another one: every hook and promise is passed on, so that none can be forgotten.

Only the passing on belongs here; what a wrapper is for is its own.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from morphling.interfaces.strategy import Covers, Decisions, Dispatch, Placement, Progress, Sent, Strategy
from morphling.interfaces.view import View
from morphling.types import IntArray

__all__ = ["WrappedStrategy"]


class WrappedStrategy(Strategy):
    """Passes notices on to ``inner``, and what that decides through `passed`.

    A hook that is added to `Strategy` is added here, for all wrappers.  What others ask of a class (``uses_peers``,
    ``name``, …) is asked of the instance here.
    """

    Config: ClassVar[type] = object

    def __init__(self, inner: Strategy) -> None:
        super().__init__(inner.config)
        self.inner = inner

    @abstractmethod
    def passed(self, decisions: Decisions | None) -> Decisions:
        """What becomes of decisions of ``inner`` (None: a hook of it that returned nothing)."""

    # ------------------------------------------------------------------------------------------------------- promises

    @property
    def name(self) -> str:  # type: ignore[override] # here and below: of the instance, where a strategy has a class's
        """As `Strategy.name`."""
        return self.inner.name

    @property
    def uses_peers(self) -> bool:  # type: ignore[override]
        """As `Strategy.uses_peers`."""
        return self.inner.uses_peers

    @property
    def repeats_work(self) -> bool:  # type: ignore[override]
        """As `Strategy.repeats_work`."""
        return self.inner.repeats_work

    @property
    def restarts(self) -> bool:  # type: ignore[override]
        """As `Strategy.restarts`."""
        return self.inner.restarts

    @property
    def waiting_for(self) -> str:  # type: ignore[override]
        """As `Strategy.waiting_for`."""
        return self.inner.waiting_for

    @property
    def enforces_memory(self) -> bool:
        """As `Strategy.enforces_memory`."""
        return self.inner.enforces_memory

    @property
    def covers(self) -> Covers:
        """As `Strategy.covers`."""
        return self.inner.covers

    def places(self, dispatch: Dispatch) -> Placement | None:
        """As `Strategy.places`."""
        return self.inner.places(dispatch)

    def shares(self) -> tuple[IntArray, IntArray] | None:
        """As `Strategy.shares`."""
        return self.inner.shares()

    def report(self) -> dict[str, Any]:
        """As `Strategy.report`."""
        return self.inner.report()

    # ---------------------------------------------------------------------------------------------------------- hooks

    def start(self, view: View) -> Decisions:
        """As `Strategy.start`."""
        return self.passed(self.inner.start(view))

    def on_done(self, dispatch: Sent, rows: IntArray, view: View) -> Decisions:
        """As `Strategy.on_done`."""
        return self.passed(self.inner.on_done(dispatch, rows, view))

    def on_lost(self, dispatch: Sent, rows: IntArray, view: View) -> Decisions:
        """As `Strategy.on_lost`."""
        return self.passed(self.inner.on_lost(dispatch, rows, view))

    def on_progress(self, order: Sent, news: Progress, view: View) -> Decisions:
        """As `Strategy.on_progress`."""
        return self.passed(self.inner.on_progress(order, news, view))

    def on_joined(self, devices: IntArray, view: View) -> Decisions:
        """As `Strategy.on_joined`."""
        return self.passed(self.inner.on_joined(devices, view))

    def on_left(self, devices: IntArray, view: View) -> Decisions:
        """As `Strategy.on_left`."""
        return self.passed(self.inner.on_left(devices, view))

    def on_timer(self, tag: Any, view: View) -> Decisions:
        """As `Strategy.on_timer`."""
        return self.passed(self.inner.on_timer(tag, view))
