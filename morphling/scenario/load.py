"""From a scenario file (or text, or mapping) to a checked scenario with all the files that it names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from morphling.errors import InputError, ScenarioError, TraceError, WorkloadError
from morphling.fleet import Availability, LinkTrace, PastEnd
from morphling.scenario import yaml12
from morphling.scenario.availability_files import availability_from, file_availability
from morphling.scenario.data import find_file, full_path, is_path, plugin_file
from morphling.scenario.faults import fault_line, problems_of
from morphling.scenario.files import file_digest, read_text
from morphling.scenario.network_schema import TraceRates
from morphling.scenario.overrides import apply_overrides
from morphling.scenario.power_modes import split_mode
from morphling.scenario.profiles import ProfileRecord, find_profile, parse_profile
from morphling.scenario.schema import (
    AlwaysOn,
    InlineProfile,
    Scenario,
    SessionFile,
    Sessions,
    TracedWorkload,
    TraceFile,
    Workload,
)
from morphling.scenario.sessions import availability_of, listed_stays
from morphling.scenario.traces import parse_trace
from morphling.scenario.yaml12 import Document
from morphling.scenario.yaml12 import Path as Keys
from morphling.workload import Model, model_from_config, model_named
from morphling.workload.traced import TracedGemms, traced_from_json

__all__ = ["LoadedScenario", "load_scenario", "resolved", "resolved_yaml"]

T = TypeVar("T")

_MAPPING: Final = "scenario"


@dataclass(frozen=True, eq=False)
class LoadedScenario:
    """A checked scenario and everything read for it.

    ``scenario`` : the record, every default filled, paths absolute
    ``profiles`` : by reference (a name or an absolute path, as in ``scenario``)
    ``traces`` : by (reference, past_end); an imported one by the JSON of what the scenario says
    ``model`` : the workload's model, or its traced products
    ``availability`` : sessions of all devices
    ``remarks`` : what a reader of the numbers should know of the files
    ``inputs`` : SHA-256 of each file read, by path
    ``strategy_class`` : the class that a mapping gave as ``strategy.plugin``, whose name the scenario then holds
    """

    scenario: Scenario
    profiles: Mapping[str, ProfileRecord]
    traces: Mapping[tuple[str, str], LinkTrace]
    model: Model | TracedGemms
    availability: Availability
    inputs: Mapping[str, str]
    document: Document = field(repr=False)
    remarks: tuple[str, ...] = ()
    strategy_class: type[Any] | None = None

    @property
    def plugin_file(self) -> tuple[Path, str] | None:
        """The file of Python code and the class in it that ``strategy.plugin`` names; None if it names no file."""
        target = self.scenario.strategy.plugin
        split = None if target is None or self.strategy_class is not None else plugin_file(target)
        return None if split is None else (Path(split[0]), split[1])

    def profile(self, reference: str | InlineProfile) -> ProfileRecord | InlineProfile:
        """What a ``profile`` field means."""
        return self.profiles[reference] if isinstance(reference, str) else reference

    def trace(self, link: TraceRates) -> LinkTrace:
        """The trace that a link follows."""
        return self.traces[_trace_reference(link), link.past_end]

    def where(self, *path: str | int) -> str:
        """``file:line:col`` of what the scenario says at ``path``."""
        return self.document.where(path, value=True)

    def fault(self, path: tuple[str | int, ...], reason: str) -> ScenarioError:
        """An error about the field at ``path``, for checks that need more than the file."""
        return ScenarioError(fault_line(self.document.where(path, value=True), path, reason))

    def faults(self, error: ValidationError, path: tuple[str, ...], model: type[Any]) -> ScenarioError:
        """Findings of a strategy's or executor's own pydantic ``model`` on the section at ``path``."""
        section: Any = self.document.value
        for part in path:
            section = section.get(part) if isinstance(section, dict) else None

        def where(keys: Keys, *, value: bool = False) -> str:
            return self.document.where((*path, *keys), value=value)

        return ScenarioError(problems_of(error, model, section, where, under=path))

    def resolved_yaml(self) -> str:
        """As `resolved_yaml` of the scenario."""
        return resolved_yaml(self.scenario)


def load_scenario(
    source: str | Path | Mapping[str, Any],
    overrides: Iterable[str | tuple[str, Any]] | Mapping[str, Any] = (),
    *,
    folder: Path | None = None,
) -> LoadedScenario:
    """Read, override, check and complete a scenario.

    Parameters
    ----------
    source : path of a YAML file; or the name of a shipped scenario; or YAML text (of more than one line); or a mapping
        (in which ``strategy.plugin`` may be a class)
    overrides : ``"fleet.1.count=8"`` strings or (path, value) pairs, or a mapping from such paths to values
    folder : what relative paths inside start from; left out, the file's folder (the working directory without a file)

    Raises
    ------
    ScenarioError
        Every fault of the scenario and of the files that it names, one line each.
    """
    document, home, inputs = _document(source, folder)
    document = apply_overrides(document, overrides)
    if not isinstance(document.value, dict):
        raise ScenarioError(f"{document.origin}: a scenario is a mapping with name, workload, fleet and strategy")
    given = _given_class(document.value)
    _absolute(document.value, home)
    try:
        scenario = Scenario.model_validate(document.value)
    except ValidationError as error:
        problems = problems_of(error, Scenario, document.value, document.where)
        problems += _Reading(document, inputs).names(document.value)
        raise ScenarioError(sorted(problems, key=_place)) from None
    return _Reading(document, inputs).finish(scenario, given)


def resolved(scenario: Scenario) -> dict[str, Any]:
    """Plain values in base units (``80000000 bit/s``), every default filled; loads to an equal scenario."""
    return scenario.model_dump(mode="json")


def resolved_yaml(scenario: Scenario) -> str:
    """`resolved` as YAML text, keys in the order of the schema; the same scenario gives the same bytes."""
    return yaml12.dump(resolved(scenario))


def _document(source: str | Path | Mapping[str, Any], folder: Path | None) -> tuple[Document, Path, dict[str, str]]:
    """The document, the folder that relative paths start from, and the file's digest."""
    if isinstance(source, Mapping):
        return Document(source, _MAPPING), folder or Path.cwd(), {}
    if isinstance(source, str) and "\n" in source:
        return yaml12.read_yaml(source, _MAPPING), folder or Path.cwd(), {}
    try:
        path = source if isinstance(source, Path) else _scenario_file(source)
        text = read_text(path)
    except ScenarioError:
        raise
    except InputError as error:
        raise ScenarioError(str(error)) from None
    return yaml12.read_yaml(text, str(path)), folder or path.resolve().parent, {str(path.resolve()): file_digest(path)}


