"""What heat did to the devices of a run, as metrics and as columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from morphling.errors import InputError
from morphling.interfaces.recording import HeatRecord
from morphling.types import SECOND_NS, BoolArray

__all__ = ["CURVE_COLUMNS", "HEAT_METRICS", "check_heat", "heat_columns", "heat_metrics", "warms"]

HEAT_METRICS = ("hottest_case_c", "lowest_clock", "throttled_devices", "throttled_s")
CURVE_COLUMNS = ("device", "time_s", "clock", "case_c", "junction_c")
"""Columns of ``heat.parquet``, in the order of `HeatRecord.curve`."""


def warms(heat: HeatRecord) -> BoolArray:
    """Which devices have heat at all, bool[N]."""
    return ~np.isnan(heat.hottest_c)


def check_heat(heat: HeatRecord | None, size: int) -> None:
    """``InputError`` unless ``heat`` is of a fleet of ``size`` devices."""
    if heat is None:
        return
    for name in ("compute_j", "hottest_c", "lowest_clock", "throttled_ns"):
        if len(getattr(heat, name)) != size:
            raise InputError(f"heat.{name} is of {len(getattr(heat, name))} devices, the fleet has {size}")
    if heat.curve.ndim != 2 or heat.curve.shape[1] != len(CURVE_COLUMNS):
        raise InputError(f"heat.curve has the shape {heat.curve.shape}, not (rows, {len(CURVE_COLUMNS)})")
    strange = sorted({*heat.watched, *np.unique(heat.curve[:, 0]).tolist()} - set(range(size)))
    if strange:
        raise InputError(f"heat.curve follows device {strange[0]:g} outside the fleet of {size}")


def heat_metrics(heat: HeatRecord | None, why: dict[str, str]) -> dict[str, Any]:
    """`HEAT_METRICS` (degC, share of the full clock, devices, device-seconds); None where no device warms."""
    values: dict[str, Any] = dict.fromkeys(HEAT_METRICS)
    if heat is None or not warms(heat).any():
        why.update(dict.fromkeys(HEAT_METRICS, "no device warms in this run"))
        return values
    clocks = heat.lowest_clock[~np.isnan(heat.lowest_clock)]
    if len(clocks) == 0:
        why["lowest_clock"] = "no device that warms computed"
    return {
        "hottest_case_c": float(np.nanmax(heat.hottest_c)),
        "lowest_clock": float(clocks.min()) if len(clocks) else None,
        "throttled_devices": int(np.count_nonzero(heat.throttled_ns)),
        "throttled_s": int(heat.throttled_ns.sum()) / SECOND_NS,
    }


def heat_columns(heat: HeatRecord | None, size: int) -> dict[str, Any]:
    """Columns of ``devices.parquet``; NaN and 0 of devices without heat."""
    if heat is None:
        silent, never = np.full(size, np.nan), np.zeros(size, np.int64)
        return {"hottest_c": silent, "lowest_clock": silent, "throttled_s": silent, "throttled_ns": never}
    throttled = np.where(warms(heat), heat.throttled_ns / 1e9, np.nan)
    return {
        "hottest_c": heat.hottest_c,
        "lowest_clock": heat.lowest_clock,
        "throttled_s": throttled,
        "throttled_ns": heat.throttled_ns,
    }
