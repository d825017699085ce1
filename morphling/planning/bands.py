"""Row bands: the inner problem of a tiling, for devices already chosen and put in order.

C is cut into bands of rows that span all columns, and each band into runs of columns, one a device.  Everything here
works on devices sorted so that those of one band lie together; ``band`` int64[K] is each device's band and ``first``
int64[B] the first device of each band.  Choosing devices and the number of bands is `morphling.planning.tiling`'s.
"""

from __future__ import annotations

import numpy as np

from morphling.errors import PlanError
from morphling.planning.costs import Costs
from morphling.types import FloatArray, IntArray

__all__ = ["cut_bands", "fill_columns", "height_limits", "round_rows", "solve_heights"]


def cut_bands(sides: FloatArray, bands: int) -> tuple[IntArray, IntArray]:
    """Cut devices with ``sides`` (descending, > 0) into at most ``bands`` runs of about equal total side.

    A device longer than a band gets one of its own.  Returns ``band`` and ``first``.
    """
    starts = np.concatenate([[0.0], np.cumsum(sides)[:-1]])
    raw = np.minimum((starts * (bands / sides.sum()) + 1e-9).astype(np.int64), bands - 1)
    new = np.concatenate([[True], raw[1:] != raw[:-1]])
    return np.cumsum(new) - 1, np.flatnonzero(new)


def solve_heights(
    costs: Costs, band: IntArray, first: IntArray, time_s: float, alpha: FloatArray
) -> tuple[float, FloatArray]:
    """Real band heights that sum to m, with one time T in which every band just covers all n columns.

    Newton's method on (T, heights); each height is coupled to T alone, so that a step is a few sums over devices.
    ``time_s``, ``alpha`` are where to start.  Returns T and the heights; both are an estimate that the integer stage
    makes exact, so a tenth of a per cent is enough.
    """
    m, n = float(costs.gemm.m), float(costs.gemm.n)
    for _ in range(14):
        beta, by_alpha, by_time = costs.slopes(time_s, alpha[band])
        covered = np.add.reduceat(beta, first)
        # A band that is saturated or empty has no slope of its own; a tenth of the usual one keeps the step finite.
        slope = np.minimum(np.add.reduceat(by_alpha, first), -0.1 * np.maximum(covered, 0.1 * n) / alpha)
        gain = np.add.reduceat(by_time, first)
        gap = n - covered
        missing = m - alpha.sum()
        if abs(missing) < 1e-4 * m and np.abs(gap).max() < 1e-3 * n:
            break
        reach = float((gain / -slope).sum())
        later = (missing - float((gap / slope).sum())) / reach if reach > 0 else 0.0
        later = min(max(later, -time_s / 3), time_s / 2)
        alpha = np.clip(alpha + (gap - gain * later) / slope, alpha / 1.5, np.minimum(alpha * 1.5, m))
        time_s += later
    return time_s, alpha * (m / alpha.sum())


def height_limits(costs: Costs, band: IntArray, first: IntArray) -> IntArray:
    """Most rows that each band can have so that its devices' memory still holds n columns, int64[B] (0 … m)."""
    m, n = costs.gemm.m, costs.gemm.n
    low, high = np.zeros(len(first), np.int64), np.full(len(first), m, np.int64)
    if np.isinf(costs.items).all():
        return high
    while (low < high).any():
        middle = (low + high + 1) // 2
        room = np.floor(np.maximum(costs.memory_columns(middle[band].astype(np.float64)), 0.0))
        fits = np.add.reduceat(room, first) >= n
        low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
    return low


def round_rows(alpha: FloatArray, limit: IntArray, m: int) -> IntArray | None:
    """Whole heights that sum to ``m``, at most ``limit``, each remaining row where it costs least; None if none."""
    if limit.sum() < m:
        return None
    rows = np.minimum(np.floor(alpha + 1e-9).astype(np.int64), limit)
    while (missing := m - int(rows.sum())) != 0:
        if missing < 0:
            rows[np.argmax(rows)] += missing
            continue
        # A band's time grows about in proportion to its height, so the next row is cheapest where it adds least of it.
        price = np.where(rows < limit, (rows + 1) / alpha, np.inf)
        order = np.argsort(price, kind="stable")[: min(missing, int((rows < limit).sum()))]
        bulk = max(missing // len(order), 1)
        rows[order] = np.minimum(rows[order] + bulk, limit[order])
    return rows


def fill_columns(costs: Costs, band: IntArray, first: IntArray, rows: IntArray, time_s: float) -> IntArray:
    """Whole columns for each device, int64[K], exactly n in each band of ``rows[band]`` > 0 rows, in least time.

    Raises ``PlanError`` if memory is too small for that, which `height_limits` prevents.

    For each band the smallest T is found in which the devices' whole columns reach n; whole columns cannot do better,
    since what a device finishes in T only grows with T.  ``time_s`` is where to start looking.
    """
    n, alpha = costs.gemm.n, rows[band].astype(np.float64)

    def whole(time: FloatArray) -> tuple[FloatArray, FloatArray]:
        columns = np.floor(costs.columns(time[band], alpha))
        return columns, np.add.reduceat(columns, first)

    low, high = np.zeros(len(first)), np.full(len(first), time_s * 1.03)
    step = 0.1
    while (short := whole(high)[1] < n).any():
        low, high = np.where(short, high, low), np.where(short, high * (1 + step), high)
        step *= 2
        if high.max() > 1e30:
            raise PlanError("a band's devices cannot cover it in any time")
    near = np.maximum(low, time_s * 0.97)
    low = np.where((near < high) & (whole(near)[1] < n), near, low)
    for _ in range(60):
        middle = 0.5 * (low + high)
        enough = whole(middle)[1] >= n
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        if (high - low <= 1e-8 * high).all():
            break
    columns, total = whole(high)
    least, covered = whole(low)
    if (total == n).all():
        return columns.astype(np.int64)
    # Devices whose count steps between low and high all reach it at the same time: give the missing columns in order.
    extra = columns - least
    before = np.cumsum(extra) - extra
    before -= before[first][band]
    return (least + np.clip((n - covered)[band] - before, 0.0, extra)).astype(np.int64)
