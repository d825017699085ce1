"""Strategies and executors by name: the built-ins and anybody's, through the same entry points."""

from __future__ import annotations

import importlib
import sys
import time
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal

from morphling.errors import InputError
from morphling.interfaces.executor import Executor
from morphling.interfaces.strategy import Strategy
from morphling.scenario import ConfigField, config_fields

__all__ = ["Plugin", "find_plugin", "list_plugins", "unfit"]

Kind = Literal["strategies", "executors"]

_BASES: dict[Kind, type] = {"strategies": Strategy, "executors": Executor}


@dataclass(frozen=True)
class Plugin:
    """One entry point: its name, where it comes from, and the class or why it cannot be used.

    ``about`` : first line of the class's docstring
    ``parameters`` : fields of its ``Config``
    ``cause`` : None if it can be used
    """

    name: str
    target: str
    distribution: str
    version: str
    loaded: Any
    cause: str | None
    about: str = ""
    parameters: tuple[ConfigField, ...] = ()


def _points(kind: Kind) -> list[EntryPoint]:
    """All entry points, by name, kept until something is installed: to look for them takes a third of a tiny run."""
    seen = _installed()
    if seen is not None and kind in _KEPT and _KEPT[kind][0] == seen:
        return list(_KEPT[kind][1])
    found = sorted(entry_points(group=f"morphling.{kind}"), key=lambda e: (e.name, _origin(e)))
    if seen is not None:
        _KEPT[kind] = seen, found
    return list(found)


_KEPT: dict[Kind, tuple[tuple[Any, ...], list[EntryPoint]]] = {}
_SETTLED_NS = 2_000_000_000
"""A folder that changed less than this ago may change again within the same tick of its clock."""


def _installed() -> tuple[Any, ...] | None:
    """What changes when a distribution comes or goes: where modules are looked for, and when those folders changed.

    None if one of them has just changed.
    """
    now_ns = time.time_ns()
    out: list[Any] = list(map(id, sys.meta_path))
    for entry in sys.path:
        try:
            status = Path(entry or ".").stat()
        except OSError:
            out.append((entry, None))
            continue
        if now_ns - status.st_mtime_ns < _SETTLED_NS:
            return None
        out.append((entry, status.st_dev, status.st_ino, status.st_mtime_ns))
    return tuple(out)


def _origin(point: EntryPoint) -> tuple[str, str]:
    """Name and version of the distribution that an entry point belongs to."""
    return (point.dist.name, point.dist.version) if point.dist is not None else ("unknown", "unknown")


def _load(kind: Kind, point: EntryPoint) -> Plugin:
    loaded, cause, about = None, None, ""
    parameters: tuple[ConfigField, ...] = ()
    try:
        loaded = point.load()
        cause = unfit(kind, loaded)
        if cause is None:
            about = (loaded.__doc__ or "").strip().partition("\n")[0]
            parameters = config_fields(loaded.Config)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a stranger's module raises is told by its name
        loaded, cause = None, f"{type(error).__name__}: {error}"
    return Plugin(point.name, point.value, *_origin(point), loaded, cause, about, parameters)


def unfit(kind: Kind, found: object) -> str | None:
    """Why ``found`` cannot serve as a strategy or executor, to be said after its name; None if it can."""
    base = _BASES[kind]
    if not (isinstance(found, type) and issubclass(found, base)):
        return f"is not {'an' if base is Executor else 'a'} {base.__name__}"
    config = getattr(found, "Config", None)
    if not isinstance(config, type):
        return "has no Config class"
    try:
        config_fields(config)
    except Exception as error:  # noqa: BLE001 - annotations and defaults are a stranger's code
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        return f"has a Config that cannot be read as a dataclass or pydantic model ({said})"
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        return f"lacks {', '.join(missing)}"
    return None


def list_plugins(kind: Kind) -> list[Plugin]:
    """All installed ``strategies`` or ``executors``, by name; those that cannot be used with their cause."""
    points = _points(kind)
    names = [point.name for point in points]
    found = [_load(kind, point) for point in points]
    twice = "another distribution offers the same name; give plugin: package.module:Class instead"
    return [
        Plugin(p.name, p.target, p.distribution, p.version, None, twice) if names.count(p.name) > 1 else p
        for p in found
    ]


def find_plugin(kind: Kind, name: str | None, target: str | None = None) -> Any:
    """The class called ``name``, or the one at ``target`` (``package.module:Class``).

    ``InputError`` if there is none (with the nearest name), if two distributions offer the name, or if it cannot be
    loaded (with the cause).
    """
    if target is not None:
        return _at(target)
    points = _points(kind)
    mine = [point for point in points if point.name == name]
    if not mine:
        names = [point.name for point in points]
        near = get_close_matches(str(name), names, 1)
        hint = f", did you mean {near[0]!r}?" if near else ""
        known = ", ".join(names) or "none (is morphling installed? pip install .)"
        raise InputError(f"unknown name {name!r} among {kind}{hint} (installed: {known})")
    if len(mine) > 1:
        whose = " and ".join(f"{' '.join(_origin(p))} ({p.value})" for p in mine)
        raise InputError(f"{name!r} is offered by {whose}; give plugin: package.module:Class instead")
    point = mine[0]
    try:
        return point.load()
    except (Exception, SystemExit) as error:
        cause = f"{type(error).__name__}: {error}"
        raise InputError(f"{name!r} of {' '.join(_origin(point))} ({point.value}) is broken: {cause}") from error


def _at(target: str) -> Any:
    module, _, attribute = target.partition(":")
    if not attribute:
        raise InputError(f"plugin {target!r}: write it as package.module:Class, or my_strategy.py:Class for a file")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # importing runs a stranger's code, which may raise anything
        raise InputError(f"plugin {target!r} cannot be loaded: {type(error).__name__}: {error}") from error
