"""``model: physical``: real rectangles that tile C exactly, chosen for speed.

Lower bound from areas, devices in order of the side of their best rectangle, bands of rows whose heights and columns
are solved for one common time, whole rows and columns, exact evaluation.  A pure function of arrays.  The records that
come out and the search over device counts and bands belong here; one band problem is `morphling.planning.bands`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import TypeAlias

import numpy as np

from morphling.errors import Infeasible
from morphling.planning.areas import smallest_time, stage_bounds
from morphling.planning.bands import cut_bands, fill_columns, height_limits, round_rows, solve_heights
from morphling.planning.costs import Costs, Gemm, Rates
from morphling.planning.fit import require_memory, spread_by_memory
from morphling.planning.lacking import has_and_needed
from morphling.planning.rectangles import LeftOut, Tiling
from morphling.types import FloatArray, IntArray

__all__ = ["plan_tiling"]

RATIOS = (1.0, 0.71, 1.41, 0.5, 2.0)
"""Band counts that are tried, relative to that of squares of the devices' own size."""

FINE_RATIOS = (1.0, 0.92, 1.09, 0.84, 1.19, 0.77, 1.3, 0.71, 1.41, 0.6, 1.68, 0.5, 2.0)
"""The same for few devices, of which a band holds so few that each count of bands is another puzzle."""

Caps: TypeAlias = tuple[float | None, float | None]
"""What the coordinator sends and receives in all, bytes/s; None = unlimited."""

FEW = 1024
"""Up to this many devices, bands of columns are tried beside bands of rows, and finer ratios."""

SMALL_CELLS = 256.0
"""Below this mean area of a rectangle, rounding to whole rows and columns may make fewer devices faster."""


@dataclass(frozen=True, eq=False)
class _Cut:
    """A tiling of some devices, in band order: their ``band``, the bands' ``rows``, the devices' ``columns``.

    ``flipped``: it is one of the transposed product, so that the bands are columns of C, and ``columns`` its rows.
    """

    devices: IntArray
    band: IntArray
    rows: IntArray
    columns: IntArray
    time_s: float
    flipped: bool


def plan_tiling(
    gemm: Gemm, rates: Rates, *, tiles: int | None = 1, egress: float | None = None, ingress: float | None = None
) -> Tiling:
    """Tile C[m x n] over the devices of ``rates`` so that the slowest of them finishes early.

    ``tiles`` : pieces in which a rectangle flows through download, compute and upload (1 no overlap, None perfect).
    ``egress``, ``ingress`` : bytes/s that the coordinator sends and receives in all; None = unlimited.  With a limit a
    device is planned at its max-min fair share while all transfer, and fewer devices (which send fewer bytes) are
    tried.  Devices are left out for a reason each (`LeftOut`).  The same arrays give the same tiling on every machine.

    Raises ``Infeasible`` if no device can be used, or if their memory together cannot hold C in one rectangle each; it
    says what memory or how many devices would do.
    """
    caps = (egress, ingress)
    reason = _unusable(gemm, rates)
    usable = np.flatnonzero(reason == LeftOut.USED)
    if not len(usable):
        raise Infeasible(_nobody(gemm, rates, reason))
    costs = Costs(gemm, rates.take(usable), tiles)
    limit = costs.memory_area()
    require_memory(costs, limit)
    bounds = stage_bounds(costs, tolerance=1e-9)
    bounds["coordinator"] = _coordinator_bound(gemm, caps)
    lower, area = _relaxed(costs, limit, max(bounds.values()), 1e-9)
    bounds["relaxed"] = lower
    bounds["whole"] = _whole_bound(costs, lower)

    best: _Cut | None = None
    for chosen in _selections(costs, area, limit, caps, lower):
        shared = costs.take(chosen).shared(*caps)
        for cut in _cuts(shared, limit[chosen], lower):
            time_s = max(cut.time_s, _transfer_s(gemm, cut, caps))
            if best is None or time_s < best.time_s:
                best = replace(cut, devices=usable[chosen[cut.devices]], time_s=time_s)
    if best is None:
        shared = costs.shared(egress, ingress)
        cut = _finish(shared, *spread_by_memory(costs, limit), lower, flipped=False)
        time_s = max(cut.time_s, _transfer_s(gemm, cut, caps))
        best = replace(cut, devices=usable[cut.devices], time_s=time_s)

    reason[usable[area <= 0.0]] = LeftOut.TOO_SLOW
    reason[usable[area > 0.0]] = LeftOut.NOT_SELECTED
    return _tiling(best, Costs(gemm, rates.take(best.devices[best.columns > 0]).capped(*caps), tiles), bounds, reason)


