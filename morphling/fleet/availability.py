"""When devices are here: sessions as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from morphling.types import FAR_NS, IntArray

__all__ = ["Availability"]


@dataclass(frozen=True, eq=False)
class Availability:
    """Sessions of N devices in CSR form: device i is online in ``[start_ns[j], end_ns[j])`` for j in
    ``ptr[i]:ptr[i+1]``.

    Sessions of a device are sorted and do not touch.  ``FAR_NS`` as an end means: never leaves.  What is described
    ends at ``horizon_ns``; with ``past`` = ``error``, a run that goes on after it is refused, with ``hold`` nobody
    comes or goes any more.
    """

    ptr: IntArray
    start_ns: IntArray
    end_ns: IntArray
    model: str = "always"
    horizon_ns: int = FAR_NS
    past: str = "hold"

    @property
    def size(self) -> int:
        """Number of devices."""
        return len(self.ptr) - 1

    @property
    def limit_ns(self) -> int:
        """The last instant that a run may reach; ``FAR_NS - 1`` if there is none."""
        return self.horizon_ns if self.past == "error" else FAR_NS - 1

    def device(self) -> IntArray:
        """The device of each session, int64[sessions]."""
        return np.repeat(np.arange(self.size, dtype=np.int64), np.diff(self.ptr))

    @classmethod
    def always(cls, size: int) -> Availability:
        """Every device, for ever."""
        return cls(np.arange(size + 1, dtype=np.int64), np.zeros(size, np.int64), np.full(size, FAR_NS, np.int64))

    @classmethod
    def of(cls, sessions: list[list[tuple[int, int]]], model: str = "sessions") -> Availability:
        """From one list of ``(start_ns, end_ns)`` per device; ``ValueError`` if unsorted, empty or touching."""
        for device, spans in enumerate(sessions):
            last = -1
            for start, end in spans:
                if start <= last or end <= start:
                    raise ValueError(
                        f"device {device}: session [{start}, {end}) ns is empty, or touches the one before it"
                    )
                last = end
        flat = [s for spans in sessions for s in spans]
        return cls(
            ptr=np.cumsum([0, *(len(s) for s in sessions)]).astype(np.int64),
            start_ns=np.array([s[0] for s in flat], np.int64),
            end_ns=np.array([s[1] for s in flat], np.int64),
            model=model,
        )
