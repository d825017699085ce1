"""Batteries in random worlds: charge worked out again from what was recorded, at every departure and at the end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from morphling.engine import Engine
from morphling.engine.battery import SHORTEST_NS
from morphling.fleet import Battery
from morphling.results import metrics
from tests.oracle.worlds import Erratic, FlopsAreNanoseconds, World

S = 10**9
IDLE, FULL, RESERVE, RESUME = 1.0, 5.0, 20.0, 26.0
DOWN_J, UP_J = 2e-5, 3e-5


def drained(world, *, radio):
    """The world's fleet on batteries that last for a dozen seconds; too large to be ever full."""
    n, r = world.size, world.random
    columns = (
        np.full(n, 1e6),
        np.full(n, RESERVE),
        np.array([r.choice([0.0, 1.0, 3.0]) for _ in range(n)]),
        np.full(n, RESUME),
        np.array([r.uniform(RESERVE + 5, RESERVE + 45) for _ in range(n)]),
    )
    more = {"radio_down_j": np.full(n, DOWN_J), "radio_up_j": np.full(n, UP_J)} if radio else {}
    return replace(world.fleet, idle_w=np.full(n, IDLE), max_w=np.full(n, FULL), battery=Battery(*columns), **more)


def charge(recording, fleet, d, now, began):
    """Charge of device ``d`` at ``now``, J, from joins and leaves and from the times of rows alone."""
    level = fleet.battery.initial_j[d]
    since, here = 0, began
    changes = [(t, o) for t, e, o in zip(*(c.tolist() for c in recording.churn), strict=True) if e == d and t <= now]
    for time, online in [*changes, (now, None)]:
        level += (time - since) / S * (-IDLE if here else fleet.battery.charger_w[d])
        since, here = time, online
    for dispatch in recording.dispatches:
        tasks, (_, down, start, end, _, up, settled, work) = dispatch.tasks, dispatch.times
        for i in np.flatnonzero((tasks.device == d) | (tasks.peer == d)):
            mine = tasks.device[i] == d
            if mine and 0 <= start[i] < now:
                stop = min(now, end[i] if end[i] >= 0 else settled[i])
                level -= (FULL - IDLE) * min(work[i], stop - start[i]) / S
            if fleet.radio_up_j is not None:
                level -= 8 * tasks.bytes_in[i] * (DOWN_J if mine else UP_J) * (0 <= down[i] <= now)
                level -= 8 * tasks.bytes_out[i] * (UP_J if mine else DOWN_J) * (0 <= up[i] <= now)
    return level


@pytest.mark.parametrize("radio", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_charge_from_the_recording(seed, radio):
    kind = [{}, {"half_duplex": True}, {"cells": True}, {"peers": True}][seed % 4]
    world = World(seed, **kind)
    fleet = drained(world, radio=radio)
    recording = Engine(fleet, None, Erratic(world), FlopsAreNanoseconds(), compiled=False, horizon_s=5000.0).run()
    b, a, end = recording.battery, fleet.availability, recording.end_ns
    time, device, online = recording.churn
    for d in range(fleet.size):
        sessions = list(zip(a.start_ns[a.ptr[d] : a.ptr[d + 1]], a.end_ns[a.ptr[d] : a.ptr[d + 1]], strict=True))
        began = bool(sessions) and sessions[0][0] == 0
        mine = np.flatnonzero(device == d)
        assert online[mine].tolist() == [(i % 2 == 0) != began for i in range(len(mine))]  # in turn
        left = 0
        for t, comes in zip(time[mine].tolist(), online[mine].tolist(), strict=True):
            level = charge(recording, fleet, d, t, began)
            if comes:
                assert any(x <= t < y for x, y in sessions)
            elif t not in [y for _, y in sessions]:
                left += 1
                assert level <= RESERVE + 1e-6
                if not radio:
                    assert level >= RESERVE - FULL * SHORTEST_NS / S - 1e-6
            else:
                assert level >= RESERVE - 1e-6 or radio
        assert b.departures[d] == left
        assert b.final_j[d] == pytest.approx(charge(recording, fleet, d, end, began), abs=1e-6)
    given = (end - b.online_ns) / S * fleet.battery.charger_w
    taken = metrics(recording, fleet)["energy_j"]
    assert fleet.battery.initial_j.sum() + given.sum() - b.final_j.sum() == pytest.approx(taken)


def test_the_worlds_are_such_that_batteries_matter():
    departures = returns = cut = 0
    for seed in range(40):
        world = World(seed)
        fleet = drained(world, radio=False)
        recording = Engine(fleet, None, Erratic(world), FlopsAreNanoseconds(), compiled=False, horizon_s=5000.0).run()
        departures += int(recording.battery.departures.sum())
        returns += int(recording.churn[2].sum())
        lost = [d.times[6][d.lost] for d in recording.dispatches]
        cut += int(np.isin(np.concatenate([np.zeros(0, np.int64), *lost]), recording.churn[0]).sum())
    assert min(departures, returns, cut) > 20
