"""Devices that are idle, to draw from at random in constant time."""

from __future__ import annotations

from collections.abc import Iterable

from morphling.interfaces.view import View

__all__ = ["IdlePool"]

BLOCK = 4096
"""Random numbers drawn at once."""


class IdlePool:
    """A set of devices (of ``size``), from which one is drawn uniformly.

    Draws are from the stream ``selection`` of the view, in blocks.
    """

    def __init__(self, size: int) -> None:
        self._idle: list[int] = []
        self._where = [-1] * size
        self._numbers: list[float] = []

    def __len__(self) -> int:
        return len(self._idle)

    def __contains__(self, device: int) -> bool:
        return self._where[device] >= 0

    def put(self, device: int) -> None:
        """A device is idle (again)."""
        if self._where[device] < 0:
            self._where[device] = len(self._idle)
            self._idle.append(device)

    def add(self, devices: Iterable[int]) -> None:
        """Devices are idle (again)."""
        for device in devices:
            self.put(device)

    def remove(self, devices: Iterable[int]) -> None:
        """Devices are not to be drawn; those that are not here anyway are passed over."""
        for device in devices:
            if (at := self._where[device]) >= 0:
                self._take(at)

    def draw(self, count: int, view: View) -> list[int]:
        """Up to ``count`` different devices, each uniform among those left; none that is not online.

        One that has left at this very instant, of which the strategy has not heard yet, is dropped from the pool.
        """
        drawn: list[int] = []
        online = view.online
        while len(drawn) < count and self._idle:
            if not self._numbers:
                self._numbers = view.random("selection").random(BLOCK).tolist()
            device = self._take(int(self._numbers.pop() * len(self._idle)))
            if online[device]:
                drawn.append(device)
        return drawn

    def _take(self, at: int) -> int:
        device, last = self._idle[at], self._idle.pop()
        if last != device:
            self._idle[at] = last
            self._where[last] = at
        self._where[device] = -1
        return device
