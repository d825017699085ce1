"""`morphling emulate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from morphling.cli.run import AllowPlugins, Set

__all__ = ["emulate"]


def emulate(
    script: Annotated[Path, typer.Argument(help="A PyTorch training script; it is run as it is.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="The script's own arguments, after --.")] = None,
    scenario: Annotated[str, typer.Option(help="Scenario with the fleet: a file, or a shipped name.")] = "quickstart",
    set_: Set = None,
    out: Annotated[Path | None, typer.Option(help="Put the run folder here (new or empty).")] = None,
    base: Annotated[Path, typer.Option(help="Folder for run folders when --out is not given.")] = Path("runs"),
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="Draw overview and losses.")] = True,
    reference: Annotated[
        Path | None, typer.Option(help="CSV with step and loss of a plain run, drawn under the emulated losses.")
    ] = None,
    check_numerics: Annotated[
        bool, typer.Option("--check-numerics", help="Compare every product with the unsharded one.")
    ] = False,
    batched: Annotated[
        str, typer.Option(help="Where products with a batch (attention) run: devices or coordinator.")
    ] = "devices",
    allow_plugins: AllowPlugins = False,
) -> None:
    """Train an unmodified PyTorch script on an emulated fleet: real losses, virtual time.

    The script keeps standard output to itself; what Morphling says goes to standard error.
    """
    from morphling.emulate import need_torch
    from morphling.errors import InputError

    if batched not in {"devices", "coordinator"}:
        raise InputError(f"--batched: devices or coordinator, not {batched!r}")
    need_torch()
    from morphling.emulate.script import ScriptError
    from morphling.run.emulate import emulate as emulate_script

    where: Any = batched
    try:
        results = emulate_script(
            script,
            scenario,
            list(arguments or ()),
            list(set_ or ()),
            out=out,
            base=base,
            figures=figures,
            check_numerics=check_numerics,
            batched=where,
            reference=reference,
            say=_say,
            warn=lambda text: _say(f"warning: {text}"),
            allow_plugins=allow_plugins,
        )
    except ScriptError as error:
        sys.stdout.flush()
        print(error.trace, end="", file=sys.stderr)
        raise
    from rich.console import Console

    sys.stdout.flush()
    console = Console(stderr=True)
    console.print(results.table())
    for line in results.notes():
        console.print(line, highlight=False, soft_wrap=True)
    _say(f"run folder: {results.folder}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