def _scenario_file(source: str) -> Path:
    """A path as given, so that messages show what was typed; or the shipped file of that name."""
    full_path(source)
    path = Path(source)
    return path if path.is_file() else find_file("scenarios", source)


_REFERENCES: Final[tuple[Keys, ...]] = (
    ("workload", "model"), ("workload", "gemms"), ("availability", "path"), ("coordinator", "profile"),
)  # fmt: skip
_ENTRY_REFERENCES: Final[tuple[Keys, ...]] = (
    ("profile",), ("link", "trace"), ("link", "trace", "path"), ("link", "trace", "up_file"),
)  # fmt: skip


def _absolute(value: dict[str, Any], home: Path) -> None:
    """Replace relative paths, so that the resolved scenario means the same from any folder."""
    for keys in _REFERENCES:
        _absolute_at(value, keys, home)
    for section in ("fleet", "cells"):
        entries = value.get(section)
        for entry in entries if isinstance(entries, list) else ():
            for keys in _ENTRY_REFERENCES:
                _absolute_at(entry, keys, home)
    _absolute_plugin(value.get("strategy"), home)


def _absolute_plugin(strategy: object, home: Path) -> None:
    target = strategy.get("plugin") if isinstance(strategy, dict) else None
    if not isinstance(strategy, dict) or not isinstance(target, str) or target.endswith(".py"):
        return  # a file without a class is refused once all of the scenario has been read
    if split := plugin_file(target):
        try:
            strategy["plugin"] = f"{full_path(split[0], home)}:{split[1]}"
        except InputError as error:
            raise ScenarioError(f"strategy.plugin: {error}") from None


def _given_class(value: dict[str, Any]) -> type[Any] | None:
    """The class at ``strategy.plugin`` of a mapping, which its name then stands for."""
    strategy = value.get("strategy")
    if not isinstance(strategy, dict) or not isinstance(given := strategy.get("plugin"), type):
        return None
    strategy["plugin"] = f"{given.__module__}:{given.__qualname__}"
    return given


