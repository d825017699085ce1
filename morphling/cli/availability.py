"""`morphling availability`: who is there when, before anything is run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from morphling.cli.run import Scenario, Set

__all__ = ["availability_app", "show_availability", "whole_ns"]

availability_app = typer.Typer(
    name="availability", help="Devices that come and go.", no_args_is_help=True, rich_markup_mode=None
)

_MARKS = (1, 5, 10, 25, 50, 75, 90, 95, 99)


@availability_app.callback()
def _root() -> None:
    """Devices that come and go."""


@availability_app.command("show")
def show(
    scenario: Scenario,
    set_: Set = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Look at virtual time up to here, such as '2 h'.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it too; the ending names the format.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show the share of devices online over time, lengths of sessions and gaps, and the share of each device."""
    from morphling.scenario import load_scenario

    loaded = load_scenario(scenario, set_ or ())
    here = loaded.availability
    title = f"{loaded.scenario.name}: availability {here.model}"
    show_availability(here, title, loaded.remarks, whole_ns(until), figure, as_json=as_json)


def whole_ns(time: str | None) -> int | None:
    """A time with its unit as whole nanoseconds; `UnitError` if it is none."""
    from morphling import units

    return None if time is None else round(units.parse_exact(time, "time") * 10**9)


def show_availability(
    here: Any, title: str, notes: Sequence[str], until_ns: int | None, figure: Path | None, *, as_json: bool
) -> None:
    """Print what an `morphling.fleet.Availability` amounts to, and draw it if ``figure`` names a file."""
    from morphling.fleet.presence import presence

    if figure is not None:
        from morphling.figures.axes import writable

        writable(figure)  # before the work, which may take long
    seen = presence(here, until_ns)
    if figure is not None:
        from morphling.figures.availability import draw_availability

        draw_availability(seen, title, figure)
    facts = _facts(seen, here.model)
    if as_json:
        print(json.dumps({**facts, "notes": list(notes)}, indent=2))
        return
    _print(facts)
    for line in notes:
        print(line)
    if figure is not None:
        print(f"figure: {figure}")


def _facts(seen: Any, model: str) -> dict[str, Any]:
    import numpy as np

    def marks(values: Any) -> dict[str, float] | None:
        return {str(p): float(np.percentile(values, p)) for p in _MARKS} if len(values) else None

    size = len(seen.share)
    return {
        "model": model,
        "until_s": seen.until_s,
        "devices": size,
        "online": {
            "mean": float(seen.share.mean()) * size,
            "least": int(seen.online.min()),
            "most": int(seen.online.max()),
            "time_s": seen.time_s.tolist(),
            "devices": seen.online.tolist(),
        },
        "sessions": {
            "count": len(seen.session_s),
            "mean_s": _mean(seen.session_s),
            "percentiles_s": marks(seen.session_s),
        },
        "gaps": {"count": len(seen.gap_s), "mean_s": _mean(seen.gap_s), "percentiles_s": marks(seen.gap_s)},
        "under_way_at_an_end": seen.cut,
        "share": {"mean": float(seen.share.mean()), "percentiles": marks(seen.share), "devices": seen.share.tolist()},
    }


def _mean(values: Any) -> float | None:
    return float(values.mean()) if len(values) else None


def _print(facts: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from morphling import units

    def times(what: str) -> list[str]:
        marks, mean = facts[what]["percentiles_s"], facts[what]["mean_s"]
        return ["-"] * (len(_MARKS) + 1) if marks is None else [units.format_time(v) for v in [*marks.values(), mean]]

    online, size = facts["online"], facts["devices"]
    title = (
        f"availability {facts['model']}, {size:,} devices, first {units.format_time(facts['until_s'])}: "
        f"{online['mean']:,.1f} online on average, {online['least']:,} to {online['most']:,} at "
        f"{len(online['time_s'])} instants; {facts['under_way_at_an_end']:,} lengths cut off at an end are left out"
    )
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    shares = facts["share"]["percentiles"]
    for i, column in enumerate(
        ("", f"session ({facts['sessions']['count']:,})", f"gap ({facts['gaps']['count']:,})", "share of a device")
    ):
        table.add_column(column, justify="right" if i else "left")
    share = [f"{v:.3f}" for v in [*shares.values(), facts["share"]["mean"]]]
    for row in zip([*(f"{p} %" for p in _MARKS), "mean"], times("sessions"), times("gaps"), share, strict=True):
        table.add_row(*row)
    Console().print(table)
