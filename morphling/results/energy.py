"""What the energy of devices went into.  `docs/metrics.md` defines the parts, and says what none of them counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from morphling.interfaces.recording import HeatRecord
from morphling.results.facts import DeviceFacts
from morphling.results.heat import warms
from morphling.types import SECOND_NS, FloatArray, IntArray

__all__ = ["ENERGY_PARTS", "Energy", "energy", "energy_metrics"]

ENERGY_PARTS = ("energy_idle_j", "energy_compute_j", "energy_radio_up_j", "energy_radio_down_j")
"""What ``energy_j`` is the sum of, as far as every device states it."""
_NEEDED = ENERGY_PARTS[:2]


@dataclass(frozen=True, eq=False)
class Energy:
    """Joules of N devices: ``parts[name]`` float64[N] for each of `ENERGY_PARTS`, NaN where a number is missing."""

    parts: dict[str, FloatArray]

    @property
    def counted(self) -> tuple[str, ...]:
        """The parts that make the total: idle and computing, and each direction of the radio that all devices state.

        One rule for all devices, so that the totals of two devices can be compared.
        """
        stated = [name for name in ENERGY_PARTS if not np.isnan(self.parts[name]).any()]
        return (*_NEEDED, *(name for name in stated if name not in _NEEDED))

    @property
    def total(self) -> FloatArray:
        """The sum of the `counted` parts of each device, J, float64[N]; NaN where it states no power."""
        total: FloatArray = np.sum([self.parts[name] for name in self.counted], axis=0)
        return total


def energy(facts: DeviceFacts, sums: Mapping[str, IntArray], heat: HeatRecord | None) -> Energy:
    """The energy of each device.

    sums : sums by device, int64[N] or longer, as `morphling.results.accounting.account` makes them
    heat : what heat did; of devices that warm, it knows the energy of computing, which changes with the clock

    A transfer between devices costs its sender what sending costs and its receiver what receiving costs, because the
    sums count it at both.  Of transfers that were cut it is not known how much was sent; they cost nothing here.
    """
    size = facts.size
    compute = (facts.max_w - facts.idle_w) * sums["compute_ns"][:size] / SECOND_NS
    if heat is not None:
        compute = np.where(warms(heat), heat.compute_j, compute)
    return Energy(
        {
            "energy_idle_j": facts.idle_w * facts.online_ns / SECOND_NS,
            "energy_compute_j": compute,
            "energy_radio_up_j": 8 * sums["bytes_up"][:size] * facts.radio_up_j,
            "energy_radio_down_j": 8 * sums["bytes_down"][:size] * facts.radio_down_j,
        }
    )


def energy_metrics(spent: Energy, facts: DeviceFacts, why: dict[str, str]) -> dict[str, Any]:
    """``energy_j`` and its parts, J.  A part that some device does not state is None; ``why`` takes the reason."""
    values: dict[str, Any] = {"energy_j": None}
    for name, joules in spent.parts.items():
        silent = np.isnan(joules)
        values[name] = None if silent.any() else float(joules.sum())
        if silent.any():
            what = "idle and maximum power" if name in _NEEDED else "energy per bit of their radio"
            why[name] = f"{facts.count(silent)} state no {what}"
    if missing := [name for name in _NEEDED if values[name] is None]:
        why["energy_j"] = why[missing[0]]
    else:
        values["energy_j"] = sum(values[name] for name in spent.counted)
        for name in set(ENERGY_PARTS) & set(why):
            why[name] += "; energy_j leaves it out"
    return values