def _unusable(gemm: Gemm, rates: Rates) -> IntArray:
    """Why each device cannot be used at all, int64[N] of `LeftOut`."""
    reason = np.full(len(rates), int(LeftOut.USED), np.int64)
    reason[rates.memory_bytes < gemm.item_bytes * (2 * gemm.k + 1)] = LeftOut.NO_MEMORY
    reason[((gemm.weight_a + gemm.weight_b > 0) & (rates.down == 0)) | ((gemm.weight_c > 0) & (rates.up == 0))] = (
        LeftOut.NO_LINK
    )
    reason[np.isnan(rates.flops)] = LeftOut.NO_DTYPE
    return reason


def _nobody(gemm: Gemm, rates: Rates, reason: IntArray) -> str:
    """The message for a fleet of which no device can be used."""
    what = f"the {gemm.m} x {gemm.n} x {gemm.k} GEMM"
    if not len(rates):
        return f"there is no device for {what}; at least one is needed"
    if (reason == LeftOut.NO_MEMORY).any():
        need, most = gemm.item_bytes * (2 * gemm.k + 1), float(rates.memory_bytes[reason == LeftOut.NO_MEMORY].max())
        return (
            f"no device can hold a 1 x 1 tile of {what}: {has_and_needed(most, need, 'the largest budget')} for "
            f"k = {gemm.k}; more devices do not help, only more memory in each"
        )
    counts = ", ".join(f"{int((reason == r).sum())} {r.label}" for r in LeftOut if (reason == r).any())
    return f"no device can be used for {what}: {counts}"


def _coordinator_bound(gemm: Gemm, caps: Caps) -> float:
    """Seconds for the coordinator to send A and B once and receive C once."""
    egress, ingress = caps
    sent = gemm.item_bytes * gemm.k * (gemm.weight_a * gemm.m + gemm.weight_b * gemm.n)
    received = gemm.item_bytes * gemm.weight_c * float(gemm.m) * gemm.n
    return max(sent / egress if egress else 0.0, received / ingress if ingress else 0.0)


def _relaxed(costs: Costs, limit: FloatArray, low: float, tolerance: float) -> tuple[float, FloatArray]:
    """Smallest time in which the best areas sum to C, seconds, and those areas, float64[K]."""
    cells = float(costs.gemm.m) * costs.gemm.n
    # The sum of the limits may equal C up to rounding; no time makes more of it.
    target = min(cells, float(limit.sum()))
    lower = smallest_time(lambda t: float(costs.areas(t, limit).sum()), target, low, tolerance=tolerance)
    return lower, costs.areas(lower, limit)


def _whole_bound(costs: Costs, low: float) -> float:
    """A bound, seconds, for when only one operand travels: no rectangle gets less than a whole row or column of it."""
    gemm = costs.gemm
    if (gemm.weight_a > 0) == (gemm.weight_b > 0):
        return low
    side, each_s = (gemm.n, costs.column_s) if gemm.weight_b > 0 else (gemm.m, costs.row_s)

    def lines(time_s: float) -> float:
        return float(np.minimum(np.floor(np.maximum(time_s - costs.fixed_s, 0.0) / each_s), side).sum())

    return smallest_time(lines, float(side), low, tolerance=1e-9)


