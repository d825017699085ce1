"""Overrides: ``fleet.1.count=8`` replaces one value of a document before it is checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np

from morphling.errors import ScenarioError
from morphling.scenario.yaml12 import Document, Path, dotted, read_yaml

__all__ = ["apply_overrides"]


def apply_overrides(document: Document, overrides: Iterable[str | tuple[str, Any]] | Mapping[str, Any]) -> Document:
    """A copy of ``document`` with the overrides in place, in order.

    Each is ``path=value``, the value a YAML 1.2 scalar or flow collection; or a pair (path, value); or an entry of a
    mapping from paths to values.
    Missing mappings on the way are made (the schema judges their keys); list entries must exist.

    Raises
    ------
    ScenarioError
        All overrides that do not fit, one line each, as ``--set path: reason``.
    """
    value = _copied(document.value)
    places, values = dict(document.places), dict(document.values)
    problems: list[str] = []
    for text, new in _pairs(overrides, problems):
        path = _parsed(text)
        reason = _replace(value, path, new)
        if reason is not None:
            problems.append(f"--set {text}: {reason}")
            continue
        for marks in (places, values):
            for old in [p for p in marks if p[: len(path)] == path]:
                del marks[old]
            marks[path] = f"--set {text}"
    if problems:
        raise ScenarioError(problems)
    return Document(value, document.origin, places, values)


def _pairs(
    overrides: Iterable[str | tuple[str, Any]] | Mapping[str, Any], problems: list[str]
) -> list[tuple[str, Any]]:
    if isinstance(overrides, Mapping):
        return [(str(path), _copied(new)) for path, new in overrides.items()]
    pairs = []
    for override in [overrides] if isinstance(overrides, str) else overrides:
        if isinstance(override, tuple):
            pairs.append((str(override[0]), _copied(override[1])))
            continue
        path, equals, text = override.partition("=")
        path = path.strip()
        if not equals or not path or "" in path.split("."):
            problems.append(f"--set {override}: write key=value, with dots between keys, such as fleet.0.count=8")
            continue
        try:
            pairs.append((path, read_yaml(text, f"--set {path}").value))
        except ScenarioError as error:
            problems.extend(error.problems)
    return pairs


def _parsed(text: str) -> Path:
    return tuple(int(part) if part.isascii() and part.isdigit() else part for part in text.split("."))


def _replace(root: Any, path: Path, new: Any) -> str | None:
    """Put ``new`` at ``path``; the reason if there is no such place."""
    here = root
    for depth, part in enumerate(path):
        last = depth == len(path) - 1
        above = dotted(path[:depth]) or "the scenario"
        if isinstance(here, list):
            if not isinstance(part, int) or part >= len(here):
                have = f"entries 0 to {len(here) - 1}" if here else "no entries"
                return f"no entry '{part}': {above} has {have}"
            if last:
                here[part] = new
            here = here[part]
        elif isinstance(here, dict):
            key = str(part)
            if last:
                here[key] = new
            elif here.get(key) is None:
                here[key] = {}
            here = here[key]
        else:
            return f"{above} is {here!r}, which has no '{part}' inside"
    return None


def _copied(value: Any) -> Any:
    """Plain dicts and lists all the way down, so that nothing the caller holds is changed."""
    if isinstance(value, Mapping):
        return {str(key): _copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(item) for item in value]
    if isinstance(value, np.generic):  # values of a sweep often come out of an array
        return value.item()
    return str(value) if isinstance(value, PurePath) else value
