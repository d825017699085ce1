"""What heat costs, and how far a phone slows: the same Cleave batch with and without heat, and one phone under load.

    python benchmarks/heat.py [--devices 8192] [--repeat 3]

Ratios compare runs of this process only; times are medians.  The batch is that of ``benchmarks/scaling.py`` on links of
their own; every device warms like a phone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from engine import line
from scaling import scenario

from morphling.engine import Engine
from morphling.fleet import Thermal
from morphling.run.build import Built, build
from morphling.run.run import replay
from morphling.scenario import load_scenario
from tests.oracle.worlds import FlopsAreNanoseconds, Once, rows

PHONE = "galaxy-s24-ultra"
SECOND = 10**9


def phone() -> Built:
    """One phone on a fast link, with the constants of its profile."""
    return build(
        load_scenario(
            {
                "name": "phone",
                "workload": {"model": "opt-125m", "batch_size": 1, "sequence_length": 16},
                "fleet": [{"profile": PHONE, "link": {"downlink": "1 Gbit/s", "uplink": "1 Gbit/s"}}],
                "strategy": {"name": "cleave"},
            }
        )
    )


def warmed(built: Built, like: Built) -> Built:
    """The same fleet in which every device warms as the one phone of ``like`` does."""
    n, one = built.fleet.size, like.fleet
    assert one.thermal is not None
    thermal: Any = {f.name: np.repeat(getattr(one.thermal, f.name)[:1], n) for f in fields(Thermal)}
    power = {"idle_w": np.repeat(one.idle_w, n), "max_w": np.repeat(one.max_w, n)}
    return replace(built, fleet=replace(built.fleet, thermal=Thermal(**thermal), **power))


def sustained(like: Built) -> None:
    """Rows of a second one after another for 20 minutes, then a rest of 20, then a minute again."""
    work = [rows(0, SECOND)] * 1200 + [rows(0, SECOND, release_ns=1200 * SECOND)] + [rows(0, SECOND)] * 60
    run = Engine(like.fleet, None, Once(*work), FlopsAreNanoseconds()).run()
    took = np.concatenate([d.times[7] for d in run.dispatches]) / SECOND
    began = np.concatenate([d.times[2] for d in run.dispatches]) / SECOND
    first = took[began < 60].mean()
    for minute in (1, 2, 3, 5, 10, 15, 19):
        mean = took[(began >= 60 * (minute - 1)) & (began < 60 * minute)].mean()
        line(f"{PHONE}, speed in minute {minute}", f"{100 * first / mean:.1f} %", "of the first minute's")
    line(f"{PHONE}, after a rest of 20 minutes", f"{100 * first / took[-60:].mean():.1f} %")
    assert run.heat is not None
    line("hottest case", f"{run.heat.hottest_c[0]:.1f} °C", f"lowest clock {run.heat.lowest_clock[0]:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=8192)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    like = phone()
    sustained(like)
    spans: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(options.repeat + 1):  # the first compiles
        for heat in (False, True):
            built = build(load_scenario(scenario(options.devices, finite=False)))
            if heat:
                built = warmed(built, like)
            began = time.perf_counter()
            replay(built)
            spans[heat].append(time.perf_counter() - began)
    cold, hot = (statistics.median(spans[heat][1:]) for heat in (False, True))
    line(f"Cleave, OPT-13B, {options.devices:,} devices, no heat", f"{cold:.2f} s")
    line("the same with heat", f"{hot:.2f} s", f"{hot / cold:.2f} x")


if __name__ == "__main__":
    main()
