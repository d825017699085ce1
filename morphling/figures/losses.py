"""Losses of an emulated script: against virtual time, and beside those of plain PyTorch."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from morphling.errors import InputError
from morphling.figures.axes import BLUE, GREY, ORANGE, blank, empty, quiet, save, time_scale
from morphling.types import FloatArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_losses", "losses_figure", "read_losses"]


def read_losses(path: Path) -> dict[str, FloatArray]:
    """The columns of a CSV file with at least ``step`` and ``loss``, float64[n]; ``InputError`` as file:line."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    names = reader.fieldnames or []
    if missing := [name for name in ("step", "loss") if name not in names]:
        raise InputError(f"{path}:1: no column {', '.join(missing)}; it has {', '.join(names) or 'none'}")
    columns: dict[str, FloatArray] = {}
    for name in names:
        values = np.empty(len(rows))
        for number, row in enumerate(rows):
            try:
                values[number] = float(row[name])
            except (TypeError, ValueError):
                raise InputError(f"{path}:{number + 2}: {name}: a number is needed, not {row[name]!r}") from None
        columns[name] = values
    return columns


def draw_losses(folder: Path, reference: Path | None = None) -> Path:
    """Draw ``losses.csv`` of a run folder into its ``figures/loss.png``; ``reference`` is a CSV of a plain run."""
    path = folder / "figures" / "loss.png"
    path.parent.mkdir(exist_ok=True)
    plain = None if reference is None else read_losses(reference)
    return save(losses_figure(read_losses(folder / "losses.csv"), plain, folder.name), path)


def losses_figure(
    emulated: dict[str, FloatArray], plain: dict[str, FloatArray] | None = None, title: str = ""
) -> Figure:
    """Loss by step (over that of ``plain``, with the largest relative difference) and by virtual time."""
    figure = blank(11, 4.2)
    by_step, by_time = figure.subplots(1, 2)
    quiet(by_step, "Loss by step")
    quiet(by_time, "Loss by virtual time")
    loss = emulated["loss"]
    if not len(loss):
        empty(by_step, "no step ended")
        empty(by_time, "no step ended")
        return figure
    if plain is not None:
        by_step.plot(plain["step"], plain["loss"], color=GREY, linewidth=5, alpha=0.5, label="plain PyTorch")
        same = plain["step"].shape == emulated["step"].shape and bool((plain["step"] == emulated["step"]).all())
        if same:
            off = np.abs(plain["loss"] - loss) / np.maximum(np.abs(plain["loss"]), np.finfo(float).tiny)
            by_step.set_title(f"Loss by step: relative difference at most {off.max():.1e}", fontsize=10, loc="left")
    by_step.plot(emulated["step"], loss, color=BLUE, linewidth=1.3, marker=".", markersize=4, label="emulated fleet")
    by_step.xaxis.get_major_locator().set_params(integer=True)
    by_step.set_xlabel("step", fontsize=9)
    by_step.set_ylabel("loss", fontsize=9)
    by_step.legend(fontsize=8, frameon=False)
    scale, unit = time_scale(float(emulated["step_end_s"].max()) or 1.0)
    by_time.plot(emulated["backward_s"] / scale, loss, color=ORANGE, linewidth=1.3, marker=".", markersize=4)
    by_time.set_xlabel(f"virtual time ({unit})", fontsize=9)
    figure.suptitle(title.lstrip("."), fontsize=11)
    return figure
