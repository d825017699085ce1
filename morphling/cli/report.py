"""`morphling report`: a run folder or a comparison, read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from morphling.cli.compare import printed

__all__ = ["report"]

Folder = Annotated[Path, typer.Argument(help="A run folder, or the folder of a comparison.")]


def report(
    folder: Folder,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compute events_sha256 again from the events table.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON instead of a table.")] = False,
) -> None:
    """Print the result table of a run folder or a comparison."""
    from morphling.errors import InputError, RunError
    from morphling.results import Comparison, Results

    if (folder / "comparison.json").is_file():
        if verify:
            raise InputError(f"{folder}: --verify is for run folders; those of this comparison are in it")
        printed(Comparison.open(folder), as_json=as_json)
        return
    results = Results.open(folder)
    if verify and not results.verify():
        raise RunError(f"{folder}: the events table is not the one that metrics.json was made from")
    if as_json:
        print(json.dumps({"folder": str(results.folder), "metrics": results.metrics}, indent=2))
        return
    from rich.console import Console

    console = Console()
    console.print(results.table())
    for line in results.notes():
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if verify:
        print("events_sha256 verified")
