"""Measured against predicted times of matrix products."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from morphling.types import BoolArray, FloatArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_gemm_fit", "gemm_fit_figure"]

SEEN, HELD, GREY = "#B0B0B0", "#0072B2", "#595959"
Series = tuple[FloatArray, FloatArray, BoolArray, FloatArray]
"""Measured s, predicted s, held out, FLOPs."""


def draw_gemm_fit(name: str, series: Mapping[str, Series], path: Path) -> Path:
    """Draw the fits of a profile, by dtype, into ``path`` and return it."""
    gemm_fit_figure(name, series).savefig(path, dpi=130)
    return path


def gemm_fit_figure(name: str, series: Mapping[str, Series]) -> Figure:
    """Left the times, right the ratio of predicted to measured over the size; a row for each dtype."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - costs 0.3 s, only for who draws
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter  # noqa: PLC0415

    figure = Figure(figsize=(11, 4.4 * len(series)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(series), 2, squeeze=False)
    for row, (dtype, (measured, predicted, held, flops)) in enumerate(series.items()):
        ratio = predicted / measured
        off = np.abs(ratio - 1)[held]
        left, right = grid[row]
        ends = [min(measured.min(), predicted.min()) * 1e3, max(measured.max(), predicted.max()) * 1e3]
        left.plot(ends, ends, color=GREY, linewidth=0.8)
        for mask, colour, label in ((~held, SEEN, "fitted"), (held, HELD, "held out")):
            left.scatter(measured[mask] * 1e3, predicted[mask] * 1e3, s=9, color=colour, label=label)
            right.scatter(flops[mask], ratio[mask], s=9, color=colour, label=label)
        left.set(xscale="log", yscale="log", xlabel="measured, ms", ylabel="predicted, ms")
        left.set_title(
            f"{dtype}: held out, median {np.median(off):.1%}, 90 % below {np.percentile(off, 90):.1%}",
            loc="left",
            fontsize=10,
        )
        right.axhline(1.0, color=GREY, linewidth=0.8)
        right.set(xscale="log", yscale="log", xlabel="FLOPs of a call", ylabel="predicted / measured")
        right.yaxis.set_major_locator(FixedLocator([0.1, 0.2, 0.5, 0.7, 1.0, 1.4, 2.0, 5.0, 10.0]))
        right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        right.yaxis.set_minor_formatter(NullFormatter())
        right.set_title(f"{len(measured)} shapes, {int(held.sum())} held out", loc="left", fontsize=10)
        left.legend(fontsize=8, frameon=False)
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelsize=8)
    figure.suptitle(f"{name}: measured products and the fitted latency model", fontsize=11)
    return figure
