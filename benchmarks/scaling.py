"""Time and memory of one Cleave batch against device count: plan + replay in memory, each size in a fresh process.

OPT-13B, batch 128 x 1024, devices sampled as published (5-7 TFLOP/s, 1-3 GB) on the shipped LTE, Wi-Fi and 5G traces
with random offsets, coordinator unlimited (links private) unless --finite is given.

usage: python benchmarks/scaling.py [--devices 256 1024 8192 100000] [--finite] [--repeat 1]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

SIZES = [256, 1024, 4096, 8192, 32768, 100_000]


def scenario(devices: int, *, finite: bool) -> dict[str, object]:
    """The scenario as a mapping: half of the devices on LTE, a quarter each on Wi-Fi and 5G."""
    profile = {"compute": {"uniform": ["5 TFLOP/s", "7 TFLOP/s"]}, "memory": {"uniform": ["1 GB", "3 GB"]}}
    counts = {"mobiperf-lte": devices - 2 * (devices // 4), "mobiperf-wifi": devices // 4, "mobiperf-5g": devices // 4}
    fleet = [
        {
            "profile": profile,
            "count": n,
            "link": {"trace": t, "offset": {"uniform": ["0 s", "600 s"]}, "latency": "20 ms"},
        }
        for t, n in counts.items()
    ]
    rates = {"downlink": "100 Gbit/s", "uplink": "100 Gbit/s"} if finite else {}
    return {
        "name": f"scaling-{devices}",
        "seed": 42,
        "workload": {"model": "opt-13b", "batch_size": 128, "sequence_length": 1024},
        "fleet": fleet,
        "coordinator": {"profile": "cloud-server", **rates},
        "strategy": {"name": "cleave"},
    }


def peak_bytes() -> int:
    """Peak memory of this process alone (``ru_maxrss`` starts at what the parent had)."""
    with Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def one(devices: int, *, finite: bool) -> dict[str, float]:
    """Plan and replay once, here."""
    from morphling.run import build
    from morphling.run.run import replay
    from morphling.scenario import load_scenario

    loaded = load_scenario(scenario(devices, finite=finite))
    start = time.perf_counter()
    recording = replay(build(loaded))
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "rows": sum(len(d) for d in recording.dispatches),
        "virtual_s": recording.end_ns / 1e9,
        "peak_gb": peak_bytes() / 1e9,
    }


def fresh(devices: int, *, finite: bool) -> dict[str, float]:
    """Plan and replay in a new process, so that peak memory is its own."""
    command = [sys.executable, __file__, "--one", str(devices), *(["--finite"] if finite else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def table(sizes: list[int], *, finite: bool, repeat: int) -> None:
    """Print one line a size and the fitted exponent of time against devices."""
    print(f"Cleave batch, OPT-13B 128 x 1024, traced links, coordinator {'100 Gbit/s' if finite else 'unlimited'}")
    fresh(1024, finite=finite)  # the first run of an installation compiles the kernels
    print(f"{'devices':>8} {'rows':>12} {'plan + replay':>14} {'rows/s':>10} {'peak memory':>12} {'virtual time':>13}")
    times = []
    for n in sizes:
        runs = [fresh(n, finite=finite) for _ in range(repeat)]
        seconds = statistics.median(r["seconds"] for r in runs)
        times.append(seconds)
        r = runs[0]
        print(
            f"{n:>8,} {r['rows']:>12,} {seconds:>12.2f} s {r['rows'] / seconds / 1e6:>8.2f} M {r['peak_gb']:>9.2f} GB"
            f" {r['virtual_s']:>11,.1f} s",
            flush=True,
        )
    if len(sizes) > 1:
        print(f"fitted growth: time ~ devices^{np.polyfit(np.log(sizes), np.log(times), 1)[0]:.2f}")


def main() -> None:
    """Parse and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=SIZES)
    parser.add_argument("--finite", action="store_true", help="give the coordinator 100 Gbit/s each way")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(one(args.one, finite=args.finite)))
        return
    table(args.devices, finite=args.finite, repeat=args.repeat)


if __name__ == "__main__":
    main()
