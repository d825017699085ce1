"""The analytic executor: a roofline per device and dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from morphling.errors import EngineError
from morphling.fleet import Fleet
from morphling.interfaces.executor import Executor
from morphling.interfaces.tasks import TaskTable
from morphling.types import FAR_NS, SECOND_NS, DType, IntArray, Kind

__all__ = ["Analytic", "AnalyticConfig"]


@dataclass(frozen=True)
class AnalyticConfig:
    """The analytic executor has nothing to configure."""


class Analytic(Executor):
    """``t = launch + max(flops / (efficiency · peak), bytes / sustained memory bandwidth)``.

    ``peak``, ``efficiency`` (achieved in large GEMMs), sustained bandwidth and launch cost come from the device
    profile, where
    each number has its source.  A row of no work at all takes no time.  Durations are rounded to the nanosecond; they
    do not
    depend on when a row starts (no heat) or on its shape beyond FLOPs and bytes (small GEMMs are therefore too fast by
    the
    size effect, which the profiled executor measures).
    """

    Config: ClassVar[type] = AnalyticConfig
    stationary = True

    def __init__(self, config: AnalyticConfig | None = None, *, fleet: Fleet) -> None:
        self.config = config or AnalyticConfig()
        self.fleet = fleet
        c = fleet.coordinator
        rate = fleet.peak_flops * fleet.efficiency
        self.rate = np.vstack([rate, c.peak_flops * c.efficiency])
        self.bandwidth = np.append(fleet.memory_bandwidth, c.memory_bandwidth)
        self.launch = np.append(fleet.launch_s, c.launch_s)

    def durations(self, tasks: TaskTable, start_ns: int) -> IntArray:  # noqa: ARG002 - stationary
        """Nanoseconds for each row; ``EngineError`` if a device lacks a row's dtype or a row takes centuries."""
        rate = self.rate[tasks.device, tasks.dtype]
        lacking = np.isnan(rate) & (tasks.flops > 0)
        if lacking.any():
            i = int(np.argmax(lacking))
            d = int(tasks.device[i])
            name = self.fleet.names()[d] if d < self.fleet.size else self.fleet.coordinator.name
            raise EngineError(f"device {d} ({name}) has no {DType(int(tasks.dtype[i])).label} rate for row {i}")
        with np.errstate(invalid="ignore"):
            compute = np.where(tasks.flops > 0, tasks.flops / rate, 0.0)
            traffic = np.where(tasks.memory_bytes > 0, tasks.memory_bytes / self.bandwidth[tasks.device], 0.0)
        busy = np.maximum(compute, traffic)
        works = (tasks.kind != Kind.TRANSFER) & ((tasks.flops > 0) | (tasks.memory_bytes > 0))
        seconds = np.where(works, self.launch[tasks.device] + busy, 0.0)
        if (seconds >= FAR_NS / SECOND_NS).any():
            i = int(np.argmax(seconds))
            raise EngineError(
                f"row {i} would compute for {seconds[i]:.3g} s on device {int(tasks.device[i])}; "
                f"no run lasts longer than {FAR_NS / SECOND_NS:.3g} s"
            )
        ns: IntArray = np.rint(seconds * SECOND_NS).astype(np.int64)
        return ns

    def clocked(self, tasks: TaskTable, durations: IntArray) -> IntArray:
        """The launch and the computing of each row: while it waits for memory, the clock does not count."""
        rate = self.rate[tasks.device, tasks.dtype]
        with np.errstate(invalid="ignore"):
            compute = np.where(tasks.flops > 0, tasks.flops / rate, 0.0)
        ns = np.rint((self.launch[tasks.device] + compute) * SECOND_NS)
        return np.where(durations > 0, np.minimum(ns, durations), 0).astype(np.int64)

    def describe(self) -> dict[str, Any]:
        """Provenance."""
        return {
            "executor": "analytic",
            "model": "t = launch + max(flops / (efficiency * peak), bytes / sustained memory bandwidth)",
            "numbers": "device profiles (each with its source)",
            "not_modelled": ["size effect of small GEMMs", "operand layout"],
        }
