"""The star workload: N devices around a coordinator whose own link is shared max-min fairly.

Each device does R rounds of download, compute and upload, beginning staggered over a minute, with its own caps on both
directions.  The expected makespans and sums of completion times are those of independent simulators (SimGrid among them
where links are constant), which agree to the last digit printed here.
"""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from morphling.engine import Engine
from morphling.fleet import Links, LinkTrace
from tests.oracle.twin import Twin
from tests.oracle.worlds import FlopsAreNanoseconds, Once, bare_fleet, coordinator, rows

MEGABYTE = 1e6
SECOND = 10**9


def draw(devices, rounds, seed=7):
    """Rates in bytes/s, starts and computing times in seconds; the order of the draws is part of the workload."""
    r = random.Random(seed)
    down, up, start, compute = [], [], [], []
    for _ in range(devices):
        rate = 2.5 * MEGABYTE * r.lognormvariate(0, 0.8)
        down.append(rate)
        up.append(rate / r.uniform(2, 10))
        start.append(r.uniform(0, 60))
        base = 20 * r.lognormvariate(0, 0.6)
        compute.append([base * r.uniform(0.8, 1.2) for _ in range(rounds)])
    return down, up, start, compute


def factors(devices, steps=60, seed=11):
    """One factor for each second of a minute, repeated for ever."""
    r = random.Random(seed)
    return [[r.uniform(0.3, 1.7) for _ in range(steps)] for _ in range(devices)]


def star(devices, *, traces, rounds=5):
    """The fleet and the one table of the workload."""
    down, up, start, compute = draw(devices, rounds)
    if traces:
        seconds = np.arange(60) * SECOND
        listed = [
            LinkTrace(f"t{i}", seconds, *(np.array([rate[i] * 8 * f for f in own]) for rate in (down, up)), 60 * SECOND)
            for i, own in enumerate(factors(devices))
        ]
        none = np.zeros(devices, np.int64)
        links = Links.of(listed, np.arange(devices), none, none, none.astype(bool))
    else:
        links = Links.constant(np.array(down) * 8, np.array(up) * 8)
    cap_bps = round(0.1 * MEGABYTE * devices * 8)
    chain = [[] if i % rounds == 0 else [i - 1] for i in range(devices * rounds)]
    table = rows(
        np.repeat(np.arange(devices), rounds),
        [round(c * 1e9) for own in compute for c in own],
        int(10 * MEGABYTE),
        int(10 * MEGABYTE),
        release_ns=np.repeat([round(s * 1e9) for s in start], rounds),
        dependencies=chain,
    )
    return bare_fleet(links, centre=coordinator(cap_bps, cap_bps)), table


def totals(recording):
    """Makespan and the sum of all completion times, seconds."""
    times = recording.dispatches[0].times
    return round(recording.end_ns / 1e9, 3), round(float(times[1].sum() + times[5].sum()) / 1e9, 1)


@pytest.mark.parametrize(
    ("traces", "makespan", "total"),
    [(False, 1273.680, 211872.4), (True, 1210.975, 213898.2)],
    ids=["constant", "traces"],
)
def test_64_devices(traces, makespan, total):
    fleet, table = star(64, traces=traces)
    recording = Engine(fleet, None, Once(table), FlopsAreNanoseconds(), compiled=False).run()
    assert totals(recording) == (makespan, total)


@pytest.mark.parametrize(("traces", "makespan"), [(False, 2191.286), (True, 2184.841)], ids=["constant", "traces"])
def test_512_devices_compiled(traces, makespan):
    fleet, table = star(512, traces=traces)
    recording = Engine(fleet, None, Once(table), FlopsAreNanoseconds(), compiled=True).run()
    assert totals(recording)[0] == makespan


def test_every_completion_at_16_devices_is_the_twins():
    fleet, table = star(16, traces=True)
    ours = Engine(fleet, None, Once(table), FlopsAreNanoseconds(), compiled=False).run()
    theirs = Twin(fleet, Once(table), FlopsAreNanoseconds()).run()
    a, b = (np.stack(r.dispatches[0].times[:7]).astype(float) for r in (ours, theirs))
    assert np.all(np.abs(a - b) <= 2 + 1e-9 * b)


def test_rounds_of_a_device_follow_each_other():
    fleet, table = star(64, traces=False)
    recording = Engine(fleet, None, Once(table), FlopsAreNanoseconds(), compiled=False).run()
    times = recording.dispatches[0].times
    for i, j in pairwise(range(5)):
        assert np.all(times[0][j::5] >= times[5][i::5])
