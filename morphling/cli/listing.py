"""`morphling profiles`, `morphling traces`, `morphling strategies`: what there is to use."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from morphling.cli.traces_import import IMPORT_HELP, import_command

__all__ = ["print_table", "profiles_app", "strategies", "traces_app"]

profiles_app = typer.Typer(name="profiles", help="Device profiles.", no_args_is_help=True, rich_markup_mode=None)
traces_app = typer.Typer(name="traces", help="Link traces.", no_args_is_help=True, rich_markup_mode=None)

traces_app.command("import", help=IMPORT_HELP)(import_command)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def print_table(title: str, columns: list[str], rows: list[list[str]], right: tuple[int, ...] = ()) -> None:
    """Print a table without frames; columns ``right`` are aligned to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for i, column in enumerate(columns):  # names are there to be copied: the first column is never cut
        table.add_column(column, justify="right" if i in right else "left", no_wrap=i == 0 or i in right)
    for row in rows:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 160)
    console.print(table)


@profiles_app.command("list")
def list_profiles(as_json: AsJson = False) -> None:
    """List the shipped device profiles with their achieved rates."""
    from morphling import units
    from morphling.scenario import list_profiles as names
    from morphling.scenario import load_profile

    records = [load_profile(name) for name in names()]
    if as_json:
        print(json.dumps([_plain(r) for r in records], indent=2))
        return
    rows = []
    for r in records:
        rate = {d: r.peak_flops[d] * r.achieved_share[d] for d in r.peak_flops}
        rows.append(
            [
                r.name,
                r.device_class,
                *(units.format_compute(rate[d]) if d in rate else "-" for d in ("float32", "float16")),
                units.format_bytes(r.usable_memory),
                units.format_bandwidth(r.sustained_bandwidth),
            ]
        )
    columns = ["profile", "class", "float32", "float16", "memory", "bandwidth"]
    print_table("achieved rates (peak x efficiency) and usable memory", columns, rows, right=(2, 3, 4, 5))


def _plain(record: Any) -> dict[str, Any]:
    return {
        "name": record.name,
        "title": record.title,
        "class": record.device_class,
        "peak_flops": record.peak_flops,
        "efficiency": record.achieved_share,
        "usable_memory_bytes": record.usable_memory,
        "sustained_bandwidth_bytes_per_s": record.sustained_bandwidth,
        "launch_s": record.launch_s,
        "idle_w": None if record.power is None else record.idle_w,
        "max_w": None if record.power is None else record.max_w,
        "sources": record.sources,
    }


@profiles_app.command("show")
def show_profile(name: Annotated[str, typer.Argument(help="Name or path.")], as_json: AsJson = False) -> None:
    """Show a device profile: each number with its source."""
    from morphling import units
    from morphling.scenario import load_profile

    r = load_profile(name)
    if as_json:
        print(json.dumps(_plain(r), indent=2))
        return
    values = {f"compute.{d}": units.format_compute(v) for d, v in r.peak_flops.items()}
    values |= {f"efficiency.{d}": f"{v:.3g}" for d, v in r.achieved_share.items()}
    values["memory"] = units.format_bytes(r.memory.value)
    if r.memory_reserved is not None:
        values["memory_reserved"] = units.format_bytes(r.memory_reserved.value)
    values["memory_bandwidth"] = units.format_bandwidth(r.memory_bandwidth.value)
    values["memory_efficiency"] = f"{r.memory_efficiency.value:.3g}"
    if r.launch is not None:
        values["launch"] = units.format_time(r.launch.value)
    if r.power is not None:
        values |= {"power.idle": units.format_power(r.idle_w), "power.max": units.format_power(r.max_w)}
    print_table(
        f"{r.name}: {r.title}", ["field", "value", "source"], [[f, v, r.sources[f]] for f, v in values.items()], (1,)
    )


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


def strategies(as_json: AsJson = False) -> None:
    """List installed strategies with their parameters; broken ones with their cause."""
    import dataclasses

    from morphling.run import list_plugins

    found = list_plugins("strategies")
    facts = [
        {
            "name": p.name,
            "distribution": f"{p.distribution} {p.version}",
            "target": p.target,
            "parameters": {}
            if p.loaded is None
            else {f.name: str(f.default) for f in dataclasses.fields(p.loaded.Config)},
            "cause": p.cause,
        }
        for p in found
    ]
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    rows = [
        [
            str(f["name"]),
            str(f["distribution"]),
            f"broken: {f['cause']}" if f["cause"] else ", ".join(f"{k}={v}" for k, v in f["parameters"].items()),  # type: ignore[union-attr]
        ]
        for f in facts
    ]
    print_table("strategies", ["name", "from", "parameters (defaults)"], rows)
