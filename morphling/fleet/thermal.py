"""Heat of devices as arrays: two stores of heat in a row, and a clock that falls when the case is too warm."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from morphling.types import FloatArray, IntArray

__all__ = ["Thermal"]


@dataclass(frozen=True, eq=False)
class Thermal:
    """Constants of N devices; NaN in all columns where a device never slows.

    ambient_c, trip_c : float64[N]      degC; the case slows the clock from ``trip_c`` on
    ambient_to_case, junction_to_case : float64[N]    thermal resistance, K/W
    case_s, case_cooling_s, junction_s : float64[N]   time constants, s: of the case while it warms and while it cools,
        and of the junction
    hysteresis_k : float64[N]           how far below ``trip_c`` the case cools before the clock rises again, K
    clock_floor : float64[N]            lowest clock, as a share of the full one
    clock_steps : int64[N]              steps between full clock and floor; 0 = any clock between
    power_exponent : float64[N]         power above static goes with this power of the clock
    static_share : float64[N]           share of the full power that no clock changes

    At steady power P the case settles at ``ambient + ambient_to_case · P``, exponentially; the junction follows it at
    ``junction_to_case · P`` above.  Computing at clock c takes ``max_w · (static + (1 - static) · c^exponent)``.
    """

    ambient_c: FloatArray
    ambient_to_case: FloatArray
    case_s: FloatArray
    case_cooling_s: FloatArray
    junction_to_case: FloatArray
    junction_s: FloatArray
    trip_c: FloatArray
    hysteresis_k: FloatArray
    clock_floor: FloatArray
    clock_steps: IntArray
    power_exponent: FloatArray
    static_share: FloatArray

    @classmethod
    def none(cls, size: int) -> Thermal:
        """``size`` devices that never slow."""
        columns: dict[str, Any] = {f.name: np.full(size, np.nan) for f in fields(cls)}
        return cls(**{**columns, "clock_steps": np.zeros(size, np.int64)})

    @property
    def slows(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which devices have heat at all, bool[N]."""
        return ~np.isnan(self.trip_c)

    def where(self, keep: np.ndarray[Any, np.dtype[np.bool_]]) -> Thermal:
        """The same with only the devices of ``keep`` slowing."""
        changed = {f.name: np.where(keep, getattr(self, f.name), np.nan) for f in fields(self)}
        return replace(self, **{**changed, "clock_steps": self.clock_steps})
