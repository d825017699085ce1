"""What a run folder keeps of the fleet: enough to compute every metric again without the scenario."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from morphling.fleet import Fleet
from morphling.interfaces.recording import BatteryRecord
from morphling.types import BoolArray, FloatArray, Int32Array, IntArray

__all__ = ["DeviceFacts"]


@dataclass(frozen=True, eq=False)
class DeviceFacts:
    """What a run folder keeps of a fleet of N devices.

    ``names`` list of N; ``profile``, ``group`` as in `morphling.fleet.Fleet`; ``memory_bytes`` int64[N]; ``idle_w``,
    ``max_w`` float64[N], W, and ``radio_up_j``, ``radio_down_j`` float64[N], J/bit, NaN where not stated; ``trip_c``
    float64[N], degC, from which case temperature the clock falls, NaN of devices without heat; ``online_ns`` int64[N],
    how long each was here before the run ended; ``battery``, what batteries did, None where every device is plugged in.
    """

    names: list[str]
    profile_names: tuple[str, ...]
    profile: Int32Array
    group: Int32Array
    memory_bytes: IntArray
    idle_w: FloatArray
    max_w: FloatArray
    radio_up_j: FloatArray
    radio_down_j: FloatArray
    trip_c: FloatArray
    online_ns: IntArray
    battery: BatteryRecord | None = None

    @property
    def size(self) -> int:
        """Number of devices."""
        return len(self.memory_bytes)

    @classmethod
    def of(cls, fleet: Fleet, end_ns: int, battery: BatteryRecord | None = None) -> DeviceFacts:
        """The facts of a fleet in a run that ended at ``end_ns``; of one with batteries, with what these did in it."""
        if fleet.battery is not None and battery is None:
            raise ValueError("when devices with batteries were online is not known from their fleet alone")
        here = fleet.availability
        inside = np.minimum(here.end_ns, end_ns) - np.minimum(here.start_ns, end_ns)
        total = np.concatenate([np.zeros(1, np.int64), np.cumsum(inside)])
        silent = np.full(fleet.size, np.nan)
        return cls(
            names=fleet.names(),
            profile_names=fleet.profile_names,
            profile=fleet.profile,
            group=fleet.group,
            memory_bytes=fleet.memory_bytes,
            idle_w=fleet.idle_w,
            max_w=fleet.max_w,
            radio_up_j=silent if fleet.radio_up_j is None else fleet.radio_up_j,
            radio_down_j=silent if fleet.radio_down_j is None else fleet.radio_down_j,
            trip_c=silent if fleet.thermal is None else fleet.thermal.trip_c,
            online_ns=total[here.ptr[1:]] - total[here.ptr[:-1]] if battery is None else battery.online_ns,
            battery=battery,
        )

    def count(self, which: BoolArray) -> str:
        """``3 of 12 devices (profiles: board, phone)``: how many ``which`` (bool[N]) holds, and whose they are."""
        profiles = sorted({self.profile_names[p] for p in self.profile[which]})
        shown = ", ".join(profiles[:5]) + (f" and {len(profiles) - 5} more" if len(profiles) > 5 else "")
        return f"{np.count_nonzero(which)} of {self.size} devices (profiles: {shown})"
