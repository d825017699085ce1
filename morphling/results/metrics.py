"""The metrics of a run.  `docs/metrics.md` defines each of them; this file is where they are computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from morphling.fleet import Fleet
from morphling.interfaces.recording import Recording
from morphling.results.accounting import Account, account
from morphling.results.battery import battery_metrics
from morphling.results.energy import Energy, energy, energy_metrics
from morphling.results.facts import DeviceFacts
from morphling.results.heat import check_heat, heat_metrics
from morphling.results.pauses import pauses
from morphling.results.recovery import recovery
from morphling.results.sweep import sweep
from morphling.types import SECOND_NS, IntArray

__all__ = ["Measured", "measure", "metrics", "phase_of"]

FROM_ROWS = (
    "compute_s",
    "download_s",
    "upload_s",
    "coordinator_compute_s",
    "bytes_down",
    "bytes_up",
    "peak_device_memory_bytes",
    "coordinator_peak_memory_bytes",
    "device_utilization",
    "energy_compute_j",
    "energy_radio_up_j",
    "energy_radio_down_j",
    "energy_j",
    "devices_used",
    "rows",
)
"""Metrics without a value where a strategy says that its run has no rows (``not_replayed`` in its report)."""


@dataclass(frozen=True, eq=False)
class Measured:
    """Everything measured in one run: the ``metrics`` (plain JSON values), and sums by device and by dispatch.

    ``peak_bytes`` int64[N + 1], the coordinator is the last.
    """

    metrics: dict[str, Any]
    account: Account
    peak_bytes: IntArray
    energy: Energy


def metrics(
    recording: Recording, fleet: Fleet | DeviceFacts, wall_time_s: float | None = None, report: object = None
) -> dict[str, Any]:
    """All metrics of a run as plain JSON values; the rest is passed on.  See `measure`."""
    facts = DeviceFacts.of(fleet, recording.end_ns, recording.battery) if isinstance(fleet, Fleet) else fleet
    return measure(recording, facts, wall_time_s, report).metrics


def measure(
    recording: Recording, facts: DeviceFacts, wall_time_s: float | None = None, report: object = None
) -> Measured:
    """Measure a run; ``InputError`` if the recording, or its heat, names devices that the fleet lacks.

    ``report`` : what the strategy said of the run; only its ``recoveries`` are read, to split the time of recovery.
    A metric that has no value is None, and ``not_available`` says why.
    """
    size, end = facts.size, recording.end_ns
    check_heat(recording.heat, size)
    sums = account(recording.dispatches, size)
    peak = sweep(recording.dispatches, size)
    why: dict[str, str] = {}
    device = {name: column[:size] for name, column in sums.device.items()}
    busy = device["compute_ns"]
    spent = energy(facts, device, recording.heat)
    values: dict[str, Any] = {
        **_iterations(recording.iteration_ends_ns, why),
        "makespan_s": _s(end),
        "compute_s": _s(device["compute_ns"].sum()),
        "download_s": _s(device["download_ns"].sum()),
        "upload_s": _s(device["upload_ns"].sum()),
        "coordinator_compute_s": _s(sums.device["compute_ns"][size]),
        "bytes_down": int(device["bytes_down"].sum()),
        "bytes_up": int(device["bytes_up"].sum()),
        "peak_device_memory_bytes": int(peak[:size].max(initial=0)),
        "coordinator_peak_memory_bytes": int(peak[size]),
        "device_utilization": _utilization(busy, end, why),
        **energy_metrics(spent, facts, why),
        **heat_metrics(recording.heat, why),
        "devices": size,
        "devices_used": int(np.count_nonzero(device["rows"])),
        "dispatches": len(recording.dispatches),
        "rows": int(sums.device["rows"].sum()),
        "lost_rows": int(sums.device["lost_rows"].sum()),
        **recovery(recording, sums, report.get("recoveries") if isinstance(report, Mapping) else None, why),
        **pauses(recording, facts.online_ns, why),
        **battery_metrics(facts.battery, why),
        "phases": phases(recording, sums),
        "wall_time_s": wall_time_s,
        "events_sha256": recording.events_sha256,
    }
    if sums.device["rows"][size] > 0 and peak[size] == 0:
        values["coordinator_peak_memory_bytes"] = None
        why["coordinator_peak_memory_bytes"] = "the strategy's rows do not say what the coordinator holds"
    if isinstance(report, Mapping) and (reason := report.get("not_replayed")):
        values |= dict.fromkeys(FROM_ROWS)
        why |= dict.fromkeys(FROM_ROWS, str(reason))
    if wall_time_s is None:
        why["wall_time_s"] = "the wall time of the run was not given"
    return Measured({**values, "not_available": why}, sums, peak, spent)


def _s(ns: int | np.int64) -> float:
    return int(ns) / SECOND_NS


def _iterations(ends_ns: list[int], why: dict[str, str]) -> dict[str, Any]:
    """The mean and the extremes of the time between the ends of iterations; the first begins at 0."""
    names = ("iteration_time_s", "iteration_time_min_s", "iteration_time_max_s")
    if not ends_ns:
        why.update(dict.fromkeys(names, "no iteration ended"))
        return {**dict.fromkeys(names), "iterations": 0}
    lengths = np.diff(np.array([0, *ends_ns], np.int64))
    mean, least, most = ends_ns[-1] / len(ends_ns) / SECOND_NS, _s(lengths.min()), _s(lengths.max())
    return {**dict(zip(names, (mean, least, most), strict=True)), "iterations": len(ends_ns)}


def _utilization(busy_ns: IntArray, end_ns: int, why: dict[str, str]) -> float | None:
    if end_ns == 0 or len(busy_ns) == 0:
        why["device_utilization"] = "the run took no virtual time" if end_ns == 0 else "the fleet has no devices"
        return None
    return float(busy_ns.sum() / (float(end_ns) * len(busy_ns)))


def phase_of(label: str) -> str:
    """The phase that a dispatch's label begins with: ``forward/layer-3`` → ``forward``; no label → ``unlabelled``."""
    head = label.replace(":", "/").replace(" ", "/").split("/", 1)[0]
    return head or "unlabelled"


def phases(recording: Recording, sums: Account) -> dict[str, dict[str, Any]]:
    """The sums by phase, in the order in which phases first appear."""
    number: dict[str, int] = {}
    of = np.array([number.setdefault(phase_of(d.label), len(number)) for d in recording.dispatches], np.int64)
    totals: dict[str, dict[str, Any]] = {
        name: {"dispatches": int(n)} for name, n in zip(number, np.bincount(of), strict=True)
    }
    for column, values in sums.dispatch.items():
        added = np.zeros(len(number), np.int64)
        np.add.at(added, of, values)
        key = "coordinator_compute_s" if column == "coordinator_ns" else column.replace("_ns", "_s")
        for name, total in zip(number, added, strict=True):
            totals[name][key] = _s(total) if column.endswith("_ns") else int(total)
    return totals
