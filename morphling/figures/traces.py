"""A link trace on one page: its rates over time, how much of the time they reach what, and how unequal they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from morphling.figures.axes import BLUE, GREEN, GREY, PINK, blank, empty, grid, log_ticks, quiet, ranks, save, writable
from morphling.fleet import LinkTrace
from morphling.fleet.summary import share_of_time, summarize, time_percentile
from morphling.types import FloatArray, IntArray
from morphling.units import format_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_trace", "trace_figure"]

DOWN, UP, RATIO = BLUE, GREEN, PINK
MAX_STEPS = 3000
"""More steps than this are drawn as the range of neighbours: a page has fewer columns of ink."""


def draw_trace(trace: LinkTrace, path: Path) -> Path:
    """Draw a trace into ``path`` (.png, .pdf or .svg) and return it; ``InputError`` for another ending or no folder."""
    writable(path)
    return save(trace_figure(trace), path)


def trace_figure(trace: LinkTrace) -> Figure:
    """The drawing as a matplotlib figure, not tied to any window."""
    facts = summarize(trace)
    figure = blank(11, 6.6)
    places = figure.add_gridspec(2, 2, height_ratios=(1.25, 1), hspace=0.06)
    notes: list[str] = []
    length = np.diff(np.append(trace.start_ns, trace.period_ns))
    still = (trace.down_bps == 0) | (trace.up_bps == 0)
    _over_time(figure.add_subplot(places[0, :]), trace, length, notes)
    _reach(figure.add_subplot(places[1, 0]), trace, length)
    _ratio(figure.add_subplot(places[1, 1]), trace, length, still)
    paused = f"paused {facts.paused_share:.1%}, at most {facts.longest_pause_s:g} s" if still.any() else "never paused"
    figure.suptitle(
        f"{trace.name}\nmedian {format_rate(facts.down_bps[50])} down, {format_rate(facts.up_bps[50])} up  ·  "
        f"{facts.steps:,} {'step' if facts.steps == 1 else 'steps'}, {facts.duration_s:,g} s  ·  {paused}",
        fontsize=11,
    )
    if notes:
        figure.supxlabel("  ·  ".join(notes), fontsize=8, color=GREY)
    return figure


def _over_time(axes: Axes, trace: LinkTrace, length: IntArray, notes: list[str]) -> None:
    quiet(axes, "Rates over time, seen from the device")
    grid(axes)
    scale, unit = (3600.0, "h") if trace.period_ns > 7200e9 else (1.0, "s")
    edges = np.append(trace.start_ns, trace.period_ns) / 1e9 / scale
    drawn = [(trace.down_bps / 1e6, DOWN, "down"), (trace.up_bps / 1e6, UP, "up")]
    if not any(rates.any() for rates, _, _ in drawn):
        empty(axes, "nothing ever moves")
        return
    axes.set_yscale("log")
    for rates, colour, label in drawn:
        # A pause has no place on a logarithmic axis: the line breaks there, and the pause is shaded.
        shown = np.where(rates > 0, rates, np.nan)
        if len(rates) <= MAX_STEPS:
            axes.stairs(shown, edges, baseline=None, color=colour, label=label, linewidth=1.1)
        else:
            _band(axes, edges, rates, colour, label)
    if len(length) > MAX_STEPS:
        notes.append(
            f"over time: each column is the range of about {-(-len(length) // MAX_STEPS):,} neighbouring steps"
        )
    _shade(axes, trace, edges)
    axes.set_xlim(edges[0], edges[-1])
    log_ticks(axes.yaxis)
    axes.set_ylabel("Mbit/s", fontsize=9)
    axes.set_xlabel(f"time in the trace ({unit})", fontsize=9)
    axes.legend(fontsize=8, frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 1))


def _band(axes: Axes, edges: FloatArray, rates: FloatArray, colour: str, label: str) -> None:
    cuts = np.unique(np.linspace(0, len(rates), MAX_STEPS // 2 + 1).astype(np.int64))
    low = np.minimum.reduceat(np.where(rates > 0, rates, np.inf), cuts[:-1])
    high = np.maximum.reduceat(rates, cuts[:-1])
    moves = high > 0
    middle = (edges[cuts[:-1]] + edges[cuts[1:]]) / 2
    axes.vlines(middle[moves], low[moves], high[moves], color=colour, linewidth=0.8, label=label, alpha=0.75)


def _shade(axes: Axes, trace: LinkTrace, edges: FloatArray) -> None:
    still = (trace.down_bps == 0) | (trace.up_bps == 0)
    ends = np.flatnonzero(np.diff(np.concatenate(([False], still, [False])).astype(np.int8)))
    spans = np.column_stack((edges[ends[::2]], np.diff(edges[ends].reshape(-1, 2), axis=1).ravel()))
    if len(spans):
        axes.broken_barh(
            [(start, width) for start, width in spans.tolist()],
            (0, 1),
            transform=axes.get_xaxis_transform(),
            facecolor="#bdbdbd",
            edgecolor="#bdbdbd",
            linewidth=0.4,
            alpha=0.6,
            label="paused",
            zorder=0.5,
        )


def _reach(axes: Axes, trace: LinkTrace, length: IntArray) -> None:
    quiet(axes, "How much of the time a rate is not exceeded")
    grid(axes)
    for rates, colour, label in ((trace.down_bps, DOWN, "down"), (trace.up_bps, UP, "up")):
        value, share = share_of_time(rates, length)
        still, value, share = float(np.append(share[value == 0], 0).max()), value[value > 0] / 1e6, share[value > 0]
        if not len(value):
            continue
        axes.set_xscale("log")
        # The curve starts at the share of the time in which nothing moves.
        value, share = _thinned(value, share)
        axes.step(
            [value[0], *value], [still * 100, *share * 100], where="post", color=colour, label=label, linewidth=1.4
        )
        if still < 0.5:
            axes.plot([time_percentile(rates, length, 50) / 1e6], [50], "o", color=colour, markersize=4)
    if not axes.lines:
        empty(axes, "nothing ever moves")
        return
    log_ticks(axes.xaxis)
    axes.set_ylim(0, 101)
    axes.set_xlabel("Mbit/s (dot: median)", fontsize=9)
    axes.set_ylabel("% of the time", fontsize=9)


def _thinned(value: FloatArray, share: FloatArray) -> tuple[FloatArray, FloatArray]:
    """A curve of at most `MAX_STEPS` points, first and last among them: more would fall on the same pixels."""
    kept = ranks(len(value), MAX_STEPS)
    return value[kept], share[kept]


def _ratio(axes: Axes, trace: LinkTrace, length: IntArray, still: np.ndarray) -> None:
    quiet(axes, "Downlink over uplink, while both move")
    grid(axes)
    if still.all():
        empty(axes, "never both at once")
        return
    value, share = share_of_time(trace.down_bps[~still] / trace.up_bps[~still], length[~still])
    value, share = _thinned(value, share)
    axes.step([value[0], *value], [0.0, *share * 100], where="post", color=RATIO, linewidth=1.4)
    axes.set_xscale("log")
    axes.axvline(1.0, color=GREY, linewidth=0.8, linestyle="--")
    low, high = min(float(value[0]), 1.0), max(float(value[-1]), 1.0)
    axes.set_xlim(low / 1.15, high * 1.15)
    log_ticks(axes.xaxis)
    axes.set_ylim(0, 101)
    axes.set_xlabel("down / up (dashed: equal)", fontsize=9)
    axes.set_ylabel("% of the time", fontsize=9)
