"""The fleet as arrays: one entry per device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from morphling.fleet.availability import Availability
from morphling.fleet.battery import Battery
from morphling.fleet.gemm import GemmFit
from morphling.fleet.links import Links
from morphling.fleet.thermal import Thermal
from morphling.types import DType, FloatArray, Int32Array, IntArray

__all__ = ["Coordinator", "Fleet"]


@dataclass(frozen=True, eq=False)
class Coordinator:
    """The parameter server.  Its link rates are seen from itself: it sends on ``uplink`` what devices download.

    ``peak_flops``, ``efficiency`` float64[len(DType)] (NaN = dtype not supported); ``None`` rates are unlimited.
    """

    name: str
    peak_flops: FloatArray
    efficiency: FloatArray
    memory_bytes: int
    memory_bandwidth: float
    launch_s: float = 0.0
    idle_w: float = float("nan")
    max_w: float = float("nan")
    downlink_bps: int | None = None
    uplink_bps: int | None = None
    sources: dict[str, str] = field(default_factory=dict)
    gemm_fits: Mapping[DType, GemmFit] = field(default_factory=dict)

    def compute_flops(self, dtype: DType) -> float:
        """Achieved GEMM rate, FLOP/s."""
        return float(self.peak_flops[dtype] * self.efficiency[dtype])


@dataclass(frozen=True, eq=False)
class Fleet:
    """N devices.

    peak_flops, efficiency : float64[N, len(DType)]   peak rate and the achieved share of it in large GEMMs; NaN = no
        such dtype
    memory_bytes : int64[N]         what training may use (after the operating system's reserve)
    memory_bandwidth : float64[N]   sustained bytes/s; inf where not stated (then computing is never memory-bound)
    launch_s : float64[N]           fixed cost of a kernel
    idle_w, max_w : float64[N]      power when idle and at full load; NaN where not stated
    profile : int32[N]              index into ``profile_names``
    group : int32[N]                index of the scenario's fleet entry
    radio_up_j, radio_down_j : float64[N]   energy of sending and of receiving one bit, J; NaN where not stated; None =
        of no device
    thermal : constants of devices that warm and slow; None = none does
    battery : batteries of devices that are not plugged in; None = all are
    gemm_fits : a fitted GEMM latency model for each dtype, by ``group``; empty where no profile has any
    """

    profile_names: tuple[str, ...]
    profile: Int32Array
    group: Int32Array
    peak_flops: FloatArray
    efficiency: FloatArray
    memory_bytes: IntArray
    memory_bandwidth: FloatArray
    launch_s: FloatArray
    idle_w: FloatArray
    max_w: FloatArray
    links: Links
    availability: Availability
    coordinator: Coordinator
    radio_up_j: FloatArray | None = None
    radio_down_j: FloatArray | None = None
    thermal: Thermal | None = None
    battery: Battery | None = None
    gemm_fits: tuple[Mapping[DType, GemmFit], ...] = ()

    @property
    def size(self) -> int:
        """Number of devices."""
        return len(self.memory_bytes)

    def compute_flops(self, dtype: DType) -> FloatArray:
        """Achieved GEMM rate of each device, FLOP/s, float64[N]; NaN where the device lacks the dtype."""
        rate: FloatArray = self.peak_flops[:, dtype] * self.efficiency[:, dtype]
        return rate

    def names(self) -> list[str]:
        """``profile#i`` for each device."""
        return [f"{self.profile_names[p]}#{i}" for i, p in enumerate(self.profile)]

    @staticmethod
    def per_dtype(rates: dict[str, float]) -> FloatArray:
        """A row of ``peak_flops`` from dtype names; absent dtypes are NaN."""
        row = np.full(len(DType), np.nan)
        for name, rate in rates.items():
            row[DType.named(name)] = rate
        return row
