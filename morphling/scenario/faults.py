"""From pydantic's findings to lines that name file, line, column, field and the nearest right value."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError

from morphling.scenario.data import suggestion
from morphling.scenario.yaml12 import Path, dotted

__all__ = ["Where", "fault_line", "problems_of"]


class Where(Protocol):
    """Anything that knows where a path was written."""

    def __call__(self, keys: Path, /, *, value: bool = False) -> str:
        """``file:line:col`` of the key at ``keys``, of its value, or of the nearest parent that was written."""


def problems_of(
    error: ValidationError, model: type[BaseModel], raw: object, where: Where, *, under: Path = ()
) -> list[str]:
    """One line a fault, in the order of the file.

    ``raw`` is what ``model`` was given and ``where`` knows its paths; ``under`` is put before the paths that are shown.
    """
    faults = [fault for fault in error.errors(include_url=False) if not _echo(fault, raw)]
    plain = [fault for fault in faults if not _one_of_several(fault, raw)]
    found = [_problem(fault, model, raw, where) for fault in plain]
    found += _together([_problem(fault, model, raw, where) for fault in faults if fault not in plain])
    return [fault_line(place, (*under, *path), reason) for place, path, reason in sorted(found, key=_position)]


def fault_line(place: str, path: Path, reason: str) -> str:
    """``file:line:col: fleet.1.count: reason``; the field is not repeated after an override that names it."""
    if not path or place == f"--set {dotted(path)}":
        return f"{place}: {reason}"
    return f"{place}: {dotted(path)}: {reason}"


def _problem(fault: Any, model: type[BaseModel], raw: object, where: Where) -> tuple[str, Path, str]:
    path = _path(fault["loc"], raw)
    if fault["type"] == "missing":
        parent = path[:-1]
        if isinstance(path[-1], int):
            return where(parent, value=True), parent, "two values are needed: the lowest and the highest"
        reason = f"missing key '{path[-1]}'"
        if path[-1] in {"downlink", "uplink"} and "<constant>" in fault["loc"]:
            reason += "; a link has a downlink and an uplink, or a trace"
        return where(parent, value=True), parent, reason
    if fault["type"] == "extra_forbidden":
        return where(path), path, f"unknown key, {_known(path, fault, model, raw)}"
    reason = _reason(fault)
    if not path:  # about several fields: it begins with the one to look at
        path, reason = _named(reason, raw)
    return where(path, value=True), path, reason


def _named(reason: str, raw: object) -> tuple[Path, str]:
    """The field that a reason begins with (``fleet.0.cell: …``), if it was written, and the reason without it."""
    name, colon, rest = reason.partition(": ")
    path: Path = tuple(int(part) if part.isdecimal() else part for part in name.split("."))
    return (path, rest) if colon and _at(raw, path) is not None else ((), reason)


def _echo(fault: Any, raw: object) -> bool:
    """Whether a list is called too short only because entries of it have faults of their own."""
    written = _at(raw, _path(fault["loc"], raw))
    return fault["type"] == "too_short" and isinstance(written, list) and len(written) >= fault["ctx"]["min_length"]


def _position(found: tuple[str, Path, str]) -> tuple[int, int]:
    match = re.search(r":(\d+):(\d+)$", found[0])
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _one_of_several(fault: Any, raw: object) -> bool:
    """Whether it is about one of the types that a value may have; the others have faults of their own."""
    return len(_path(fault["loc"], raw)) < sum(not _mark(part) for part in fault["loc"])


def _together(found: list[tuple[str, Path, str]]) -> list[tuple[str, Path, str]]:
    """In one line what a value could have been instead; nothing of it where the fault is known to lie inside it."""
    reasons: dict[tuple[str, Path], list[str]] = {}
    for place, path, reason in found:
        reasons.setdefault((place, path), []).append(reason)
    outer = {path[:n] for _, path in reasons for n in range(len(path))}
    return [(place, path, _either(said)) for (place, path), said in reasons.items() if path not in outer]


def _either(reasons: list[str]) -> str:
    return ", or ".join([*(reason.partition(", found ")[0] for reason in reasons[:-1]), reasons[-1]])


def _path(loc: Iterable[str | int], raw: object) -> Path:
    """Without the tags of unions and the marks of keys, which no file contains."""
    path: list[str | int] = []
    for part in loc:
        if _mark(part):
            continue
        if isinstance(part, str) and path and not isinstance(raw, dict | _Unwritten):
            continue  # a value that is no mapping has no keys: the name of a type that was tried
        path.append(part)
        try:
            raw = raw[part]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            raw = _Unwritten()
    return tuple(path)


def _mark(part: str | int) -> bool:
    return isinstance(part, str) and (part == "[key]" or part.startswith("<"))


class _Unwritten:
    """What the file does not hold."""


def _fields(loc: Iterable[str | int], model: type[BaseModel]) -> list[str]:
    """The keys of the model that a location (with its union tags) stands in, for did-you-mean."""
    current: list[type[BaseModel]] = [model]
    for part in loc:
        if isinstance(part, str) and part.startswith("<"):
            continue
        if isinstance(part, int):
            continue
        holders = [c for c in current if part in c.model_fields]
        if holders:  # else it is a key of a mapping, such as a dtype
            current = [m for c in holders for m in _models_in(c.model_fields[part].annotation)]
    return sorted({field.alias or name for m in current for name, field in m.model_fields.items()})


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    found: list[type[BaseModel]] = []
    for argument in getattr(annotation, "__args__", ()):
        found += _models_in(argument)
    return found


def _known(path: Path, fault: Any, model: type[BaseModel], raw: object) -> str:
    if path[-1] in {"downlink", "uplink"} and "<trace>" in fault["loc"]:
        return "a link has either a trace, or a downlink and an uplink"
    siblings = _at(raw, path[:-1])
    taken = set(siblings) if isinstance(siblings, dict) else set()
    names = _fields(fault["loc"][:-1], model)
    near = suggestion(str(path[-1]), [n for n in names if n not in taken], all_known=False)
    return near or f"known: {', '.join(names)}"


def _at(raw: object, path: Path) -> object:
    for part in path:
        try:
            raw = raw[part]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return None
    return raw


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}'" if isinstance(value, str) else str(value)


_NEEDED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "list_type": "a list",
}
_LIMITS = {
    "greater_than_equal": "at least",
    "greater_than": "above",
    "less_than": "below",
    "less_than_equal": "at most",
}


def _reason(fault: Any) -> str:
    kind, found, context = fault["type"], _shown(fault["input"]), fault.get("ctx", {})
    if kind == "quantity":
        return str(context["reason"])
    if kind in _NEEDED:
        return f"{_NEEDED[kind]} is needed, found {found}"
    if kind in _LIMITS:
        return f"must be {_LIMITS[kind]} {next(iter(context.values()))}, found {found}"
    if kind == "literal_error":
        options = [o.strip().strip("'") for o in str(context["expected"]).replace(" or ", ", ").split(", ")]
        hint = suggestion(str(fault["input"]), options, all_known=False)
        return f"must be one of {', '.join(options)}, found {found}{', ' + hint if hint else ''}"
    if kind == "too_long":
        return f"at most {context['max_length']} values are needed, found {context['actual_length']}"
    if kind in {"too_short", "string_too_short"} and context.get("min_length") == 1:
        return "must not be empty"
    if kind == "string_pattern_mismatch":
        return f"may hold letters, digits, '.', '_' and '-', and starts with a letter or digit; found {found}"
    return f"{fault['msg'][0].lower()}{fault['msg'][1:]}, found {found}"
