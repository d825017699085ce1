"""Batteries: how often devices left for theirs, and how low they went."""

from __future__ import annotations

from typing import Any

import numpy as np

from morphling.fleet import Fleet
from morphling.interfaces.recording import BatteryRecord
from morphling.types import FloatArray

__all__ = ["BATTERY_COLUMNS", "battery_columns", "battery_metrics", "battery_notes", "battery_record"]

BATTERY_COLUMNS = ("battery_capacity_j", "battery_final_j", "battery_lowest_j", "battery_departures")
"""Columns of ``devices.parquet`` of a run in which some device has a battery."""


def battery_metrics(battery: BatteryRecord | None, why: dict[str, str]) -> dict[str, Any]:
    """How often devices left for their batteries, and the lowest charge of all as a share of its battery's capacity.

    ``why`` takes the reason where there is no battery.
    """
    if battery is None:
        names = ("battery_departures", "lowest_battery_share")
        why.update(dict.fromkeys(names, "no device has a battery"))
        return dict.fromkeys(names)
    return {
        "battery_departures": int(battery.departures.sum()),
        "lowest_battery_share": float(np.nanmin(_shares(battery))),
    }


def _shares(battery: BatteryRecord) -> FloatArray:
    shares: FloatArray = battery.lowest_j / battery.capacity_j
    return shares


def battery_columns(battery: BatteryRecord | None) -> dict[str, Any]:
    """`BATTERY_COLUMNS`, each [N]; none where no device has a battery."""
    if battery is None:
        return {}
    values = (battery.capacity_j, battery.final_j, battery.lowest_j, battery.departures)
    return dict(zip(BATTERY_COLUMNS, values, strict=True))


def battery_record(columns: dict[str, Any]) -> BatteryRecord | None:
    """The record back from columns of ``devices.parquet``; None if it has none of a battery."""
    if BATTERY_COLUMNS[0] not in columns:
        return None
    return BatteryRecord(*(columns[name] for name in (*BATTERY_COLUMNS, "online_ns")))


def battery_notes(battery: BatteryRecord | None, fleet: Fleet) -> list[str]:
    """What a reader should know of a run with batteries."""
    if battery is None:
        return []
    has = ~np.isnan(battery.capacity_j)
    times, left = int(battery.departures.sum()), int(np.count_nonzero(battery.departures))
    note = f"{int(has.sum())} of {fleet.size} devices run on batteries; {left} of them left for it"
    note += f", {times} times in all" if times > left else ""
    if any(radio is not None and not np.isnan(radio[has]).all() for radio in (fleet.radio_up_j, fleet.radio_down_j)):
        note += "; the radio's energy is taken when a transfer ends, so a battery may go below its reserve by that"
    return [note]
