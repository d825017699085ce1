"""The metrics of a run.  `docs/metrics.md` defines each of them; this file is where they are computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from morphling.fleet import Fleet
from morphling.interfaces.recording import Recording
from morphling.results.accounting import Account, account
from morphling.results.pauses import pauses
from morphling.results.recovery import recovery
from morphling.results.sweep import sweep
from morphling.types import SECOND_NS, FloatArray, Int32Array, IntArray

__all__ = ["DeviceFacts", "Measured", "energy_j", "measure", "metrics", "phase_of"]


@dataclass(frozen=True, eq=False)
class DeviceFacts:
    """What a run folder keeps of a fleet of N devices.

    ``names`` list of N; ``profile``, ``group`` as in `morphling.fleet.Fleet`; ``memory_bytes`` int64[N]; ``idle_w``,
    ``max_w`` float64[N], NaN where not stated; ``online_ns`` int64[N], how long each was here before the run ended.
    """

    names: list[str]
    profile_names: tuple[str, ...]
    profile: Int32Array
    group: Int32Array
    memory_bytes: IntArray
    idle_w: FloatArray
    max_w: FloatArray
    online_ns: IntArray

    @property
    def size(self) -> int:
        """Number of devices."""
        return len(self.memory_bytes)

    @classmethod
    def of(cls, fleet: Fleet, end_ns: int) -> DeviceFacts:
        """The facts of a fleet in a run that ended at ``end_ns``."""
        here = fleet.availability
        inside = np.minimum(here.end_ns, end_ns) - np.minimum(here.start_ns, end_ns)
        total = np.concatenate([np.zeros(1, np.int64), np.cumsum(inside)])
        return cls(
            names=fleet.names(),
            profile_names=fleet.profile_names,
            profile=fleet.profile,
            group=fleet.group,
            memory_bytes=fleet.memory_bytes,
            idle_w=fleet.idle_w,
            max_w=fleet.max_w,
            online_ns=total[here.ptr[1:]] - total[here.ptr[:-1]],
        )


@dataclass(frozen=True, eq=False)
class Measured:
    """Everything measured in one run: the ``metrics`` (plain JSON values), and sums by device and by dispatch."""

    metrics: dict[str, Any]
    account: Account
    peak_bytes: IntArray


def metrics(
    recording: Recording, fleet: Fleet | DeviceFacts, wall_time_s: float | None = None, report: object = None
) -> dict[str, Any]:
    """All metrics of a run as plain JSON values; the rest is passed on.  See `measure`."""
    facts = DeviceFacts.of(fleet, recording.end_ns) if isinstance(fleet, Fleet) else fleet
    return measure(recording, facts, wall_time_s, report).metrics


def measure(
    recording: Recording, facts: DeviceFacts, wall_time_s: float | None = None, report: object = None
) -> Measured:
    """Measure a run; ``InputError`` if the recording names devices that the fleet lacks.

    ``report`` : what the strategy said of the run; only its ``recoveries`` are read, to split the time of recovery.
    A metric that has no value is None, and ``not_available`` says why.
    """
    size, end = facts.size, recording.end_ns
    sums = account(recording.dispatches, size)
    peak = sweep(recording.dispatches, size)
    why: dict[str, str] = {}
    device = {name: column[:size] for name, column in sums.device.items()}
    busy = device["compute_ns"]
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
        "energy_j": _total_energy(facts, busy, why),
        "devices": size,
        "devices_used": int(np.count_nonzero(device["rows"])),
        "dispatches": len(recording.dispatches),
        "rows": int(sums.device["rows"].sum()),
        "lost_rows": int(sums.device["lost_rows"].sum()),
        **recovery(recording, sums, report.get("recoveries") if isinstance(report, Mapping) else None, why),
        **pauses(recording, facts.online_ns, why),
        "phases": phases(recording, sums),
        "wall_time_s": wall_time_s,
        "events_sha256": recording.events_sha256,
    }
    if sums.device["rows"][size] > 0 and peak[size] == 0:
        values["coordinator_peak_memory_bytes"] = None
        why["coordinator_peak_memory_bytes"] = "the strategy's rows do not say what the coordinator holds"
    if wall_time_s is None:
        why["wall_time_s"] = "the wall time of the run was not given"
    return Measured({**values, "not_available": why}, sums, peak)


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


def energy_j(facts: DeviceFacts, busy_ns: IntArray) -> FloatArray:
    """Joules of each device, float64[N]: idle power while it is here, the rest while it computes; NaN if not stated."""
    joules: FloatArray = (facts.idle_w * facts.online_ns + (facts.max_w - facts.idle_w) * busy_ns) / SECOND_NS
    return joules


def _total_energy(facts: DeviceFacts, busy_ns: IntArray, why: dict[str, str]) -> float | None:
    joules = energy_j(facts, busy_ns)
    silent = np.flatnonzero(np.isnan(joules))
    if len(silent):
        profiles = sorted({facts.profile_names[p] for p in facts.profile[silent]})
        shown = ", ".join(profiles[:5]) + (f" and {len(profiles) - 5} more" if len(profiles) > 5 else "")
        why["energy_j"] = f"{len(silent)} of {facts.size} devices state no idle and maximum power (profiles: {shown})"
        return None
    return float(joules.sum())


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