def _transfer_s(gemm: Gemm, cut: _Cut, caps: Caps) -> float:
    """Seconds that the coordinator needs for the cut's bytes."""
    egress, ingress = caps
    high, wide = float(cut.rows[cut.band][cut.columns > 0].sum()), float(cut.columns.sum())
    rows, columns = (wide, high) if cut.flipped else (high, wide)
    sent = gemm.item_bytes * gemm.k * (gemm.weight_a * rows + gemm.weight_b * columns)
    received = gemm.item_bytes * gemm.weight_c * float(gemm.m) * gemm.n
    return max(sent / egress if egress else 0.0, received / ingress if ingress else 0.0)


def _selections(costs: Costs, area: FloatArray, limit: FloatArray, caps: Caps, lower: float) -> list[IntArray]:
    """Sets of devices worth planning, each an int64 array of indices."""
    cells = costs.gemm.m * costs.gemm.n
    order = np.argsort(-area, kind="stable")
    most = max(min(int((area > 0).sum()), cells), 1)
    sets = [order[:most]]
    if costs.rates.capped(*caps) is not costs.rates:
        return sets + _promising(costs, order[:most], limit, caps, lower)
    count = most // 2
    while count >= 1 and cells / (2 * count) < SMALL_CELLS and len(sets) < 5:
        if limit[order[:count]].sum() >= cells:
            sets.append(order[:count])
        count //= 2
    return sets


def _promising(costs: Costs, order: IntArray, limit: FloatArray, caps: Caps, lower: float) -> list[IntArray]:
    """Two sets of fewer devices with the best estimate, from a ladder of counts refined around its best.

    With c devices none gets much more than a c-th of the coordinator's rate, so each count has an order of its own.
    """
    gemm, (egress, ingress) = costs.gemm, caps
    cells = float(gemm.m) * gemm.n
    estimates: dict[int, tuple[float, IntArray]] = {}

    def estimate(count: int, pool: IntArray, time_s: float) -> IntArray:
        offered = costs.at_most(egress / count if egress else None, ingress / count if ingress else None)
        ranked = pool[np.argsort(-offered.take(pool).areas(time_s, limit[pool]), kind="stable")]
        chosen = ranked[:count]
        if limit[chosen].sum() >= cells:
            shared = costs.take(chosen).shared(egress, ingress)
            total = limit[chosen]
            needed = smallest_time(lambda t: float(shared.areas(t, total).sum()), cells, lower, tolerance=1e-3)
            sides = 2.0 * np.sqrt(gemm.weight_a * gemm.weight_b * shared.areas(needed, total)).sum()
            sent = gemm.item_bytes * gemm.k * max(float(sides), gemm.weight_a * gemm.m + gemm.weight_b * gemm.n)
            estimates[count] = (max(needed, sent / egress if egress else 0.0), chosen)
        return ranked

    count, pool, time_s = len(order) // 2, order, lower
    while count >= 1:
        # Four times as many as are wanted leave room for the order to change from one count to the next.
        pool = estimate(count, pool[: 4 * count], time_s)
        time_s = estimates[count][0] if count in estimates else time_s
        count //= 2
    if not estimates:
        return []
    best = min(estimates, key=lambda c: (estimates[c][0], c))
    for ratio in (1.19, 1.41, 1.68, 0.84, 0.71, 0.6):
        if 1 <= int(best * ratio) < len(order):
            estimate(int(best * ratio), order[: 8 * best], estimates[best][0])
    return [estimates[c][1] for c in sorted(estimates, key=lambda c: (estimates[c][0], c))[:2]]


def _cuts(costs: Costs, limit: FloatArray, lower: float) -> list[_Cut]:
    """Good tilings of these devices, all of them offered a share; none if no tried band count fits memory."""
    start, area = _relaxed(costs, limit, lower, 1e-4)
    order = np.argsort(-area, kind="stable")
    order = order[area[order] > 0]
    sides = np.sqrt(area[order])
    few = len(order) <= FEW
    # With columns of B cached, only rows travel: cutting bands of columns into runs of rows divides what travels best.
    by_columns = costs.gemm.weight_b == 0 < costs.gemm.weight_a
    finished = []
    for flipped in (False, True):
        if few or flipped == by_columns:
            turned = costs.flipped() if flipped else costs
            finished += _banded(turned, order, sides, start, flipped=flipped, few=few)
    return finished


