"""`morphling traces show`: what a trace of a link or of devices' presence amounts to, in numbers and as a drawing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["show", "trace_facts"]


def trace_facts(name: str) -> dict[str, Any]:
    """The summary of a trace by name or path, as plain values."""
    import dataclasses

    from morphling.fleet.summary import summarize
    from morphling.scenario import load_trace

    facts = dataclasses.asdict(summarize(load_trace(name, "hold")))
    for key in ("down_bps", "up_bps", "ratio"):
        facts[key] = {str(p): value for p, value in facts[key].items()}
    return facts


def show(
    name: Annotated[
        str,
        typer.Argument(
            help="Name or path: a link trace; or an availability, that is phones-flash, desktops-boinc, a FedScale "
            "behaviour file or a CSV of sessions."
        ),
    ],
    figure: Annotated[
        Path | None, typer.Option("--figure", help="Also draw it into this file, for example t.png.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Availability: up to here, such as '2 h'.")] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, max=10_000_000, help="Availability: of so many devices.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Availability: seed of what is drawn, 0 or more.")] = None,
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help="Availability: time in the file that is virtual time 0.")
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Availability: leave out empty sessions and join touching ones, counted.")
    ] = False,
) -> None:
    """Show percentiles of a trace: of a link its rates and their ratio; of an availability its sessions and gaps."""
    from morphling.cli.availability import show_availability, whole_ns
    from morphling.errors import InputError
    from morphling.scenario import availability_source

    source = availability_source(name)
    if source is not None:
        until_ns = whole_ns(until)
        here, notes = source.load(devices, until_ns, seed or 0, start_ns=whole_ns(start) or 0, repair=repair)
        show_availability(here, f"availability {source.name}", notes, until_ns, figure, as_json=as_json)
        return
    options = {"--until": until, "--devices": devices, "--seed": seed, "--start": start, "--repair": repair or None}
    if given := [option for option, value in options.items() if value is not None]:
        raise InputError(f"{', '.join(given)}: only for availability; {name} is a link trace")
    _show_link(name, figure, as_json=as_json)


def _show_link(name: str, figure: Path | None, *, as_json: bool) -> None:
    from morphling import units
    from morphling.cli.listing import print_table

    facts = trace_facts(name)
    if figure is not None:
        from morphling.figures import draw_trace
        from morphling.scenario import load_trace

        draw_trace(load_trace(name, "hold"), figure)
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    rows = [
        [f"{p} %", units.format_rate(down), units.format_rate(facts["up_bps"][p]), _ratio(facts["ratio"].get(p))]
        for p, down in facts["down_bps"].items()
    ]
    rows.append(["mean", units.format_rate(facts["mean_down_bps"]), units.format_rate(facts["mean_up_bps"]), ""])
    title = f"{facts['name']}: {facts['steps']} steps, {facts['duration_s']:g} s"
    print_table(title, ["of the time below", "down", "up", "down/up"], rows, right=(1, 2, 3))
    paused, longest = facts["paused_share"], facts["longest_pause_s"]
    print(f"paused {paused:.1%} of the time, at most {longest:g} s at once" if paused else "never paused")
    if figure is not None:
        print(figure)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
