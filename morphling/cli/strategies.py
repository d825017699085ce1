"""`morphling strategies`: installed strategies and executors, with their parameters."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from morphling.run import Plugin
    from morphling.scenario import ConfigField

__all__ = ["strategies"]


def strategies(
    name: Annotated[str | None, typer.Argument(help="Only this one.")] = None,
    executors: Annotated[bool, typer.Option("--executors", help="List executors instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """List installed strategies (or executors) with their parameters; broken ones with their cause."""
    from morphling.errors import InputError
    from morphling.run import list_plugins

    found = list_plugins("executors" if executors else "strategies")
    if name is not None:
        known = ", ".join(p.name for p in found)
        found = [p for p in found if p.name == name]
        if not found:
            raise InputError(f"unknown name {name!r} (installed: {known})")
    if as_json:
        print(json.dumps([_facts(p) for p in found], indent=2))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    width = min(console.width, 100)
    for i, plugin in enumerate(found):
        if i:
            console.print()
        head = Text.assemble((plugin.name, "bold"), f"  {plugin.distribution} {plugin.version}  {plugin.target}")
        console.print(head, soft_wrap=True)
        if plugin.cause is not None:
            console.print(Text(f"  broken: {plugin.cause}"), soft_wrap=True)
            continue
        if plugin.about:
            console.print(Text(textwrap.indent(textwrap.fill(_plain(plugin.about), width - 2), "  ")), soft_wrap=True)
        for field in plugin.parameters:
            console.print(Text(_parameter(field, width)), soft_wrap=True)
        if not plugin.parameters:
            console.print("  no parameters")


def _facts(plugin: Plugin) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "target": plugin.target,
        "about": plugin.about,
        "parameters": [dataclasses.asdict(field) for field in plugin.parameters],
        "cause": plugin.cause,
    }


def _parameter(field: ConfigField, width: int) -> str:
    """``name  type  (default …)``, and below it what it is, wrapped to ``width`` columns."""
    default = "required" if field.required else f"default {json.dumps(field.default)}".replace('"', "")
    lines = textwrap.wrap(f"{field.name}: {field.type}  ({default})", width - 2, subsequent_indent="      ")
    lines += textwrap.wrap(_plain(field.about), width - 6, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(f"  {line}" for line in lines)


def _plain(text: str) -> str:
    """Without the marks of docstrings."""
    return text.replace("``", "").replace(".  ", ". ")
