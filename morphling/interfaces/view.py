"""What a strategy may know: what a real coordinator could know now."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from morphling.fleet import Fleet
from morphling.types import BoolArray, FloatArray
from morphling.workload import Workload

__all__ = ["View", "read_only"]

T = TypeVar("T")


def read_only(record: T) -> T:
    """The same record (a dataclass of arrays and of further records), its arrays as views that cannot be written to."""
    if not is_dataclass(record) or isinstance(record, type):
        return record
    changed: dict[str, Any] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        seen = _view(value) if isinstance(value, np.ndarray) else read_only(value)
        if seen is not value:
            changed[field.name] = seen
    return replace(record, **changed) if changed else record


def _view(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


class View(Protocol):
    """Read-only.  Arrays have one entry per device, in fleet order.

    No future bandwidth and no future churn: the rate of a link is its nominal rate (constant, or the time-mean of its
    trace) until transfers have been observed, then a running estimate of those.  A transfer that the coordinator's own
    full link held up shows only that the device's link is at least that fast.
    """

    @property
    def now_s(self) -> float:
        """Virtual time, seconds."""

    @property
    def now_ns(self) -> int:
        """Virtual time, whole nanoseconds: what recorded times are compared with."""

    @property
    def fleet(self) -> Fleet:
        """Static facts: compute rates, memory, nominal links, coordinator.  (Its traces are private to the engine.)"""

    @property
    def workload(self) -> Workload:
        """The GEMM DAG and its model."""

    @property
    def iterations(self) -> int:
        """How many training iterations the scenario asks for."""

    @property
    def online(self) -> BoolArray:
        """Which devices are here now."""

    @property
    def downlink_bps(self) -> FloatArray:
        """Estimated rate towards each device, bit/s."""

    @property
    def uplink_bps(self) -> FloatArray:
        """Estimated rate from each device, bit/s."""

    def gemm_seconds(self, m: int, n: int, k: int) -> FloatArray:
        """How long a product of this shape, in the workload's dtype, takes on each device at its full clock, s.

        By the executor's model of the device, launch included; NaN where a device lacks the dtype.
        """

    def random(self, name: str) -> np.random.Generator:
        """The strategy's own random stream of that name; the same name gives the same stream."""
