"""Logs of a device whose constants are known."""

from __future__ import annotations

import numpy as np

from morphling.executors.thermal_model import case_temperatures, junction_temperatures
from morphling.fleet.thermal_log import ThermalLog

MAX_W, IDLE_W = 5.0, 0.5
KNOWN = {
    "ambient_c": 25.0, "ambient_to_case": 3.0, "case_s": 200.0, "case_cooling_s": 600.0, "junction_to_case": 2.1,
    "junction_s": 3.0,
}  # fmt: skip


def known_log(load, *, step_s=1.0, noise_k=0.3, grain_k=1.0, junction=True, seed=1):
    """The model itself with the constants of `KNOWN`, a noisy sensor and one that shows whole steps of ``grain_k``."""
    count = len(load)
    time, load = np.arange(count) * step_s, np.asarray(load, dtype=float)
    power = IDLE_W * (1 - load) + MAX_W * load
    target = KNOWN["ambient_c"] + KNOWN["ambient_to_case"] * power
    times = {"warming_s": KNOWN["case_s"], "cooling_s": KNOWN["case_cooling_s"]}
    case = case_temperatures(time, target, start_c=27.0, **times)
    above = KNOWN["junction_to_case"] * power
    hot = junction_temperatures(time, case, target, above, junction_s=KNOWN["junction_s"], start_c=28.0, **times)
    rng = np.random.default_rng(seed)

    def sensed(true):
        read = true + rng.normal(0, noise_k, count)
        return np.round(read / grain_k) * grain_k if grain_k else read

    return ThermalLog(time, sensed(case), sensed(hot) if junction else None, None, load, power, np.array([0]))


def bursts(count, on, off):
    """Load of 1 for ``on`` samples, then of 0 for ``off``, and so on."""
    return (np.arange(count) % (on + off) < on).astype(float)


def write_log(path, log, columns=("time_s", "case_c", "junction_c", "load", "power_w"), *, lines=()):
    """The log as CSV, with more ``lines`` at its end."""
    found = [np.asarray(getattr(log, c)) for c in columns]
    rows = [",".join(f"{v:.10g}" for v in row) for row in zip(*found, strict=True)]
    path.write_text("\n".join([",".join(columns), *rows, *lines]) + "\n", encoding="utf-8")
    return path
