"""Bookkeeping of interruptions: devices of a plan leave, it is noticed, planned, moved, set up, and work is redone.

Whole nanoseconds only, as in `morphling.planning.losses`; no clock and no randomness belong here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Interruption"]


@dataclass(eq=False)
class Interruption:
    """One interruption, from the departure to the moment at which what it undid is done again.

    lost_ns : devices of the plan left;  detected_ns : the strategy acts on it;  planning_ns, planned_ns : the new plan
        is begun, and made and its moves dispatched;  moved_ns : all states have arrived;  ready_ns : the new set-up
        works;  replayed_ns : as far as at ``lost_ns`` again.  None until known.  What is interrupted in its turn is
        planned, moved and set up again: then the last times count.
    rows : rows lost by then;  further_ns : other instants at which rows were lost or withdrawn because of it
    iteration, elapsed_ns : what was under way at ``lost_ns``, and for how long
    abandoned : serials of dispatches whose work has to be done again;  redone : iterations that had ended before
    moved_bytes : of the moves, once each
    absorbed : nothing has to be done again, as when a last checkpoint is cut off after the last iteration
    announced : nobody left, a device has said that it will (at ``lost_ns``); there is nothing to do again
    """

    lost_ns: int
    detected_ns: int
    rows: int
    iteration: int
    elapsed_ns: int
    further_ns: list[int] = field(default_factory=list)
    planning_ns: int | None = None
    planned_ns: int | None = None
    moved_ns: int | None = None
    ready_ns: int | None = None
    replayed_ns: int | None = None
    abandoned: list[int] = field(default_factory=list)
    redone: int = 0
    moved_bytes: int = 0
    absorbed: bool = False
    announced: bool = False

    def record(self) -> dict[str, Any]:
        """As a strategy's report lists it under ``recoveries``."""
        further = sorted(set(self.further_ns) - {self.lost_ns})
        if self.absorbed:
            seen = {"lost_ns": self.lost_ns, "detected_ns": self.detected_ns}
            return {**seen, "rows": self.rows, "further_ns": further, "absorbed": True}
        names = ("lost_ns", "detected_ns", "planning_ns", "planned_ns", "moved_ns", "ready_ns", "replayed_ns")
        listed = {name: getattr(self, name) for name in names}
        return {
            **listed,
            "rows": self.rows,
            "further_ns": further,
            "abandoned": sorted(set(self.abandoned)),
            "iterations_redone": self.redone,
            "moved_bytes": self.moved_bytes,
            **({"announced": True} if self.announced else {}),
        }
