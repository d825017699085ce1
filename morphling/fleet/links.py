"""Links as arrays: a library of step traces, and which device follows which trace from which offset."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np

from morphling.types import BoolArray, FloatArray, Int32Array, IntArray

__all__ = ["LinkTrace", "Links", "PastEnd", "Tcp"]


class PastEnd(IntEnum):
    """What a trace does after its last step."""

    REPEAT = 0
    HOLD = 1
    ERROR = 2


@dataclass(frozen=True, eq=False)
class LinkTrace:
    """One step trace: from ``start_ns[i]`` the rates are ``down_bps[i]`` and ``up_bps[i]``.

    ``start_ns`` int64[n], strictly increasing from 0; ``down_bps``, ``up_bps`` [n], >= 0, seen from the device
    (0 is a pause; the engine holds rates as whole millibits per second); ``period_ns`` is where the last step ends (>
    ``start_ns[-1]``).
    """

    name: str
    start_ns: IntArray
    down_bps: IntArray | FloatArray
    up_bps: IntArray | FloatArray
    period_ns: int
    past_end: PastEnd = PastEnd.REPEAT


@dataclass(frozen=True, eq=False)
class Tcp:
    """What TCP adds to the links of N devices: every transfer is a flow of its own connection.

    segment_bytes : int64[N]   payload of a segment; 0 = this device's transfers are not limited by TCP
    initial_window : int64[N]  segments sent in the first round trip
    loss : float64[N]          share of segments lost on the way, in [0, 1); 0 = none

    A flow may send ``initial_window`` segments a round trip, twice as much after each round trip (slow start), and
    never more than ``segment / RTT · sqrt(3 / (2 loss))`` (Mathis, Semke, Mahdavi and Ott 1997, eq. 3).  The round trip
    is twice the one-way latency of the path; without latency TCP limits nothing.  After one second without a transfer
    in its direction a connection starts with its initial window again (RFC 5681 §4.1, with the least timeout of RFC
    6298).
    """

    segment_bytes: IntArray
    initial_window: IntArray
    loss: FloatArray


@dataclass(frozen=True, eq=False)
class Links:
    """The links of N devices.

    The library holds T traces end to end: steps ``trace_ptr[t]:trace_ptr[t+1]`` of ``start_ns``, ``down_bps``,
    ``up_bps`` belong to trace t, which ends at ``period_ns[t]`` and then does ``past_end[t]``.
    Device i follows trace ``trace[i]`` shifted by ``offset_ns[i]``: at virtual time x it is at x + offset (so an offset
    of 5 s starts five seconds into the trace).  A constant link is a trace of one step that holds.

    Device i is behind cell ``cell[i]`` of ``cells`` (-1: behind none): an access point or a radio cell whose downlink
    and
    uplink all its devices share.  ``cells`` are links like any other, one for each cell, without latency.
    ``tcp`` is None where transfers are fluid.
    """

    trace_names: tuple[str, ...]
    trace_ptr: IntArray
    start_ns: IntArray
    down_bps: IntArray | FloatArray
    up_bps: IntArray | FloatArray
    period_ns: IntArray
    past_end: IntArray
    trace: Int32Array
    offset_ns: IntArray
    latency_ns: IntArray
    half_duplex: BoolArray
    cell: Int32Array | None = None
    cells: Links | None = None
    tcp: Tcp | None = None

    @property
    def size(self) -> int:
        """Number of devices."""
        return len(self.trace)

    @classmethod
    def of(
        cls,
        traces: list[LinkTrace],
        trace: Int32Array,
        offset_ns: IntArray,
        latency_ns: IntArray,
        half_duplex: BoolArray,
    ) -> Links:
        """Lay traces end to end."""
        ptr = np.cumsum([0, *(len(t.start_ns) for t in traces)]).astype(np.int64)
        return cls(
            trace_names=tuple(t.name for t in traces),
            trace_ptr=ptr,
            start_ns=np.concatenate([t.start_ns for t in traces]),
            down_bps=_joined([t.down_bps for t in traces]),
            up_bps=_joined([t.up_bps for t in traces]),
            period_ns=np.array([t.period_ns for t in traces], np.int64),
            past_end=np.array([int(t.past_end) for t in traces], np.int64),
            trace=np.asarray(trace, np.int32),
            offset_ns=np.asarray(offset_ns, np.int64),
            latency_ns=np.asarray(latency_ns, np.int64),
            half_duplex=np.asarray(half_duplex, np.bool_),
        )

    @classmethod
    def constant(
        cls,
        down_bps: IntArray | FloatArray,
        up_bps: IntArray | FloatArray,
        latency_ns: IntArray | int = 0,
        half_duplex: BoolArray | bool = False,
    ) -> Links:
        """Constant rates, one per device."""
        down: Any = np.asarray(down_bps)
        up: Any = np.asarray(up_bps)
        size = len(down)
        return cls(
            trace_names=("constant",) * size,
            trace_ptr=np.arange(size + 1, dtype=np.int64),
            start_ns=np.zeros(size, np.int64),
            down_bps=down,
            up_bps=up,
            period_ns=np.ones(size, np.int64),
            past_end=np.full(size, int(PastEnd.HOLD), np.int64),
            trace=np.arange(size, dtype=np.int32),
            offset_ns=np.zeros(size, np.int64),
            latency_ns=np.broadcast_to(np.asarray(latency_ns, np.int64), (size,)).copy(),
            half_duplex=np.broadcast_to(np.asarray(half_duplex, np.bool_), (size,)).copy(),
        )

    def behind(self, cells: Links, cell: Int32Array) -> Links:
        """The same links behind ``cells``; ``cell`` int32[N] names each device's, -1 none.

        Raises ``ValueError`` where a number is no cell, or a cell has a latency or is half duplex: that belongs to the
        devices.
        """
        numbers = np.asarray(cell, np.int32)
        if numbers.shape != (self.size,) or numbers.min(initial=0) < -1 or numbers.max(initial=-1) >= cells.size:
            raise ValueError(f"cell: one of -1 … {cells.size - 1} for each of {self.size} devices")
        if cells.latency_ns.any() or cells.half_duplex.any():
            raise ValueError("cells: latency and half duplex belong to the devices")
        return replace(self, cells=cells, cell=numbers)

    def over(self, tcp: Tcp) -> Links:
        """The same links with TCP on them."""
        return replace(self, tcp=tcp)

    def nominal_bps(self) -> tuple[FloatArray, FloatArray]:
        """Time-mean (down, up) of each device's trace, bit/s, float64[N]; for a trace that holds or is constant too."""
        return self._per_trace(np.mean)

    def peak_bps(self) -> tuple[FloatArray, FloatArray]:
        """Highest (down, up) rate of each device's trace, bit/s, float64[N]."""
        return self._per_trace(np.max)

    def _per_trace(self, how: object) -> tuple[FloatArray, FloatArray]:
        ends = np.empty_like(self.start_ns)
        ends[:-1] = self.start_ns[1:]
        ends[self.trace_ptr[1:] - 1] = self.period_ns
        first = self.trace_ptr[:-1]
        if how is np.max:
            down, up = (np.maximum.reduceat(x, first).astype(float) for x in (self.down_bps, self.up_bps))
        else:
            weight = (ends - self.start_ns).astype(float)
            total = np.add.reduceat(weight, first)
            down, up = (np.add.reduceat(x * weight, first) / total for x in (self.down_bps, self.up_bps))
        return down[self.trace], up[self.trace]


def _joined(rates: list[IntArray | FloatArray]) -> Any:
    """Rates of several traces end to end; whole if all are."""
    return np.concatenate(rates)
