"""What the energy of each profile's devices went into, as bars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from morphling.figures.axes import BLUE, GREEN, LIGHT, ORANGE, empty, quiet
from morphling.results.human import digits
from morphling.types import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_energy", "knows_energy"]

_PARTS = {
    "energy_idle_j": ("idle", LIGHT),
    "energy_compute_j": ("compute", ORANGE),
    "energy_radio_up_j": ("radio up", GREEN),
    "energy_radio_down_j": ("radio down", BLUE),
}
_RADIO = ("energy_radio_up_j", "energy_radio_down_j")
_SCALES = ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"), (1e-6, "µJ"))
_MOST = 7


def knows_energy(devices: Any) -> bool:
    """Whether some device states its power; run folders of version 0.1.0 do not split energy at all."""
    return "energy_idle_j" in devices and bool(devices["energy_compute_j"].notna().any())


def draw_energy(axes: Axes, devices: Any, notes: list[str]) -> None:
    """One bar for each profile, most energy first; ``notes`` takes what the bars do not hold."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter  # noqa: PLC0415

    quiet(axes, "Where the energy went")
    bars = _bars(devices, notes)
    most = max(float(parts.sum()) for _, parts in bars)
    if most == 0:
        empty(axes, "no energy was used")
        return
    scale, unit = next(((s, u) for s, u in _SCALES if most >= s), _SCALES[3])
    left = np.zeros(len(bars))
    values = np.array([parts for _, parts in bars]) / scale
    for (name, colour), column in zip(_PARTS.values(), values.T, strict=True):
        if column.any():
            axes.barh(range(len(bars)), column, left=left, color=colour, label=name, height=0.65)
        left = left + column
    for place, total in enumerate(left):
        axes.text(total, place, f" {digits(float(total), 3)}", va="center", fontsize=8)
    axes.set_yticks(range(len(bars)), [name for name, _ in bars], fontsize=8)
    axes.set_ylim(max(len(bars), 3) + 0.4, -0.5)  # below the last bar, room for the legend
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlim(0, float(left.max()) * 1.18)
    axes.set_xlabel(f"energy, summed over devices ({unit})", fontsize=9)
    axes.legend(fontsize=8, frameon=False, ncols=4, loc="lower center", columnspacing=0.9, handlelength=1.2)


def _bars(devices: Any, notes: list[str]) -> list[tuple[str, FloatArray]]:
    """(name and count, J of each part) by profile, most first; a part that a device does not state adds nothing."""
    powered = devices[devices["energy_compute_j"].notna()]
    if left_out := len(devices) - len(powered):
        notes.append(f"energy: {left_out:,} devices state no power (not drawn)")
    if silent := int(powered[list(_RADIO)].isna().any(axis=1).sum()):
        if silent == len(powered):
            notes.append("energy: no device states what the radio takes (not drawn)")
        else:
            notes.append(
                f"energy: {silent:,} devices do not state what the radio takes; energy_j leaves out the others'"
            )
    sums = powered.groupby("profile", observed=True)[list(_PARTS)].sum()
    counts = powered["profile"].value_counts()
    bars = [(_named(str(name), int(counts[name])), row.to_numpy(float)) for name, row in sums.iterrows()]
    bars.sort(key=lambda bar: -float(bar[1].sum()))
    if len(bars) > _MOST:
        rest = np.sum([parts for _, parts in bars[_MOST - 1 :]], axis=0)
        bars = [*bars[: _MOST - 1], (f"{len(bars) - _MOST + 1} others", rest)]
    return bars


def _named(profile: str, count: int) -> str:
    return f"{profile if len(profile) <= 24 else profile[:23] + '…'}\n× {count:,}"
