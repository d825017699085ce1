"""The `morphling` program: its commands, and what errors become."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

import morphling
from morphling.cli.availability import availability_app
from morphling.cli.check import check, schema
from morphling.cli.compare import compare
from morphling.cli.doctor import doctor
from morphling.cli.emulate import emulate
from morphling.cli.figures import figures
from morphling.cli.listing import profiles_app, traces_app
from morphling.cli.profiles_measured import calibrate_command, import_samples, script
from morphling.cli.report import report
from morphling.cli.run import run
from morphling.cli.strategies import strategies
from morphling.cli.traces_generate import generate
from morphling.cli.traces_show import show
from morphling.errors import MorphlingError

__all__ = ["app", "main"]

INTERRUPTED = 130
"""128 + SIGINT, as shells count."""

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
app.command()(compare)
app.command()(emulate)
app.command()(check)
app.command()(report)
app.command()(figures)
app.add_typer(profiles_app)
profiles_app.command("calibrate")(calibrate_command)
profiles_app.command("import-samples")(import_samples)
profiles_app.command("measuring-script")(script)
app.add_typer(traces_app)
traces_app.command()(generate)
traces_app.command()(show)
app.add_typer(availability_app)
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
        _interrupted()
    except SystemExit as stop:
        # Typer has turned these two into exit codes of its own.
        if isinstance(stop.__context__, BrokenPipeError):
            _pipe_closed()
        if stop.code == INTERRUPTED:
            _interrupted()
        _flushed()
        raise
    except BrokenPipeError:
        _pipe_closed()
    except OSError as error:  # a full disk behind stdout, say
        print(f"error: {error}", file=sys.stderr)
        _drop_stdout()
        sys.exit(1)


def _flushed() -> None:
    """What is still buffered goes out here, where a failure can be told; at exit it would be lost in silence."""
    try:
        if sys.stdout is not None:  # it is where the caller closed it
            sys.stdout.flush()
    except BrokenPipeError:
        _pipe_closed()
    except OSError as error:
        print(f"error: the output cannot be written: {error}", file=sys.stderr)
        _drop_stdout()
        sys.exit(1)


def _interrupted() -> NoReturn:
    print("interrupted", file=sys.stderr)
    sys.exit(INTERRUPTED)


def _pipe_closed() -> NoReturn:
    """The reader of a pipe has seen enough: that is no failure."""
    _drop_stdout()
    sys.exit(0)


def _drop_stdout() -> None:
    """Let nothing more be written, or Python complains of it at exit."""
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - a device, not a path
        os.dup2(nowhere.fileno(), sys.__stdout__.fileno() if sys.__stdout__ is not None else 1)
