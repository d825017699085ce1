"""`morphling emulate`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from morphling.cli.run import AllowPlugins, Set

__all__ = ["emulate"]


def emulate(
    script: Annotated[Path | None, typer.Argument(help="A PyTorch training script; it is run as it is.")] = None,
    arguments: Annotated[list[str] | None, typer.Argument(help="The script's own arguments, after --.")] = None,
    scenario: Annotated[str, typer.Option(help="Scenario with the fleet: a file, or a shipped name.")] = "quickstart",
    set_: Set = None,
    out: Annotated[
        Path | None, typer.Option(help="Put the run folder here (new or empty); with --trace-only, the new file.")
    ] = None,
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
    trace_only: Annotated[
        bool,
        typer.Option(
            "--trace-only",
            help="Write the products of the first training step into a file; no fleet, no arithmetic, no weights.",
        ),
    ] = False,
    real: Annotated[
        bool,
        typer.Option("--real", help="With --trace-only: execute that step (for scripts that decide by numbers)."),
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="With --trace-only: a model class, such as transformers:LlamaForCausalLM.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="With --model: its config.json.")] = None,
    batch_size: Annotated[int, typer.Option(help="With --model: sequences of the step.")] = 8,
    sequence_length: Annotated[int, typer.Option(help="With --model: tokens of each.")] = 1024,
) -> None:
    """Train an unmodified PyTorch script on an emulated fleet: real losses, virtual time.

    The script keeps standard output to itself; what Morphling says goes to standard error.
    """
    from morphling.errors import InputError

    given = list(arguments or ())
    if trace_only:
        _trace(script, given, out, model, config, batch_size, sequence_length, real)
        return
    if real:
        raise InputError("--real goes with --trace-only; on a fleet every number is computed")
    if model is not None or script is None:
        raise InputError("a script is needed; --model goes with --trace-only")
    if batched not in {"devices", "coordinator"}:
        raise InputError(f"--batched: devices or coordinator, not {batched!r}")
    where: Any = batched
    keys = {
        "out": out,
        "base": base,
        "figures": figures,
        "check_numerics": check_numerics,
        "batched": where,
        "reference": reference,
        "allow_plugins": allow_plugins,
    }
    _emulate(script, scenario, given, list(set_ or ()), keys)


def _emulate(script: Path, scenario: str, arguments: list[str], overrides: list[str], keys: dict[str, Any]) -> None:
    from morphling.emulate import need_torch

    need_torch()
    from morphling.emulate.script import ScriptError
    from morphling.run.emulate import emulate as emulate_script

    with _traced(ScriptError):
        results = emulate_script(script, scenario, arguments, overrides, say=_say, warn=_warn, **keys)
    from rich.console import Console

    sys.stdout.flush()
    console = Console(stderr=True)
    console.print(results.table())
    for line in results.notes():
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    _say(f"run folder: {results.folder}")


def _trace(
    script: Path | None,
    arguments: list[str],
    out: Path | None,
    model: str | None,
    config: Path | None,
    batch_size: int,
    sequence_length: int,
    real: bool,
) -> None:
    from morphling.emulate import need_torch
    from morphling.run.trace import trace

    need_torch()
    from morphling.emulate.script import ScriptError

    name = model.rpartition(":")[2] if model else script.stem if script else "script"
    target = Path(f"{name}.gemms.json") if out is None else out
    with _traced(ScriptError):
        traced = trace(
            script,
            arguments,
            out=target,
            model=model,
            config=config,
            batch_size=batch_size,
            sequence_length=sequence_length,
            real=real,
            note=_warn,
        )
    left = ", ".join(f"{name} ({calls:,} calls)" for name, calls in traced.traced["left_out"].items())
    if left:
        _warn(f"operations with products inside them are not in the file: {left}")
    _say(f"traced: {traced.traced['way']}")
    _say(f"{len(traced.gemms):,} matrix products, {traced.flops:,} FLOPs: {target}")


@contextmanager
def _traced(error: type[Any]) -> Iterator[None]:
    """The traceback of a script that raises is printed before our own line."""
    try:
        yield
    except error as raised:
        sys.stdout.flush()
        print(raised.trace, end="", file=sys.stderr)
        raise


def _warn(text: str) -> None:
    _say(f"warning: {text}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
