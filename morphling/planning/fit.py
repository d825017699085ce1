"""Whether the memory of a fleet can hold C in one rectangle a device, and if not, what could."""

from __future__ import annotations

import numpy as np

from morphling.errors import Infeasible
from morphling.planning.bands import cut_bands, height_limits, round_rows
from morphling.planning.costs import Costs, Gemm, Rates
from morphling.planning.lacking import has_and_needed
from morphling.types import FloatArray, IntArray

__all__ = ["require_memory", "spread_by_memory"]

RATIOS = (1.0, 0.84, 1.19, 0.71, 1.41, 0.5, 2.0, 0.25, 4.0)
"""Band counts that are tried, relative to that of squares of the devices' own size."""


def spread_by_memory(costs: Costs, limit: FloatArray) -> tuple[IntArray, IntArray, IntArray]:
    """Bands by memory alone: devices in order, their band, the bands' whole rows.

    ``limit`` is ``costs.memory_area()``.  Raises ``Infeasible`` if no number of bands fits.
    """
    found = _spread(costs, limit)
    if found is None:
        raise Infeasible(_advice(costs))
    return found


def require_memory(costs: Costs, limit: FloatArray) -> None:
    """Raise ``Infeasible``, saying what would do, if the devices' memory together cannot hold C."""
    if limit.sum() < float(costs.gemm.m) * costs.gemm.n:
        raise Infeasible(_advice(costs))


def _spread(costs: Costs, limit: FloatArray) -> tuple[IntArray, IntArray, IntArray] | None:
    gemm = costs.gemm
    if limit.sum() < float(gemm.m) * gemm.n:
        return None
    order = np.argsort(-limit, kind="stable")
    order = order[limit[order] > 0][: gemm.m * gemm.n]
    sides = np.sqrt(limit[order])
    chosen = costs.take(order)
    low, high = -(-len(order) // gemm.n), min(len(order), gemm.m)
    squares = min(float(sides.sum()) / gemm.n, float(gemm.m))
    for bands in dict.fromkeys(int(min(max(round(squares * r), low, 1), high)) for r in RATIOS):
        band, first = cut_bands(sides, bands)
        limits = height_limits(chosen, band, first)
        rows = round_rows(np.maximum(limits * (gemm.m / max(int(limits.sum()), 1)), 1e-9), limits, gemm.m)
        if rows is not None:
            return order, band, rows
    return None


def _fits(gemm: Gemm, memory_bytes: FloatArray) -> bool:
    """Whether devices with these budgets can hold C (their speeds do not matter)."""
    memory = memory_bytes[memory_bytes >= gemm.item_bytes * (2 * gemm.k + 1)]
    if not len(memory):
        return False
    costs = Costs(gemm, Rates.of(np.ones(len(memory)), 1.0, 1.0, memory_bytes=memory), None)
    return _spread(costs, costs.memory_area()) is not None


def _advice(costs: Costs) -> str:
    """The message: how much memory in each device, or how many devices of the same mix, would hold C."""
    gemm, memory = costs.gemm, costs.rates.memory_bytes
    size = len(memory)
    low, high = 1.0, 2.0
    while not _fits(gemm, memory * high):
        low, high = high, high * 2.0
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if _fits(gemm, memory * middle) else (middle, high)
    few, many = size, 2 * size
    while many < 64 * size and not _fits(gemm, np.resize(memory, many)):
        few, many = many, 2 * many
    fleet = f"more than {many} devices"
    if _fits(gemm, np.resize(memory, many)):
        while many - few > max(1, few // 500):
            middle_count = (few + many) // 2
            few, many = (few, middle_count) if _fits(gemm, np.resize(memory, middle_count)) else (middle_count, many)
        fleet = f"{many} devices of the same mix ({many / size:.3g} times as many)"
    return (
        f"the {gemm.m} x {gemm.n} x {gemm.k} GEMM does not fit the memory of {size} devices in one rectangle each "
        f"({has_and_needed(memory.mean(), high * memory.mean(), 'the mean budget')}); it would with {high:.4g} times "
        f"the memory in each, or with {fleet}"
    )
