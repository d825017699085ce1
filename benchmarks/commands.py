"""Start-up and output: whole commands, and recording + export against the rest of a run.

usage: python benchmarks/commands.py [--runs 5]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TINY = """
name: tiny
workload: {model: opt-125m, batch_size: 1, sequence_length: 32}
fleet:
  - {profile: jetson-nano, count: 2, link: {downlink: 80 Mbit/s, uplink: 20 Mbit/s}}
strategy: {name: cleave}
"""


def commands(runs: int) -> None:
    """Median wall time of whole commands."""
    with tempfile.TemporaryDirectory() as folder:
        tiny = Path(folder) / "tiny.yaml"
        tiny.write_text(TINY)
        base = ["--base", str(Path(folder) / "runs")]
        for name, args in {
            "morphling --help": ["--help"],
            "tiny scenario, no figures": ["run", str(tiny), "--no-figures", *base],
            "quickstart": ["run", "quickstart", *base],
        }.items():
            times = []
            for _ in range(runs):
                start = time.perf_counter()
                subprocess.run([sys.executable, "-m", "morphling", *args], check=True, capture_output=True)
                times.append(time.perf_counter() - start)
            print(f"{name:<28} {statistics.median(times):6.2f} s  ({min(times):.2f} to {max(times):.2f})", flush=True)


def export(runs: int) -> None:
    """Recording and export of a batch on 256 devices, beside its planning and replay."""
    from morphling.results import DeviceFacts, write_timeline
    from morphling.results.accounting import account
    from morphling.results.store import write_events
    from morphling.run import build
    from morphling.run.run import replay
    from morphling.scenario import load_scenario

    sys.path.insert(0, str(Path(__file__).parent))
    from scaling import scenario

    loaded = load_scenario(scenario(1024, finite=False))
    replay(build(loaded))  # compile
    rows = []
    for _ in range(runs):
        start = time.perf_counter()
        built = build(loaded)
        recording = replay(built)
        played = time.perf_counter() - start
        facts = DeviceFacts.of(built.fleet, recording.end_ns)
        sums = account(recording.dispatches, built.fleet.size)
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            drawn = write_timeline(
                Path(folder) / "timeline.json", recording, facts.names, sums.device, max_devices=1024
            )
            timeline = time.perf_counter() - start
            start = time.perf_counter()
            write_events(Path(folder) / "events.parquet", recording.dispatches)
            events = time.perf_counter() - start
        rows.append((played, timeline, events, drawn["spans"]))
    played, timeline, events, spans = (statistics.median(column) for column in zip(*rows, strict=True))
    count = sum(len(d) for d in recording.dispatches)
    print(f"plan + replay, 1,024 devices  {played:6.2f} s  ({count:,} rows)")
    print(
        f"timeline export              {timeline:6.2f} s  ({spans:,.0f} spans, {spans / timeline / 1e6:.2f} M spans/s)"
    )
    print(f"events table                 {events:6.2f} s  ({count / events / 1e6:.2f} M rows/s)")


def main() -> None:
    """Parse and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    commands(args.runs)
    export(args.runs)


if __name__ == "__main__":
    main()
