"""Rounds: a base for strategies that select devices, wait for their reports and close the round.

It keeps the book (who was selected, reported, was late, died) and makes the decisions of the engine's interface; what
a round is for is the author's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from morphling.errors import PlanError
from morphling.interfaces.strategy import (
    Cancel,
    Covers,
    Decision,
    Decisions,
    Dispatch,
    Done,
    Each,
    IterationDone,
    Sent,
    Strategy,
    WakeAt,
)
from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import View
from morphling.types import IntArray

__all__ = ["Round", "RoundStrategy", "Verdict"]

Verdict: TypeAlias = Literal["commit", "abandon"]


@dataclass(eq=False)
class Round:
    """One attempt at a round.

    number : rounds committed before it;  attempt : 0, or how often this round was abandoned before
    devices : int64[n], who was selected
    reported : devices whose report was accepted, in the order of arrival
    refused : devices whose report came and was not accepted
    lost : devices that left before they had reported
    overdue : whether its deadline has passed
    """

    number: int
    attempt: int
    devices: IntArray
    serial: int
    reported: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    overdue: bool = False
    losses: list[tuple[int, int]] = field(default_factory=list)
    """(instant, rows) of each loss."""

    @property
    def waiting(self) -> int:
        """How many have neither reported nor left."""
        return len(self.devices) - len(self.reported) - len(self.refused) - len(self.lost)


class RoundStrategy(Strategy):
    """Write ``tasks``, ``select`` and ``close``, and ``accept`` where not every report counts.

    A round is one dispatch.  When it is committed, what is still under way is withdrawn (`Cancel`; bytes that were
    moved count) and an iteration has ended; when it is abandoned, the same round is tried again with a new selection.
    While ``select`` returns nobody the strategy pauses, and asks again whenever devices join.  A subclass that has a
    ``start`` of its own calls this one at its end.
    """

    retries: ClassVar[int] = 10
    """How often in a row a round may be abandoned before the run stops with a ``PlanError``."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.round: Round | None = None
        self.committed = self.attempt = self.dispatched = 0
        self.counts: Counter[str] = Counter()
        self.report_counts: list[int] = []
        self.recoveries: list[dict[str, Any]] = []
        self.unanswered: list[dict[str, Any]] = []

    @property
    def covers(self) -> Covers:
        """Each device does a whole piece of work of its own."""
        return "none"

    # -------------------------------------------------------------------------------------------------- to be written

    @abstractmethod
    def tasks(self, devices: IntArray, view: View) -> TaskTable:
        """The rows of a round; row i is the work of ``devices[i]``."""

    @abstractmethod
    def select(self, available: IntArray, view: View) -> IntArray:
        """Who takes part in the next round, of the devices that are here now; nobody: wait until somebody joins."""

    @abstractmethod
    def close(self, current: Round, view: View) -> Verdict | None:
        """Whether to end the round now.  Asked when reports came, when devices were lost, and at the deadline."""

    def accept(self, current: Round, devices: IntArray, view: View) -> IntArray:  # noqa: ARG002 - to be replaced
        """Which of the reports that came now count; by default all."""
        return devices

    def deadline(self, view: View) -> float | None:  # noqa: ARG002 - to be replaced
        """Seconds after the selection at which ``close`` is asked with ``overdue`` set; None: never."""
        return None

    # ---------------------------------------------------------------------------------------------------------- hooks

    def start(self, view: View) -> Decisions:
        """The first round."""
        return self._begin(view)

    def on_done(self, dispatch: Sent, rows: IntArray, view: View) -> Decisions:
        """Reports came."""
        current = self.round
        if current is None or dispatch.serial != current.serial:
            return []
        devices = current.devices[rows]
        taken = self.accept(current, devices, view)
        current.reported += taken.tolist()
        if len(taken) < len(devices):
            current.refused += np.setdiff1d(devices, taken).tolist()
        return self._judge(current, view)

    def on_lost(self, dispatch: Sent, rows: IntArray, view: View) -> Decisions:
        """Devices left before they had reported."""
        current = self.round
        if current is None or dispatch.serial != current.serial:
            return []
        current.lost += current.devices[rows].tolist()
        current.losses.append((view.now_ns, len(rows)))
        return self._judge(current, view)

    def on_joined(self, devices: IntArray, view: View) -> Decisions:  # noqa: ARG002 - the view says who is here
        """Ask again who takes part, if the strategy pauses."""
        return [] if self.round is not None else self._begin(view)

    def on_timer(self, tag: Any, view: View) -> Decisions:
        """The deadline of the attempt of this serial."""
        current = self.round
        if current is None or tag != current.serial:
            return []
        current.overdue = True
        return self._judge(current, view)

    def round_summary(self) -> str:
        """The counts of rounds and of devices as a line, for ``summary`` of the report."""
        c = self.counts
        return (
            f"rounds: {self.committed} committed, {c['abandoned']} abandoned; devices: {c['selected']} selected,"
            f" {c['reported']} reported, {c['late']} late, {c['dropped']} dropped out"
        )

    def round_report(self) -> dict[str, Any]:
        """Counts of rounds and of devices, for ``report``."""
        reports = self.report_counts
        return {
            "rounds": self.committed,
            "abandoned_rounds": self.counts["abandoned"],
            **{name: self.counts[name] for name in ("selected", "reported", "late", "dropped")},
            "reports_per_round": {
                "min": min(reports, default=None),
                "mean": sum(reports) / len(reports) if reports else None,
                "max": max(reports, default=None),
            },
            "recoveries": [*self.recoveries, *self.unanswered],
        }

    # --------------------------------------------------------------------------------------------------------- pieces

    def _begin(self, view: View) -> list[Decision]:
        """Select and dispatch; nothing while nobody is selected."""
        devices = np.asarray(self.select(np.flatnonzero(view.online), view), np.int64)
        if not len(devices):
            return []
        self.round = Round(self.committed, self.attempt, devices, self.dispatched)
        self.dispatched += 1
        self.counts["selected"] += len(devices)
        again = self.attempt > 0
        if again:
            self._answered(view.now_ns)
        label = f"{'recovery/' if again else ''}round {self.committed}"
        out: list[Decision] = [Dispatch(self.tasks(devices, view), Each(), self.round.serial, label)]
        limit = self.deadline(view)
        return out if limit is None else [*out, WakeAt(view.now_s + limit, self.round.serial)]

    def _judge(self, current: Round, view: View) -> list[Decision]:
        verdict = self.close(current, view)
        if verdict is None:
            if current.waiting or (self.deadline(view) is not None and not current.overdue):
                return []
            raise PlanError(f"round {current.number}: close leaves it open, and nobody is left to report")
        late = current.waiting
        self.round = None
        self.counts["reported"] += len(current.reported)
        self.counts["late"] += late + len(current.refused)
        self.counts["dropped"] += len(current.lost)
        self._book_losses(current, verdict, late, view.now_ns)
        out: list[Decision] = [Cancel(current.serial)] if late else []
        if verdict == "abandon":
            self.attempt += 1
            self.counts["abandoned"] += 1
            if self.attempt > self.retries:
                raise PlanError(self.gave_up(current))
            return [*out, *self._begin(view)]
        self.committed, self.attempt = self.committed + 1, 0
        self.report_counts.append(len(current.reported))
        out.append(IterationDone())
        if self.committed >= view.iterations:
            return [*out, Done(f"{self.committed} rounds")]
        return [*out, *self._begin(view)]

    def gave_up(self, current: Round) -> str:
        """What a run says that stops because a round was abandoned too often."""
        return (
            f"round {current.number} was abandoned {self.attempt} times in a row; the last time"
            f" {len(current.reported)} of {len(current.devices)} selected devices had reported, {len(current.lost)} had"
            f" left and {current.waiting} were under way"
        )

    def _book_losses(self, current: Round, verdict: Verdict, late: int, now_ns: int) -> None:
        """Losses as results read them: absorbed by a round that was committed, made up for by the next attempt."""
        waited = current.overdue or not current.waiting
        entries = [(lost, now_ns if waited or verdict == "abandon" else lost, rows) for lost, rows in current.losses]
        if late:
            entries.append((now_ns, now_ns, late))
        for lost, detected, rows in entries:
            record: dict[str, Any] = {"lost_ns": lost, "detected_ns": detected, "rows": rows}
            if verdict == "commit":
                self.recoveries.append({**record, "absorbed": True})
            else:
                self.unanswered.append({**record, "planning_ns": None, "planned_ns": None})

    def _answered(self, now_ns: int) -> None:
        """The attempt that is dispatched now makes up for what the abandoned ones lost."""
        for record in self.unanswered:
            self.recoveries.append({**record, "planning_ns": now_ns, "planned_ns": now_ns})
        self.unanswered = []
