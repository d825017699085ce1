"""How long rows compute, by the same formula as the analytic executor; for estimates that check rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from morphling.interfaces.view import View
from morphling.planning.collective_times import MemberLinks
from morphling.types import FloatArray, IntArray

__all__ = ["Speeds", "links_of"]


@dataclass(frozen=True, eq=False)
class Speeds:
    """Of n devices, each float64[n].

    flops : FLOP/s in the workload's dtype;  bandwidth : bytes/s between memory and cores;  launch_s : of a row, seconds
    """

    flops: FloatArray
    bandwidth: FloatArray
    launch_s: FloatArray

    @classmethod
    def of(cls, view: View, devices: IntArray) -> Speeds:
        """Of these devices of the fleet, by their profiles."""
        fleet = view.fleet
        return cls(
            fleet.compute_flops(view.workload.dtype)[devices],
            np.asarray(fleet.memory_bandwidth, np.float64)[devices],
            np.asarray(fleet.launch_s, np.float64)[devices],
        )

    def seconds(self, flops: ArrayLike, memory_bytes: ArrayLike) -> FloatArray:
        """Launch and the longer of computing and memory traffic, float64[n]; nothing for a row of no work."""
        f, b = np.asarray(flops, np.float64), np.asarray(memory_bytes, np.float64)
        busy = np.maximum(f / self.flops, b / self.bandwidth)
        out: FloatArray = np.where((f > 0) | (b > 0), self.launch_s + busy, 0.0)
        return out


def links_of(view: View, devices: IntArray) -> MemberLinks:
    """The links of these devices, in their order, as they are known now."""
    return MemberLinks.of(
        view.uplink_bps[devices], view.downlink_bps[devices], view.fleet.links.latency_ns[devices] / 1e9
    )
