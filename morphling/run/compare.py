"""Strategies side by side: one scenario, the same seeds, a run for each, and what compares them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from morphling.errors import InputError, ScenarioError
from morphling.results import check_room, new_run_folder, take_folder
from morphling.results.comparison import Comparison, run_record, write_comparison
from morphling.run.build import build, check_strategy
from morphling.run.plugins import list_plugins
from morphling.run.run_request import RunRequest
from morphling.run.side_by_side import Progress, run_side_by_side
from morphling.run.strategy_entries import Entry, StrategyEntry, read_entries
from morphling.scenario import LoadedScenario, load_scenario

__all__ = ["Lineup", "compare", "compare_lineup", "line_up"]

Overrides = Iterable[str] | Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Lineup:
    """What is to be compared, read but not yet run.

    source : the scenario as it was given
    name, seeds : of the scenario; the seed it states and those that follow
    entries : the strategies; ``overrides`` and ``loaded``: what makes the scenario one of each, and that scenario
    """

    source: str | Path | Mapping[str, Any]
    name: str
    seeds: tuple[int, ...]
    entries: tuple[Entry, ...]
    overrides: tuple[tuple[str | tuple[str, Any], ...], ...]
    loaded: tuple[LoadedScenario, ...]

    @property
    def plugin_files(self) -> dict[Path, str]:
        """Files of Python code that the runs would execute, with the SHA-256 of each."""
        files = [(loaded, loaded.plugin_file) for loaded in self.loaded]
        return {file[0]: loaded.inputs[str(file[0])] for loaded, file in files if file is not None}


def line_up(
    scenario: str | Path | Mapping[str, Any],
    strategies: str | Iterable[StrategyEntry],
    *,
    seeds: int = 1,
    overrides: Overrides = (),
) -> Lineup:
    """Read the scenario once for each strategy; nothing is run.  Arguments and errors as of `compare`."""
    if isinstance(scenario, LoadedScenario):
        raise InputError("compare reads the scenario for each strategy: give its file, name, text or mapping")
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise InputError(f"seeds: a number of seeds, at least 1, is needed, found {seeds!r}")
    listed = list(overrides.items()) if isinstance(overrides, Mapping) else _listed(overrides)
    base = load_scenario(scenario, listed)
    entries = read_entries(strategies, [plugin.name for plugin in list_plugins("strategies")])
    own, own_class = base.scenario.strategy, base.strategy_class
    changes = tuple((*listed, *entry.overrides(own, own_class)) for entry in entries)
    loaded = tuple(_loaded(scenario, change, entry) for change, entry in zip(changes, entries, strict=True))
    first = base.scenario.seed
    if seeds > 1:
        load_scenario(scenario, [*listed, ("seed", first + seeds - 1)])
    return Lineup(scenario, base.scenario.name, tuple(range(first, first + seeds)), entries, changes, loaded)


def _listed(overrides: Iterable[str]) -> list[str | tuple[str, Any]]:
    return [overrides] if isinstance(overrides, str) else list(overrides)


def _loaded(source: Any, change: Iterable[str | tuple[str, Any]], entry: Entry) -> LoadedScenario:
    try:
        return load_scenario(source, change)
    except ScenarioError as error:
        raise entry.fault(error) from None


def compare(
    scenario: str | Path | Mapping[str, Any],
    strategies: str | Iterable[StrategyEntry],
    *,
    seeds: int = 1,
    out: str | Path | None = None,
    base: str | Path = "runs",
    jobs: int | None = None,
    overrides: Overrides = (),
    figures: bool = True,
    allow_plugins: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Comparison:
    """Run a scenario under several strategies, over the same seeds, and return the comparison.

    Parameters
    ----------
    scenario, overrides : as of `morphling.load_scenario`
    strategies : entries, or text with commas between them.  Each is ``NAME``, ``NAME:key=value:key=value``,
        ``file.py:Class`` (relative to the working directory), a mapping as the scenario's ``strategy`` section, a
        class, or (label, one of these).  Of the strategy that the scenario names itself, keys that are not given are
        the scenario's; of others they are the defaults.
    seeds : how many: the scenario's seed and those that follow, the same for all strategies
    out : folder for all of it (new or empty); left out, ``base/compare-<name>-<UTC time>/``
    jobs : runs at a time; left out, the number of cores, or 1 where a class is of a script or notebook, and in ``mode:
        live``, whose runs measure this host.  More than 1 are made in processes of their own.
    figures : draw ``figures/comparison.png``
    allow_plugins : run the code of files that are named as strategies
    progress : called now and then

    Raises
    ------
    InputError
        The scenario or an entry is wrong, or two entries are the same; nothing was run.

    A strategy that cannot serve the fleet (`PlanError`), and a run that fails, are results: see `Comparison`.
    """
    lineup = line_up(scenario, strategies, seeds=seeds, overrides=overrides)
    return compare_lineup(
        lineup, out=out, base=base, jobs=jobs, figures=figures, allow_plugins=allow_plugins, progress=progress
    )


def compare_lineup(
    lineup: Lineup,
    *,
    out: str | Path | None = None,
    base: str | Path = "runs",
    jobs: int | None = None,
    figures: bool = True,
    allow_plugins: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Comparison:
    """As `compare`, of what `line_up` read."""
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs: at least 1 is needed, found {jobs}")
    check_room(Path(base) / "new" if out is None else Path(out))
    sections = _checked(lineup, allow_plugins)
    when = datetime.now(UTC)
    folder = new_run_folder(Path(base), f"compare-{lineup.name}", when) if out is None else take_folder(Path(out))
    requests = _requests(lineup, folder, allow_plugins)
    try:
        ends = run_side_by_side(requests, jobs=_jobs(lineup, jobs), progress=progress)
    except BaseException:
        if not any(folder.iterdir()):
            folder.rmdir()
        raise
    of_runs = [(entry.label, seed) for entry in lineup.entries for seed in lineup.seeds]
    runs = [
        run_record(label, seed, end.folder, end.state, end.reason, end.traceback)
        for (label, seed), end in zip(of_runs, ends, strict=True)
    ]
    facts = {
        "name": lineup.name,
        "started": when.isoformat(timespec="seconds"),
        "seeds": list(lineup.seeds),
        "iterations": lineup.loaded[0].scenario.run.iterations,
    }
    return write_comparison(folder, facts, sections, runs, _draw if figures else None)


def _draw(comparison: Comparison) -> object:
    from morphling.figures import draw_comparison  # noqa: PLC0415 - matplotlib costs a third of a second

    return draw_comparison(comparison)


def _jobs(lineup: Lineup, jobs: int | None) -> int | None:
    """Classes of a script or notebook are only here, so their runs are; runs that measure this host disturb each other,
    and would time the same product each in its own way.
    """
    given = [entry.named.get("plugin") for entry in lineup.entries]
    given += [loaded.strategy_class for loaded in lineup.loaded]
    bound = any(isinstance(c, type) and (c.__module__ == "__main__" or "<locals>" in c.__qualname__) for c in given)
    measures = any(loaded.scenario.execution.mode == "live" for loaded in lineup.loaded)
    return 1 if jobs is None and (bound or measures) else jobs


def _checked(lineup: Lineup, allow_plugins: bool) -> list[dict[str, Any]]:
    """Each entry's strategy section with all defaults; every fault of an entry is raised here, before the first run."""
    sections: list[dict[str, Any]] = []
    problems: list[str] = []
    for entry, loaded in zip(lineup.entries, lineup.loaded, strict=True):
        try:
            section = check_strategy(loaded, allow_plugins=allow_plugins)
        except ScenarioError as error:
            problems += entry.fault(error).problems
            continue
        sections.append({"label": entry.label, "strategy": section})
    if problems:
        raise ScenarioError(problems)
    _distinct(lineup, sections)
    build(lineup.loaded[0], allow_plugins=allow_plugins)  # the rest of the scenario is the same for all
    return sections


