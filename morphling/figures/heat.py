"""Clocks and temperatures of a few devices over virtual time, beneath what they did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from morphling.figures.axes import BLUE, GREEN, GREY, ORANGE, PINK, SKY, VERMILION, grid, quiet, time_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_heat"]

_COLOURS = (BLUE, ORANGE, GREEN, VERMILION, PINK, SKY, "#000000", "#8B6914")
_MOST_TRIPS = 3


def draw_heat(pair: tuple[Axes, Axes], curve: Any, devices: Any, end_s: float, notes: list[str]) -> None:
    """Draw the clocks into one panel, the temperatures of case and junction into the one beneath.

    pair : the two panels
    curve : `morphling.results.Results.heat`, not empty
    devices : `morphling.results.Results.devices`
    end_s : where the time axes end, s
    notes : takes what is not drawn
    """
    clocks, warmth = pair
    scale, unit = time_scale(end_s)
    watched = curve["device"].unique().tolist()
    shown = watched[: len(_COLOURS)]
    if len(shown) < len(watched):
        notes.append(f"heat: {len(watched) - len(shown)} more devices were followed (not drawn)")
    quiet(clocks, "Clock")
    quiet(warmth, "Temperature")
    for device, colour in zip(shown, _COLOURS, strict=False):
        mine = curve[curve["device"] == device]
        time = mine["time_s"].to_numpy() / scale
        # A clock holds until it is set anew; a temperature moves all the time.
        clocks.plot(time, 100 * mine["clock"], color=colour, linewidth=1.3, drawstyle="steps-post")
        warmth.plot(time, mine["case_c"], color=colour, linewidth=1.6)
        warmth.plot(time, mine["junction_c"], color=colour, linewidth=0.8, linestyle=(0, (1, 1)))
    trips = _trips(warmth, devices["trip_c"].to_numpy()[shown])
    clocks.set_ylim(0, 105)
    clocks.set_ylabel("share of full\nclock (%)", fontsize=9)
    clocks.tick_params(labelbottom=False)
    warmth.set_ylabel("temperature (°C)", fontsize=9)
    warmth.set_xlabel(f"virtual time ({unit})", fontsize=9)
    for axes in (clocks, warmth):
        axes.set_xlim(0, end_s / scale)
        grid(axes)
    _legends(clocks, warmth, [str(devices["name"].iloc[i]) for i in shown], trips)


def _trips(axes: Axes, trips: Any) -> str:
    """Lines where clocks begin to fall, and words for them; empty if the run folder does not know."""
    known = np.unique(trips[~np.isnan(trips)])
    for trip in known:
        axes.axhline(float(trip), color=GREY, linewidth=0.9, linestyle=(0, (5, 3)))
    if len(known) == 0:
        return ""
    if len(known) > _MOST_TRIPS:
        return f"clock falls from {known[0]:g} to {known[-1]:g} °C on"
    return f"clock falls from {', '.join(f'{trip:g}' for trip in known)} °C on"


def _legends(clocks: Axes, warmth: Axes, names: Sequence[str], trips: str) -> None:
    """Beside the panels, where no curve is: devices by colour, and what the kinds of lines mean."""
    from matplotlib.lines import Line2D  # noqa: PLC0415

    devices = [Line2D([], [], color=colour, label=name) for name, colour in zip(names, _COLOURS, strict=False)]
    lines = [
        Line2D([], [], color=GREY, linewidth=1.6, label="case"),
        Line2D([], [], color=GREY, linewidth=0.8, linestyle=(0, (1, 1)), label="junction"),
    ]
    if trips:
        lines.append(Line2D([], [], color=GREY, linewidth=0.9, linestyle=(0, (5, 3)), label=trips))
    for axes, handles in ((clocks, devices), (warmth, lines)):
        axes.legend(handles=handles, fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.06))
