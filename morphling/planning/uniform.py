"""Equal rectangles of a GEMM for all devices, whatever their speed, links and memory: the plan that Cleave improves on.

`priced` gives any rectangles their times.  A plan that looks at the devices does not belong here
(`morphling.planning.tiling`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from morphling.errors import Infeasible
from morphling.planning.costs import Costs, Gemm, Rates, tile_bytes
from morphling.planning.lacking import has_and_needed
from morphling.planning.rectangles import LeftOut, Span, Tiling
from morphling.types import IntArray

__all__ = ["priced", "uniform_grid", "uniform_tiling"]


def uniform_grid(m: int, n: int, devices: int) -> tuple[int, int]:
    """Bands of rows and of columns whose product is ``devices``, or the largest number below it that C[m x n] allows.

    Of the grids of that many rectangles, the one in which a rectangle needs the fewest rows and columns; of equals, the
    one with fewer bands of rows.
    """
    for count in range(min(devices, m * n), 0, -1):
        grids = [(r, count // r) for r in range(1, min(count, m) + 1) if count % r == 0 and count // r <= n]
        if grids:
            return min(grids, key=lambda grid: (m / grid[0] + n / grid[1], grid[0]))
    raise ValueError(f"a grid needs a product with rows and columns and a device, not {m} x {n} on {devices}")


def uniform_tiling(
    gemm: Gemm,
    rates: Rates,
    *,
    tiles: int | None = 1,
    egress: float | None = None,
    ingress: float | None = None,
    names: Sequence[str] | None = None,
) -> Tiling:
    """C[m x n] cut by `uniform_grid`, a rectangle for each device in order; sides differ by at most one.

    tiles, egress, ingress : as for `morphling.planning.tiling.plan_tiling`, for the times only
    names : of the devices, for messages

    Raises ``Infeasible`` if a device cannot hold its rectangle, or lacks the dtype: nobody is left out to make it fit.
    """
    size = len(rates)
    if not size:
        raise Infeasible(f"there is no device for the {gemm.m} x {gemm.n} x {gemm.k} GEMM; at least one is needed")
    called = [f"device {i}" for i in range(size)] if names is None else names
    lacking = np.isnan(rates.flops)
    if lacking.any():
        raise Infeasible(f"{called[int(lacking.argmax())]} lacks the dtype, and equal parts leave no device out")
    high, wide = uniform_grid(gemm.m, gemm.n, size)
    count = high * wide
    band, place = np.divmod(np.arange(count), wide)
    row0, row1 = _span(band, high, gemm.m)
    col0, col1 = _span(place, wide, gemm.n)
    alpha, beta = row1 - row0, col1 - col0
    _require_memory(gemm, rates, alpha, beta, called)
    spans = (row0, row1), (col0, col1)
    return priced(gemm, rates, np.arange(count), *spans, tiles=tiles, egress=egress, ingress=ingress)


def priced(
    gemm: Gemm,
    rates: Rates,
    device: IntArray,
    rows: Span,
    columns: Span,
    *,
    tiles: int | None = 1,
    egress: float | None = None,
    ingress: float | None = None,
) -> Tiling:
    """The tiling of rectangles that somebody chose, with its times.

    device : int64[R], whose each is, in ``rates``;  rows, columns : starts and ends, int64[R] each, half open
    tiles, egress, ingress : as for `morphling.planning.tiling.plan_tiling`

    That C is covered exactly once is not asked here (`morphling.planning.rectangles.check_tiling`), nor is memory.
    """
    (row0, row1), (col0, col1) = rows, columns
    alpha, beta = row1 - row0, col1 - col0
    capped = rates.take(device).capped(egress, ingress)
    times = Costs(gemm, capped, tiles).times(alpha, beta)
    sent = gemm.item_bytes * gemm.k * float((alpha + beta).sum())
    returned = gemm.item_bytes * float(gemm.m) * gemm.n
    carried = max(sent / egress if egress else 0.0, returned / ingress if ingress else 0.0)
    left_out = np.full(len(rates), int(LeftOut.NOT_SELECTED), np.int64)
    left_out[device] = LeftOut.USED
    return Tiling(
        gemm=gemm,
        device=device.astype(np.int32),
        row0=row0,
        row1=row1,
        col0=col0,
        col1=col1,
        time_s=max(float(times.max()), carried),
        device_s=times,
        bounds={},
        left_out=left_out,
    )


def _span(place: IntArray, parts: int, size: int) -> Span:
    """Starts and ends of equal parts of ``size``."""
    return place * size // parts, (place + 1) * size // parts


def _require_memory(gemm: Gemm, rates: Rates, alpha: IntArray, beta: IntArray, names: Sequence[str]) -> None:
    need = tile_bytes(alpha, beta, gemm.k, gemm.item_bytes)
    over = need - rates.memory_bytes[: len(need)]
    if over.max() > 0:
        i = int(over.argmax())
        told = has_and_needed(float(rates.memory_bytes[i]), float(need[i]), names[i])
        raise Infeasible(
            f"{int((over > 0).sum())} of {len(need)} devices cannot hold one of {len(need)} equal parts of the"
            f" {gemm.m} x {gemm.n} x {gemm.k} GEMM: {told} for {alpha[i]} x {beta[i]} of it; more devices or a smaller"
            " batch_size make parts smaller, and cleave gives devices with less memory less"
        )
