"""The overview of a run on one page: who did what when, where the time went, bytes and memory of each device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from morphling.figures.axes import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    blank,
    device_axis,
    empty,
    quiet,
    ranks,
    save,
    time_scale,
)
from morphling.figures.energy import draw_energy, knows_energy
from morphling.figures.heat import draw_heat
from morphling.figures.spans import STAGES, Lane, pick_lanes, read_lanes
from morphling.results.human import bytes_text, digits, human, seconds_text
from morphling.results.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_overview", "overview"]

COLOURS = {"download": BLUE, "compute": ORANGE, "upload": GREEN, "coordinator": PINK}
MAX_PHASES = 8
MAX_POINTS = 2000


def draw_overview(folder: Path) -> Path:
    """Draw the overview of a run folder into its ``figures/overview.png`` and return that path."""
    path = folder / "figures" / "overview.png"
    path.parent.mkdir(exist_ok=True)
    return save(overview(Results.open(folder)), path)


def overview(results: Results) -> Figure:
    """The overview as a matplotlib figure (not tied to any window); ``InputError`` if the run folder is damaged."""
    devices, curve = results.devices(), results.heat()
    panels = 4 if knows_energy(devices) else 3
    # Panels over virtual time are in one grid, so that their time axes are aligned.
    heights = (4.2, 1.5, 2.6) if len(curve) else (4.2,)
    figure = blank(16 if panels == 4 else 13, sum(heights) + 4)
    whole = figure.add_gridspec(2, 1, height_ratios=(sum(heights), 3.7))
    over_time = whole[0].subgridspec(len(heights), 1, height_ratios=heights)
    below = whole[1].subgridspec(1, panels)
    notes: list[str] = []
    _gantt(figure.add_subplot(over_time[0]), results, devices, notes)
    _phases(figure.add_subplot(below[0]), results.metrics)
    _bytes(figure.add_subplot(below[1]), devices, notes)
    _memory(figure.add_subplot(below[2]), devices, notes)
    if panels == 4:
        draw_energy(figure.add_subplot(below[3]), devices, notes)
    if len(curve):
        pair = figure.add_subplot(over_time[1]), figure.add_subplot(over_time[2])
        draw_heat(pair, curve, devices, _end_s(results), notes)
    shown = results.metrics
    facts = [f"makespan {human('makespan_s', shown['makespan_s'])}"]
    if shown["rows"] is None:
        facts.append("a formula: no rows were replayed")
    else:
        facts += [
            f"{shown['devices_used']:,} of {shown['devices']:,} devices used",
            f"{shown['rows']:,} rows, {shown['lost_rows']:,} lost",
            f"utilization {human('device_utilization', shown['device_utilization'])}",
        ]
    figure.suptitle(f"{results.folder.name.lstrip('.')}\n" + "  ·  ".join(facts), fontsize=11)
    if notes:
        figure.supxlabel("  ·  ".join(notes), fontsize=8, color=GREY)
    return figure


def _end_s(results: Results) -> float:
    """Where time axes end, s; a run that took no time gets the shortest axis there is."""
    return float(max(1, round(results.metrics["makespan_s"] * 1e9)) / 1e9)


def _gantt(axes: Axes, results: Results, devices: Any, notes: list[str]) -> None:
    quiet(axes, "Who did what when")
    load = (devices["download_s"] + devices["compute_s"] + devices["upload_s"]).to_numpy()
    picked = pick_lanes(load, devices["rows"].to_numpy())
    named = [(index, f"{devices['name'].iloc[index]}\n({what})") for index, what in picked]
    central = sum(phase["coordinator_compute_s"] for phase in results.metrics["phases"].values()) > 0
    if central:
        named.append((len(devices), "coordinator"))
    if not named:
        empty(axes, "no device had a row")
        return
    end_ns = round(_end_s(results) * 1e9)
    lanes = read_lanes(results.folder, named, end_ns)
    scale, unit = time_scale(end_ns / 1e9)
    for place, lane in enumerate(lanes):
        _lane(axes, place, lane, scale, COLOURS["coordinator" if lane.name == "coordinator" else "compute"])
    axes.set_yticks(range(len(lanes)), [lane.name for lane in lanes], fontsize=8)
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.set_xlim(0, end_ns / 1e9 / scale)
    axes.set_xlabel(f"virtual time ({unit})", fontsize=9)
    shown = (*STAGES, "coordinator") if central else STAGES
    handles = [_patch(COLOURS[part], "compute on the coordinator" if part == "coordinator" else part) for part in shown]
    axes.legend(handles=handles, ncols=4, fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1, 1))
    if merged := sum(lane.merged for lane in lanes):
        gap = seconds_text(end_ns / 1e9 / 1500)
        notes.append(f"who did what: {merged:,} spans drawn as one with their neighbours (gaps below {gap} not shown)")


def _patch(colour: str, label: str) -> Any:
    from matplotlib.patches import Patch  # noqa: PLC0415

    return Patch(facecolor=colour, label=label)


def _lane(axes: Axes, place: int, lane: Lane, scale: float, compute: str) -> None:
    for offset, stage in zip((-0.27, 0.0, 0.27), STAGES, strict=True):
        spans = lane.spans[stage] / 1e9 / scale
        colour = compute if stage == "compute" else COLOURS[stage]
        # The thin edge keeps a span of less than a pixel visible.
        axes.broken_barh(
            [(start, length) for start, length in spans.tolist()],
            (place + offset - 0.125, 0.25),
            facecolor=colour,
            edgecolor=colour,
            linewidth=0.4,
            rasterized=len(spans) > 500,
        )
    if place:
        axes.axhline(place - 0.5, color="#d9d9d9", linewidth=0.6)


def _phases(axes: Axes, metrics: dict[str, Any]) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter  # noqa: PLC0415

    quiet(axes, "Where the time went")
    parts = ("download", "compute", "upload", "coordinator")
    keys = ("download_s", "compute_s", "upload_s", "coordinator_compute_s")
    table = {name: np.array([phase[key] for key in keys]) for name, phase in metrics["phases"].items()}
    if len(table) > MAX_PHASES:
        ranked = sorted(table, key=lambda name: -float(table[name].sum()))
        kept = set(ranked[: MAX_PHASES - 1])
        rest = [values for name, values in table.items() if name not in kept]
        table = {name: values for name, values in table.items() if name in kept}
        table[f"{len(rest)} others"] = np.sum(rest, axis=0)
    most = max((float(v.sum()) for v in table.values()), default=0.0)
    if most == 0:
        empty(axes, "no row took any time")
        return
    scale, unit = time_scale(most)
    left = np.zeros(len(table))
    values = np.array(list(table.values())) / scale
    for part, column in zip(parts, values.T, strict=True):
        if part != "coordinator" or column.any():
            axes.barh(range(len(table)), column, left=left, color=COLOURS[part], label=part, height=0.65)
        left = left + column
    for place, total in enumerate(left):
        axes.text(total, place, f" {digits(float(total), 3)}", va="center", fontsize=8)
    names = [name if len(name) <= 18 else name[:17] + "…" for name in table]
    axes.set_yticks(range(len(table)), names, fontsize=8)
    axes.set_ylim(max(len(table), 3) - 0.5, -0.5)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlim(0, float(left.max()) * 1.18)
    axes.set_xlabel(f"device-time, summed over rows ({unit})", fontsize=9)


def _on_log_bytes(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415

    axes.set_yscale("log", base=2)
    low, high = axes.get_ylim()
    doublings = max(1, int(np.ceil(np.log2(max(high / low, 2)) / 6)))
    axes.yaxis.set_major_locator(LogLocator(base=2.0**doublings, numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(_byte_tick))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_locator(LogLocator(base=2.0, numticks=2))
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)


def _byte_tick(value: float, _: int | None) -> str:
    number, unit = bytes_text(value).split(" ")
    return f"{float(number.replace(',', '')):g} {unit}"


def _bytes(axes: Axes, devices: Any, notes: list[str]) -> None:
    quiet(axes, "Bytes of each device")
    axes.set_ylabel("bytes in the whole run", fontsize=9)
    curves = {
        "down": (np.sort(devices["bytes_down"].to_numpy())[::-1], COLOURS["download"]),
        "up": (np.sort(devices["bytes_up"].to_numpy())[::-1], COLOURS["upload"]),
    }
    if not any(values.any() for values, _ in curves.values()):
        axes.set_ylabel("")
        empty(axes, "nothing was transferred")
        return
    silent: list[str] = []
    for name, (values, colour) in curves.items():
        moved = values[values > 0]
        if len(moved):
            at = ranks(len(moved), MAX_POINTS)
            marker = "o" if len(moved) <= 40 else ""
            axes.plot(at + 1, moved[at], color=colour, marker=marker, markersize=3.5, label=name)
        if len(moved) < len(values):
            silent.append(f"{len(values) - len(moved):,} none {name}")
    if silent:
        notes.append(f"bytes: {', '.join(silent)} (not drawn)")
    _on_log_bytes(axes)
    device_axis(axes, len(devices), "devices, most bytes first")
    axes.legend(fontsize=8, frameon=False)


def _memory(axes: Axes, devices: Any, notes: list[str]) -> None:
    quiet(axes, "Peak memory against capacity")
    count = len(devices)
    if count == 0:
        empty(axes, "the fleet has no devices")
        return
    capacity, peak = devices["memory_bytes"].to_numpy(), devices["peak_memory_bytes"].to_numpy()
    order = np.lexsort((peak, capacity))
    capacity, peak = capacity[order], peak[order]
    at = np.arange(1, count + 1)
    axes.step(at, capacity, where="mid", color=GREY, linewidth=1.2, label="capacity")
    if count <= MAX_POINTS:
        used = peak > 0
        size = 14 if count <= 40 else 4
        axes.scatter(at[used], peak[used], s=size, color=COLOURS["compute"], label="peak", zorder=3)
    else:
        _band(axes, peak, notes)
    if unused := int(np.count_nonzero(peak == 0)):
        notes.append(f"memory: {unused:,} devices held nothing (not drawn)")
    _on_log_bytes(axes)
    device_axis(axes, count, "devices, least memory first")
    over = int(np.count_nonzero(peak > capacity))
    axes.legend(fontsize=8, frameon=False, title=f"{over:,} over capacity" if over else None, title_fontsize=8)


def _band(axes: Axes, peak: Any, notes: list[str]) -> None:
    """Too many devices for dots: of every few neighbours, the range of their peaks."""
    cuts = np.unique(np.linspace(0, len(peak), 400 + 1).astype(np.int64))
    held = np.where(peak > 0, peak, np.iinfo(np.int64).max)
    low, high = np.minimum.reduceat(held, cuts[:-1]), np.maximum.reduceat(peak, cuts[:-1])
    used = high > 0
    middle = (cuts[:-1] + cuts[1:] + 1) / 2
    label = "peak (range of neighbours)"
    axes.vlines(
        middle[used], low[used], np.maximum(high, low)[used], color=COLOURS["compute"], linewidth=1, label=label
    )
    axes.plot(middle[used], high[used], color=COLOURS["compute"], linewidth=1)
    notes.append(f"memory: each stroke is the range of {len(peak) // (len(cuts) - 1):,} neighbouring devices")
