"""From host time to device time: which partition stands for a device, and by how much its time is dilated.

A product's measured time is read against the roofline of the partition, and the device gets the same factor over its
own roofline:

    shape  = measured / max(flops / R_h, bytes_h / B_h)
    device = launch + max(shape · max(flops / R_d, bytes / B_d), bytes / B_d)

Compute-bound on both, that is ``launch + kappa · measured`` with kappa = R_h / R_d (the dilation); memory-bound on
both, ``launch + measured · B_h / B_d``; and never less than what the device's memory takes.  So the effect of a shape
comes from execution, and the level from the device's profile.  R_h is the median rate of reference products, B_h the
bandwidth of a matrix times a vector far larger than caches.  Scaling by the rate of the same shape would cancel the
measurement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from morphling.executors.analytic import Analytic
from morphling.executors.gemm_model import seconds
from morphling.executors.live.partition import Partition, Product, Timing
from morphling.fleet.gemm import GemmFit
from morphling.types import BoolArray, DType, FloatArray, IntArray, item_bytes

__all__ = ["Scale", "Speed", "device_seconds", "scale_of", "speed_of"]


@dataclass(frozen=True)
class Speed:
    """A partition in one dtype.

    rate : median of the reference set, FLOP/s
    bandwidth : of a large matrix times a vector, bytes/s
    references : seconds of each product of the reference set
    """

    partition: Partition
    rate: float
    bandwidth: float
    references: dict[Product, float]


@dataclass(frozen=True, eq=False)
class Scale:
    """How the devices' rows of one dtype are timed; entry ``fleet.size`` (the coordinator) is not used.

    speeds : partitions, smallest first;  which : int64[N] index into them, the smallest that is as fast as the device,
        else the largest
    kappa : float64[N]   dilation: device time by partition time of compute-bound products; NaN = no such dtype
    rate : float64[N]    R_d, FLOP/s;  launch : float64[N] s;  bandwidth : float64[N] B_d, bytes/s
    residual : float64[N]   largest deviation (share) of the reference set from the device's own model
    """

    speeds: tuple[Speed, ...]
    which: IntArray
    kappa: FloatArray
    rate: FloatArray
    launch: FloatArray
    bandwidth: FloatArray
    residual: FloatArray


def speed_of(partition: Partition, references: dict[Product, Timing], streaming: tuple[Product, Timing]) -> Speed:
    """From measurements of the reference set and of the streaming product."""
    taken = {product: timing.seconds for product, timing in references.items()}
    rate = float(np.median([product.flops / s for product, s in taken.items()]))
    product, timing = streaming
    return Speed(partition, rate, product.operand_bytes / timing.seconds, taken)


def device_seconds(
    measured: ArrayLike,
    host_roof: ArrayLike,
    *,
    flops: ArrayLike,
    size: ArrayLike,
    rate: ArrayLike,
    bandwidth: ArrayLike,
    launch: ArrayLike,
) -> FloatArray:
    """The formula of the module; seconds, float64[n].  ``host_roof`` : of the measured product in its partition, s."""
    traffic = np.asarray(size, np.float64) / np.asarray(bandwidth, np.float64)
    roof = np.maximum(np.asarray(flops, np.float64) / np.asarray(rate, np.float64), traffic)
    shape = np.asarray(measured, np.float64) / np.asarray(host_roof, np.float64)
    out: FloatArray = np.asarray(launch, np.float64) + np.maximum(shape * roof, traffic)
    return out


def scale_of(
    analytic: Analytic, fits: list[GemmFit | None], dtype: DType, speeds: Callable[[int], Speed | None]
) -> Scale:
    """Partitions and dilations of every device for one dtype of rows.

    fits : by device group, the fitted latency model where its profile has one: it then is the device, else the roofline
    speeds : the partition by number, smallest first, None past the largest; asked for no more than are needed
    """
    fleet = analytic.fleet
    size = fleet.size
    rate = analytic.rate[:size, dtype].copy()
    launch = analytic.launch[:size].copy()
    group = fleet.group
    known: list[Speed] = []
    first = speeds(0)
    assert first is not None  # noqa: S101 - a back end has a partition
    known.append(first)
    targets = _references(fits, group, dtype, first.references)
    model = {product: np.where(np.isnan(own), product.flops / rate, own) for product, own in targets.items()}
    for number, fit in enumerate(fits):
        if fit is not None:
            launch[group == number] = fit.parameters.launch
    have = ~np.isnan(rate)
    which, kappa = _chosen(known, speeds, model, have)
    host_rate = np.array([s.rate for s in known])[which]
    device_rate = host_rate / kappa
    bandwidth = analytic.bandwidth[:size]
    residual = _residual(known, which, device_rate, bandwidth, model, dtype)
    return Scale(tuple(known), which, kappa, device_rate, launch, bandwidth, residual)


def _references(
    fits: list[GemmFit | None], group: Any, dtype: DType, references: dict[Product, float]
) -> dict[Product, FloatArray]:
    """Seconds of each reference product by a device's fitted model, less its launch; NaN where it has none."""
    out = {}
    for product in references:
        own = np.full(len(group), np.nan)
        for number, fit in enumerate(fits):
            if fit is not None:
                p = fit.parameters
                took = float(seconds(p, item_bytes(dtype), product.m, product.n, product.k)[0])
                own[group == number] = max(took - p.launch, 1e-12)
        out[product] = own
    return out


def _chosen(
    known: list[Speed], speeds: Callable[[int], Speed | None], model: dict[Product, FloatArray], have: BoolArray
) -> tuple[IntArray, FloatArray]:
    """The smallest partition whose dilation is at least 1, else the largest; more are looked at as needed."""
    which = np.zeros(len(have), np.int64)
    kappa = _kappa(known[0], model)
    while bool((have & (kappa < 1)).any()):
        following = speeds(len(known))
        if following is None:
            break
        known.append(following)
        slow = have & (kappa < 1)
        which[slow] = len(known) - 1
        kappa[slow] = _kappa(following, model)[slow]
    return which, kappa


def _kappa(speed: Speed, model: dict[Product, FloatArray]) -> FloatArray:
    """Median over the reference set of device time by partition time, float64[N]."""
    out: FloatArray = np.median([model[product] / s for product, s in speed.references.items()], axis=0)
    return out


def _residual(
    known: list[Speed],
    which: IntArray,
    rate: FloatArray,
    bandwidth: FloatArray,
    model: dict[Product, FloatArray],
    dtype: DType,
) -> FloatArray:
    """Largest deviation of the formula from the device's model over the reference set, float64[N]."""
    out = np.zeros(len(which))
    for number, speed in enumerate(known):
        mine = which == number
        for product, s in speed.references.items():
            width = item_bytes(dtype) / item_bytes(product.dtype)
            size = product.operand_bytes * width
            roof = max(product.flops / speed.rate, product.operand_bytes / speed.bandwidth)
            said = device_seconds(s, roof, flops=product.flops, size=size, rate=rate, bandwidth=bandwidth, launch=0.0)
            own = np.maximum(model[product], size / bandwidth)
            out = np.where(mine, np.fmax(out, np.abs(said / own - 1)), out)
    return out