def _banded(costs: Costs, order: IntArray, sides: FloatArray, start: float, *, flipped: bool, few: bool) -> list[_Cut]:
    """The tilings with the most promising numbers of bands."""
    gemm, chosen, size = costs.gemm, costs.take(order), len(order)
    tried: list[tuple[float, float, IntArray, IntArray, FloatArray]] = []
    for bands in _band_counts(gemm, sides, FINE_RATIOS if few else RATIOS):
        band, first = cut_bands(sides, bands)
        heights = np.add.reduceat(sides**2, first) * (gemm.m / float((sides**2).sum()))
        time_s, heights = solve_heights(chosen, band, first, start, heights)
        # Whole rows and columns cost about half a row and half a column of a mean rectangle.
        rounded = time_s * (1.0 + 0.5 * size / (len(first) * gemm.n) + 0.5 * len(first) / gemm.m)
        tried.append((rounded, time_s, band, first, heights))
    finished = []
    for _, time_s, band, first, heights in sorted(tried, key=lambda t: t[0]):
        rows = round_rows(heights, height_limits(chosen, band, first), gemm.m)
        if rows is not None:
            finished.append(_finish(costs, order, band, rows, time_s, flipped=flipped))
            if len(finished) == (6 if few else 2):
                break
    return finished


def _band_counts(gemm: Gemm, sides: FloatArray, ratios: tuple[float, ...]) -> list[int]:
    """Numbers of bands to try, the likeliest first."""
    squares = float(sides.sum()) / gemm.n
    low, high = 1, min(len(sides), gemm.m)
    if gemm.weight_a > 0 and gemm.weight_b > 0:
        # More devices than columns in a band would leave some without any.
        low = -(-len(sides) // gemm.n)
        likely = [squares * sqrt(gemm.weight_a / gemm.weight_b) * r for r in ratios]
    else:
        # One side is free, so that few high bands send least; more bands round better where sending is not the limit.
        end = max(squares, len(sides) / gemm.n, 2.0) if gemm.weight_b > 0 else float(high)
        # Square roots round the same everywhere, powers and logarithms do not.
        ratio = sqrt(sqrt(sqrt(end)))
        likely = [1.0]
        for _ in range(8):
            likely.append(likely[-1] * ratio)
    return list(dict.fromkeys(int(min(max(round(b), low, 1), high)) for b in likely))


def _finish(costs: Costs, order: IntArray, band: IntArray, rows: IntArray, time_s: float, *, flipped: bool) -> _Cut:
    """Fill whole columns into bands of whole ``rows``, drop what is empty, and evaluate exactly."""
    kept = rows[band] > 0
    order, band, rows = order[kept], np.unique(band[kept], return_inverse=True)[1], rows[rows > 0]
    first = np.flatnonzero(np.concatenate([[True], band[1:] != band[:-1]]))
    chosen = costs.take(order)
    columns = fill_columns(chosen, band, first, rows, time_s)
    times = chosen.times(rows[band], columns)
    return _Cut(order, band, rows, columns, float(times.max()), flipped)


def _tiling(cut: _Cut, costs: Costs, bounds: dict[str, float], reason: IntArray) -> Tiling:
    """The public record of a cut; ``costs`` are those of its devices that have a rectangle."""
    gemm = costs.gemm
    used = cut.columns > 0
    devices, band, columns = cut.devices[used], cut.band[used], cut.columns[used]
    reason[devices] = LeftOut.USED
    high = cut.rows[band]
    bottom = np.cumsum(cut.rows)[band]
    # Every band is filled exactly, so the running sum within one is that over all, less the whole bands before.
    right = np.cumsum(columns) - band * (gemm.m if cut.flipped else gemm.n)
    down, across = (bottom - high, bottom), (right - columns, right)
    (row0, row1), (col0, col1) = (across, down) if cut.flipped else (down, across)
    return Tiling(
        gemm=gemm,
        device=devices.astype(np.int32),
        row0=row0,
        row1=row1,
        col0=col0,
        col1=col1,
        time_s=cut.time_s,
        device_s=costs.times(row1 - row0, col1 - col0),
        bounds=bounds,
        left_out=reason,
    )