def _distinct(lineup: Lineup, sections: list[dict[str, Any]]) -> None:
    seen: list[tuple[Any, Any]] = []
    for section, loaded in zip(sections, lineup.loaded, strict=True):
        mark = (loaded.strategy_class, section["strategy"])
        if mark in seen:
            first = sections[seen.index(mark)]["label"]
            raise InputError(f"strategies: {section['label']} is the same as {first}, all defaults counted")
        seen.append(mark)


def _requests(lineup: Lineup, folder: Path, allow_plugins: bool) -> list[RunRequest]:
    requests = []
    names: set[str] = set()
    for entry, change, loaded in zip(lineup.entries, lineup.overrides, lineup.loaded, strict=True):
        stem = _file_name(entry.label, names)
        requests += [
            RunRequest(
                key=entry.label if len(lineup.seeds) == 1 else f"{entry.label}, seed {seed}",
                source=lineup.source,
                overrides=(*change, ("seed", seed)),
                out=folder / f"{stem}-seed{seed}",
                allow_plugins=allow_plugins,
                inputs=dict(loaded.inputs),
            )
            for seed in lineup.seeds
        ]
    return requests


def _file_name(label: str, taken: set[str]) -> str:
    """The label as the beginning of a folder's name, another one for each label."""
    stem = plain = re.sub(r"[^A-Za-z0-9._=-]+", "-", label).strip("-.")[:80] or "strategy"
    copy = 1
    while stem.lower() in taken:
        copy += 1
        stem = f"{plain}-{copy}"
    taken.add(stem.lower())
    return stem
