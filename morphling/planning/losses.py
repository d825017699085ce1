"""What a coordinator knows of devices that went away: noticed after a while, planned again, sent again.

Bookkeeping in whole nanoseconds only.  Whoever keeps it says when something happens, draws the delays, sets the timers
and makes the plans; no clock and no randomness belong here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from morphling.types import BoolArray, Int32Array, IntArray

__all__ = ["Loss", "Losses"]


@dataclass(eq=False)
class Loss:
    """Blocks of work that were lost at one instant and are noticed at one instant.

    Times in ns, None until known; ``blocks`` are forgotten once they are planned again, ``rows`` is their
    number.
    """

    lost_ns: int
    blocks: list[Any]
    rows: int = 0
    detected_ns: int | None = None
    planning_ns: int | None = None
    planned_ns: int | None = None

    def record(self) -> dict[str, int | None]:
        """As a strategy's report lists it under ``recoveries``."""
        times = {name: getattr(self, name) for name in ("lost_ns", "detected_ns", "planning_ns", "planned_ns")}
        return {**times, "rows": self.rows}


class Losses:
    """Losses of work, from the instant of each to the dispatch that makes up for it.

    Departures of one instant are noticed together, when their *alarm* goes off.  Until then the coordinator takes the
    devices to be here, and may send them work; that is lost at once, and noticed with the same alarm.  One plan is made
    at a time: what is noticed meanwhile waits for the next.

    online : bool[N], which devices are here at the start

    Attributes
    ----------
    present : bool[N], devices that the coordinator takes to be here
    all : every `Loss` so far, in order
    """

    def __init__(self, online: ArrayLike) -> None:
        self.present: BoolArray = np.array(online, np.bool_)
        self.all: list[Loss] = []
        self.alarms = 0
        self._current_ns = -1
        self._current = -1
        self._alarm_of: dict[int, int] = {}
        self._unnoticed: dict[int, list[Loss]] = {}
        self._waiting: list[Loss] = []
        self._planning: list[Loss] = []

    def merged(self) -> list[dict[str, Any]]:
        """`Loss.record` of all; what was lost, noticed and planned again together is one."""
        found: dict[tuple[int | None, ...], dict[str, Any]] = {}
        for loss in self.all:
            key = (loss.lost_ns, loss.detected_ns, loss.planned_ns)
            found.setdefault(key, {**loss.record(), "rows": 0})["rows"] += loss.rows
        return list(found.values())

    @property
    def settled(self) -> bool:
        """Whether everything lost has been sent again."""
        return not (self._unnoticed or self._waiting or self._planning)

    @property
    def plannable(self) -> bool:
        """Whether something waits for a plan, nothing else is being planned, and somebody is here."""
        return bool(self._waiting) and not self._planning and bool(self.present.any())

    def left(self, devices: IntArray, now_ns: int) -> list[int]:
        """Devices left.  Returns the alarm to set, if it is a new one."""
        before = self.alarms
        alarm = self._alarm(now_ns)
        self._alarm_of.update(dict.fromkeys(devices.tolist(), alarm))
        return list(range(before, self.alarms))

    def lost(self, devices: IntArray | Int32Array, blocks: Sequence[Any], now_ns: int) -> list[int]:
        """Work was lost: ``blocks[i]`` on ``devices[i]``.  Returns the alarm to set, if it is a new one.

        What was sent to a device that is known to be gone (by a plan that is older than that) is noticed at once.
        """
        before = self.alarms
        made: dict[int, Loss] = {}
        for device, block in zip(devices.tolist(), blocks, strict=True):
            known = not self.present[device]
            alarm = -1 if known else self._alarm_of.get(device, -2)
            if alarm == -2:  # it left at this very instant, and the notice of that comes later
                alarm = self._alarm(now_ns)
            if alarm not in made:
                made[alarm] = Loss(now_ns, [])
                (self._waiting if known else self._unnoticed.setdefault(alarm, [])).append(made[alarm])
                made[alarm].detected_ns = now_ns if known else None
            made[alarm].blocks.append(block)
            made[alarm].rows += 1
        self.all += made.values()
        return list(range(before, self.alarms))

    def joined(self, devices: IntArray) -> None:
        """Devices are here (again): the coordinator knows it at once.  What they lost is still noticed by its alarm."""
        self.present[devices] = True
        for device in devices.tolist():
            self._alarm_of.pop(device, None)

    def noticed(self, alarm: int, now_ns: int) -> IntArray:
        """An alarm went off.  Returns the devices that are known to be gone from now on."""
        if alarm == self._current:
            self._current_ns = -1
        gone = np.array([d for d, a in self._alarm_of.items() if a == alarm], np.int64)
        for device in gone.tolist():
            del self._alarm_of[device]
        self.present[gone] = False
        for loss in self._unnoticed.pop(alarm, []):
            loss.detected_ns = now_ns
            self._waiting.append(loss)
        return gone

    def plan(self, now_ns: int) -> list[Any]:
        """Planning begins: all that waits, in the order in which it was noticed."""
        self._planning, self._waiting = self._waiting, []
        for loss in self._planning:
            loss.planning_ns = now_ns
        blocks = [block for loss in self._planning for block in loss.blocks]
        for loss in self._planning:
            loss.blocks = []
        return blocks

    def sent(self, now_ns: int) -> None:
        """The plan is made and dispatched."""
        for loss in self._planning:
            loss.planned_ns = now_ns
        self._planning = []

    def _alarm(self, now_ns: int) -> int:
        """The alarm of departures at this instant."""
        if self._current_ns != now_ns:
            self._current_ns, self._current = now_ns, self.alarms
            self.alarms += 1
        return self._current
