"""How fast federated strategies are replayed: FedAvg's rounds, and FedBuff's reports a second.

    python benchmarks/federated.py [--quick]

Prints one table.  Every number is the median of repeated runs in this process, after the kernels have been loaded.
Clients have constant links of their own, so that nothing is shared, and are always here, unless it says otherwise.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from morphling.engine import Engine
from morphling.executors.analytic import Analytic
from morphling.fleet import Availability, Thermal
from morphling.fleet.published import fleet_from_arrays
from morphling.strategies.fedavg import FedAvg, FedAvgConfig
from morphling.strategies.fedbuff import FedBuff, FedBuffConfig
from morphling.testing import tiny_workload

CLIENTS = 10_000
FAR = 1 << 62
PHONE = {
    "ambient_c": 25.0, "ambient_to_case": 6.0, "case_s": 200.0, "case_cooling_s": 600.0, "junction_to_case": 2.1,
    "junction_s": 10.0, "trip_c": 41.5, "hysteresis_k": 1.5, "clock_floor": 0.55, "clock_steps": 0,
    "power_exponent": 2.0, "static_share": 0.2,
}  # fmt: skip
"""A phone with a warm case, `morphling.fleet.Thermal`."""


def fleet(*, churn: bool = False, heat: bool = False, shared: bool = False) -> Any:
    """10,000 unlike clients; with churn each is here for 20 to 60 s and then away for as long; with heat all warm.

    shared : they share a coordinator of 5 Gbit/s, so that a standing order is sent row by row
    """
    rng = np.random.default_rng(0)
    there = fleet_from_arrays(
        flops=rng.uniform(1e12, 4e12, CLIENTS),
        down_bps=rng.integers(10**7, 10**8, CLIENTS),
        up_bps=rng.integers(5 * 10**6, 10**7, CLIENTS),
        memory_bytes=1 << 30,
        latency_ns=10**7,
    )
    if heat:
        warms = {name: np.full(CLIENTS, value) for name, value in PHONE.items()}
        there = replace(there, idle_w=np.full(CLIENTS, 0.5), max_w=np.full(CLIENTS, 5.0), thermal=Thermal(**warms))
    if shared:
        card = replace(there.coordinator, downlink_bps=5 * 10**9, uplink_bps=5 * 10**9)
        there = replace(there, coordinator=card)
    if not churn:
        return there
    spans = np.cumsum(rng.integers(20 * 10**9, 60 * 10**9, (CLIENTS, 40)), axis=1)
    return replace(there, availability=Availability.of([[tuple(x) for x in c.reshape(-1, 2).tolist()] for c in spans]))


def replay(make: Callable[[], Any], there: Any, iterations: int, repeats: int) -> tuple[float, dict[str, Any]]:
    """Median wall time, seconds, and the report of the last run."""
    spans = []
    for _ in range(repeats):
        strategy = make()
        engine = Engine(there, tiny_workload(), strategy, Analytic(fleet=there), iterations=iterations, compiled=True)
        began = time.perf_counter()
        engine.run()
        spans.append(time.perf_counter() - began)
    return statistics.median(spans), strategy.report()


def line(what: str, value: str, note: str = "") -> None:
    print(f"{what:<58} {value:>16}  {note}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer reports and repeats")
    quick = parser.parse_args().quick
    repeats = 1 if quick else 3
    always, coming, warm = fleet(), fleet(churn=True), fleet(churn=True, heat=True)
    began = time.perf_counter()
    replay(lambda: FedAvg(FedAvgConfig()), always, 1, 1)
    worlds = {"always here": always, "with churn": coming, "churn and heat": warm}
    by_row = {"shared card": fleet(shared=True), "shared card, churn": fleet(shared=True, churn=True)}
    for there in (always, warm, by_row["shared card"]):
        replay(lambda: FedBuff(FedBuffConfig()), there, 1, 1)
    line("compile or load the kernels", f"{time.perf_counter() - began:.1f} s", "once per installation, then a cache")
    for name, there in (("always here", always), ("with churn", coming)):
        span, said = replay(lambda: FedAvg(FedAvgConfig(clients_per_round=100)), there, 100, repeats)
        line(f"FedAvg, {CLIENTS:,} clients {name}, 100 rounds of 100", f"{span:.2f} s", said["summary"][0])
    for ahead in (1, 8, 64):
        for name, there in {**worlds, **by_row}.items():
            kernel = ahead == 1 and name in worlds
            updates = (3_000 if quick else 15_000) if kernel else (300 if quick else 1_000)
            config = FedBuffConfig(concurrency=100, buffer_size=10, draw_ahead=ahead)
            span, said = replay(lambda c=config: FedBuff(c), there, updates, repeats)
            what = f"FedBuff, 100 of {CLIENTS:,} at once, {name}, draw_ahead {ahead}"
            line(what, f"{said['reported'] / span:,.0f} reports/s", said["summary"][0])


if __name__ == "__main__":
    main()
