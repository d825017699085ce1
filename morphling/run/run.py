"""Replay a scenario and write its run folder."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from morphling.engine import Engine
from morphling.errors import InputError, RunError
from morphling.results import Results, check_room, new_run_folder, write_run
from morphling.results.battery import battery_notes
from morphling.run.build import Built, build, complete
from morphling.scenario import LoadedScenario, PopulationLink, TraceLink, load_scenario

__all__ = ["manifest_of", "replay", "run"]

MANIFEST_VERSION = 1
RECORDED = ("morphling", "numpy", "simpy", "numba", "pyarrow", "pydantic")


def run(
    scenario: str | Path | Mapping[str, Any] | LoadedScenario,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    *,
    out: str | Path | None = None,
    base: str | Path = "runs",
    figures: bool = True,
    progress: Callable[[float, int], None] | None = None,
    allow_plugins: bool = False,
) -> Results:
    """Replay ``scenario`` and return its results.

    Parameters
    ----------
    scenario : path, shipped name, YAML text or mapping (see `morphling.load_scenario`), or a scenario already loaded
    overrides : ``"fleet.0.count=8"`` strings or a mapping; only together with an unloaded scenario
    out : folder for the results (new or empty); left out, ``base/<name>-<UTC time>/``
    figures : draw ``figures/overview.png`` (takes most of a second)
    progress : called now and then with (virtual seconds, rows settled)
    allow_plugins : run the code of a file that ``strategy.plugin`` names

    Raises
    ------
    InputError
        The input is wrong; nothing was run.
    RunError
        The run failed; no folder is left behind.
    """
    if isinstance(scenario, LoadedScenario):
        if overrides:
            raise InputError("overrides belong to load_scenario when the scenario is already loaded")
        loaded = scenario
    else:
        loaded = load_scenario(scenario, overrides)
    check_room(Path(base) / "new" if out is None else Path(out))
    started = time.perf_counter()
    when = datetime.now(UTC)
    built = build(loaded, allow_plugins=allow_plugins)
    loaded = complete(loaded, built)
    recording = replay(built, progress)
    wall_s = time.perf_counter() - started
    manifest = manifest_of(loaded, built, loaded.scenario.name, when, wall_s)
    manifest["notes"] += battery_notes(recording.battery, built.fleet)
    folder = new_run_folder(Path(base), loaded.scenario.name, when) if out is None else Path(out)
    try:
        write_run(
            folder,
            recording,
            built.fleet,
            manifest,
            loaded.resolved_yaml(),
            extra={"strategy": built.strategy.report()},
            draw=_draw if figures else None,
        )
    except BaseException:
        if out is None and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        raise
    return Results.open(folder)


def manifest_of(loaded: LoadedScenario, built: Built, name: str, when: datetime, wall_s: float) -> dict[str, Any]:
    """What every run folder says of where it comes from."""
    return {
        "manifest_version": MANIFEST_VERSION,
        "name": name,
        "seed": built.seed,
        "started": when.isoformat(timespec="seconds"),
        "versions": {name: importlib.metadata.version(name) for name in RECORDED},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "command": ["morphling", *sys.argv[1:]] if Path(sys.argv[0]).name == "morphling" else None,
        "inputs_sha256": dict(loaded.inputs),
        "executor": built.executor.describe(),
        "notes": _notes(loaded, built),
        "wall_time_s": wall_s,
    }


def replay(built: Built, progress: Callable[[float, int], None] | None = None) -> Any:
    """Replay in memory, without files; the `morphling.interfaces.recording.Recording`."""
    engine = Engine(
        built.fleet,
        built.workload,
        built.strategy,
        built.executor,
        seed=built.seed,
        iterations=built.iterations,
        horizon_s=built.horizon_s,
        heat=built.heat,
        progress=progress,
    )
    try:
        recording = engine.run()
    except SystemExit as stop:  # with code 0 it would look like a run that is done
        raise RunError(
            f"{type(built.strategy).__name__} asked to exit ({stop.code}); the run is not complete"
        ) from stop
    built.executor.finish(recording, built.workload)
    return recording


def _network_notes(built: Built) -> list[str]:
    """What links share, and whether TCP limits them."""
    links, notes = built.fleet.links, []
    if links.cells is not None and links.cell is not None:
        behind, cells = int((links.cell >= 0).sum()), links.cells.size
        where = f"{cells:,} cells, whose links" if cells > 1 else "1 cell, whose link"
        notes.append(
            f"{behind:,} of {links.size:,} devices are behind {where} they share max-min fairly; a plan takes each"
            " device's link for its own until transfers have been observed"
        )
    if links.tcp is not None:
        on = links.tcp.segment_bytes > 0
        lossy = int((on & (links.tcp.loss > 0)).sum())
        still = int((on & (links.latency_ns == 0)).sum())
        notes.append(
            f"TCP on {int(on.sum()):,} of {links.size:,} devices: slow start"
            + (f", and the limit of Mathis et al. (1997) for loss on {lossy:,}" if lossy else "")
            + (f"; {still:,} of them have no latency, so it limits nothing there" if still else "")
        )
    return notes


def _heat_notes(built: Built) -> list[str]:
    """Which devices warm and slow, or would."""
    thermal = built.fleet.thermal
    if thermal is None or not thermal.slows.any():
        return []
    warm = f"{int(thermal.slows.sum())} of {built.fleet.size} devices"
    if not built.heat:
        return [f"heat is off: {warm} have a thermal section in their profile, and are as fast as when cold"]
    notes = [f"heat: {warm} warm while they compute, and slow down when their case is too warm; others never slow"]
    idling = thermal.ambient_c + thermal.ambient_to_case * built.fleet.idle_w
    stuck = int(np.count_nonzero(idling >= thermal.trip_c - thermal.hysteresis_k))  # NaN where a device never slows
    if stuck:
        notes.append(f"heat: {stuck} of them are too warm at idle for the clock ever to rise again once it has fallen")
    return notes


def _draw(folder: Path) -> object:
    from morphling.figures import draw_overview  # noqa: PLC0415 - matplotlib costs a third of a second

    return draw_overview(folder)


def _notes(loaded: LoadedScenario, built: Built) -> list[str]:
    """What a reader of the numbers should know."""
    notes = []
    c = built.fleet.coordinator
    if c.uplink_bps is None or c.downlink_bps is None:
        which = (
            "links are" if c.uplink_bps is c.downlink_bps else "uplink is" if c.uplink_bps is None else "downlink is"
        )
        notes.append(
            f"the coordinator's {which} unlimited: give coordinator.uplink and coordinator.downlink to bound them"
        )
    links = [entry.link for entry in loaded.scenario.fleet]
    traced = [x.trace for x in links if isinstance(x, TraceLink) and x.past_end == "repeat"]
    followed = {x if isinstance(x, str) else Path(x.path).name for x in traced}
    followed |= {f"{x.population} (drawn)" for x in links if isinstance(x, PopulationLink) and x.variation}
    repeating = sorted(followed)
    if repeating:
        notes.append(f"link traces repeat when they end: {', '.join(repeating)}")
    notes += _network_notes(built)
    notes += _heat_notes(built)
    notes += loaded.remarks
    notes += built.executor.notes()
    if loaded.strategy_class is not None:
        notes.append(
            f"strategy {loaded.scenario.strategy.plugin} was passed as a class: the scenario of this run runs again "
            "only where that can be imported"
        )
    if built.workload.model.note:
        notes.append(f"{built.workload.model.name}: {built.workload.model.note}")
    return notes
