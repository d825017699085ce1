"""Heat of a fleet as the kernels want it, and what is left of it when a run is over."""

from __future__ import annotations

import numpy as np

from morphling.engine.kernels import records as K  # noqa: N812 - a table of column names
from morphling.engine.kernels.records import Heat
from morphling.errors import EngineError
from morphling.fleet import Fleet
from morphling.interfaces.recording import HeatRecord
from morphling.interfaces.tasks import TaskTable

__all__ = ["MOST_WATCHED", "POINTS", "heat_arrays", "heat_record", "watch"]

MOST_WATCHED = 8
"""Devices whose curve is kept, one of each group of the fleet."""

POINTS = 4096
"""Points of a curve; a longer one is thinned out."""


def heat_arrays(fleet: Fleet) -> Heat:
    """Constants and the state at time 0: every device at the temperature that idling keeps it at.

    Raises ``EngineError`` where a device warms but its idle or full-load power is not stated.
    """
    t, size = fleet.thermal, fleet.size
    assert t is not None  # noqa: S101 - the only caller has checked
    slows = t.slows
    silent = np.flatnonzero(slows & (np.isnan(fleet.idle_w) | np.isnan(fleet.max_w)))
    if len(silent):
        d = int(silent[0])
        raise EngineError(f"device {d} ({fleet.names()[d]}) warms, but states no idle and full-load power")
    law = np.zeros((size + 1, K.LAWS))
    columns = (
        (K.AMBIENT, t.ambient_c),
        (K.CASE_K_W, t.ambient_to_case),
        (K.WARM_S, t.case_s),
        (K.COOL_S, t.case_cooling_s),
        (K.JUNCTION_K_W, t.junction_to_case),
        (K.JUNCTION_S, t.junction_s),
        (K.TRIP, t.trip_c),
        (K.COOLED, t.trip_c - t.hysteresis_k),
        (K.LOWEST_CLOCK, t.clock_floor),
        (K.STEP, np.where(t.clock_steps > 0, (1.0 - t.clock_floor) / np.maximum(t.clock_steps, 1), 0.0)),
        (K.EXPONENT, t.power_exponent),
        (K.STATIC_W, fleet.max_w * t.static_share),
        (K.DYNAMIC_W, fleet.max_w * (1.0 - t.static_share)),
        (K.IDLE_W, fleet.idle_w),
    )
    for column, values in columns:
        law[:size, column] = np.where(slows, values, 0.0)
    law[:size, K.SLOWS] = slows
    state = np.zeros((size + 1, K.STATE_COLUMNS))
    state[:, K.CASE] = law[:, K.AMBIENT] + law[:, K.CASE_K_W] * law[:, K.IDLE_W]
    state[:, K.JUNCTION] = state[:, K.CASE] + law[:, K.JUNCTION_K_W] * law[:, K.IDLE_W]
    state[:, K.CLOCK] = state[:, K.LOWEST] = 1.0
    state[:, K.HOTTEST] = state[:, K.CASE]
    clock = np.zeros((size + 1, K.CLOCK_COLUMNS), np.int64)
    clock[:, K.WATCH] = -1
    return Heat(law, state, clock, np.zeros((MOST_WATCHED, POINTS, 4)), np.zeros((MOST_WATCHED, 2), np.int64))


def watch(heat: Heat, fleet: Fleet, tasks: TaskTable) -> None:
    """Follow the device that computes most in this table, of each group of which none is followed yet."""
    places = heat.clock[: fleet.size, K.WATCH]
    taken = int((places >= 0).sum())
    followed = set(fleet.group[places >= 0].tolist())
    slows = heat.law[: fleet.size, K.SLOWS] > 0
    if taken == MOST_WATCHED or followed >= set(fleet.group[slows].tolist()):
        return
    work = np.bincount(tasks.device, tasks.flops, minlength=fleet.size + 1)[: fleet.size]
    for group in sorted(set(fleet.group[slows & (work > 0)].tolist()) - followed)[: MOST_WATCHED - taken]:
        mine = np.flatnonzero((fleet.group == group) & slows)
        places[mine[np.argmax(work[mine])]] = taken
        taken += 1


def heat_record(heat: Heat, fleet: Fleet) -> HeatRecord:
    """What heat did, when the run is over."""
    size = fleet.size
    slows = heat.law[:size, K.SLOWS] > 0
    nothing = np.full(size, np.nan)
    watched = [int(d) for d in np.flatnonzero(heat.clock[:size, K.WATCH] >= 0)]
    pieces = []
    for d in watched:
        place = int(heat.clock[d, K.WATCH])
        points = heat.note[place, : heat.noted[place, 0]]
        pieces.append(np.column_stack([np.full(len(points), d), points[:, 0] / 1e9, points[:, 1:]]))
    return HeatRecord(
        compute_j=heat.state[:size, K.JOULES].copy(),
        hottest_c=np.where(slows, heat.state[:size, K.HOTTEST], nothing),
        lowest_clock=np.where(slows, heat.state[:size, K.LOWEST], nothing),
        throttled_ns=np.rint(heat.state[:size, K.THROTTLED]).astype(np.int64),
        curve=np.concatenate(pieces) if pieces else np.zeros((0, 5)),
        watched=tuple(watched),
    )
