"""Run a PyTorch script on a scenario's fleet, and write its run folder."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from morphling.emulate import need_torch
from morphling.emulate.clock import FleetClock
from morphling.emulate.emulated_run import EmulatedRun
from morphling.emulate.replicas import ReplicaClock
from morphling.errors import InputError
from morphling.interfaces.strategy import Strategy
from morphling.results import Results, check_room, new_run_folder, write_run
from morphling.results.battery import battery_notes
from morphling.run.build import Built, build, complete
from morphling.run.run import manifest_of
from morphling.scenario import LoadedScenario, load_scenario

if TYPE_CHECKING:
    from morphling.emulate.emulation import Emulation
    from morphling.emulate.interception import Coverage

__all__ = ["emulate"]

_BATCHED = {"coordinator": ("products with a batch dimension (attention) run on the coordinator",)}


def emulate(
    script: str | Path,
    scenario: str | Path | Mapping[str, Any] | LoadedScenario,
    args: Sequence[str] = (),
    overrides: Iterable[str] | Mapping[str, Any] = (),
    *,
    out: str | Path | None = None,
    base: str | Path = "runs",
    figures: bool = True,
    check_numerics: bool = False,
    batched: Literal["devices", "coordinator"] = "devices",
    reference: str | Path | None = None,
    say: Callable[[str], object] = str,
    warn: Callable[[str], object] = str,
    allow_plugins: bool = False,
) -> Results:
    """Run ``script`` with ``args`` as it is, its matrix products computed on the fleet of ``scenario``.

    Parameters
    ----------
    scenario, overrides, out, base, figures, allow_plugins : as of `morphling.run.run`; of the scenario's workload
        only the dtype is looked at (to check the executor), because the script brings its own
    check_numerics : compare every assembled product with the unsharded one
    batched : where products with a batch dimension run
    reference : CSV with columns step and loss of a plain run, drawn under the emulated losses
    say, warn : called with a line for each step, and with each thing to be warned of

    Raises
    ------
    InputError
        The input is wrong, or torch is not installed; nothing was run.
    RunError
        The script failed (`morphling.emulate.script.ScriptError` has its traceback), or the fleet cannot go on; no
        folder is left behind.
    """
    torch_version = need_torch()
    path = Path(script)
    loaded = scenario if isinstance(scenario, LoadedScenario) else load_scenario(scenario, overrides)
    if not path.is_file():
        raise InputError(f"{path}: no such script")
    if reference is not None and figures:
        from morphling.figures.losses import read_losses  # noqa: PLC0415 - only who asks; wrong files show before the run

        read_losses(Path(reference))
    check_room(Path(base) / "new" if out is None else Path(out))
    started, when = time.perf_counter(), datetime.now(UTC)
    built = build(loaded, allow_plugins=allow_plugins)
    loaded = complete(loaded, built)
    emulation, coverage = _run(path, args, built, check_numerics, batched, say, warn)
    recording = emulation.clock.finish()
    name = f"{loaded.scenario.name}-{path.stem}"
    manifest = manifest_of(loaded, built, name, when, time.perf_counter() - started)
    manifest["versions"]["torch"] = torch_version
    manifest["notes"] += _notes(emulation, coverage, loaded) + battery_notes(recording.battery, built.fleet)
    manifest["emulation"] = _facts(path, args, emulation, coverage, batched)
    folder = new_run_folder(Path(base), name, when) if out is None else Path(out)
    try:
        write_run(
            folder,
            recording,
            built.fleet,
            manifest,
            loaded.resolved_yaml(),
            extra={"strategy": _strategy_report(emulation)},
            draw=_drawing(reference) if figures else None,
            texts={"losses.csv": emulation.losses_csv()},
        )
    except BaseException:
        if out is None and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        raise
    return Results.open(folder)


def _run(
    path: Path,
    args: Sequence[str],
    built: Built,
    check_numerics: bool,
    batched: str,
    say: Callable[[str], object],
    warn: Callable[[str], object],
) -> tuple[Emulation, Coverage]:
    from morphling.emulate.emulation import Emulation  # noqa: PLC0415 - with torch, which takes a second
    from morphling.emulate.script import run_script, watched_by  # noqa: PLC0415

    first = built.strategy
    clock = _clock_of(first)(
        EmulatedRun(
            built.fleet,
            built.workload,
            lambda: type(first)(first.config),
            built.executor,
            seed=built.seed,
            horizon_s=built.horizon_s,
            heat=built.heat,
        )
    )
    if clock.varying:
        warn(f"every product is replayed anew, which takes longer, because {clock.varying}")
    emulation = Emulation(clock, check_numerics=check_numerics, batched=batched, say=say)
    seen: list[Coverage] = []
    try:
        with watched_by(emulation, warn) as coverage:
            seen.append(coverage)
            run_script(path, args)
    finally:
        if emulation.failed is not None:  # whatever the script made of it
            raise emulation.failed
    return emulation, seen[0]


def _clock_of(strategy: Strategy) -> type[FleetClock | ReplicaClock]:
    """Virtual time product by product, or step by step for replicas."""
    if strategy.covers == "gemms":
        return FleetClock
    if type(strategy).shares is not Strategy.shares:
        return ReplicaClock
    raise InputError(
        f"strategy {strategy.name or type(strategy).__name__}, as it is configured, says neither where the rows of a"
        " product lie (Strategy.places) nor how it shares the batch (Strategy.shares), so it cannot compute a script;"
        " cleave with model: physical, uniform-tp and ddp do"
    )


def _notes(emulation: Emulation, coverage: Coverage, loaded: LoadedScenario) -> list[str]:
    """What a reader of the numbers should know."""
    report = coverage.report()
    clock = emulation.clock
    share = report["coverage"]
    what = "products" if isinstance(clock, FleetClock) else "steps"
    notes = [
        "no matrix product was seen" if share is None else f"{share:.1%} of the FLOPs of matrix products were sharded",
        f"{clock.replayed:,} {what} were replayed by the engine, {clock.repeated:,} took what an equal one took",
    ]
    if isinstance(clock, FleetClock):
        notes.append(f"the script's products stand in for the scenario's workload ({loaded.model.name})")
    if not emulation.steps:
        notes.append("no step of an optimizer was seen, so there are no losses and no iterations")
    if emulation.check_numerics:
        notes.append(
            f"{emulation.checked:,} products compared with unsharded ones: relative error {emulation.worst:.2g} at most"
        )
    return notes


def _facts(path: Path, args: Sequence[str], emulation: Emulation, coverage: Coverage, batched: str) -> dict[str, Any]:
    """The part of the manifest that only an emulated script has."""
    from morphling.emulate.emulation import host_memory_bytes  # noqa: PLC0415 - with torch

    clock = emulation.clock
    return {
        "script": str(path),
        "script_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "arguments": list(args),
        "backend": "torch, in this process",
        "threads": emulation.threads.count(),
        "batched_products": batched,
        "steps": emulation.steps,
        "last_loss": emulation.losses[-1].loss if emulation.losses else None,
        **coverage.report(),
        "numerics": {"checked": emulation.checked, "worst_relative_error": emulation.worst}
        if emulation.check_numerics
        else None,
        "replayed": clock.replayed,
        "repeated": clock.repeated,
        "devices": clock.fleet.size,
        "host_memory_bytes": host_memory_bytes(),
    }


def _strategy_report(emulation: Emulation) -> dict[str, Any]:
    report = emulation.clock.report()
    return {**report, "assumptions": [*_BATCHED.get(emulation.batched, ()), *report["assumptions"]]}


def _drawing(reference: str | Path | None) -> Callable[[Path], object]:
    def draw(folder: Path) -> None:
        from morphling.figures import draw_losses, draw_overview  # noqa: PLC0415 - matplotlib costs a third of a second

        draw_overview(folder)
        draw_losses(folder, None if reference is None else Path(reference))

    return draw
