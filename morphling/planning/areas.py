"""``model: paper``: the published per-GEMM problem of Cleave, solved exactly in its continuous form.

The published problem conserves area only (the sum of alpha beta is m n; no geometry, no memory, no latency), so that
for a time T each device has a largest area in closed form, and the optimum is the smallest T at which the areas sum
to m n.  Searches over areas belong here; rectangles belong in `morphling.planning.tiling`.

Source of the problem: the Cleave paper (arXiv 2512.22142) and the solver in the artifact repository
netsys-edinburgh/wasp, ``wasp/placement``.  Of the artifact's quirk that counts compute twice in the solver we keep
2 m n k, which its own evaluation uses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from morphling.errors import Infeasible
from morphling.planning.costs import Costs, Gemm, Rates
from morphling.types import FloatArray

__all__ = ["AreaPlan", "areas", "smallest_time", "solve_areas"]


@dataclass(frozen=True, eq=False)
class AreaPlan:
    """The continuous optimum for one GEMM.

    time_s : seconds;  area, rows (alpha), cols (beta) : float64[N], alpha beta = area, areas sum to m n
    download_s, compute_s, upload_s : float64[N], time of each stage on each device (they overlap: none exceeds time_s)
    bounds : seconds that no plan beats: ``uplink``, ``compute``, ``download`` (each as if only that stage took time)
    """

    time_s: float
    area: FloatArray
    rows: FloatArray
    cols: FloatArray
    download_s: FloatArray
    compute_s: FloatArray
    upload_s: FloatArray
    bounds: dict[str, float]

    @property
    def imbalance(self) -> float:
        """(max - mean) / mean of the devices' times."""
        times = np.maximum(np.maximum(self.download_s, self.compute_s), self.upload_s)
        return float(times.max() / times.mean() - 1.0)


def areas(
    time_s: float,
    m: int,
    n: int,
    k: int,
    *,
    flops: ArrayLike,
    down: ArrayLike,
    up: ArrayLike,
    item_bytes: int = 2,
    cached: bool = False,
) -> FloatArray:
    """Largest area of C (cells) that each device can cover in ``time_s`` with perfect overlap, float64[N].

    ``flops`` FLOP/s, ``down`` and ``up`` bytes/s.  With s = T D / (b k): s²/4 while both sides fit, less beyond;
    with ``cached`` the rows of A are free and it is m min(n, s).  At most T U / b and T F / (2 k).
    """
    return _paper_costs((m, n, k), Rates.of(flops, down, up), item_bytes, cached=cached).areas(time_s)


def solve_areas(
    m: float,
    n: float,
    k: int,
    *,
    flops: ArrayLike,
    down: ArrayLike,
    up: ArrayLike,
    item_bytes: int = 2,
    cached: bool = False,
) -> AreaPlan:
    """The smallest time in which N devices cover C[m x n], to a relative 1e-14, and who covers how much.

    ``m`` and ``n`` need not be whole.  ``flops`` FLOP/s, ``down`` and ``up`` bytes/s, each [N].  Raises ``Infeasible``
    without devices.
    """
    costs = _paper_costs((m, n, k), Rates.of(flops, down, up), item_bytes, cached=cached)
    if not len(costs):
        raise Infeasible(f"there is no device for the {m} x {n} x {k} GEMM; at least one is needed")
    cells = float(m) * n
    bounds = stage_bounds(costs, tolerance=1e-14)
    time_s = smallest_time(lambda t: float(costs.areas(t).sum()), cells, max(bounds.values()), tolerance=1e-14)
    area = costs.areas(time_s)
    area *= cells / area.sum()
    # Columns travel, cached rows do not: then a device takes whole columns.
    rows = np.full(len(costs), float(m)) if cached else np.minimum(np.sqrt(area), float(m))
    if not cached:
        rows = np.maximum(rows, area / n)
    cols = area / rows
    return AreaPlan(
        time_s=time_s,
        area=area,
        rows=rows,
        cols=cols,
        download_s=costs.row_s * rows + costs.column_s * cols,
        compute_s=costs.compute_s * area,
        upload_s=costs.upload_s * area,
        bounds=bounds,
    )


def stage_bounds(costs: Costs, *, tolerance: float) -> dict[str, float]:
    """Times that no plan beats, seconds: as if only uploading, only computing, only downloading took time."""
    g, cells = costs.gemm, float(costs.gemm.m) * costs.gemm.n
    upload = cells / float((1.0 / costs.upload_s).sum()) if costs.sends else 0.0
    compute = cells / float((1.0 / costs.compute_s).sum())
    download = 0.0
    if costs.receives:
        only = Rates.of(np.full(len(costs), 1e300), costs.rates.down, 0.0)
        link = Costs(Gemm(g.m, g.n, g.k, g.item_bytes, g.weight_a, g.weight_b, 0.0), only, None)
        # Even in the best shape, each row of A and each column of B goes to somebody.
        once = g.item_bytes * g.k * max(g.weight_a * g.m, g.weight_b * g.n)
        start = once / float(costs.rates.down.sum())
        download = smallest_time(lambda t: float(link.areas(t).sum()), cells, start, tolerance=tolerance)
    return {"uplink": upload, "compute": compute, "download": download}


def smallest_time(total: Callable[[float], float], target: float, low: float, *, tolerance: float) -> float:
    """Smallest T > 0 with ``total(T) >= target``, to a relative ``tolerance``; ``total`` must not decrease.

    ``low`` > 0 is a time known not to be longer than T.  Raises ``Infeasible`` if no time of 10^18 s is enough.
    """
    if total(low) >= target:
        return low
    high = low
    while total(high) < target:
        low, high = high, high * 2.0
        if high > 1e18:
            raise Infeasible("no time is long enough")
    while high - low > tolerance * high:
        middle = 0.5 * (low + high)
        if middle in {low, high}:
            break
        low, high = (low, middle) if total(middle) >= target else (middle, high)
    return high


def _paper_costs(shape: tuple[float, float, int], rates: Rates, item_bytes: int, *, cached: bool) -> Costs:
    m, n, k = shape
    gemm = Gemm(m, n, k, item_bytes, weight_a=0.0 if cached else 1.0)  # type: ignore[arg-type] # continuous sides
    return Costs(gemm, rates, None)
