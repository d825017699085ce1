"""How an availability looks: share online over time, lengths of sessions and gaps, share of each device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from morphling.figures.axes import (
    BLUE,
    GREEN,
    GREY,
    VERMILION,
    blank,
    counted,
    device_axis,
    empty,
    grid,
    quiet,
    ranks,
    save,
    time_scale,
    time_ticks,
    writable,
)
from morphling.fleet.presence import Presence
from morphling.types import FloatArray
from morphling.units import format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["availability_figure", "draw_availability"]

SESSIONS, GAPS, DEVICES = GREEN, VERMILION, BLUE
_MAX_POINTS = 4000


def draw_availability(seen: Presence, title: str, path: Path) -> Path:
    """Draw into ``path`` (.png, .pdf or .svg) and return it; ``InputError`` for another ending or no folder."""
    writable(path)
    return save(availability_figure(seen, title), path)


def availability_figure(seen: Presence, title: str) -> Figure:
    """The figure (not tied to any window)."""
    figure = blank(12, 6.4)
    places = figure.add_gridspec(2, 2)
    _over_time(figure.add_subplot(places[0, :]), seen)
    _lengths(figure.add_subplot(places[1, 0]), seen)
    _devices(figure.add_subplot(places[1, 1]), seen)
    mean, size = float(seen.share.mean()), len(seen.share)
    figure.suptitle(
        f"{title}\n{size:,} {'device' if size == 1 else 'devices'}, first {format_time(seen.until_s)}  ·  online on "
        f"average {mean * size:,.3g} ({mean:.1%}), from {seen.online.min():,} to {seen.online.max():,}",
        fontsize=11,
    )
    return figure


def _over_time(axes: Axes, seen: Presence) -> None:
    quiet(axes, f"Devices online, of {len(seen.share):,}")
    grid(axes)
    scale, unit = time_scale(seen.until_s)
    axes.step(seen.time_s / scale, seen.online, where="post", color=DEVICES, linewidth=1.2)
    axes.set_xlim(0, seen.until_s / scale)
    axes.set_ylim(0, max(1.0, float(seen.online.max()) * 1.08))
    counted(axes.yaxis)
    axes.set_ylabel("devices", fontsize=9)
    axes.set_xlabel(f"virtual time ({unit})", fontsize=9)


def _lengths(axes: Axes, seen: Presence) -> None:
    quiet(axes, "Sessions and gaps that begin and end inside")
    grid(axes)
    drawn = False
    for name, lengths, colour in (("sessions", seen.session_s, SESSIONS), ("gaps", seen.gap_s, GAPS)):
        if len(lengths):
            drawn = True
            at = ranks(len(lengths), _MAX_POINTS)
            share = [0.0, *((at + 1) / len(lengths) * 100)]
            label = f"{len(lengths):,} {name}"
            axes.step([lengths[0], *lengths[at]], share, where="post", color=colour, label=label, linewidth=1.4)
    if not drawn:
        empty(axes, "none")
        return
    axes.set_xscale("log")
    time_ticks(axes, "length")
    axes.set_ylim(0, 101)
    axes.set_ylabel("% that are no longer", fontsize=9)
    axes.legend(fontsize=8, frameon=False, loc="upper left")


def _devices(axes: Axes, seen: Presence) -> None:
    quiet(axes, "Share of the time that each device is online")
    grid(axes)
    share: FloatArray = np.sort(seen.share)[::-1]
    at = ranks(len(share), _MAX_POINTS)
    axes.plot(at + 1, share[at] * 100, color=DEVICES, marker="o" if len(share) <= 40 else "", markersize=3.5)
    mean = float(share.mean()) * 100
    axes.axhline(mean, color=GREY, linewidth=1, linestyle="--", label=f"mean {mean:.3g} %")
    axes.set_ylim(0, min(102.0, max(1.0, float(share[0]) * 115)))
    axes.set_ylabel("% of the time", fontsize=9)
    device_axis(axes, len(share), "devices, most present first")
    axes.legend(fontsize=8, frameon=False, loc="upper right")
