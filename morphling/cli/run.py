"""`morphling run`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["AllowPlugins", "Scenario", "Set", "agreed", "run"]

Scenario = Annotated[str, typer.Argument(help="Scenario file, or the name of a shipped one (quickstart).")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a field, such as fleet.0.count=8.")
]
AllowPlugins = Annotated[
    bool, typer.Option("--allow-plugins", help="Run the code of a strategy that the scenario names as a file.")
]


def run(
    scenario: Scenario,
    set_: Set = None,
    out: Annotated[Path | None, typer.Option(help="Put the run folder here (new or empty).")] = None,
    base: Annotated[Path, typer.Option(help="Folder for run folders when --out is not given.")] = Path("runs"),
    seed: Annotated[int | None, typer.Option(help="Same as --set seed=…")] = None,
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="Draw figures/overview.png.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON instead of a table.")] = False,
    allow_plugins: AllowPlugins = False,
) -> None:
    """Replay a scenario and write its run folder."""
    from morphling.run import replay_scenario as replay
    from morphling.scenario import load_scenario

    overrides = list(set_ or []) + ([f"seed={seed}"] if seed is not None else [])
    loaded = load_scenario(scenario, overrides)
    file = loaded.plugin_file
    allowed = allow_plugins or agreed({} if file is None else {file[0]: loaded.inputs[str(file[0])]})
    if sys.stderr.isatty():
        from morphling.cli.progress import watched

        with watched(loaded.scenario.name) as progress:
            results = replay(loaded, out=out, base=base, figures=figures, progress=progress, allow_plugins=allowed)
    else:
        results = replay(loaded, out=out, base=base, figures=figures, allow_plugins=allowed)
    if as_json:
        print(json.dumps({"folder": str(results.folder), "metrics": results.metrics}, indent=2))
        return
    from rich.console import Console

    console = Console()
    console.print(results.table())
    for line in results.notes():
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    print(f"run folder: {results.folder}")


def agreed(files: Mapping[Path, str]) -> bool:
    """Ask, where somebody can answer, whether the code of these files (with their SHA-256) may run."""
    if not files or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    for path, digest in files.items():
        print(f"The strategy is Python code in {path}\n(SHA-256 {digest}).", file=sys.stderr)
    return typer.confirm("Run it?" if len(files) == 1 else "Run them?", err=True)
