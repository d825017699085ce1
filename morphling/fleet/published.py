"""Fleets of published evaluations, drawn exactly as their authors drew them, and a builder from plain arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from morphling.errors import InputError
from morphling.fleet.availability import Availability
from morphling.fleet.fleet import Coordinator, Fleet
from morphling.fleet.links import Links
from morphling.types import DType, FloatArray

__all__ = ["CleaveDraw", "cleave_draw", "cleave_fleet", "fleet_from_arrays", "unlimited_coordinator"]

TERA = 2.0**40
"""What the published evaluation calls a tera."""
MEGABYTE = 2**20
"""What the published evaluation calls a megabyte."""
_RATIO_UPLINK = 7.5


@dataclass(frozen=True, eq=False)
class CleaveDraw:
    """The numbers behind `cleave_fleet`, in the published units.

    tera_flops : float64[N]     FLOP/s in units of 2^40
    up_mb, down_mb : float64[N] bytes/s in units of 2^20, seen from the device
    stragglers : int64[k]       indices of the slowed devices, in the order drawn
    """

    tera_flops: FloatArray
    up_mb: FloatArray
    down_mb: FloatArray
    stragglers: np.ndarray


def cleave_draw(
    n: int,
    seed: int = 42,
    *,
    stragglers: float = 0.0,
    slowdown: float = 0.1,
    down_up_ratio: float | None = None,
) -> CleaveDraw:
    """Draw the device parameters of Cleave's evaluation artifact, from numpy's legacy generator as there.

    In this order: compute ``5 + 2·rand(n)``, uplink ``randint(5, 10, n)``, downlink ``randint(10, 100, n)`` and the
    stragglers, ``choice(n, ceil(n·stragglers), replace=False)``.  At ``n = 256``, ``seed = 42`` the sums are
    1530 · 2^40 FLOP/s, 1805 · 2^20 and 13786 · 2^20 bytes/s.

    Parameters
    ----------
    n
        Devices, >= 1.
    seed
        Of ``numpy.random.RandomState``; the publication used 42.
    stragglers
        Share of devices whose compute, uplink and downlink are all multiplied by ``slowdown``, in [0, 1].
    slowdown
        In (0, 1]; the publication used 0.1.
    down_up_ratio
        For the bandwidth-asymmetry sweep: every uplink is 7.5 and every downlink is the ratio times that. Compute keeps
        its draw.

    Raises
    ------
    InputError
        If a parameter is outside its range.
    """
    if n < 1:
        raise InputError(f"a fleet needs at least one device, not {n}")
    if not 0 <= seed < 2**32:
        raise InputError(f"seed: {seed} is not in [0, 2^32), the range of the legacy generator")
    if not 0 <= stragglers <= 1:
        raise InputError(f"stragglers: {stragglers:g} is not a share between 0 and 1")
    if not 0 < slowdown <= 1:
        raise InputError(f"slowdown: {slowdown:g} is not in (0, 1]")
    if down_up_ratio is not None and not (down_up_ratio > 0 and math.isfinite(down_up_ratio)):
        raise InputError(f"down_up_ratio: {down_up_ratio:g} is not a finite number above zero")
    legacy = np.random.RandomState(seed)  # the published draw came from the legacy generator
    flops = 5.0 + 2.0 * legacy.rand(n)
    up = legacy.randint(5, 10, n).astype(np.float64)
    down = legacy.randint(10, 100, n).astype(np.float64)
    # Through the decimal text, so that 7 % of 100 devices is 7 and not ceil(7.000000000000001).
    slow = legacy.choice(n, math.ceil(Fraction(str(stragglers)) * n), replace=False)
    if down_up_ratio is not None:
        up, down = np.full(n, _RATIO_UPLINK), np.full(n, _RATIO_UPLINK * down_up_ratio)
    for values in (flops, up, down):
        values[slow] *= slowdown
    return CleaveDraw(flops, up, down, slow.astype(np.int64))


def cleave_fleet(
    n: int,
    seed: int = 42,
    *,
    memory_bytes: int = 3_000_000_000,
    stragglers: float = 0.0,
    slowdown: float = 0.1,
    down_up_ratio: float | None = None,
) -> Fleet:
    """The fleet of Cleave's evaluation: `cleave_draw` with zero latency, full efficiency and unlimited memory speed.

    Link rates are 8 · 2^20 bit/s for each published MB/s, rounded to whole bits where a straggler's is not whole.
    ``memory_bytes`` is not drawn in the publication (its solver ignores memory; its device generator names 1 to 3 GB).
    Other parameters and errors as `cleave_draw`; the coordinator is `unlimited_coordinator`, as published.
    """
    drawn = cleave_draw(n, seed, stragglers=stragglers, slowdown=slowdown, down_up_ratio=down_up_ratio)
    return fleet_from_arrays(
        flops=drawn.tera_flops * TERA,
        down_bps=np.rint(drawn.down_mb * (8 * MEGABYTE)),
        up_bps=np.rint(drawn.up_mb * (8 * MEGABYTE)),
        memory_bytes=memory_bytes,
        name="cleave-published",
    )


def fleet_from_arrays(
    *,
    flops: ArrayLike,
    down_bps: ArrayLike,
    up_bps: ArrayLike,
    memory_bytes: ArrayLike,
    latency_ns: ArrayLike = 0,
    memory_bandwidth: ArrayLike = math.inf,
    launch_s: ArrayLike = 0.0,
    dtypes: tuple[DType, ...] = (DType.FLOAT16, DType.FLOAT32),
    coordinator: Coordinator | None = None,
    name: str = "device",
) -> Fleet:
    """A fleet of always-present devices with constant links, for studies and tests.

    Parameters
    ----------
    flops
        float[N], achieved FLOP/s (efficiency is 1), the same for every one of ``dtypes``; above zero.
    down_bps, up_bps
        N whole bit/s seen from the device, above zero.
    memory_bytes, latency_ns, memory_bandwidth, launch_s
        One number for all, or N of them; units as in `Fleet` and `Links`.
    coordinator
        `unlimited_coordinator` if not given.

    Raises
    ------
    InputError
        If lengths differ, or a rate is not above zero or (links) not whole.
    """
    rate = np.atleast_1d(np.asarray(flops, np.float64))
    size = len(rate)
    if not np.all(np.isfinite(rate) & (rate > 0)):
        raise InputError("flops: every compute rate must be finite and above zero")
    peak = np.full((size, len(DType)), np.nan)
    efficiency = np.full((size, len(DType)), np.nan)
    for dtype in dtypes:
        peak[:, dtype] = rate
        efficiency[:, dtype] = 1.0
    down, up = (_positive_whole(x, size, n) for x, n in ((down_bps, "down_bps"), (up_bps, "up_bps")))
    return Fleet(
        profile_names=(name,),
        profile=np.zeros(size, np.int32),
        group=np.zeros(size, np.int32),
        peak_flops=peak,
        efficiency=efficiency,
        memory_bytes=_positive_whole(memory_bytes, size, "memory_bytes"),
        memory_bandwidth=_spread(memory_bandwidth, size, "memory_bandwidth"),
        launch_s=_spread(launch_s, size, "launch_s"),
        idle_w=np.full(size, np.nan),
        max_w=np.full(size, np.nan),
        links=Links.constant(down, up, _whole(latency_ns, size, "latency_ns")),
        availability=Availability.always(size),
        coordinator=coordinator if coordinator is not None else unlimited_coordinator(),
    )


def unlimited_coordinator() -> Coordinator:
    """The coordinator of published cost models: computes in no time, and neither links nor memory (2^62 bytes) bind."""
    return Coordinator(
        name="unlimited",
        peak_flops=np.full(len(DType), np.inf),
        efficiency=np.ones(len(DType)),
        memory_bytes=1 << 62,
        memory_bandwidth=math.inf,
        sources={"*": "assumed by published cost models: free compute, infinite bandwidth at the coordinator"},
    )


def _spread(values: ArrayLike, size: int, name: str) -> FloatArray:
    array = np.asarray(values, np.float64)
    if array.ndim > 1 or (array.ndim == 1 and len(array) != size):
        raise InputError(f"{name}: expected one number or {size}, got shape {array.shape}")
    return np.broadcast_to(array, (size,)).copy()


def _whole(values: ArrayLike, size: int, name: str) -> np.ndarray:
    array = _spread(values, size, name)
    if not np.all((array >= 0) & (array == np.rint(array))):
        raise InputError(f"{name}: every value must be a whole number, not negative")
    return array.astype(np.int64)


def _positive_whole(values: ArrayLike, size: int, name: str) -> np.ndarray:
    array = _whole(values, size, name)
    if not np.all(array > 0):
        raise InputError(f"{name}: every value must be above zero")
    return array
