"""`morphling figures`: those of a run folder or a comparison, drawn again; and published figures, made again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from morphling.run.paper import Drawn

__all__ = ["figures"]


def figures(
    folder: Annotated[Path | None, typer.Argument(help="A run folder, or the folder of a comparison.")] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="Make this published figure again.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the published figures that can be made.")] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time (default: cores).")] = None,
    out: Annotated[Path | None, typer.Option(help="Put pictures, data and REPORT.md here (new or empty).")] = None,
    base: Annotated[Path, typer.Option(help="Folder for them when --out is not given.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Draw the figures of a run folder or a comparison again; or, without a folder, make published figures again."""
    if folder is not None:
        _again(folder, mixed=bool(only or listed or out or jobs), as_json=as_json)
        return
    from morphling.run.paper import PAPER_FIGURES, draw_paper_figures

    if listed:
        _list(as_json=as_json)
        return
    names = list(only or PAPER_FIGURES)
    if sys.stderr.isatty():
        from morphling.cli.progress import side_by_side

        with side_by_side("figures") as progress:
            drawn = draw_paper_figures(names, out=out, base=base, jobs=jobs, progress=progress)
    else:
        drawn = draw_paper_figures(names, out=out, base=base, jobs=jobs)
    failed = [p for d in drawn for p in d.points if p.failed]
    if as_json:
        print(json.dumps([_facts(d) for d in drawn], indent=2))
    else:
        for d in drawn:
            print(f"{d.name}: {d.summary}")
            for reason, which in _without(d).items():
                print(f"  {which}: {reason}")
            for file in d.files:
                print(f"  {file}")
    if failed:
        raise typer.Exit(1)


def _again(folder: Path, *, mixed: bool, as_json: bool) -> None:
    from morphling.errors import InputError
    from morphling.figures import draw_comparison, draw_losses, draw_overview
    from morphling.results import Comparison

    if mixed:
        raise InputError("a folder is drawn where it is: leave out --only, --list, --out and --jobs")
    compared = (folder / "comparison.json").is_file()
    drawn = [draw_comparison(Comparison.open(folder)) if compared else draw_overview(folder)]
    if (folder / "losses.csv").is_file():
        drawn.append(draw_losses(folder))
    print(json.dumps({"files": [str(path) for path in drawn]}) if as_json else "\n".join(map(str, drawn)))


def _list(*, as_json: bool) -> None:
    from morphling.run.paper import PAPER_FIGURES

    if as_json:
        print(json.dumps([{"name": f.name, "title": f.title, "runs": len(f.runs)} for f in PAPER_FIGURES.values()]))
        return
    for f in PAPER_FIGURES.values():
        print(f"{f.name}  {f.title}; {len(f.runs)} runs\n  published: {f.claim.text} ({f.claim.source})")


def _without(drawn: Drawn) -> dict[str, str]:
    """Reason → which points have no value because of it."""
    found: dict[str, list[str]] = {}
    for p in drawn.points:
        if p.seconds is None:
            word = "failed" if p.failed else "n/a"
            found.setdefault(f"{word} ({p.reason})", []).append(f"{p.series} ({p.panel}) at {p.x:,}")
    return {reason: ", ".join(which) for reason, which in found.items()}


def _facts(drawn: Drawn) -> dict[str, Any]:
    points = [
        {"model": p.panel, "strategy": p.series, "devices": p.x, "iteration_time_s": p.seconds, "reason": p.reason}
        for p in drawn.points
    ]
    return {"name": drawn.name, "files": [str(f) for f in drawn.files], "points": points, "summary": drawn.summary}
