"""How an availability looks: share online over time, lengths of sessions and gaps, share of each device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from morphling.fleet.presence import Presence
from morphling.types import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["availability_figure", "draw_availability"]

# Okabe and Ito's palette: told apart in print and by colour-blind readers.
SESSIONS, GAPS, DEVICES, GREY = "#009E73", "#D55E00", "#0072B2", "#595959"
_MAX_POINTS = 4000
_TICKS_S = {"1 ms": 1e-3, "1 s": 1.0, "1 min": 60.0, "1 h": 3600.0, "1 d": 86_400.0, "30 d": 2_592_000.0}


def draw_availability(seen: Presence, title: str, path: Path) -> Path:
    """Draw into the file at ``path``, whose ending names the format; returns ``path``."""
    availability_figure(seen, title).savefig(path, dpi=130)
    return path


def availability_figure(seen: Presence, title: str) -> Figure:
    """The figure (not tied to any window)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - costs 0.3 s, only for who draws
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(12, 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 2)
    _over_time(figure.add_subplot(grid[0, :]), seen)
    _lengths(figure.add_subplot(grid[1, 0]), seen)
    _devices(figure.add_subplot(grid[1, 1]), seen)
    figure.suptitle(title, fontsize=11)
    return figure


def _axes(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)


def _over_time(axes: Axes, seen: Presence) -> None:
    _axes(axes, f"Devices online, of {len(seen.share):,}")
    scale, unit = next(
        (s, u)
        for s, u in ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (0.0, "ns"))
        if seen.until_s >= 2 * s
    )
    scale = scale or 1e-9
    axes.step(seen.time_s / scale, seen.online, where="post", color=DEVICES, linewidth=1.2)
    axes.set_xlim(0, seen.until_s / scale)
    axes.set_ylim(0, max(1.0, float(seen.online.max()) * 1.08))
    axes.set_xlabel(f"virtual time ({unit})", fontsize=9)


def _lengths(axes: Axes, seen: Presence) -> None:
    _axes(axes, "Sessions and gaps that begin and end inside")
    drawn = False
    for name, lengths, colour in (("sessions", seen.session_s, SESSIONS), ("gaps", seen.gap_s, GAPS)):
        if len(lengths):
            drawn = True
            at = _ranks(len(lengths))
            axes.plot(lengths[at], (at + 1) / len(lengths), color=colour, label=f"{len(lengths):,} {name}")
    if not drawn:
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", va="center", color=GREY)
        axes.set_xticks([])
        return
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    ticks = {name: at for name, at in _TICKS_S.items() if low <= at <= high}
    if len(ticks) >= 2:
        axes.set_xticks(list(ticks.values()), list(ticks))
        axes.set_xticks([], minor=True)
    else:
        axes.set_xlabel("seconds", fontsize=9)
    axes.set_ylim(0, 1)
    axes.set_ylabel("share that is shorter", fontsize=9)
    axes.legend(fontsize=8, frameon=False, loc="upper left")


def _devices(axes: Axes, seen: Presence) -> None:
    _axes(axes, "Share of the time that each device is online")
    share: FloatArray = np.sort(seen.share)[::-1]
    at = _ranks(len(share))
    axes.plot(at + 1, share[at], color=DEVICES, marker="o" if len(share) <= 40 else "", markersize=3.5)
    mean = float(share.mean())
    axes.axhline(mean, color=GREY, linewidth=1, linestyle="--", label=f"mean {mean:.3g}")
    axes.set_ylim(0, 1.02)
    axes.set_xlim(0.5, len(share) + 0.5)
    axes.set_xlabel("devices, most present first", fontsize=9)
    axes.legend(fontsize=8, frameon=False, loc="upper right")


def _ranks(count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.unique(np.linspace(0, count - 1, min(count, _MAX_POINTS)).round().astype(np.int64))
