"""A recorded log of a device's temperatures and of what warmed it, as arrays."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from morphling.types import FloatArray, IntArray

__all__ = ["ThermalLog"]


@dataclass(frozen=True, eq=False)
class ThermalLog:
    """Samples of one device, in the order of time; NaN in a temperature is a reading that is missing.

    time_s : float64[n]       s, increasing
    case_c : float64[n]       temperature of the case (skin, battery, chassis), degC
    junction_c : float64[n] or None    temperature of the chip, degC
    clock : float64[n] or None         share of the full clock, in (0, 1]
    load : float64[n] or None          share of the time that the device computes, in [0, 1]
    power_w : float64[n] or None       W
    starts : int64[s]         where each stretch without a gap begins; the first is 0

    Clock, load and power hold from their sample to the next one.
    """

    time_s: FloatArray
    case_c: FloatArray
    junction_c: FloatArray | None
    clock: FloatArray | None
    load: FloatArray | None
    power_w: FloatArray | None
    starts: IntArray

    @property
    def size(self) -> int:
        """How many samples."""
        return len(self.time_s)

    def stretches(self, first: int, last: int) -> list[tuple[int, int]]:
        """Half-open ranges of samples without a gap inside ``first:last``."""
        inside = self.starts[(self.starts > first) & (self.starts < last)]
        edges = np.concatenate(([first], inside, [last])).tolist()
        return list(itertools.pairwise(edges))
