"""Links as the kernels want them: service before each step, in exact integers; and when sharing can matter at all."""

from __future__ import annotations

import numpy as np

from morphling.engine.kernels.records import (
    DOWN_RATE,
    FIRST,
    GIGA,
    LAST,
    LATENCY,
    OFFSET,
    PAST_END,
    PERIOD,
    START,
    TRACE,
    UP_RATE,
    LinkArrays,
)
from morphling.errors import EngineError
from morphling.fleet import Coordinator, Links
from morphling.types import FloatArray, IntArray

__all__ = ["MAX_PERIOD", "MAX_RATE_BPS", "link_arrays", "millibits", "nic_can_bind"]

MAX_RATE_BPS = (1 << 50) // 1000 - 1
"""Highest rate of one device's link, about 1.1 Tbit/s: products of a rate and a time stay exact in int64 below it."""

MAX_PERIOD = 1 << 61
"""Most millibits that one period of a trace may serve (288 TB)."""


def millibits(rates: FloatArray | IntArray) -> IntArray:
    """Rates in bit/s as whole millibits per second, the engine's unit (exact for whole bits per second)."""
    if rates.dtype.kind == "i":
        return rates.astype(np.int64) * 1000
    whole: IntArray = np.rint(rates * 1000.0).astype(np.int64)
    return whole


def link_arrays(links: Links) -> LinkArrays:
    """Prefix sums of every trace.  Raises ``EngineError`` on rates or periods beyond what int64 holds exactly."""
    ends = np.empty_like(links.start_ns)
    ends[:-1] = links.start_ns[1:]
    ends[links.trace_ptr[1:] - 1] = links.period_ns
    step = np.zeros((len(links.start_ns), 7), np.int64)
    step[:, START] = links.start_ns
    trace = np.zeros((len(links.trace_names), 10), np.int64)
    trace[:, FIRST], trace[:, LAST] = links.trace_ptr[:-1], links.trace_ptr[1:]
    trace[:, PERIOD], trace[:, PAST_END] = links.period_ns, links.past_end
    for column, name, rates in ((DOWN_RATE, "down", links.down_bps), (UP_RATE, "up", links.up_bps)):
        bad = ~((rates >= 0) & (rates <= MAX_RATE_BPS))
        if bad.any():
            i = int(np.argmax(bad))
            t = int(np.searchsorted(links.trace_ptr, i, "right")) - 1
            raise EngineError(
                f"link {links.trace_names[t]}: {name} rate {rates[i]} bit/s is outside 0 … {MAX_RATE_BPS} bit/s"
            )
        step[:, column] = millibits(rates)
        _service(links, ends - links.start_ns, step, trace, column)
    device = np.zeros((links.size + 1, 3), np.int64)
    device[:-1, TRACE], device[:-1, OFFSET], device[:-1, LATENCY] = links.trace, links.offset_ns, links.latency_ns
    return LinkArrays(device, trace, step)


def _service(links: Links, span: IntArray, step: IntArray, trace: IntArray, column: int) -> None:
    """Fill in the service before each step and of a whole period."""
    rate = step[:, column]
    seconds, ns = np.divmod(span, GIGA)
    if np.any(rate.astype(float) * (seconds + 1.0) > MAX_PERIOD):
        raise EngineError("a step of a link trace serves more than 2^61 millibits: shorten the step or lower the rate")
    high = (rate >> 25) * ns
    quotient = high // GIGA
    low = ((high - quotient * GIGA) << 25) + (rate & 0x1FFFFFF) * ns
    whole = rate * seconds + (quotient << 25) + low // GIGA
    nano = low % GIGA
    single = np.flatnonzero(np.diff(links.trace_ptr) == 1)
    total = PAST_END + column
    trace[single, total] = whole[links.trace_ptr[single]]
    trace[single, total + 1] = nano[links.trace_ptr[single]]
    for t in np.flatnonzero(np.diff(links.trace_ptr) > 1):
        a, z = links.trace_ptr[t], links.trace_ptr[t + 1]
        if whole[a:z].astype(float).sum() > MAX_PERIOD:
            raise EngineError(f"link trace {links.trace_names[t]}: one period serves more than 2^61 millibits")
        w, n = np.cumsum(whole[a:z]), np.cumsum(nano[a:z])
        carry = n // GIGA
        w, n = w + carry, n - carry * GIGA
        step[a + 1 : z, column + 1], step[a + 1 : z, column + 2] = w[:-1], n[:-1]
        trace[t, total], trace[t, total + 1] = w[-1], n[-1]


def nic_can_bind(links: Links, coordinator: Coordinator) -> tuple[bool, bool]:
    """Whether the coordinator's (uplink, downlink) could ever be narrower than all devices together."""
    down, up = links.peak_bps()
    out_binds = coordinator.uplink_bps is not None and float(down.sum()) > coordinator.uplink_bps
    in_binds = coordinator.downlink_bps is not None and float(up.sum()) > coordinator.downlink_bps
    return out_binds, in_binds
