"""Shared links: what a flow costs where a coordinator, cells or other devices are shared, and a large trace file.

    python benchmarks/network.py [--quick] [--import-gigabyte]

Every number is the median of repeated runs of this process; each large case runs in a process of its own, whose peak
memory is printed.  The star workload is that of ``tests/golden/test_star.py``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]  # the star lives beside the tests

from engine import line, timed  # noqa: E402
from scaling import peak_bytes  # noqa: E402

from morphling.engine import Engine  # noqa: E402
from morphling.fleet import Links, LinkTrace, PastEnd  # noqa: E402
from tests.golden.test_star import star  # noqa: E402
from tests.oracle.worlds import FlopsAreNanoseconds, Once, bare_fleet, coordinator, rows  # noqa: E402

SECOND = 10**9
ROUNDS = 5
MEGABYTE = 10**6


class Peers(Once):
    """The same rows where every link may be shared (progressive filling instead of water-filling)."""

    uses_peers = True


def replay(fleet: Any, table: Any, strategy: type[Once] = Once) -> Any:
    return Engine(fleet, None, strategy(table), FlopsAreNanoseconds(), compiled=True).run()


def flows(what: str, fleet: Any, table: Any, repeats: int, strategy: type[Once] = Once) -> float:
    """Print what a flow of a table costs; returns the seconds of a run."""
    replay(fleet, table, strategy)
    span, recording = timed(lambda: replay(fleet, table, strategy), repeats)
    moved = int((table.bytes_in > 0).sum() + (table.bytes_out > 0).sum())
    line(what, f"{span / moved * 1e6:.2f} µs/flow", f"{span:.3f} s, makespan {recording.end_ns / 1e9:.3f} s")
    return span


def rising() -> None:
    """10 MB from t = 0.5 s on a link of 1 MB/s that becomes 2 MB/s at t = 2 s: the end is at 6.25 s."""
    steps = np.array([0, 2 * SECOND])
    trace = LinkTrace("rising", steps, np.array([8e6, 16e6]), np.array([8e6, 16e6]), 3 * SECOND, PastEnd.HOLD)
    none = np.zeros(1, np.int64)
    links = Links.of([trace], none.astype(np.int32), none, none, none.astype(bool))
    table = rows([0], 0, 10 * MEGABYTE, release_ns=SECOND // 2)
    for how, strategy in (("exact link", Once), ("network", Peers)):
        end = replay(bare_fleet(links), table, strategy).end_ns
        line(f"rising link, {how}", f"{end / 1e9:.9f} s", "6.25 s by hand")


def access_points(count: int, each: int, *, nic_bps: int | None) -> tuple[Any, Any]:
    """Devices of 20 to 60 Mbit/s down and 5 to 20 up behind access points of 200 and 66 Mbit/s; five rounds."""
    draw, devices = np.random.default_rng(3), count * each
    down, up = draw.integers(20 * MEGABYTE, 60 * MEGABYTE, devices), draw.integers(5 * MEGABYTE, 20 * MEGABYTE, devices)
    cells = Links.constant(np.full(count, 200 * MEGABYTE), np.full(count, 66 * MEGABYTE))
    links = Links.constant(down, up, 10_000_000).behind(cells, np.arange(devices) // each)
    table = rows(
        np.tile(np.arange(devices), ROUNDS),
        draw.integers(SECOND, 2 * SECOND, ROUNDS * devices),
        10 * MEGABYTE,
        10 * MEGABYTE,
    )
    return bare_fleet(links, centre=coordinator(nic_bps, nic_bps)), table


def ring(devices: int) -> tuple[Any, Any]:
    """Every device sends 10 MB to the next, five rounds, each round when the one before has arrived."""
    draw = np.random.default_rng(5)
    links = Links.constant(draw.integers(20 * MEGABYTE, 60 * MEGABYTE, devices), draw.integers(5e6, 2e7, devices))
    device = np.tile(np.arange(devices), ROUNDS)
    before = [
        [] if i < devices else [i - devices, i - devices - 1 if i % devices else i - 1] for i in range(len(device))
    ]
    table = rows(device, 0, 0, 10 * MEGABYTE, peer=(device + 1) % devices, dependencies=before)
    return bare_fleet(links), table


def large_star(devices: int) -> dict[str, float]:
    """A star of many hosts, constant links, in this process: seconds and peak bytes."""
    fleet, table = star(64, traces=False)
    replay(fleet, table)
    fleet, table = star(devices, traces=False)
    began = time.perf_counter()
    recording = replay(fleet, table)
    return {"seconds": time.perf_counter() - began, "bytes": peak_bytes(), "end": recording.end_ns / 1e9}


def gigabyte() -> None:
    """Write a log of 1 GB in the form of the UCC data, and import it: seconds and peak bytes of the import."""
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder, "log.csv"), Path(folder, "out.csv")
        with path.open("w") as log:
            log.write("Timestamp,Longitude,Latitude,Speed,Operatorname,CellID,NetworkMode,RSRP,RSRQ,SNR,CQI,RSSI,")
            log.write("DL_bitrate,UL_bitrate,State,PINGAVG,PINGMIN,PINGMAX,PINGSTDEV,PINGLOSS,CELLHEX,NODEHEX,LACHEX,")
            log.write("RAWCELLID,NRxRSRP,NRxRSRQ\n")
            at, size = 0, 0
            stamp = np.datetime64("2019-01-01T00:00:00")
            while size < 10**9:
                text = str(stamp + np.timedelta64(at, "s")).replace("-", ".").replace("T", "_").replace(":", ".")
                row = f"{text},-8.4,51.8,3,B,{at % 97},LTE,-97,-13,5.0,8,-,{20_000 + at % 9_000},{900 + at % 700},D,"
                row += f"-,-,-,-,-,{at % 13:X},A{at % 4096:04X},9CBB,{30_000_000 + at % 997},-{90 + at % 9},"
                row += f"-{11 + at % 5}\n"
                size += log.write(row)
                at += 1
        code = (
            "import sys, time; from scaling import peak_bytes; from morphling.cli import main\n"
            "sys.argv = ['morphling', 'traces', 'import', 'ucc', sys.argv[1], '--up', '5 Mbit/s', '-o', sys.argv[2]]\n"
            "began = time.perf_counter()\n"
            "try: main()\n"
            "except SystemExit as stop: assert not stop.code, stop.code\n"
            "print(time.perf_counter() - began, peak_bytes(), file=sys.stderr)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(path), str(out)],
            env={"PYTHONPATH": f"{ROOT}:{Path(__file__).parent}", "PATH": "", "COLUMNS": "100"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        seconds, peak = (float(x) for x in done.stderr.split()[-2:])
        line(f"import of {size / 1e9:.2f} GB, {at:,} lines", f"{seconds:.1f} s", f"peak {peak / 1e6:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer repeats")
    parser.add_argument("--import-gigabyte", action="store_true", help="also write and import a log of 1 GB")
    parser.add_argument("--large-star", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.large_star:
        print(json.dumps(large_star(options.large_star)))
        return
    repeats = 3 if options.quick else 5
    rising()
    for size in (64, 512) if options.quick else (64, 512, 4096):
        flows(f"star, 1-s traces, N = {size}", *star(size, traces=True), repeats)
        flows(f"star, constant, N = {size}", *star(size, traces=False), repeats)
        if size < 4096:
            flows(f"star, constant, N = {size}, as a network", *star(size, traces=False), repeats, Peers)
    count = 32 if options.quick else 256
    for nic, words in ((None, "coordinator unlimited"), (count * 100 * MEGABYTE, "coordinator binds")):
        flows(
            f"{count} access points x 16, {words}",
            *access_points(count, 16, nic_bps=nic),
            repeats if nic is None else 1,
        )
    flows(f"ring of {16 * count}, device to device", *ring(16 * count), repeats, Peers)
    devices = 4096 if options.quick else 65_536
    command = [sys.executable, __file__, "--large-star", str(devices)]
    got = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    line(
        f"star, constant, N = {devices:,}, five rounds",
        f"{got['seconds']:.2f} s",
        f"peak {got['bytes'] / 1e6:.0f} MB, makespan {got['end']:.3f} s",
    )
    if options.import_gigabyte:
        gigabyte()


if __name__ == "__main__":
    main()
