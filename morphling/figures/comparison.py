"""Strategies side by side on one page: time of an iteration with its interval, and bytes of a device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from morphling.figures.axes import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    VERMILION,
    blank,
    empty,
    grid,
    log_ticks,
    quiet,
    save,
    time_scale,
    time_ticks,
)
from morphling.results.comparison import Comparison, StrategySummary
from morphling.results.comparison_table import broken, seconds, short_reason, significant
from morphling.results.human import bytes_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["comparison_figure", "draw_comparison"]

WIDEST_LINEAR = 30.0
"""Largest over smallest value above which bars would show the largest alone: then dots on a logarithmic axis."""
_LABEL = 30


def draw_comparison(comparison: Comparison) -> Path:
    """Draw into ``figures/comparison.png`` of the comparison's folder and return that path."""
    path = comparison.figure_path
    path.parent.mkdir(exist_ok=True)
    return save(comparison_figure(comparison), path)


def comparison_figure(comparison: Comparison) -> Figure:
    """The drawing as a matplotlib figure, not tied to any window."""
    rows = comparison.rows
    figure = blank(12, 1.9 + 0.46 * max(3, len(rows)))
    left, right = figure.subplots(1, 2, sharey=True)
    _times(left, rows)
    _bytes(right, rows)
    left.set_yticks(range(len(rows)), [_label(row.label) for row in rows], fontsize=8)
    left.set_ylim(max(len(rows), 3) - 0.5, -0.5)
    right.tick_params(labelleft=False)
    seeds = comparison.seeds
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}, lines are 95 % intervals"
    figure.suptitle(f"{comparison.record['name']}, {which}", fontsize=11)
    return figure


def _label(label: str) -> str:
    """Keys of long labels on lines of their own, two of them at most."""
    lines = label.split("\n") if len(label) <= _LABEL else broken(label).split("\n")
    if len(lines) > 3:
        lines = [*lines[:2], f"{lines[2]} …"]
    return "\n".join(line if len(line) <= _LABEL else line[: _LABEL - 1] + "…" for line in lines)


def _wide(values: Any) -> bool:
    moved = values[np.isfinite(values) & (values > 0)]
    return bool(len(moved)) and float(moved.max() / moved.min()) > WIDEST_LINEAR


def _column(rows: list[StrategySummary], name: str) -> Any:
    """float64[rows], NaN where there is no value."""
    return np.array([np.nan if row.values[name] is None else row.values[name] for row in rows], np.float64)


def _missing(axes: Axes, rows: list[StrategySummary], name: str) -> None:
    """Words where there is no number, at the left edge: a bar of length zero would read as the best of all."""
    for place, row in enumerate(rows):
        if row.values[name] is None:
            failed = row.state == "failed"
            reason = short_reason(row.reason or row.why.get(name, ""), 60)
            text = f"{'failed' if failed else 'n/a'}: {reason}" if reason else "n/a"
            axes.annotate(
                text, (0, place), (4, 0), xycoords=axes.get_yaxis_transform(), textcoords="offset points",
                va="center", fontsize=8, style="italic", color=VERMILION if failed else GREY,
            )  # fmt: skip


def _times(axes: Axes, rows: list[StrategySummary]) -> None:
    quiet(axes, "Time of an iteration")
    grid(axes)
    values, half = _column(rows, "iteration_time_s"), _column(rows, "iteration_time_ci95_s")
    here = np.flatnonzero(np.isfinite(values))
    if not len(here):
        empty(axes, "")
        _missing(axes, rows, "iteration_time_s")
        return
    half = np.nan_to_num(half)
    if _wide(values):
        scale = 1.0
        _on_log(axes, values[here])
        time_ticks(axes, "logarithmic axis")
        axes.plot(values[here], here, "o", color=ORANGE, markersize=7)
    else:
        scale, unit = time_scale(float(values[here].max()))
        axes.barh(here, values[here] / scale, color=ORANGE, height=0.62)
        axes.set_xlim(0, float((values + half)[here].max()) / scale * 1.3 or 1)
        axes.set_xlabel(unit, fontsize=9)
    axes.grid(axis="y", visible=False)
    least = axes.get_xlim()[0]
    for place in here:
        low, high = (max(least, float(values[place] + sign * half[place]) / scale) for sign in (-1, 1))
        if half[place] > 0:
            axes.plot([low, high], [place, place], color=GREY, linewidth=1.6)
        ratio = rows[place].values["ratio"]
        beside = seconds(float(values[place])) + (
            "" if ratio is None or place == 0 else f"  ({significant(ratio, 3)}×)"
        )
        axes.annotate(beside, (high, place), (6, 0), textcoords="offset points", va="center", fontsize=8)
    _missing(axes, rows, "iteration_time_s")


def _on_log(axes: Axes, values: Any) -> None:
    """A logarithmic axis with room at the right for numbers beside the dots."""
    moved = values[values > 0]
    span = float(moved.max() / moved.min())
    axes.set_xscale("log")
    axes.set_xlim(float(moved.min()) / span**0.06, float(moved.max()) * span**0.45)


def _bytes(axes: Axes, rows: list[StrategySummary]) -> None:
    quiet(axes, "Bytes of a device that was used, mean, in the whole run")
    grid(axes)
    name = "bytes_down_per_device"
    curves = ((name, "down", BLUE, -0.17), ("bytes_up_per_device", "up", GREEN, 0.17))
    table = {key: _column(rows, key) for key, *_ in curves}
    every = np.concatenate(list(table.values()))
    if not np.isfinite(every).any() or not np.nanmax(every) > 0:
        empty(axes, "" if not np.isfinite(every).any() else "nothing was transferred")
        _missing(axes, rows, name)
        return
    size, unit = _unit(float(np.nanmax(every)))
    log = _wide(every)
    if log:
        _on_log(axes, every[np.isfinite(every)] / size)
        log_ticks(axes.xaxis)
    else:
        axes.set_xlim(0, float(np.nanmax(every)) / size * 1.25)
    for key, label, colour, offset in curves:
        _one_way(axes, table[key], size, (label, colour, offset), log=log)
    axes.set_xlabel(f"{unit}, logarithmic axis" if log else unit, fontsize=9)
    axes.grid(axis="y", visible=False)
    axes.legend(fontsize=8, frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))
    _missing(axes, rows, name)


def _one_way(axes: Axes, values: Any, size: float, style: tuple[str, str, float], *, log: bool) -> None:
    label, colour, offset = style
    here = np.flatnonzero(np.isfinite(values))
    drawn = here[values[here] > 0] if log else here
    if log:
        axes.plot(values[drawn] / size, drawn + offset, "o", color=colour, markersize=6, label=label)
    else:
        axes.barh(drawn + offset, values[drawn] / size, height=0.3, color=colour, label=label)
    for place in here:
        inside = values[place] > 0 or not log
        at, by = (values[place] / size if inside else axes.get_xlim()[0]), 5
        axes.annotate(
            bytes_text(float(values[place])), (at, place + offset), (by, 0), textcoords="offset points",
            va="center", fontsize=7,
        )  # fmt: skip


def _unit(most: float) -> tuple[float, str]:
    """What to divide bytes by, and the unit's name."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if most >= 1024**power:
            return 1024.0**power, unit
    return 1.0, "B"
