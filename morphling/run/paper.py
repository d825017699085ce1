"""Published figures: which runs stand behind each, and the way from them to pictures, data and a line of a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import morphling
from morphling.errors import InputError
from morphling.figures.paper import DRAWINGS
from morphling.results import Results, check_room, new_run_folder
from morphling.results.paper import REPORT_FILE, Claim, PaperPoint, ratios, read_report, section, write_points
from morphling.run.run_request import RunEnd, RunRequest
from morphling.run.side_by_side import Progress, run_side_by_side

__all__ = ["PAPER_FIGURES", "Drawn", "PaperFigure", "draw_paper_figures"]


@dataclass(frozen=True)
class Run:
    """One point of a figure: a scenario with changes."""

    panel: str
    series: str
    x: int
    overrides: tuple[str | tuple[str, Any], ...]


@dataclass(frozen=True)
class PaperFigure:
    """A published figure that Morphling makes again.

    scenario : a shipped one;  runs : its points;  claim : what is published, and where
    compared : the series that ratios are taken to;  setting : what of our own set-up has to be known beside the numbers
    """

    name: str
    title: str
    scenario: str
    x_label: str
    runs: tuple[Run, ...]
    claim: Claim
    compared: str
    setting: str = ""


@dataclass(frozen=True)
class Drawn:
    """What came of a figure."""

    name: str
    folder: Path
    files: tuple[Path, ...]
    points: tuple[PaperPoint, ...]
    summary: str


DEVICES = (32, 64, 128, 256, 512, 1024)
_SCALED = {"Alpa": "alpa", "DT-FM": "dtfm", "Cleave": "cleave"}


def _device_scaling() -> tuple[Run, ...]:
    found = []
    for model in ("paper", "physical"):
        for label, name in _SCALED.items():
            for n in DEVICES:
                strategy = ("strategy", {"name": name, "model": model})
                # The published formulas know no limit of the coordinator's network.
                more = (("coordinator", {"profile": "cloud-server"}),) if model == "paper" else ()
                found.append(Run(model, label, n, (f"fleet.0.count={n}", strategy, *more)))
    return tuple(found)


PAPER_FIGURES: dict[str, PaperFigure] = {
    "cleave-device-scaling": PaperFigure(
        name="cleave-device-scaling",
        title="OPT-13B, batch of 128 x 1,024 tokens: time of a batch against the number of devices",
        scenario="paper/cleave-device-scaling",
        x_label="devices",
        runs=_device_scaling(),
        claim=Claim(
            text="4 to 10 times lower runtime of a batch than the best other edge training at the same number of "
            "devices (abstract of version 2; up to 10 times in version 1)",
            source="Cleave, arXiv 2512.22142, abstract",
            low=4.0,
            high=10.0,
            points_public=False,
        ),
        compared="Cleave",
        setting="Devices have 32 GB each: with the 1 to 3 GB of the paper's phones no stage of OPT-13B fits, and only "
        "Cleave has a value. The coordinator sends and receives 100 Gbit/s in the physical model, which binds from "
        "some hundred devices on, and is unlimited in the published formulas.",
    )
}


def draw_paper_figures(
    only: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    base: str | Path = "runs",
    jobs: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> list[Drawn]:
    """Run what stands behind the figures ``only`` (all if empty), draw them, and write data and a report beside them.

    out : a new or empty folder; left out, ``base/figures-<UTC time>``

    Each figure becomes NAME.png, NAME.pdf, NAME.csv and a section of REPORT.md; its run folders lie in runs/NAME.
    ``InputError`` for a name that is none.
    """
    unknown = [name for name in only if name not in PAPER_FIGURES]
    if unknown:
        raise InputError(f"unknown figure {unknown[0]!r}; there are {', '.join(PAPER_FIGURES)}")
    folder = new_run_folder(Path(base), "figures", datetime.now(UTC)) if out is None else Path(out)
    check_room(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return [_drawn(PAPER_FIGURES[name], folder, jobs, progress) for name in dict.fromkeys(only or PAPER_FIGURES)]


def _drawn(figure: PaperFigure, folder: Path, jobs: int | None, progress: Callable[[Progress], None] | None) -> Drawn:
    runs = folder / "runs" / figure.name
    requests = [
        RunRequest(
            key=f"{r.series} ({r.panel}), {r.x} {figure.x_label}",
            source=figure.scenario,
            overrides=r.overrides,
            out=runs / f"{r.series.lower().replace('-', '')}-{r.panel}-{r.x}",
        )
        for r in figure.runs
    ]
    ends = run_side_by_side(requests, jobs=jobs, progress=progress)
    points = tuple(_point(run, end) for run, end in zip(figure.runs, ends, strict=True))
    csv = write_points(folder / f"{figure.name}.csv", figure.name, points, figure.claim)
    pictures = DRAWINGS[figure.name](points, figure.title, folder, figure.name)
    text = section(
        figure.name, figure.title, points, figure.claim, figure.compared, morphling.__version__, figure.setting
    )
    report = folder / REPORT_FILE
    report.write_text(read_report(report) + text, encoding="utf-8")
    said = ratios(points, figure.compared)
    return Drawn(figure.name, folder, (*pictures, csv, report), points, said)


def _point(run: Run, end: RunEnd) -> PaperPoint:
    if end.folder is None:
        return PaperPoint(run.panel, run.series, run.x, None, end.reason or end.state, end.state == "failed", ())
    results = Results.open(end.folder)
    said = results.manifest.get("strategy", {})
    seconds = results.metrics["iteration_time_s"]
    return PaperPoint(run.panel, run.series, run.x, seconds, None, False, tuple(said.get("assumptions", ())))
