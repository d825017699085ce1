"""`morphling check` and `morphling schema`."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from morphling.cli.run import AllowPlugins, Scenario, Set

__all__ = ["check", "schema"]


def check(
    scenario: Scenario,
    set_: Set = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of YAML.")] = False,
    allow_plugins: AllowPlugins = False,
) -> None:
    """Check a scenario and print it resolved: every default filled, in base units."""
    from morphling.run import check as checked
    from morphling.scenario import load_scenario, resolved, resolved_yaml

    loaded, unchecked = checked(load_scenario(scenario, set_ or ()), allow_plugins=allow_plugins)
    for line in unchecked:
        print(f"note: {line}", file=sys.stderr)
    if as_json:
        print(json.dumps(resolved(loaded.scenario), indent=2))
    else:
        print(resolved_yaml(loaded.scenario), end="")


def schema(
    kind: Annotated[str, typer.Argument(help="scenario or profile.")] = "scenario",
) -> None:
    """Print the JSON Schema of scenarios (or device profiles) for editors."""
    from morphling.errors import InputError
    from morphling.scenario import json_schema

    if kind not in ("scenario", "profile"):
        raise InputError(f"schema: scenario or profile, not {kind!r}")
    print(json.dumps(json_schema("profile" if kind == "profile" else "scenario"), indent=2))
