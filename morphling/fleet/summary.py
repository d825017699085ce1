"""What a step trace amounts to: percentiles of its rates and of their ratio, each step counted by how long it lasts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from morphling.fleet.links import LinkTrace
from morphling.types import FloatArray, IntArray

__all__ = ["PERCENTS", "TraceSummary", "share_of_time", "summarize", "time_percentile"]

PERCENTS = (5, 25, 50, 75, 95)


@dataclass(frozen=True)
class TraceSummary:
    """Statistics of one step trace over one period, by time.

    down_bps, up_bps : percentile (of `PERCENTS`) to rate, bit/s, pauses included
    ratio : percentile to down/up while both move; empty if they never do at once
    mean_down_bps, mean_up_bps : bits over the period, pauses included
    paused_share : share of the time in which a direction stands still
    longest_pause_s : longest stretch of it, s
    """

    name: str
    duration_s: float
    steps: int
    down_bps: dict[int, float]
    up_bps: dict[int, float]
    ratio: dict[int, float]
    mean_down_bps: float
    mean_up_bps: float
    paused_share: float
    longest_pause_s: float


def summarize(trace: LinkTrace) -> TraceSummary:
    """The statistics of a trace."""
    length = np.diff(np.append(trace.start_ns, trace.period_ns))
    moving = (trace.down_bps > 0) & (trace.up_bps > 0)
    ratio = {}
    if moving.any():
        quotient = trace.down_bps[moving] / trace.up_bps[moving]
        ratio = {p: time_percentile(quotient, length[moving], p) for p in PERCENTS}
    return TraceSummary(
        name=trace.name,
        duration_s=trace.period_ns / 1e9,
        steps=len(length),
        down_bps={p: time_percentile(trace.down_bps, length, p) for p in PERCENTS},
        up_bps={p: time_percentile(trace.up_bps, length, p) for p in PERCENTS},
        ratio=ratio,
        mean_down_bps=float(np.average(trace.down_bps, weights=length)),
        mean_up_bps=float(np.average(trace.up_bps, weights=length)),
        paused_share=float(length[~moving].sum() / trace.period_ns),
        longest_pause_s=_longest(~moving, length) / 1e9,
    )


def share_of_time(values: IntArray | FloatArray, length_ns: IntArray) -> tuple[FloatArray, FloatArray]:
    """Sorted values, float64[n], and the share of the time, in (0, 1], at or below each."""
    order = np.argsort(values, kind="stable")
    reach = np.cumsum(length_ns[order])
    return values[order].astype(np.float64), reach / reach[-1]


def time_percentile(values: IntArray | FloatArray, length_ns: IntArray, percent: float) -> float:
    """The lowest value that is not exceeded for ``percent`` of the time; one that occurs, never one in between."""
    ordered, share = share_of_time(values, length_ns)
    return float(ordered[min(int(np.searchsorted(share, percent / 100)), len(ordered) - 1)])


def _longest(still: np.ndarray, length_ns: IntArray) -> int:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], still, [False])).astype(np.int8)))
    ends = np.concatenate(([0], np.cumsum(length_ns)))[edges]
    return int((ends[1::2] - ends[::2]).max(initial=0))
