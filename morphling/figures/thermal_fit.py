"""A log of temperatures beside its simulation, what drives it, and how far the simulation is off."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from morphling.figures.axes import BLUE, GREEN, GREY, ORANGE, PINK, VERMILION, blank, grid, quiet, save, writable
from morphling.fleet.thermal_log import ThermalLog
from morphling.types import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["ThermalPicture", "draw_thermal_fit", "thermal_fit_figure"]

_MOST = 4000


@dataclass(frozen=True, eq=False)
class ThermalPicture:
    """What is drawn: the log, its simulation (degC, float64[n]), the first held-out sample, words above.

    drive : float64[n]    what warms the device: W, or a share of full load; ``unit`` says which
    """

    title: str
    log: ThermalLog
    case_c: FloatArray
    junction_c: FloatArray | None
    split: int
    drive: FloatArray
    unit: str


def draw_thermal_fit(picture: ThermalPicture, path: Path) -> Path:
    """Draw into ``path`` (.png, .pdf or .svg) and return it; ``InputError`` for another ending or no folder."""
    writable(path)
    return save(thermal_fit_figure(picture), path)


def thermal_fit_figure(picture: ThermalPicture) -> Figure:
    """The drawing as a matplotlib figure, not tied to any window."""
    figure = blank(10, 7.2)
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1.2, 1.2))
    log = picture.log
    scale, unit = (3600.0, "h") if log.time_s[-1] - log.time_s[0] > 10_800 else (1.0, "s")
    time = log.time_s / scale
    sensors = [("junction", log.junction_c, picture.junction_c, ORANGE, VERMILION),
               ("case", log.case_c, picture.case_c, "#7fb7dc", BLUE)]  # fmt: skip
    quiet(top, "Temperature: dots measured, lines simulated")
    quiet(middle, "Simulated less measured")
    quiet(bottom, "What warms the device")
    for name, measured, simulated, pale, strong in sensors:
        if measured is None or simulated is None:
            continue
        at = np.unique(np.linspace(0, len(time) - 1, min(len(time), _MOST)).astype(np.int64))
        top.plot(time[at], measured[at], ".", color=pale, markersize=2.5, label=f"{name}, measured")
        # A line must not run over a gap, nor from the fitted part into the one that begins at a measurement.
        cuts = np.union1d(log.starts[1:], [picture.split])
        line = np.insert(simulated, cuts, np.nan)
        top.plot(np.insert(time, cuts, np.nan), line, color=strong, linewidth=1.4, label=f"{name}, simulated")
        middle.plot(time[at], (simulated - measured)[at], ".", color=strong, markersize=2, label=name)
    top.set_ylabel("°C", fontsize=9)
    middle.axhline(0, color=GREY, linewidth=0.8)
    middle.set_ylabel("K", fontsize=9)
    _driven(bottom, picture, time)
    for axes in (top, middle, bottom):
        grid(axes)
        axes.axvspan(time[picture.split], time[-1], color="#bdbdbd", alpha=0.3, linewidth=0)
    top.text(
        time[picture.split], 0.02, " held out", transform=top.get_xaxis_transform(), fontsize=8, color=GREY, va="bottom"
    )
    top.legend(fontsize=8, frameon=False, ncols=4, loc="lower right", bbox_to_anchor=(1, 1))
    bottom.set_xlim(time[0], time[-1])
    bottom.set_xlabel(f"time in the log ({unit})", fontsize=9)
    figure.suptitle(picture.title, fontsize=11)
    return figure


def _driven(axes: Axes, picture: ThermalPicture, time: FloatArray) -> None:
    axes.step(time, picture.drive, where="post", color=GREEN, linewidth=1.0, label=f"drive ({picture.unit})")
    axes.set_ylabel(picture.unit, fontsize=9)
    axes.set_ylim(0, max(float(picture.drive.max()) * 1.1, 1e-9))
    if picture.log.clock is not None:
        other = axes.twinx()
        quiet(other, "")
        other.spines["right"].set_visible(True)
        other.step(time, picture.log.clock, where="post", color=PINK, linewidth=1.0)
        other.set_ylim(0, 1.1)
        other.set_ylabel("clock (share)", fontsize=9, color=PINK)