def _absolute_at(value: Any, keys: Keys, home: Path) -> None:
    *above, last = keys
    for key in above:
        value = value.get(key) if isinstance(value, dict) else None
    reference = value.get(last) if isinstance(value, dict) else None
    if not isinstance(reference, str):
        return
    reference, mode = split_mode(reference) if last == "profile" else (reference, None)
    # Models are often called 'owner/name': a slash alone does not make a path of one.
    if last in {"path", "up_file", "gemms"} or (reference.endswith(".json") if last == "model" else is_path(reference)):
        try:
            value[last] = str(full_path(reference, home)) + ("" if mode is None else f"@{mode}")
        except InputError as error:
            raise ScenarioError(f"{'.'.join(map(str, keys))}: {error}") from None


def _trace_reference(link: TraceRates) -> str:
    if not isinstance(link.trace, TraceFile):
        return link.trace
    return link.trace.path if link.trace.shipped_form else link.trace.model_dump_json()


def _place(problem: str) -> tuple[int, int]:
    """Where in its file a problem is."""
    found = re.search(r":(\d+):(\d+): ", problem)
    return (int(found[1]), int(found[2])) if found else (0, 0)


class _Reading:
    """Reads what a scenario names, gathering faults from all of it."""

    def __init__(self, document: Document, inputs: dict[str, str]) -> None:
        self.document = document
        self.inputs = inputs
        self.problems: list[str] = []
        self.profiles: dict[str, ProfileRecord] = {}
        self.traces: dict[tuple[str, str], LinkTrace] = {}
        self.remarks: list[str] = []

    def finish(self, scenario: Scenario, given: type[Any] | None = None) -> LoadedScenario:
        model = self.workload(scenario.workload)
        for index, entry in enumerate(scenario.fleet):
            self.read_profile(("fleet", index, "profile"), entry.profile)
            if isinstance(entry.link, TraceRates):
                self.read_trace(("fleet", index, "link", "trace"), entry.link)
        for index, cells in enumerate(scenario.cells):
            if isinstance(cells.link, TraceRates):
                self.read_trace(("cells", index, "link", "trace"), cells.link)
        self.read_profile(("coordinator", "profile"), scenario.coordinator.profile)
        availability = self.attempt(("availability",), lambda: self.availability(scenario))
        if given is None:
            self.attempt(("strategy", "plugin"), lambda: self.plugin(scenario.strategy.plugin))
        if self.problems or model is None or availability is None:
            raise ScenarioError(self.problems)
        return LoadedScenario(
            scenario=scenario,
            profiles=self.profiles,
            traces=self.traces,
            model=model,
            availability=availability,
            inputs=dict(sorted(self.inputs.items())),
            document=self.document,
            remarks=tuple(self.remarks),
            strategy_class=given,
        )

    def workload(self, workload: Workload | TracedWorkload) -> Model | TracedGemms | None:
        if isinstance(workload, TracedWorkload):
            return self.attempt(("workload", "gemms"), lambda: self.gemms(Path(workload.gemms)))
        return self.attempt(("workload", "model"), lambda: self.model(workload.model))

    def names(self, raw: Mapping[str, Any]) -> list[str]:
        """Faults of the names in a scenario whose form is wrong too, so that all are told at once."""

        def part(holder: object, key: str) -> Any:
            return holder.get(key) if isinstance(holder, dict) else None

        model = part(raw.get("workload"), "model")
        if isinstance(model, str) and model:
            self.attempt(("workload", "model"), lambda: self.model(model))
        for section in ("fleet", "cells"):
            entries = raw.get(section)
            for index, entry in enumerate(entries if isinstance(entries, list) else []):
                if section == "fleet" and isinstance(profile := part(entry, "profile"), str):
                    self.read_profile((section, index, "profile"), profile)
                trace = part(part(entry, "link"), "trace")
                if isinstance(trace, str) and trace:
                    self.attempt((section, index, "link", "trace"), partial(find_file, "network_traces", trace))
        if isinstance(profile := part(raw.get("coordinator"), "profile"), str):
            self.read_profile(("coordinator", "profile"), profile)
        return self.problems

    def attempt(self, path: Keys, read: Callable[[], T]) -> T | None:
        """The value, or None with the fault noted under the scenario's own position."""
        try:
            return read()
        except InputError as error:
            place = self.document.where(path, value=True)
            self.problems += [fault_line(place, path, line) for line in str(error).splitlines()]
            return None

    def text(self, path: Path) -> str:
        return read_text(self.seen(path))

    def seen(self, path: Path) -> Path:
        """The same path, once its file's digest is noted."""
        self.inputs[str(path)] = _digest(path)
        return path

    def read_profile(self, path: Keys, reference: str | InlineProfile) -> None:
        if isinstance(reference, str) and reference not in self.profiles:
            found = self.attempt(path, lambda: self.profile(reference))
            if found is not None:
                self.profiles[reference] = found

    def profile(self, reference: str) -> ProfileRecord:
        path, mode = find_profile(reference)
        record = parse_profile(self.text(path), str(path))
        return record if mode is None else record.in_mode(mode)

    def read_trace(self, path: Keys, link: TraceRates) -> None:
        key = _trace_reference(link), link.past_end
        if key not in self.traces:
            found = self.attempt(path, lambda: self.trace(link))
            if found is not None:
                self.traces[key] = found

    def trace(self, link: TraceRates) -> LinkTrace:
        if isinstance(link.trace, TraceFile) and not link.trace.shipped_form:
            for file in (link.trace.path, link.trace.up_file):
                if file is not None:
                    self.seen(Path(file))
            trace, said = _imported(link.trace, PastEnd[link.past_end.upper()])
            self.remarks += said
            return trace
        path = find_file("network_traces", _trace_reference(link))
        return parse_trace(self.text(path), path.stem, link.past_end, str(path))

    def plugin(self, target: str | None) -> None:
        """Note the file of a plug-in; its code is not run here."""
        split = None if target is None else plugin_file(target)
        if split is not None:
            self.seen(Path(split[0]))

    def model(self, reference: str) -> Model:
        if not reference.endswith(".json"):
            return _named_model(reference)
        path = Path(reference)
        if not path.is_file():
            raise WorkloadError(f"no such file: {path}")
        return model_from_config(_json(self.text(path), str(path)), path.parent.name, str(path))

    def gemms(self, path: Path) -> TracedGemms:
        if not path.is_file():
            raise WorkloadError(f"no such file: {path}")
        return traced_from_json(_json(self.text(path), str(path)), str(path))

    def availability(self, scenario: Scenario) -> Availability:
        match scenario.availability:
            case SessionFile() as file:
                here, remarks = file_availability(file, self.text(Path(file.path)), scenario.size, scenario.seed)
            case Sessions() as sessions:
                return availability_of(listed_stays(sessions), scenario.size)
            case AlwaysOn():
                return Availability.always(scenario.size)
            case model:
                until = scenario.run.max_time
                here, remarks = availability_from(model, scenario.size, scenario.seed, until, self.seen)
        self.remarks += remarks
        return here


