"""Strategies to compare, as people write them: ``cleave:model=paper``, ``mine.py:Mine``, a mapping, a class."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from morphling.errors import InputError, ScenarioError
from morphling.scenario import StrategyChoice

__all__ = ["Entry", "StrategyEntry", "read_entries", "split_outside"]

StrategyEntry: TypeAlias = "str | Mapping[str, Any] | type[Any] | tuple[str, str | Mapping[str, Any] | type[Any]]"
"""One strategy, or (label, strategy)."""

_OPEN, _CLOSE = "[{(", "]})"


@dataclass(frozen=True)
class Entry:
    """One strategy of a comparison.

    label : what tables and figures call it
    named : ``{"name": …}`` or ``{"plugin": …}`` (an absolute file, ``package.module:Class``, or a class)
    keys : its configuration as ``key=value``, the values written as for ``--set``
    values : its configuration as values
    """

    label: str
    named: Mapping[str, Any]
    keys: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)

    def is_own(self, own: StrategyChoice, own_class: type[Any] | None) -> bool:
        """Whether this is the strategy that the scenario names itself."""
        plugin = self.named.get("plugin")
        if isinstance(plugin, type):
            return plugin is own_class
        return self.named.get("name") == own.name and plugin == (None if own_class else own.plugin)

    def overrides(self, own: StrategyChoice, own_class: type[Any] | None) -> list[str | tuple[str, Any]]:
        """What makes a scenario whose strategy is ``own`` one of this strategy; own keys stay where it is the same."""
        written: list[str | tuple[str, Any]] = [f"strategy.{key}" for key in self.keys]
        if not self.is_own(own, own_class):
            return [("strategy", {**self.named, **self.values}), *written]
        return [*((f"strategy.{key}", value) for key, value in self.values.items()), *written]

    def fault(self, error: ScenarioError) -> ScenarioError:
        """The same faults, under the entry where it was it that brought them in."""
        keys = [re.escape(re.split(r"[.=]", key)[0].strip()) for key in (*self.keys, *self.values)]
        mine = re.compile(rf"--set strategy(?:\.((?:{'|'.join(keys)})\b[\w.]*))?: " if keys else r"--set strategy(): ")

        def told(found: re.Match[str]) -> str:
            return f"--strategies {self.label}: " + (f"{found[1]}: " if found[1] else "")

        return ScenarioError([mine.sub(told, line, count=1) for line in error.problems])


def read_entries(strategies: str | Iterable[StrategyEntry], installed: Sequence[str]) -> tuple[Entry, ...]:
    """The entries, in order; text holds them with commas between.

    ``installed`` : names of the strategies there are, for messages.
    ``InputError`` for none at all, for one that cannot be read, and for two of one label.
    """
    listed = split_outside(strategies, ",") if isinstance(strategies, str) else list(strategies)
    entries = tuple(_entry(one, installed) for one in listed)
    if not entries:
        raise InputError("strategies: at least one is needed, such as cleave")
    labels = [entry.label for entry in entries]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise InputError(f"strategies: {twice[0]!r} is there twice; give each a label or a configuration of its own")
    return entries


def split_outside(text: str, mark: str) -> list[str]:
    """``text`` cut at each ``mark`` that is outside quotes and brackets: ``a:x=[1, 2],b`` → ``a:x=[1, 2]``, ``b``."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in _OPEN) - (letter in _CLOSE)
        if letter == mark and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    if quote or depth:
        raise InputError(f"strategies: {text!r}: a {'quote' if quote else 'bracket'} is not closed, or one too many is")
    return [part.strip() for part in parts]


def _entry(given: Any, installed: Sequence[str]) -> Entry:
    if isinstance(given, tuple):
        if len(given) != 2 or not isinstance(given[0], str) or isinstance(given[1], tuple):
            raise InputError(f"strategies: {given!r}: a pair is (label, strategy)")
        entry = _entry(given[1], installed)
        return Entry(_labelled(given[0]), entry.named, entry.keys, entry.values)
    if isinstance(given, str):
        return _written(given, installed)
    if isinstance(given, type):
        return Entry(given.__name__, {"plugin": given})
    if isinstance(given, Mapping):
        return _mapped(given)
    raise InputError(f"strategies: {given!r}: write a name, a mapping with name or plugin, or give a class")


def _labelled(label: str) -> str:
    if not label.strip() or not label.isprintable():
        raise InputError(f"strategies: {label!r} is no label")
    return label.strip()


def _mapped(given: Mapping[str, Any]) -> Entry:
    if ("name" in given) == ("plugin" in given):
        raise InputError(f"strategies: {dict(given)!r}: give either name or plugin")
    if dotted := [key for key in given if not isinstance(key, str) or "." in key]:
        raise InputError(f"strategies: {dict(given)!r}: {dotted[0]!r} is no key")
    values = {key: value for key, value in given.items() if key not in ("name", "plugin")}
    target = given.get("plugin")
    named: Mapping[str, Any]
    if isinstance(target, type):
        head, named = target.__name__, {"plugin": target}
    elif target is not None:
        head, named = _plugin(str(target))
    else:
        head, named = str(given["name"]), {"name": str(given["name"])}
    return Entry(":".join([head, *(f"{k}={_shown(v)}" for k, v in values.items())]), named, (), values)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _written(text: str, installed: Sequence[str]) -> Entry:
    head, *rest = split_outside(text, ":")
    named: Mapping[str, Any] = {"name": head}
    if rest and re.fullmatch(r"[A-Za-z_]\w*", rest[0]) and _is_code(head, installed):
        head, named = _plugin(f"{head}:{rest.pop(0)}")
    if not head:
        raise InputError(f"strategies: {text!r}: a name is missing; write NAME or NAME:key=value, with commas between")
    if head.endswith(".py"):
        raise InputError(f"strategies: {text!r} names no class; write it as {head}:Class")
    for part in rest:
        key, equals, _ = part.partition("=")
        if not equals or not re.fullmatch(r"[\w.-]+", key.strip()):
            raise InputError(f"strategies: {text!r}: {part!r} is no key=value; write NAME:key=value:key=value")
        if key.strip() in ("name", "plugin"):
            raise InputError(f"strategies: {text!r}: the name comes first, {key.strip()}= is not needed")
    return Entry(":".join([head, *rest]), named, tuple(rest))


def _is_code(head: str, installed: Sequence[str]) -> bool:
    """Whether ``head:Class`` means a class in a file or module, rather than a strategy and a key without a value."""
    if head.endswith(".py") or "." in head:
        return True
    return head.isidentifier() and head not in installed and importlib.util.find_spec(head) is not None


def _plugin(target: str) -> tuple[str, Mapping[str, Any]]:
    """The label and what names the class; a file is relative to where the caller stands."""
    file, _, name = target.rpartition(":")
    if not file.endswith(".py"):
        return target, {"plugin": target}
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise InputError(f"strategies: {target!r}: no such file: {path}")
    return f"{path.name}:{name}", {"plugin": f"{path}:{name}"}
