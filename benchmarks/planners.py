"""How long the group planners take, and how much better than a fixed plan they end.

Prints seconds, candidates and the cost over that of the best fixed partition; only the ratios mean anything elsewhere.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from morphling.fleet.published import MEGABYTE, TERA, cleave_draw
from morphling.planning.asteroid import LayerProfile, plan_asteroid
from morphling.planning.costs import Rates
from morphling.planning.dtfm import DtfmCosts, plan_dtfm
from morphling.planning.group_costs import asteroid
from morphling.workload.models import model_named

HIDDEN, SEQUENCE, LAYERS = 5120, 1024, 40


def edge(devices: int) -> Rates:
    drawn = cleave_draw(devices)
    return Rates.of(drawn.tera_flops * TERA, drawn.down_mb * MEGABYTE, drawn.up_mb * MEGABYTE)


def dtfm(devices: int, stages: int) -> None:
    rates = edge(devices)
    pairs = np.minimum(rates.up[:, None], rates.down[None, :])
    sizes = {"gradient_bytes": 0.65e9, "activation_bytes": 0.47e9}
    model = DtfmCosts(np.zeros((devices, devices)), pairs, stages=stages, **sizes)
    ids = np.arange(devices)
    fixed = min(model.evaluate(g).total_s for g in (ids.reshape(stages, -1), ids.reshape(-1, stages).T))
    start = perf_counter()
    plan = plan_dtfm(model, 0, offspring=400)
    took = perf_counter() - start
    print(
        f"DT-FM    {devices:5d} devices, {stages:2d} stages: {took:5.1f} s, {plan.evaluations} of {plan.asked} "
        f"candidates, cost / best fixed {plan.cost.total_s / fixed:.3f}"
    )


def asteroid_plan(devices: int) -> None:
    rates = edge(devices)
    flops = [24 * SEQUENCE * HIDDEN**2] * LAYERS
    sizes = {
        "weight_bytes": 24 * HIDDEN**2,
        "output_bytes": 2 * SEQUENCE * HIDDEN,
        "kept_bytes": 34 * SEQUENCE * HIDDEN,
    }
    start = perf_counter()
    plan = plan_asteroid(LayerProfile.linear(rates.flops, flops, 4, **sizes), rates, 32)
    took = perf_counter() - start
    print(f"Asteroid {devices:5d} devices, {len(plan.groups):2d} stages: {took:5.1f} s, round {plan.latency_s:.0f} s")


def published_asteroid(devices: int) -> None:
    start = perf_counter()
    cost = asteroid(model_named("opt-13b"), 128, SEQUENCE, edge(devices))
    print(f"published Asteroid {devices:4d} devices: {perf_counter() - start:5.1f} s, batch {cost.total_s:.1f} s")


if __name__ == "__main__":
    for stages in (8, 16, 32):
        dtfm(256, stages)
    for devices in (64, 1024):
        asteroid_plan(devices)
    published_asteroid(256)
