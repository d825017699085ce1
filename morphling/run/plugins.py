"""Strategies and executors by name: the built-ins and anybody's, through the same entry points."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from morphling.errors import InputError

__all__ = ["Plugin", "find_plugin", "list_plugins"]

Kind = Literal["strategies", "executors"]


@dataclass(frozen=True)
class Plugin:
    """One entry point: its name, where it comes from, and the class or why it cannot be loaded."""

    name: str
    target: str
    distribution: str
    version: str
    loaded: Any
    cause: str | None


def _points(kind: Kind) -> list[EntryPoint]:
    return sorted(entry_points(group=f"morphling.{kind}"), key=lambda e: e.name)


def _load(point: EntryPoint) -> Plugin:
    dist = point.dist
    loaded, cause = None, None
    try:
        loaded = point.load()
    except Exception as error:  # noqa: BLE001 - whatever a stranger's module raises becomes a message that names it
        cause = f"{type(error).__name__}: {error}"
    name, version = (dist.name, dist.version) if dist is not None else ("unknown", "unknown")
    return Plugin(point.name, point.value, name, version, loaded, cause)


def list_plugins(kind: Kind) -> list[Plugin]:
    """All installed ``strategies`` or ``executors``, by name; broken ones with their cause."""
    return [_load(point) for point in _points(kind)]


def find_plugin(kind: Kind, name: str | None, target: str | None = None) -> Any:
    """The class called ``name``, or the one at ``target`` (``package.module:Class``).

    ``InputError`` if there is none (with the nearest name), or if it cannot be loaded (with the cause).
    """
    if target is not None:
        module, _, attribute = target.partition(":")
        if not attribute:
            raise InputError(f"plugin {target!r}: write it as package.module:Class")
        try:
            return getattr(importlib.import_module(module), attribute)
        except Exception as error:  # importing runs a stranger's code, which may raise anything
            raise InputError(f"plugin {target!r} cannot be loaded: {type(error).__name__}: {error}") from error
    points = {point.name: point for point in _points(kind)}
    if name not in points:
        near = get_close_matches(str(name), points, 1)
        hint = f", did you mean {near[0]!r}?" if near else ""
        known = ", ".join(points) or "none (is morphling installed? pip install .)"
        raise InputError(f"unknown name {name!r} among {kind}{hint} (installed: {known})")
    plugin = _load(points[name])
    if plugin.cause is not None:
        raise InputError(
            f"{name!r} of {plugin.distribution} {plugin.version} ({plugin.target}) is broken: {plugin.cause}"
        )
    return plugin.loaded
