"""The `morphling` program: its commands, and what errors become."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import morphling
from morphling.cli.check import check, schema
from morphling.cli.doctor import doctor
from morphling.cli.listing import profiles_app, strategies, traces_app
from morphling.cli.report import figures, report
from morphling.cli.run import run
from morphling.errors import MorphlingError

__all__ = ["app", "main"]

app = typer.Typer(
    name="morphling",
    help="An emulator for distributed machine learning on edge devices.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(show: bool) -> None:
    if show:
        print(f"morphling {morphling.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """An emulator for distributed machine learning on edge devices."""


app.command()(run)
app.command()(check)
app.command()(report)
app.command()(figures)
app.add_typer(profiles_app)
app.add_typer(traces_app)
app.command()(strategies)
app.command()(schema)
app.command()(doctor)


def main() -> None:
    """Run a command; exit with 0 (done), 1 (the run failed) or 2 (the input is wrong)."""
    try:
        app()
    except MorphlingError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        sys.stderr.close()
        sys.exit(0)
