"""`morphling profiles` and `morphling traces`: what there is to use."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from morphling.cli.profiles_fit import fit_thermal_command
from morphling.cli.profiles_show import list_command, show_command
from morphling.cli.traces_import import IMPORT_HELP, import_command

__all__ = ["print_table", "profiles_app", "traces_app"]

profiles_app = typer.Typer(name="profiles", help="Device profiles.", no_args_is_help=True, rich_markup_mode=None)
traces_app = typer.Typer(name="traces", help="Link traces.", no_args_is_help=True, rich_markup_mode=None)

profiles_app.command("list")(list_command)
profiles_app.command("show")(show_command)
profiles_app.command("fit-thermal")(fit_thermal_command)
traces_app.command("import", help=IMPORT_HELP)(import_command)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def print_table(
    title: str, columns: list[str], rows: list[list[str]], right: tuple[int, ...] = (), *, tight: bool = False
) -> None:
    """Print a table without frames; columns ``right`` are aligned to the right; ``tight`` wraps only the last one."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", collapse_padding=tight, pad_edge=not tight)
    for i, column in enumerate(columns):  # names are there to be copied: the first column is never cut
        whole = i == 0 or i in right or (tight and i < len(columns) - 1)
        table.add_column(column, justify="right" if i in right else "left", no_wrap=whole, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 160)
    console.print(table)


@traces_app.command("list")
def list_traces(as_json: AsJson = False) -> None:
    """List the shipped link traces."""
    from morphling.cli.traces_show import trace_facts
    from morphling.scenario import list_traces as names

    facts = [trace_facts(name) for name in names()]
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    rows = [[f["name"], f"{f['duration_s']:g} s", *_rates(f)] for f in facts]
    print_table(
        "median rates, seen from the device", ["trace", "length", "down", "up", "pauses"], rows, right=(1, 2, 3, 4)
    )


def _rates(facts: dict[str, Any]) -> list[str]:
    from morphling import units

    down, up = (units.format_rate(facts[k]["50"]) for k in ("down_bps", "up_bps"))
    return [down, up, f"{facts['paused_share']:.1%}"]
