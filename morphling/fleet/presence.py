"""What an availability looks like: share online over time, lengths of sessions and gaps, share of each device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from morphling.errors import InputError
from morphling.fleet.availability import Availability
from morphling.types import FAR_NS, SECOND_NS, FloatArray, IntArray

__all__ = ["Presence", "presence"]


@dataclass(frozen=True, eq=False)
class Presence:
    """Statistics of N devices over ``[0, until_s)``.

    time_s, online : float64[points], int64[points]  how many devices are there at each of evenly spaced times
    session_s, gap_s : float64[…]  lengths of sessions and gaps that begin and end inside, sorted
    share : float64[N]  share of the time that each device is there
    cut : sessions and gaps that are under way at either end, and so are in no length
    """

    until_s: float
    time_s: FloatArray
    online: IntArray
    session_s: FloatArray
    gap_s: FloatArray
    share: FloatArray
    cut: int


def presence(here: Availability, until_ns: int | None = None, points: int = 481) -> Presence:
    """Measure ``here`` from 0 to ``until_ns``; left out: to its horizon, or the last time at which anything changes.

    Raises
    ------
    InputError
        ``until_ns`` is not above zero, beyond the horizon of a model that says nothing after it, or left out where
        nothing ever changes.
    """
    until = _until(here, until_ns)
    device = here.device()
    inside = here.start_ns < until
    device, start, end = device[inside], here.start_ns[inside], here.end_ns[inside]
    time = np.linspace(0, until, points, endpoint=False).astype(np.int64)
    online = np.searchsorted(np.sort(start), time, "right") - np.searchsorted(np.sort(end), time, "right")
    whole = (start > 0) & (end < until)
    same = device[1:] == device[:-1]
    gaps = (start[1:] - end[:-1])[same]
    held = np.bincount(device, (np.minimum(end, until) - np.maximum(start, 0)).astype(np.float64), here.size)
    # Gaps under way at an end: before the first session, after the last, or all the time.
    firsts, lasts = np.append([True], ~same)[: len(device)], np.append(~same, [True])[: len(device)]
    cut = int((~whole).sum() + (start[firsts] > 0).sum() + (end[lasts] < until).sum())
    cut += here.size - len(np.unique(device))
    return Presence(
        until_s=until / SECOND_NS,
        time_s=time / SECOND_NS,
        online=online.astype(np.int64),
        session_s=np.sort((end - start)[whole]) / SECOND_NS,
        gap_s=np.sort(gaps) / SECOND_NS,
        share=held / until,
        cut=cut,
    )


def _until(here: Availability, until_ns: int | None) -> int:
    if until_ns is not None:
        if until_ns <= 0:
            raise InputError("the window must be longer than 0 s")
        if here.past == "error" and until_ns > here.horizon_ns:
            raise InputError(f"nothing is known after {here.horizon_ns / SECOND_NS:g} s (availability.horizon)")
        return until_ns
    if here.horizon_ns < FAR_NS:
        return here.horizon_ns
    changes = np.concatenate([here.start_ns, here.end_ns[here.end_ns < FAR_NS]])
    last = int(changes.max()) if len(changes) else 0
    if last == 0:
        raise InputError("nobody ever comes or goes: there is nothing to show; give --until to show it all the same")
    return last
