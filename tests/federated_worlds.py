"""Clients whose seconds are worked by hand: one model, and devices on which each part of a turn takes what it is told.

opt-125m has 125,239,296 parameters, so the model and an update are W = 500,957,184 bytes each in float32.  Training on
one sequence of 64 tokens takes 64 (6 N + 12 L s h) FLOPs, with N = 12·12·768² + 50272·768 = 123,543,552 weights in
matrix products and 12 L s h = 12·12·64·768: 47,893,708,800 in all.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from morphling.engine import Engine
from morphling.executors.analytic import Analytic
from morphling.fleet import Availability
from morphling.fleet.published import fleet_from_arrays
from morphling.types import FAR_NS, DType
from morphling.workload import model_named, training_step

S = 10**9
W = 500_957_184
SAMPLE = 47_893_708_800
WORK = training_step(model_named("opt-125m"), 1, 64, DType.FLOAT32)
ALWAYS = [(0, FAR_NS)]


def clients(*turns, latency=0.0, sessions=None, memory=4 << 30, coordinator=None):
    """A fleet of one device for each of ``turns`` (download, training of 20 samples, upload; s).

    ``sessions``: device -> its sessions, s; the others are always here.
    """
    down, compute, up = (np.array(x, float) for x in zip(*turns, strict=True))
    fleet = fleet_from_arrays(
        flops=20 * SAMPLE / compute,
        down_bps=8 * W / down,
        up_bps=8 * W / up,
        memory_bytes=memory,
        latency_ns=round(latency * S),
        coordinator=coordinator,
    )
    spans = [
        [(round(a * S), FAR_NS if b is None else round(b * S)) for a, b in (sessions or {}).get(i, [(0, None)])]
        for i in range(fleet.size)
    ]
    return replace(fleet, availability=Availability.of(spans))


def run(strategy, fleet, iterations=1, **more):
    """Replay on opt-125m, one sequence of 64 tokens a batch."""
    more = {"compiled": False, **more}
    return Engine(fleet, WORK, strategy, Analytic(fleet=fleet), iterations=iterations, **more).run()


def ends(recording):
    """When iterations ended, s."""
    return [x / S for x in recording.iteration_ends_ns]


def turns(recording):
    """(device, start, end, lost) of every row that began, ns, by start."""
    out = []
    for d in recording.dispatches:
        began = d.column("download_start_ns")
        device, settled, lost = d.tasks.device, d.column("settled_ns"), d.lost
        out += [
            (int(device[i]), int(began[i]), int(settled[i]), bool(lost[i])) for i in np.flatnonzero(began >= 0).tolist()
        ]
    return sorted(out, key=lambda x: x[1])
