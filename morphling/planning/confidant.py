"""Confidant's planner: consecutive layers on a line of devices, the slowest stage or link as fast as it can be.

The dynamic program of FTPipeHD (repository qyy2003/FTPipeHD), which calls itself the implementation of Confidant
(MobiCom 2025, doi 10.1145/3680207.3723487).  Its pipeline is asynchronous, so that in the steady state a batch takes
the longest of all stages and all links: compute and transfer of a stage overlap, they stand under the maximum and are
not summed.  That is the difference to `morphling.planning.group_costs.confident`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from morphling.errors import Infeasible, PlanError
from morphling.types import FloatArray, IntArray

__all__ = ["ConfidantPlan", "plan_confidant"]


@dataclass(frozen=True, eq=False)
class ConfidantPlan:
    """Which device computes which layers.

    batch_s : steady-state seconds of one batch, the longest of all stages and links
    layers : int64[P + 1], stage p computes layers layers[p] up to before layers[p + 1]
    compute_s : float64[P] of each stage;  transfer_s : float64[P - 1], there and back over each link
    idle : devices at the end of the line that get no layer (more devices than layers)
    """

    batch_s: float
    layers: IntArray
    compute_s: FloatArray
    transfer_s: FloatArray
    idle: int


def plan_confidant(
    layer_s: ArrayLike,
    power: ArrayLike,
    output_bytes: ArrayLike,
    bandwidth: ArrayLike,
    *,
    layer_bytes: ArrayLike | None = None,
    memory_bytes: ArrayLike | None = None,
) -> ConfidantPlan:
    """best[j][p] = min over i of max(best[i][p-1], 2 output_i / bandwidth_(p-1), time of layers i+1 … j times power_p).

    Every stage has at least one layer; the first min(N, L) devices take part, the central one, which has the data,
    first.  Of several best plans the one whose last stage begins earliest, and so on forward.

    Parameters
    ----------
    layer_s
        float[L], seconds of each layer, forward and backward, on the central device.
    power
        float[N], time on the device over time on the central one (1 = as fast, 2 = half as fast), above zero.
    output_bytes
        float[L], activations of each layer's output for a batch; gradients of that size come back.
    bandwidth
        float[N - 1], bytes/s from device p to p + 1, above zero.
    layer_bytes, memory_bytes
        float[L] kept on a device for each layer and float[N] of each device; give both or neither.

    Raises
    ------
    PlanError
        On wrong lengths or values.
    Infeasible
        If some stage cannot hold its layers in any plan.
    """
    time, out = _numbers("layer_s", layer_s), _numbers("output_bytes", output_bytes)
    speed, rate = _numbers("power", power), _numbers("bandwidth", bandwidth)
    layers, devices = len(time), len(speed)
    if not layers or not devices or len(out) != layers or len(rate) != devices - 1:
        raise PlanError(
            f"{layers} layers and {len(out)} outputs, {devices} devices and {len(rate)} links: "
            "there must be as many outputs as layers, one link less than devices, and at least one of each"
        )
    if not (speed > 0).all() or not (rate > 0).all():
        raise PlanError("power and bandwidth must be above zero")
    if (layer_bytes is None) != (memory_bytes is None):
        raise PlanError("layer_bytes and memory_bytes belong together: give both or neither")
    stages = min(devices, layers)
    before = np.concatenate([[0.0], np.cumsum(time)])
    first = _first_layers(layer_bytes, memory_bytes, layers, devices)
    sends = np.zeros(devices)  # bytes of a batch there and back, in seconds a byte
    sends[1:] = 2.0 / rate
    best, came = np.full((stages, layers + 1), np.inf), np.zeros((stages, layers + 1), np.int64)
    for p in range(stages):
        for end in range(p + 1, layers + 1):
            start = np.arange(p, end) if p else np.zeros(1, np.int64)
            longest = (before[end] - before[start]) * speed[p]
            if p:
                longest = np.maximum(longest, np.maximum(best[p - 1, start], out[start - 1] * sends[p]))
            longest[start < first[p, end]] = np.inf
            at = int(np.argmin(longest))
            best[p, end], came[p, end] = longest[at], start[at]
    if not np.isfinite(best[-1, layers]):
        reached = [int(np.flatnonzero(np.isfinite(row))[-1]) if np.isfinite(row).any() else 0 for row in best]
        raise Infeasible(
            f"confidant: {layers} layers do not fit into the memory of {stages} devices in a line; up to each device "
            f"at most {reached} layers do"
        )
    cuts = [layers]
    for p in range(stages - 1, -1, -1):
        cuts.append(int(came[p, cuts[-1]]))
    cut = np.array(cuts[::-1], np.int64)
    return ConfidantPlan(
        batch_s=float(best[-1, layers]),
        layers=cut,
        compute_s=(before[cut[1:]] - before[cut[:-1]]) * speed[:stages],
        transfer_s=out[cut[1:-1] - 1] * sends[1:stages],
        idle=devices - stages,
    )


def _first_layers(layer_bytes: ArrayLike | None, memory_bytes: ArrayLike | None, layers: int, devices: int) -> IntArray:
    """First layer that a stage on device p may begin with if it ends before ``end``, int64[N, L + 1]."""
    if layer_bytes is None or memory_bytes is None:
        return np.zeros((devices, layers + 1), np.int64)
    size, room = _numbers("layer_bytes", layer_bytes), _numbers("memory_bytes", memory_bytes, most=np.inf)
    if len(size) != layers or len(room) != devices:
        raise PlanError(f"layer_bytes needs {layers} numbers, not {len(size)}; memory_bytes {devices}, not {len(room)}")
    total = np.concatenate([[0.0], np.cumsum(size)])
    held = total[None, :] - total[:, None]  # [start, end]
    first: IntArray = (held[None] > room[:, None, None]).sum(axis=1, dtype=np.int64)
    return first


def _numbers(name: str, values: ArrayLike, most: float = np.finfo(np.float64).max) -> FloatArray:
    out = np.asarray(values, np.float64)
    if out.ndim != 1 or not ((out >= 0) & (out <= most)).all():
        raise PlanError(f"{name} must be a row of finite numbers, none negative")
    return out
