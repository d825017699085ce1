"""How fast the engine is, beside its slow twin: waves of independent rows, and the star workload at three sizes.

    python benchmarks/engine.py [--quick]

Prints one table.  Every number is the median of repeated runs; ratios compare runs of this process only.  The twin
spends about 27 SimPy events on a row.  The star workload is that of ``tests/golden/test_star.py``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the twin and the star live beside the tests

from morphling.engine import Engine  # noqa: E402
from morphling.fleet import Links  # noqa: E402
from tests.golden.test_star import star  # noqa: E402
from tests.oracle.twin import Twin  # noqa: E402
from tests.oracle.worlds import FlopsAreNanoseconds, Once, bare_fleet, rows  # noqa: E402

DEVICES = 2_000
FLOWS_A_DEVICE = 10  # five rounds, down and up


def timed(run: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Median wall time, seconds, and what the last run returned."""
    spans = []
    result = None
    for _ in range(repeats):
        began = time.perf_counter()
        result = run()
        spans.append(time.perf_counter() - began)
    return statistics.median(spans), result


def line(what: str, value: str, note: str = "") -> None:
    print(f"{what:<46} {value:>16}  {note}")


def compile_kernels() -> None:
    """Both lanes once, so that nothing below pays for compiling."""
    began = time.perf_counter()
    for lane in ("closed", "events"):
        Engine(wave_fleet(8), None, Once(wave(8)), FlopsAreNanoseconds(), compiled=True, lane=lane).run()
    fleet, table = star(8, traces=True)
    Engine(fleet, None, Once(table), FlopsAreNanoseconds(), compiled=True).run()
    line(
        "compile or load the kernels",
        f"{time.perf_counter() - began:.1f} s",
        "once per installation, then a disk cache",
    )


def wave_fleet(devices: int) -> Any:
    """Private links of 10 to 100 Mbit/s down and a fifth of it up."""
    down = np.random.default_rng(1).integers(10_000_000, 100_000_000, devices)
    return bare_fleet(Links.constant(down, down // 5, 20_000_000))


def wave(devices: int) -> Any:
    """One row for each device."""
    draw = np.random.default_rng(2)
    return rows(
        np.arange(devices),
        draw.integers(10**8, 10**9, devices),
        draw.integers(1, 10**6, devices),
        draw.integers(1, 10**6, devices),
    )


def waves(*, quick: bool) -> None:
    """Rows a second: one wave after another over 2,000 devices, each when the one before is done."""
    fleet, table, executor = wave_fleet(DEVICES), wave(DEVICES), FlopsAreNanoseconds()
    many, few = (100, 2) if quick else (500, 5)

    def fast(lane: str) -> Any:
        return Engine(fleet, None, Once(*[table] * many), executor, compiled=True, lane=lane).run()

    def slow() -> Any:
        return Twin(fleet, Once(*[table] * few), executor).run()

    repeats = 3 if quick else 5
    twin_s, theirs = timed(slow, repeats)
    twin_rate = few * DEVICES / twin_s
    line(f"slow twin, {few} waves x {DEVICES:,} devices", f"{twin_rate:,.0f} rows/s")
    for lane in ("closed", "events"):
        span, ours = timed(lambda lane=lane: fast(lane), repeats)
        rate = many * DEVICES / span
        same = all(
            np.array_equal(np.stack(a.times[:7]), b.times)
            for a, b in zip(ours.dispatches[:few], theirs.dispatches, strict=True)
        )
        note = f"{rate / twin_rate:,.0f} x the twin; the same times: {'yes' if same else 'NO'}"
        line(f"engine, {lane} lane, {many} waves", f"{rate:,.0f} rows/s", note)


def stars(*, quick: bool) -> None:
    """Microseconds a flow as the star grows, with constant links and with traces."""
    sizes = (64, 512) if quick else (64, 512, 4096)
    for traces in (False, True):
        kind = "1-s traces" if traces else "constant links"
        each: list[float] = []
        for size in sizes:
            fleet, table = star(size, traces=traces)
            span, recording = timed(
                lambda f=fleet, t=table: Engine(f, None, Once(t), FlopsAreNanoseconds(), compiled=True).run(),
                3 if quick else 5,
            )
            each.append(span / (FLOWS_A_DEVICE * size) * 1e6)
            line(f"star, {kind}, N = {size}", f"{each[-1]:.2f} µs/flow", f"makespan {recording.end_ns / 1e9:.3f} s")
        line(f"star, {kind}, {sizes[0]} to {sizes[-1]}", f"{each[-1] / each[0]:.2f} x a flow")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer waves, repeats and sizes")
    quick = parser.parse_args().quick
    compile_kernels()
    waves(quick=quick)
    stars(quick=quick)
    sys.path.insert(0, str(Path(__file__).parent))
    from scaling import SIZES, table

    table(SIZES[:3] if quick else SIZES, finite=False, repeat=1)


if __name__ == "__main__":
    main()
