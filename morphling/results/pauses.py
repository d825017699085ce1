"""Pauses: intervals of a run in which no device was online."""

from __future__ import annotations

from typing import Any

import numpy as np

from morphling.interfaces.recording import Recording
from morphling.types import SECOND_NS, IntArray

__all__ = ["pauses"]


def pauses(recording: Recording, online_ns: IntArray, why: dict[str, str]) -> dict[str, Any]:
    """How long nobody was online from 0 to the end of the run, in how many intervals, and when the first began.

    Parameters
    ----------
    recording
        Of its joins and leaves, those of one device are in order of time.
    online_ns
        int64[N], how long each device was online; it tells apart devices that are always there from those that never
        are, which neither join nor leave.
    why
        Takes the reason if there is no first pause.
    """
    time, device, joined = recording.churn
    here = online_ns > 0
    who, first = np.unique(device, return_index=True)
    here[who] = ~joined[first]
    level = np.concatenate([[here.sum()], here.sum() + np.cumsum(np.where(joined, 1, -1))])
    # The level after change i holds from its time to the next one's; of changes at one instant only the last counts.
    edges = np.minimum(np.concatenate([[0], time, [recording.end_ns]]), recording.end_ns)
    empty = (level == 0) & (np.diff(edges) > 0)
    if not empty.any():
        why["first_pause_s"] = "there was no pause: a device was online all the time"
    return {
        "paused_s": int(np.diff(edges)[empty].sum()) / SECOND_NS,
        "pauses": int(np.count_nonzero(empty)),
        "first_pause_s": int(edges[:-1][empty][0]) / SECOND_NS if empty.any() else None,
    }
