"""Time of a batch against the number of devices, published formulas and physical models side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from morphling.figures.axes import BLUE, GREEN, GREY, ORANGE, blank, grid, quiet, save
from morphling.results.paper import PaperPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_device_scaling"]

_COLOURS = {"Alpa": ORANGE, "DT-FM": GREEN, "Cleave": BLUE}
_MARKS = {"Alpa": "s", "DT-FM": "^", "Cleave": "o"}
_WORDS = {"paper": "published formulas (model: paper)", "physical": "replayed (model: physical)"}


def draw_device_scaling(points: Sequence[PaperPoint], title: str, folder: Path, name: str) -> tuple[Path, ...]:
    """Draw the points into NAME.png and NAME.pdf; what has no value stands as n/a at the top."""
    panels = list(dict.fromkeys(p.panel for p in points))
    figure = blank(5.2 * len(panels), 4.4)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    known = [p.seconds for p in points if p.seconds]
    low, high = (min(known) / 2, max(known) * 3) if known else (1.0, 10.0)
    for ax, panel in zip(axes, panels, strict=True):
        _panel(ax, [p for p in points if p.panel == panel], low, high)
        quiet(ax, _WORDS.get(panel, panel))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=9, ncols=len(labels), loc="outside lower center")
    axes[0].set_ylabel("time of a batch, s (log)")
    figure.suptitle(title, fontsize=10.5, x=0.01, ha="left")
    return tuple(save(figure, folder / f"{name}{kind}") for kind in (".png", ".pdf"))


def _panel(ax: Axes, points: Sequence[PaperPoint], low: float, high: float) -> None:
    names = list(dict.fromkeys(p.series for p in points))
    xs = sorted({p.x for p in points})
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    for number, name in enumerate(names):
        mine = sorted((p for p in points if p.series == name), key=lambda p: p.x)
        colour = _COLOURS.get(name, GREY)
        x = np.array([p.x for p in mine])
        y = np.array([np.nan if p.seconds is None else p.seconds for p in mine])
        ax.plot(x, y, color=colour, marker=_MARKS.get(name, "o"), markersize=5, linewidth=1.6, label=name)
        for p in mine:
            if p.seconds is None:
                word = "failed" if p.failed else "n/a"
                at = high / 1.25 / 1.28**number
                ax.text(p.x, at, word, color=colour, fontsize=7.5, ha="center", va="top")
    ax.set_ylim(low, high)
    ax.set_xlim(min(xs) / 1.25, max(xs) * 1.25)
    ax.set_xticks(xs, [f"{x:,}" for x in xs])
    ax.minorticks_off()
    ax.set_xlabel("devices (log)")
    grid(ax)
