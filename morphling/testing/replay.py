"""A strategy replayed in memory, with every decision seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from morphling.engine import Engine
from morphling.errors import EngineError
from morphling.executors.analytic import Analytic
from morphling.fleet import Fleet
from morphling.interfaces.executor import Executor
from morphling.interfaces.recording import Recording
from morphling.interfaces.strategy import Decision, Decisions, Dispatch, StandingOrder, Strategy
from morphling.interfaces.wrapping import WrappedStrategy
from morphling.workload import Workload

__all__ = ["Replayed", "replay"]

MOST_CALLS = 50_000
"""Hooks called in one replay of a tiny workload before it is said never to finish."""
MOST_DECISIONS = 100_000
"""Decisions of one hook."""
MOST_VIRTUAL_S = 1e7


@dataclass(frozen=True, eq=False)
class Replayed:
    """What came of a replay.

    ``dispatches`` : as the strategy decided them; entry i has serial i in the recording.  A standing order is entered
        as a dispatch of its whole table, and has to be the last of them
    ``changed_tables`` : labels of dispatches whose task table was changed after it was handed over
    """

    recording: Recording
    strategy: Strategy
    dispatches: list[Dispatch]
    changed_tables: list[str]


def replay(
    strategy: Strategy,
    fleet: Fleet,
    workload: Workload,
    *,
    executor: Executor | None = None,
    seed: int = 0,
    iterations: int = 1,
    on_dispatch: Callable[[Dispatch], object] | None = None,
) -> Replayed:
    """Replay ``strategy`` on ``fleet``, by default with the analytic executor.

    Raises ``AssertionError`` if it does not finish (rows or timers without end, or nothing left to happen) or hands
    over rows that no device could run; what the strategy raises itself comes through.
    """
    watched = _Watched(strategy, on_dispatch)
    engine = Engine(
        fleet,
        workload,
        watched,
        executor or Analytic(fleet=fleet),
        seed=seed,
        iterations=iterations,
        horizon_s=MOST_VIRTUAL_S,
        compiled=False,
    )
    try:
        recording = engine.run()
    except EngineError as error:
        said = str(error).replace(type(watched).__name__, type(strategy).__name__)
        raise AssertionError(f"the engine stopped {type(strategy).__name__}: {said}") from error
    changed = [seen.dispatch.label for seen in watched.seen if seen.dispatch.tasks.digest() != seen.digest]
    return Replayed(recording, strategy, [seen.dispatch for seen in watched.seen], changed)


@dataclass(frozen=True, eq=False)
class _Seen:
    dispatch: Dispatch
    digest: str = field(repr=False)


class _Watched(WrappedStrategy):
    """Passes notices on and decisions back, and looks at them on the way."""

    def __init__(self, inner: Strategy, on_dispatch: Callable[[Dispatch], object] | None) -> None:
        super().__init__(inner)
        self.on_dispatch = on_dispatch
        self.calls = 0
        self.seen: list[_Seen] = []

    def passed(self, decisions: Decisions | None) -> Decisions:
        """The same decisions, noted."""
        self.calls += 1
        name = type(self.inner).__name__
        if self.calls > MOST_CALLS:
            raise AssertionError(f"{name} never finishes: {MOST_CALLS:,} hooks were called and it is not Done")
        if decisions is None:
            return []
        listed: list[Decision] = []
        for decision in decisions if isinstance(decisions, Iterable) else (decisions,):
            if len(listed) >= MOST_DECISIONS:
                raise AssertionError(f"{name} never finishes: one hook gave {MOST_DECISIONS:,} decisions")
            listed.append(decision)
            if isinstance(decision, StandingOrder):
                decision = Dispatch(decision.tasks, tag=decision.tag, label=decision.label)  # noqa: PLW2901
            if isinstance(decision, Dispatch):
                self.seen.append(_Seen(decision, decision.tasks.digest()))
                if self.on_dispatch is not None:
                    self.on_dispatch(decision)
        return listed
