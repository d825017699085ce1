"""Plan and replay one iteration of OPT-13B, batch 128 x 1024, with each strategy: seconds, rows, iteration time.

The published fleet (5-7 TFLOP/s, 5-10 MB/s up, 10-100 MB/s down) with memory for any plan, so that rows are compared,
not what fits.  Seconds depend on the machine; compare their ratios.

usage: python benchmarks/strategies.py [--devices 256] [--only NAME ...] [--latency-ms 0]
"""

from __future__ import annotations

import argparse
import importlib
import time
from dataclasses import replace

import numpy as np

STRATEGIES = [
    ("alpa:Alpa", {}),
    ("cloud:Cloud", {}),
    ("ddp:Ddp", {}),
    ("megatron_tp:MegatronTp", {}),
    ("megatron_tp:MegatronTp", {"tensor_parallel": 8, "sequence_parallel": True}),
    ("uniform_tp:UniformTp", {}),
    ("zero:Zero1", {}),
    ("zero:Zero2", {}),
    ("zero:Zero3", {}),
    ("asteroid:Asteroid", {}),
    ("asteroid:Asteroid", {"micro_batch": 1}),
    ("confidant:Confidant", {}),
    ("dtfm:Dtfm", {}),
    ("dtfm:Dtfm", {"stages": 40}),
    ("gpipe:Gpipe", {}),
    ("gpipe:Gpipe", {"data_parallel": 1}),
    ("interleaved:Interleaved", {}),
    ("one_f_one_b:OneFOneB", {}),
    ("one_f_one_b:OneFOneB", {"warm_up": "early"}),
    ("swarm:Swarm", {"stages": 20}),
]
"""(module and class in `morphling.strategies`, config)."""


def main() -> None:
    from morphling.engine import Engine
    from morphling.executors.analytic import Analytic
    from morphling.fleet.published import cleave_fleet
    from morphling.types import DType
    from morphling.workload import model_named, training_step

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=256)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--latency-ms", type=float, default=0.0)
    args = parser.parse_args()
    fleet = cleave_fleet(args.devices, memory_bytes=1 << 40)
    latency = np.full(fleet.size, round(args.latency_ms * 1e6), np.int64)
    fleet = replace(fleet, links=replace(fleet.links, latency_ns=latency))
    workload = training_step(model_named("opt-13b"), 128, 1024, DType.FLOAT16)
    print(f"{'strategy':45}{'plan s':>8}{'replay s':>9}{'rows':>9}{'iteration s':>13}{'estimate s':>12}")
    for target, config in STRATEGIES:
        module, _, name = target.partition(":")
        kind = getattr(importlib.import_module(f"morphling.strategies.{module}"), name)
        if args.only and kind.name not in args.only:
            continue
        strategy = kind(kind.Config(**config))
        took = {"plan": 0.0}
        for what in ("plan", "tasks"):
            if hasattr(strategy, what):
                setattr(strategy, what, timed(getattr(strategy, what), took))
        start = time.perf_counter()
        recording = Engine(fleet, workload, strategy, Analytic(fleet=fleet)).run()
        whole = time.perf_counter() - start
        rows = sum(len(d.tasks) for d in recording.dispatches)
        said = strategy.report().get("estimate_s", float("nan"))
        label = f"{kind.name} {config or ''}"
        seconds = f"{took['plan']:8.2f}{whole - took['plan']:9.2f}"
        print(f"{label:45}{seconds}{rows:9}{recording.end_ns / 1e9:13.1f}{said:12.1f}")


def timed(function, took):
    """The function, whose seconds are added up."""

    def run(*args):
        start = time.perf_counter()
        out = function(*args)
        took["plan"] += time.perf_counter() - start
        return out

    return run


if __name__ == "__main__":
    main()
