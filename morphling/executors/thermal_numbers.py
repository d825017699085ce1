"""Small records and statistics of fits to temperatures: estimates, how far a simulation is off, noise, spreads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from morphling.types import FloatArray

__all__ = ["Estimate", "Misfit", "misfit", "noise", "spreads"]

_CLOSEST: Final = 0.999
"""Neighbouring residuals count as correlated at most so closely: 1 would leave no spread that is finite."""


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

    The inverse of the curvature times the variance of the residuals, times ``(1 + r) / (1 - r)`` of the sensor whose
    neighbouring residuals are correlated most (r, at least 0).
    """
    jacobian = np.asarray(solution.jac)
    rows, columns = jacobian.shape
    length = np.sqrt((jacobian**2).sum(axis=0))
    used = length > 1e-12 * length.max()
    _, singular, turn = np.linalg.svd(jacobian[:, used] / length[used], full_matrices=False)
    variance = np.full(columns, np.inf)
    variance[used] = (turn**2 / np.maximum(singular, 1e-8)[:, None] ** 2).sum(axis=0) / length[used] ** 2
    scatter = 2 * solution.cost / max(rows - columns, 1)
    together = max((_neighbours(r) for r in residuals), default=0.0)
    out: FloatArray = np.sqrt(variance * scatter * (1 + together) / (1 - together))
    return out


def _neighbours(residuals: FloatArray) -> float:
    """Correlation of each residual with the next one, in [0, 0.999]."""
    off = residuals - np.nanmean(residuals)
    pairs, all_ = np.nanmean(off[1:] * off[:-1]), np.nanmean(off**2)
    return float(min(max(pairs / all_ if all_ > 0 else 0.0, 0.0), _CLOSEST))
