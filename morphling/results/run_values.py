"""What a comparison takes from one run folder: a few metrics, and some that only the table of devices tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from morphling.results.results import Results
from morphling.results.store import DEVICES_FILE, read_table

__all__ = ["VALUES", "run_values"]

VALUES = (
    "iteration_time_s", "iterations", "makespan_s", "bytes_down", "bytes_up", "bytes_down_per_device",
    "bytes_up_per_device", "peak_memory_bytes", "peak_memory_share", "fits", "device_utilization", "energy_j",
    "devices", "devices_used", "lost_rows", "unrecovered_losses", "recovery_time_s", "events_sha256",
)  # fmt: skip
"""Names of the values, in the order of columns; `docs/metrics.md` defines them."""

_MADE = {"bytes_down_per_device", "bytes_up_per_device", "peak_memory_bytes", "peak_memory_share", "fits"}
_TAKEN = tuple(name for name in VALUES if name not in _MADE)


def run_values(folder: Path) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """The values of a run, None where there is none; why, by name; and what limits the meaning of those that are there.

    ``InputError`` if the folder is damaged.
    """
    metrics = Results.open(folder).metrics
    said = metrics.get("not_available", {})
    values: dict[str, Any] = {name: metrics.get(name) for name in _TAKEN}
    why = {name: said.get(name, "the run folder does not hold it") for name in _TAKEN if values[name] is None}
    for name in ("bytes_down", "bytes_up"):
        _per_device(name, values, why)
    values.update(_memory(folder, said.get("peak_device_memory_bytes"), why))
    return {name: values[name] for name in VALUES}, why, _radio(metrics)


def _per_device(name: str, values: dict[str, Any], why: dict[str, str]) -> None:
    """The mean over the devices used."""
    total, used, mean = values[name], values["devices_used"], f"{name}_per_device"
    values[mean] = total / used if used and total is not None else None
    if values[mean] is None:
        why[mean] = why.get(name) or why.get("devices_used") or "no device had a row"


def _radio(metrics: dict[str, Any]) -> dict[str, str]:
    """That energy leaves out a radio, which weighs most where bytes differ most."""
    unstated = metrics.get("not_available", {})
    said = unstated.get("energy_radio_up_j") or unstated.get("energy_radio_down_j")
    return {"energy_j": said} if said and metrics.get("energy_j") is not None else {}


def _memory(folder: Path, unknown: str | None, why: dict[str, str]) -> dict[str, Any]:
    """Of the device whose peak is the largest share of its memory: the peak, the share, whether it fits.

    ``unknown`` : why peaks have no value, if they have none
    """
    table = read_table(folder, DEVICES_FILE, ["memory_bytes", "peak_memory_bytes"])
    capacity, peak = (table[name].to_numpy() for name in ("memory_bytes", "peak_memory_bytes"))
    if unknown is not None or not peak.any():
        names = ("peak_memory_bytes", "peak_memory_share", "fits")
        why.update(dict.fromkeys(names, unknown or "the strategy's rows do not say what devices hold"))
        return dict.fromkeys(names)
    tightest = int(np.argmax(peak / capacity))
    # The shares are only compared; whether it fits is decided in whole bytes.
    return {
        "peak_memory_bytes": int(peak[tightest]),
        "peak_memory_share": float(peak[tightest] / capacity[tightest]),
        "fits": bool((peak <= capacity).all()),
    }
