"""Rooflines: the rate that a device reaches at each arithmetic intensity, one panel a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from morphling.errors import InputError
from morphling.units import format_bandwidth, format_compute, format_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Roof", "draw_rooflines", "roofline_figure"]

# Okabe and Ito's palette: told apart in print and by colour-blind readers.
_COLOURS = {"float32": "#0072B2", "float16": "#D55E00", "bfloat16": "#CC79A7", "tfloat32": "#009E73"}
_OTHER, GREY = "#000000", "#595959"
_KINDS = {".png", ".pdf", ".svg"}
_SIZE, _GAP = 8, 11
"""Font size of a ridge's label and the least distance between the middles of two, points."""
_MOST = 12


@dataclass(frozen=True)
class Roof:
    """One device: bandwidths in B/s, ``rates`` as dtype → (peak, achieved) in FLOP/s."""

    name: str
    bandwidth: float
    sustained: float
    rates: Mapping[str, tuple[float, float]]

    def ridge(self, dtype: str) -> float:
        """Where achieved rate and sustained bandwidth bind alike, FLOP/B."""
        return self.rates[dtype][1] / self.sustained

    @property
    def outer(self) -> list[float]:
        """Ridges of the peaks and of the achieved rates, FLOP/B."""
        return [peak / self.bandwidth for peak, _ in self.rates.values()] + [self.ridge(d) for d in self.rates]


def draw_rooflines(roofs: Sequence[Roof], path: Path) -> Path:
    """Draw into ``path`` (.png, .pdf or .svg) and return it; ``InputError`` for another ending or no folder."""
    if path.suffix.lower() not in _KINDS:
        raise InputError(f"{path}: a figure ends in .png, .pdf or .svg")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent}: no such folder")
    if len(roofs) > _MOST:
        raise InputError(f"{len(roofs)} profiles are too many for one figure; {_MOST} are the most")
    roofline_figure(roofs).savefig(path, dpi=130)
    return path


def roofline_figure(roofs: Sequence[Roof]) -> Figure:
    """The drawing as a matplotlib figure, not tied to any window; all panels have the same axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - costs 0.3 s, only for who draws
    from matplotlib.figure import Figure  # noqa: PLC0415

    columns = min(len(roofs), 3)
    rows = -(-len(roofs) // columns)
    figure = Figure(figsize=(5.4 * columns + 1.2, 4.6 * rows + 0.7), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    ridges = [ridge for roof in roofs for ridge in roof.outer]
    x = min(ridges) / 40, max(ridges) * 12
    y = min(r.sustained for r in roofs) * x[0], max(peak for r in roofs for peak, _ in r.rates.values()) * 2
    for panel, roof in zip(grid.flat, roofs, strict=False):
        _panel(panel, roof, x, y)
    for panel in grid.flat[len(roofs) :]:
        panel.set_axis_off()
    for row in grid:
        row[0].set_ylabel("rate", fontsize=9)
    figure.suptitle("Rooflines: dashed the peak, solid what large GEMMs achieve, dots the ridges (FLOP/B)", fontsize=10)
    figure.draw_without_rendering()  # the layout must be settled before labels can keep clear of each other
    figure.set_layout_engine("none")
    for panel, roof in zip(grid.flat, roofs, strict=False):
        _ridge_labels(panel, roof)
    return figure


def _panel(axes: Axes, roof: Roof, x: tuple[float, float], y: tuple[float, float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415

    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set(xlim=x, ylim=y)
    axes.set_title(roof.name, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_number(value)))
    axes.yaxis.set_major_locator(LogLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_compute(value)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("arithmetic intensity (FLOP/B)", fontsize=9)
    axes.tick_params(labelsize=8, labelleft=True, labelbottom=True)
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    reach = max(roof.ridge(d) for d in roof.rates), max(peak for peak, _ in roof.rates.values()) / roof.bandwidth
    slope = f"memory: {format_bandwidth(roof.sustained)} sustained of {format_bandwidth(roof.bandwidth)}"
    axes.plot(
        [x[0], reach[0]], [x[0] * roof.sustained, reach[0] * roof.sustained], color=GREY, linewidth=2, label=slope
    )
    axes.plot([x[0], reach[1]], [x[0] * roof.bandwidth, reach[1] * roof.bandwidth], color=GREY, linewidth=1, ls="--")
    for number, (dtype, (peak, achieved)) in enumerate(roof.rates.items()):
        colour, ridge = _COLOURS.get(dtype, _OTHER), roof.ridge(dtype)
        # Where two dtypes run at the same rate, the later and thinner line leaves the earlier one visible.
        width = (3.4, 2.4, 1.6, 1.0)[min(number, 3)]
        text = f"{dtype}: {format_compute(achieved)} of {format_compute(peak)}, ridge {format_number(ridge)} FLOP/B"
        axes.plot([ridge, x[1]], [achieved, achieved], color=colour, linewidth=width, label=text)
        axes.plot([peak / roof.bandwidth, x[1]], [peak, peak], color=colour, linewidth=1, linestyle="--")
        axes.plot([ridge], [achieved], color=colour, marker="o", markersize=5 + 1.2 * (3 - min(number, 3)))
    axes.legend(fontsize=7.5, frameon=False, loc="lower right", handlelength=1.4)


def _ridge_labels(axes: Axes, roof: Roof) -> None:
    """Numbers left of the dots, where no line runs; from the lowest up, each at least one line above the one before."""
    points = 72 / axes.figure.dpi
    last = -float("inf")
    for ridge, achieved, colour in _ridges(roof):
        left, height = (float(v) * points for v in axes.transData.transform((ridge, achieved)))
        # The label's right edge stays left of the dashed line of the peak bandwidth, wherever that line is.
        edge = float(axes.transData.transform((achieved / roof.bandwidth, achieved))[0]) * points
        last = centre = max(height, last + _GAP)
        axes.annotate(
            format_number(ridge), (ridge, achieved), xytext=(min(edge, left) - left - 8, centre - height),
            textcoords="offset points", fontsize=_SIZE, color=colour, va="center", ha="right", gid="ridge",
        )  # fmt: skip


def _ridges(roof: Roof) -> list[tuple[float, float, str]]:
    """(ridge, achieved rate, colour), lowest first; dtypes whose ridges read the same share one label."""
    found: dict[str, tuple[float, float, str]] = {}
    for dtype, (_, achieved) in roof.rates.items():
        ridge = roof.ridge(dtype)
        found.setdefault(format_number(ridge), (ridge, achieved, _COLOURS.get(dtype, _OTHER)))
    return sorted(found.values(), key=lambda item: item[1])
