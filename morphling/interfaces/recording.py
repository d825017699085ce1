"""What the engine hands over when a run is over: settled dispatches, churn, and their fingerprint.

Only the records and the definition of ``events_sha256`` belong here: the engine fills them, `morphling.run` passes
them on, and `morphling.results` writes and reads them.  None of these rooms may import another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from morphling.interfaces.events import TASK_COLUMNS, TIME_COLUMNS
from morphling.types import BoolArray, FloatArray, Int32Array, IntArray

__all__ = [
    "TASK_DTYPES",
    "BatteryRecord",
    "Churn",
    "DispatchRecord",
    "HeatRecord",
    "Recording",
    "TaskColumns",
    "dispatch_bytes",
    "events_sha256",
    "static_sha256",
]

TASK_DTYPES: dict[str, str] = {
    "kind": "<i1",
    "device": "<i4",
    "peer": "<i4",
    "m": "<i8",
    "n": "<i8",
    "k": "<i8",
    "dtype": "<i1",
    "flops": "<f8",
    "bytes_in": "<i8",
    "bytes_out": "<i8",
    "resident_bytes": "<i8",
}
"""How each of `TASK_COLUMNS` is laid out when it is fingerprinted (little-endian)."""

Churn: TypeAlias = tuple[IntArray, Int32Array, BoolArray]
"""Joins and leaves that happened, by time: when (int64 ns), which device (int32), online from then on (bool)."""


class TaskColumns(Protocol):
    """The static columns that are recorded, `TASK_COLUMNS`: a task table, or what a run folder keeps of one."""

    @property
    def kind(self) -> NDArray[np.int8]: ...  # noqa: D102 - as in `morphling.interfaces.tasks.TaskTable`
    @property
    def device(self) -> Int32Array: ...  # noqa: D102
    @property
    def peer(self) -> Int32Array: ...  # noqa: D102
    @property
    def m(self) -> IntArray: ...  # noqa: D102
    @property
    def n(self) -> IntArray: ...  # noqa: D102
    @property
    def k(self) -> IntArray: ...  # noqa: D102
    @property
    def dtype(self) -> NDArray[np.int8]: ...  # noqa: D102
    @property
    def flops(self) -> FloatArray: ...  # noqa: D102
    @property
    def bytes_in(self) -> IntArray: ...  # noqa: D102
    @property
    def bytes_out(self) -> IntArray: ...  # noqa: D102
    @property
    def resident_bytes(self) -> IntArray: ...  # noqa: D102
    def __len__(self) -> int: ...


def _no_churn() -> Churn:
    return np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.bool_)


@dataclass(frozen=True, eq=False)
class DispatchRecord:
    """One settled dispatch of ``n`` rows.

    serial : the dispatch's number, rising in the order in which dispatches were made
    time_ns : when it was made
    label : the strategy's label
    settled_ns : when its last row was done or lost (``time_ns`` if it has no rows)
    tasks : the static columns; often the same object for many dispatches, so that they are held once
    times : the `TIME_COLUMNS` in order, each int64[n]; -1 as `morphling.interfaces.events` says
    lost : bool[n], True where the row did not finish
    """

    serial: int
    time_ns: int
    label: str
    settled_ns: int
    tasks: TaskColumns
    times: tuple[IntArray, ...]
    lost: BoolArray

    def __len__(self) -> int:
        return len(self.lost)

    def column(self, name: str) -> NDArray[Any]:
        """A task, time or ``lost`` column by its name in the events table; ``KeyError`` if there is none."""
        if name in TASK_DTYPES:
            column: NDArray[Any] = getattr(self.tasks, name)
            return column
        if name == "lost":
            return self.lost
        if name in TIME_COLUMNS:
            return self.times[TIME_COLUMNS.index(name)]
        raise KeyError(name)


@dataclass(frozen=True, eq=False)
class HeatRecord:
    """What heat did, of a run in which some devices warm.

    compute_j : float64[N]       energy of computing above idle power, J; 0 of devices without heat
    hottest_c : float64[N]       highest temperature of the case, degC; NaN of devices without heat
    lowest_clock : float64[N]    lowest clock while computing, as a share of the full one; NaN likewise
    throttled_ns : int64[N]      how long each computed below its full clock
    curve : float64[k, 5]        device, time (s), clock, case and junction (degC), by device and time: of a few devices
        (`watched`), thinned out where a run is long
    watched : devices that ``curve`` follows
    """

    compute_j: FloatArray
    hottest_c: FloatArray
    lowest_clock: FloatArray
    throttled_ns: IntArray
    curve: FloatArray
    watched: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class BatteryRecord:
    """What batteries did, of a run in which some devices have one; the floats are NaN of devices that are plugged in.

    capacity_j : float64[N]    energy of the full battery, J
    final_j : float64[N]       charge when the run ended, J
    lowest_j : float64[N]      lowest charge that was noticed, J
    departures : int64[N]      how often each left because its battery was at its reserve
    online_ns : int64[N]       how long each device was online, those without a battery among them
    """

    capacity_j: FloatArray
    final_j: FloatArray
    lowest_j: FloatArray
    departures: IntArray
    online_ns: IntArray


@dataclass(frozen=True, eq=False)
class Recording:
    """A finished run.

    dispatches : in serial order
    end_ns : virtual time at which the run ended
    iteration_ends_ns : when each iteration ended, rising
    churn : joins and leaves that happened
    events_sha256 : `events_sha256` of ``dispatches``
    heat : what heat did; None where no device warms
    battery : what batteries did; None where every device is plugged in
    """

    dispatches: list[DispatchRecord]
    end_ns: int
    iteration_ends_ns: list[int]
    events_sha256: str
    churn: Churn = field(default_factory=_no_churn)
    heat: HeatRecord | None = None
    battery: BatteryRecord | None = None


def static_sha256(tasks: TaskColumns) -> bytes:
    """SHA-256 (32 bytes) over the raw bytes of `TASK_COLUMNS` in order, each laid out as `TASK_DTYPES` says."""
    sha = hashlib.sha256()
    for name in TASK_COLUMNS:
        column: NDArray[Any] = getattr(tasks, name)
        sha.update(np.ascontiguousarray(column, np.dtype(TASK_DTYPES[name])).data)
    return sha.digest()


def dispatch_bytes(dispatch: DispatchRecord, static: bytes) -> Iterable[bytes | memoryview]:
    """The pieces of one dispatch that enter ``events_sha256``, in order; ``static`` is `static_sha256` of its tasks.

    Serial and time as int64, label in UTF-8 with a closing NUL, ``static``, the time columns as int64, ``lost``
    as uint8; all little-endian.
    """
    yield np.array([dispatch.serial, dispatch.time_ns], "<i8").tobytes()
    yield dispatch.label.encode() + b"\0"
    yield static
    for column in dispatch.times:
        yield np.ascontiguousarray(column, np.dtype("<i8")).data
    yield np.ascontiguousarray(dispatch.lost, np.uint8).data


def events_sha256(dispatches: Iterable[DispatchRecord]) -> str:
    """The fingerprint of a run: SHA-256 (hex) over `dispatch_bytes` of every dispatch in serial order.

    Two runs have the same fingerprint if and only if they dispatched the same rows at the same instants and every row
    took the same times.  The digest of a table that many dispatches share is taken once.
    """
    sha = hashlib.sha256()
    # The table is kept beside its digest: an id is only unique while the object lives.
    seen: dict[int, tuple[TaskColumns, bytes]] = {}
    for dispatch in dispatches:
        key = id(dispatch.tasks)
        if key not in seen:
            seen[key] = dispatch.tasks, static_sha256(dispatch.tasks)
        for piece in dispatch_bytes(dispatch, seen[key][1]):
            sha.update(piece)
    return sha.hexdigest()
