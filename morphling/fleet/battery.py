"""Batteries of devices as arrays."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from morphling.types import BoolArray, FloatArray

__all__ = ["Battery"]


@dataclass(frozen=True, eq=False)
class Battery:
    """Batteries of N devices; NaN in all columns where a device is plugged in.

    capacity_j : float64[N]    energy of the full battery, J
    reserve_j : float64[N]     charge at which the device leaves, J
    charger_w : float64[N]     power of charging while the device is away, W; 0 = it has no charger
    resume_j : float64[N]      charge from which a device that left for its battery comes back, J
    initial_j : float64[N]     charge at time 0, J
    """

    capacity_j: FloatArray
    reserve_j: FloatArray
    charger_w: FloatArray
    resume_j: FloatArray
    initial_j: FloatArray

    @classmethod
    def none(cls, size: int) -> Battery:
        """``size`` devices that are plugged in."""
        return cls(*(np.full(size, np.nan) for _ in fields(cls)))

    @property
    def has(self) -> BoolArray:
        """Which devices have a battery, bool[N]."""
        return ~np.isnan(self.capacity_j)
