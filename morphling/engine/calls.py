"""A call at an instant, as SimPy schedules it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import simpy

__all__ = ["Call"]


class Call(simpy.Event):
    """An event that is triggered already, which SimPy has no public door for: it makes ``call(*args)``."""

    def __init__(self, env: simpy.Environment, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        super().__init__(env)
        self.call, self.args = call, args
        self.callbacks.append(Call.make)
        self._ok, self._value = True, None

    def make(self) -> None:
        """Make the call."""
        self.call(*self.args)
