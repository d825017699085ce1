"""Small strategies to be compared in tests, run as a plug-in file."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

import numpy as np

from morphling.errors import Infeasible, PlanError
from morphling.interfaces.strategy import Dispatch, Done, IterationDone, Strategy
from morphling.interfaces.tasks import TaskTable
from morphling.types import Kind

NO_PLAN = "5 stages need 2.31 GiB each and the smallest device has 1.50 GiB: take fewer stages"


@dataclass(frozen=True)
class Config:
    """kilo : thousands of bytes that each device downloads; held : bytes that a row holds; ends : iterations at most"""

    kilo: int = 1000
    held: int = 1_000_000
    ends: int = 99


class Waves(Strategy):
    """Every device downloads, computes nothing, and uploads a tenth; once an iteration."""

    Config = Config
    ended = 0

    @property
    def enforces_memory(self):
        return False

    def start(self, view):
        devices = np.arange(view.fleet.size)
        table = TaskTable.build(
            device=devices, kind=Kind.GEMM, flops=0.0, memory_bytes=0.0,
            bytes_in=self.config.kilo * 1000, bytes_out=self.config.kilo * 100, resident_bytes=self.config.held,
        )  # fmt: skip
        return [Dispatch(table, label="wave")]

    def on_done(self, dispatch, rows, view):
        self.ended += 1
        if self.ended == min(view.iterations, self.config.ends):
            return [IterationDone(), Done("all waves are over")]
        return [IterationDone(), *self.start(view)]


class Never(Waves):
    """Has no plan for anything."""

    def start(self, view):
        raise Infeasible(NO_PLAN)


class Fast(Waves):
    """Serves only fleets whose links are all above 10 Mbit/s."""

    def start(self, view):
        if view.downlink_bps.min() < 10e6:
            raise PlanError("a link is below 10 Mbit/s: leave it out")
        return super().start(view)


class Wrong(Waves):
    """Has a fault."""

    def start(self, view):
        print("on the way to a fault")  # noqa: T201
        return len(view.now_ns)


class Killed(Waves):
    """Is ended as systems end what takes too much memory."""

    def start(self, view):
        os.kill(os.getpid(), signal.SIGKILL)


class Slow(Waves):
    """Never comes back from its planning."""

    def start(self, view):
        time.sleep(600)


class Formula(Waves):
    """Has the time of an iteration and no rows, as published formulas do."""

    def report(self):
        return {"not_replayed": "the published formula has no rows"}


class Empty(Waves):
    """Does nothing, at once."""

    def start(self, view):
        return [Done("nothing to do")]
