"""What all drawings share: colours, quiet axes, scales of time, ticks on logarithmic axes, and the way into a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from morphling.errors import InputError
from morphling.types import FloatArray, IntArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "BLUE",
    "GREEN",
    "GREY",
    "LIGHT",
    "ORANGE",
    "PINK",
    "SKY",
    "VERMILION",
    "blank",
    "counted",
    "device_axis",
    "empty",
    "grid",
    "log_ticks",
    "quiet",
    "ranks",
    "save",
    "time_scale",
    "time_ticks",
    "writable",
]

# Okabe and Ito's palette: told apart in print and by colour-blind readers.
BLUE, GREEN, ORANGE, VERMILION, PINK = "#0072B2", "#009E73", "#E69F00", "#D55E00", "#CC79A7"
SKY = "#56B4E9"
GREY, LIGHT = "#595959", "#b8b8b8"

_KINDS = (".png", ".pdf", ".svg")
_SCALES = ((86_400.0, "d"), (3600.0, "h"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_TIMES_S = {
    "1 ns": 1e-9, "1 µs": 1e-6, "1 ms": 1e-3, "1 s": 1.0, "10 s": 10.0, "1 min": 60.0, "10 min": 600.0, "1 h": 3600.0,
    "6 h": 21_600.0, "1 d": 86_400.0, "7 d": 604_800.0, "30 d": 2_592_000.0, "1 a": 31_557_600.0,
}  # fmt: skip
_LONG_TIMES = ("1 ms", "1 s", "1 min", "1 h", "1 d", "30 d")


def blank(width: float, height: float) -> Figure:
    """An empty figure of that size (inches), not tied to any window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - costs 0.3 s, only for who draws
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def writable(path: Path) -> None:
    """``InputError`` unless a figure can go to ``path``: .png, .pdf or .svg in a folder that exists."""
    if path.suffix.lower() not in _KINDS:
        raise InputError(f"{path}: a figure ends in .png, .pdf or .svg")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent}: no such folder")
    if path.is_dir():
        raise InputError(f"{path}: is a folder")


def save(figure: Figure, path: Path) -> Path:
    """Draw into ``path`` and return it; ``InputError`` as `writable`."""
    writable(path)
    figure.savefig(path, dpi=130)
    return path


def quiet(axes: Axes, title: str) -> None:
    """A title on the left, no frame, small labels."""
    axes.set_title(title, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def grid(axes: Axes) -> None:
    """Thin lines behind what is drawn."""
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)


def empty(axes: Axes, text: str) -> None:
    """Words in place of a drawing."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=GREY)
    axes.set_xticks([])
    axes.set_yticks([])


def time_scale(seconds: float) -> tuple[float, str]:
    """What to divide seconds by, and the unit's name."""
    for scale, unit in _SCALES:
        if seconds >= 2 * scale or (scale == 1.0 and seconds >= 1):
            return scale, unit
    return 1e-9, "ns"


def log_ticks(axis: Any) -> None:
    """Ticks with plain numbers on a logarithmic axis, more of them to a decade the fewer decades it shows."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415

    low, high = axis.get_view_interval()
    decades = np.log10(high / low)
    subs = (1.0,) if decades > 2.5 else (1.0, 2.0, 5.0) if decades > 1 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    axis.set_major_locator(LogLocator(subs=subs, numticks=15))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def time_ticks(axes: Axes, label: str) -> None:
    """Round times as ticks of a logarithmic horizontal axis in seconds; plain seconds where few of them are in view."""
    low, high = axes.get_xlim()
    inside = {name: at for name, at in _TIMES_S.items() if low <= at <= high}
    if len(inside) > 7:  # more would run into each other
        inside = {name: at for name, at in inside.items() if name in _LONG_TIMES}
    if len(inside) >= 2:
        axes.set_xticks(list(inside.values()), list(inside))
        axes.set_xticks([], minor=True)
        axes.set_xlabel(label, fontsize=9)
    else:
        log_ticks(axes.xaxis)
        axes.set_xlabel(f"{label} (s)", fontsize=9)


def counted(axis: Any) -> None:
    """A few whole numbers as ticks, in groups of three."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter  # noqa: PLC0415

    axis.set_major_locator(MaxNLocator(5, integer=True))
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def device_axis(axes: Axes, count: int, label: str) -> None:
    """A horizontal axis that counts devices from 1."""
    axes.set_xlim(0.5, count + 0.5)
    counted(axes.xaxis)
    axes.set_xlabel(label, fontsize=9)


def ranks(count: int, most: int) -> IntArray:
    """At most ``most`` of ``count`` sorted values, first and last among them: more fall on the same pixels."""
    at: FloatArray = np.linspace(0, count - 1, min(count, most))
    return np.unique(at.round().astype(np.int64))
