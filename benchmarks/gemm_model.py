"""The fitted latency model beside a plain roofline, on the same held-out shapes; and how fast durations are made.

python benchmarks/gemm_model.py                       measures this host for two minutes first
python benchmarks/gemm_model.py --samples FILE.csv    fits the samples in a file
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from pathlib import Path

import numpy as np

from morphling.executors import Profiled
from morphling.executors.gemm_fit import Errors, Fitted, fit_samples, quality
from morphling.executors.gemm_model import roofline_seconds, seconds
from morphling.executors.measure_gemm import host
from morphling.fleet import Availability, Coordinator, Fleet, Links, LinkTrace, PastEnd
from morphling.interfaces.tasks import TaskTable
from morphling.run.calibrate import calibrate
from morphling.run.measured_profiles import write_profile
from morphling.scenario.gemm_samples import read_samples
from morphling.types import DType, item_bytes

ROWS = 1_000_000
SPLITS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--budget", type=float, default=120.0, help="seconds to measure")
    parser.add_argument("--backend", default="auto")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.samples or measured(Path(folder), args.budget, args.backend)
        samples = read_samples(path)
    print(f"host {platform.node()}: {host()}, python {platform.python_version()}")
    print("samples:", "; ".join(f"{key} {value}" for key, value in samples.facts.items()))
    found = quality(samples)
    print(
        f"{len(samples)} shapes, rounds agree within {found.agreement:.1%} (median), cpu share {found.cpu_share:.0%}\n"
    )
    fits = [fit_samples(samples, DType.FLOAT32, source="benchmark", seed=seed) for seed in range(SPLITS)]
    print(f"{'held-out absolute error':34}{'median':>9}{'p90':>9}{'mean, ms':>10}")
    for seed, fitted in enumerate(fits):
        show(f"split {seed}: fitted model", fitted.errors)
        show(f"split {seed}: plain roofline", roofline(fitted))
    speed(fits[0])


def measured(folder: Path, budget_s: float, backend: str) -> Path:
    profile, _, remarks = calibrate("host", folder, budget_s=budget_s, backend=backend)
    print(*remarks, sep="\n")
    return write_profile(profile, folder)[1]


def show(name: str, e: Errors) -> None:
    print(f"{name:34}{e.median:9.1%}{e.p90:9.1%}{e.mae_ms:10.3g}")


def roofline(fitted: Fitted) -> Errors:
    """Best rate, best traffic and shortest time among the shapes that the fit saw, on those that it did not see."""
    u, seen = fitted.used, ~fitted.held
    size = item_bytes(DType.FLOAT32) * u.batch * (1.0 * u.m * u.k + 1.0 * u.k * u.n + 1.0 * u.m * u.n)
    rate, launch = (u.flops / u.seconds)[seen].max(), u.seconds[seen].min()
    large = seen & (size > np.percentile(size[seen], 75))
    told = roofline_seconds(launch, rate, (size / u.seconds)[large].max(), u.flops, size)
    return Errors.of(told[fitted.held], u.seconds[fitted.held])


def speed(fitted: Fitted) -> None:
    rng = np.random.default_rng(0)
    m, n, k = rng.integers(16, 4096, (3, ROWS))
    p, block = fitted.fit.parameters, 16_384
    columns = [x.astype(np.float64) for x in (m, n, k)]
    model = best(lambda: [seconds(p, 4, *(c[at : at + block] for c in columns)) for at in range(0, ROWS, block)])
    rows = TaskTable.build(device=np.zeros(ROWS, np.int32), m=m, n=n, k=k, dtype=DType.FLOAT32)
    executor = Profiled(fleet=one_device(fitted))
    whole = best(lambda: executor.durations(rows, 0))
    print(f"\n{ROWS / model / 1e6:.1f} million durations/s from the fitted model, CPU time of one thread")
    print(f"{ROWS / whole / 1e6:.1f} million rows/s by the executor (table columns, roofline of other rows, ranges)")


def best(work) -> float:
    times = []
    for _ in range(5):
        start = time.thread_time()
        work()
        times.append(time.thread_time() - start)
    return min(times)


def one_device(fitted: Fitted) -> Fleet:
    one, zero = np.ones(1), np.zeros(1, np.int64)
    rates = Fleet.per_dtype({"float32": 1e11})
    trace = LinkTrace("constant", np.zeros(1, np.int64), np.array([8]), np.array([8]), 1, PastEnd.HOLD)
    return Fleet(
        profile_names=("host",), profile=np.zeros(1, np.int32), group=np.zeros(1, np.int32), peak_flops=rates[None],
        efficiency=np.ones((1, len(DType))), memory_bytes=zero + 1, memory_bandwidth=one * 1e10, launch_s=one * 1e-6,
        idle_w=one, max_w=one, links=Links.of([trace], np.zeros(1, np.int32), zero, zero, np.zeros(1, bool)),
        availability=Availability.always(1), coordinator=Coordinator("c", rates, np.ones(len(DType)), 1, 1e9),
        gemm_fits=({DType.FLOAT32: fitted.fit},),
    )  # fmt: skip


if __name__ == "__main__":
    main()