def _json(text: str, origin: str) -> dict[str, Any]:
    """The JSON object in ``text``; unlike `json.loads`, a duplicate key and NaN are errors."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in items]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise WorkloadError(f"{origin}: duplicate key '{twice[0]}'")
        return dict(items)

    def constant(word: str) -> float:
        raise WorkloadError(f"{origin}: {word} is not JSON")

    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise WorkloadError(f"{origin}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from None
    except (RecursionError, ValueError) as error:  # nested without end, or a number of thousands of digits
        raise WorkloadError(f"{origin}: cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise WorkloadError(f"{origin}: a JSON object is needed")
    return value


def _imported(file: TraceFile, past_end: PastEnd) -> tuple[LinkTrace, list[str]]:
    """The one trace that a file of a foreign format holds, and what was dropped, repaired or decided on the way."""
    from morphling.scenario.importers import import_trace  # noqa: PLC0415 - most scenarios name no such file

    imported = import_trace(file.format, [file.path], strict=file.strict, **file.options())
    traces = imported.traces
    if len(traces) != 1:
        names = ", ".join(t.name for t in traces[:5])
        raise TraceError(
            f"{file.path}: one trace is needed, the file gives {len(traces)}"
            + (f"; pick one: {names}" if names else "")
        )
    told = ("dropped", "repaired", "note")
    said = [x for x in imported.report.lines() if x.startswith(told) and not x.endswith(": nothing")]
    return replace(traces[0], past_end=past_end), [f"trace {Path(file.path).name}: {x}" for x in said]


def _digest(path: Path) -> str:
    try:
        return file_digest(path)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None


def _named_model(name: str) -> Model:
    try:
        return model_named(name)
    except WorkloadError as error:  # the field is named by the line that this becomes a part of
        raise WorkloadError(str(error).removeprefix("model: ")) from None
