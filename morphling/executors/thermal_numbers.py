"""Small records and statistics of fits to temperatures: estimates, how far a simulation is off, noise, spreads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from morphling.types import FloatArray

__all__ = ["Estimate", "Misfit", "misfit", "noise", "spreads"]


@dataclass(frozen=True)
class Estimate:
    """A number and one standard deviation of it, in the same unit; ``why`` says why the log does not tell it.

    ``value`` is NaN where it has no meaning at all.
    """

    value: float
    spread: float
    why: str = ""

    @property
    def told(self) -> bool:
        """Whether the log tells it."""
        return not self.why


@dataclass(frozen=True)
class Misfit:
    """How far simulated temperatures are off, K.

    count : readings that were compared;  missing : readings, or simulated temperatures, that there are none of
    mean_k : mean absolute error;  max_k : largest;  NaN without anything to compare
    """

    count: int
    missing: int
    mean_k: float
    max_k: float


def misfit(simulated: FloatArray, measured: FloatArray) -> Misfit:
    """The errors of ``simulated`` against ``measured``, both float64[n], degC; NaN counts as missing."""
    off = np.abs(simulated - measured)
    there = off[~np.isnan(off)]
    if not len(there):
        return Misfit(0, len(off), math.nan, math.nan)
    return Misfit(len(there), len(off) - len(there), float(there.mean()), float(there.max()))


def noise(residuals: FloatArray) -> float:
    """Standard deviation of residuals without their outliers: 1.4826 times the median absolute one."""
    return float(1.4826 * np.nanmedian(np.abs(residuals)))


def spreads(solution: Any, residuals: list[FloatArray]) -> FloatArray:
    """One standard deviation of each fitted number, float64[p]; infinite where the residuals do not depend on it.

    solution : what `scipy.optimize.least_squares` returned
    residuals : of each sensor in the order of time; NaN where a reading is missing

    The inverse of the curvature times the variance of the residuals, times the number of neighbouring residuals that
    count as one, of the sensor in which these are most.
    """
    jacobian = np.asarray(solution.jac)
    rows, columns = jacobian.shape
    length = np.sqrt((jacobian**2).sum(axis=0))
    used = length > 1e-12 * length.max()
    _, singular, turn = np.linalg.svd(jacobian[:, used] / length[used], full_matrices=False)
    variance = np.full(columns, np.inf)
    variance[used] = (turn**2 / np.maximum(singular, 1e-8)[:, None] ** 2).sum(axis=0) / length[used] ** 2
    scatter = 2 * solution.cost / max(rows - columns, 1)
    widened = max((_together(r) for r in residuals), default=1.0)
    out: FloatArray = np.sqrt(variance * scatter * widened)
    return out


def _together(residuals: FloatArray) -> float:
    """How many neighbouring residuals count as one: 1 + 2 · (sum of their autocorrelations up to the first below 0).

    The rounding of a sensor that shows whole kelvins stays the same for minutes, so that neighbours tell little more.
    """
    off = np.nan_to_num(residuals - np.nanmean(residuals))
    power = np.abs(np.fft.rfft(off, 2 * len(off))) ** 2
    correlation = np.fft.irfft(power)[: len(off)]
    if not correlation[0] > 0:
        return 1.0
    correlation /= correlation[0]
    ends = np.flatnonzero(correlation < 0)
    return float(1 + 2 * correlation[1 : ends[0] if len(ends) else None].sum())
