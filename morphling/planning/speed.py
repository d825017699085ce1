"""How fast a planner takes devices to be."""

from __future__ import annotations

from math import ceil, sqrt

import numpy as np

from morphling.errors import Infeasible
from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import View
from morphling.planning.costs import Gemm
from morphling.types import FloatArray, IntArray

__all__ = ["central_seconds", "device_speed"]


def device_speed(view: View, here: IntArray, gemm: Gemm, *, by_shape: bool) -> tuple[FloatArray, FloatArray]:
    """FLOP/s and launch cost (s) of the devices ``here``, each float64[len(here)], in plans of ``gemm``.

    By their profiles: the rate of large GEMMs, and the launch.  With ``by_shape`` by what the executor knows of a
    product as large as an equal, square share of this one (m/√N x n/√N, whole k); the launch is then part of the rate.
    """
    if not by_shape:
        return view.fleet.compute_flops(view.workload.dtype)[here], view.fleet.launch_s[here]
    side = sqrt(max(len(here), 1))
    m, n = ceil(gemm.m / side), ceil(gemm.n / side)
    seconds = view.gemm_seconds(m, n, gemm.k)[here]
    with np.errstate(divide="ignore"):
        return 2.0 * m * n * gemm.k / seconds, np.zeros(len(here))


def central_seconds(rows: TaskTable, view: View) -> float:
    """Seconds that the coordinator needs for its own rows, one after another, by its profile.

    Raises ``Infeasible`` if it lacks the workload's dtype.
    """
    c = view.fleet.coordinator
    rate = c.compute_flops(view.workload.dtype)
    if np.isnan(rate) and (rows.flops > 0).any():
        raise Infeasible(f"the coordinator ({c.name}) has no {view.workload.dtype.label} rate")
    return float(np.sum(c.launch_s + np.maximum(rows.flops / rate, rows.memory_bytes / c.memory_bandwidth)))
