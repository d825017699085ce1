"""`morphling compare`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from morphling.cli.run import AllowPlugins, Scenario, Set, agreed

if TYPE_CHECKING:
    from morphling.results import Comparison

__all__ = ["compare", "exit_code", "printed"]

Strategies = Annotated[
    str,
    typer.Option(
        "--strategies",
        metavar="A,B,…",
        help="NAME, NAME:key=value:key=value, or file.py:Class, with commas between; the first is what others are "
        "compared with. Keys not given are the scenario's if it names that strategy, else the defaults.",
    ),
]


def compare(
    scenario: Scenario,
    strategies: Strategies,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds: the scenario's and those that follow.")] = 1,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Runs at a time (default: cores; 1 in mode: live). Each holds its run in memory."),
    ] = None,
    set_: Set = None,
    out: Annotated[Path | None, typer.Option(help="Put all of it here (new or empty).")] = None,
    base: Annotated[Path, typer.Option(help="Folder for comparisons when --out is not given.")] = Path("runs"),
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="Draw figures/comparison.png.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    allow_plugins: AllowPlugins = False,
) -> None:
    """Run a scenario under several strategies, over the same seeds, and print them side by side."""
    from morphling.run.compare import compare_lineup, line_up

    lineup = line_up(scenario, strategies, seeds=seeds, overrides=list(set_ or []))
    allowed = allow_plugins or agreed(lineup.plugin_files)
    options: dict[str, Any] = {
        "out": out, "base": base, "jobs": jobs, "figures": figures, "allow_plugins": allowed,
    }  # fmt: skip
    if sys.stderr.isatty():
        from morphling.cli.progress import side_by_side

        with side_by_side(lineup.name) as progress:
            comparison = compare_lineup(lineup, progress=progress, **options)
    else:
        comparison = compare_lineup(lineup, **options)
    printed(comparison, as_json=as_json)
    if code := exit_code(comparison):
        raise typer.Exit(code)


def printed(comparison: Comparison, *, as_json: bool) -> None:
    """Print the table, its notes and where all of it is; or all of it as JSON."""
    if as_json:
        facts = {
            "folder": str(comparison.folder),
            "seeds": comparison.seeds,
            "strategies": comparison.summaries(),
            "runs": comparison.record["runs"],
            "notes": comparison.notes(),
        }
        print(json.dumps(facts, indent=2))
        return
    from rich.console import Console

    console = Console()
    table = comparison.table(console.width)
    console.print(table, width=max(console.width, table.width or 0), crop=False)
    print()
    for note in comparison.notes():
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    if comparison.figure_path.is_file():
        print(f"figure: {comparison.figure_path}")
    print(f"folder: {comparison.folder}")


def exit_code(comparison: Comparison) -> int:
    """1 if a run failed or not one time came out, else 0; a strategy that cannot serve the fleet is a result."""
    states = [row.state for row in comparison.rows]
    times = any(row.values["iteration_time_s"] is not None for row in comparison.rows)
    return int("failed" in states or not times)
