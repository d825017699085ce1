"""YAML 1.2 (core schema) with the position of every key and value.

PyYAML reads YAML 1.1, in which ``5e9`` is text, ``no`` is false, ``010`` is eight and ``1:30`` is ninety.  Here its
parser is kept and its guesses are not: plain scalars follow the core schema of YAML 1.2.2 §10.3.2.  Merge keys (``<<``)
still work.
A duplicate key, a key that is not text and an unknown tag are errors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import yaml

from morphling.errors import ScenarioError

__all__ = ["Document", "Path", "dotted", "dump", "read_yaml"]

Path: TypeAlias = tuple[str | int, ...]
"""Keys and list indices from the top of a document."""

_TAG = "tag:yaml.org,2002:"
_PATTERNS: Final = (
    ("null", re.compile(r"null|Null|NULL|~|"), ["n", "N", "~", ""]),
    ("bool", re.compile(r"true|True|TRUE|false|False|FALSE"), list("tTfF")),
    ("int", re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"), list("-+0123456789")),
    (
        "float",
        re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"),
        list("-+.0123456789"),
    ),
)
_MOST_ALIASED = 100_000
"""An alias may repeat at most this many values in all: nine lines of YAML can otherwise expand to gigabytes."""


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    table: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for kind, pattern, first in _PATTERNS:
        whole = re.compile(rf"^(?:{pattern.pattern})$")
        for letter in first:
            table.setdefault(letter, []).append((_TAG + kind, whole))
    table["<"] = [(f"{_TAG}merge", re.compile("^<<$"))]
    return table


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # the compiled one is ten times as fast
    """PyYAML's parser and composer, resolving by the core schema."""


class _Dumper(yaml.SafeDumper):
    """Quotes exactly what the core schema would read as something else than text."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - a resolved file is easier to read without anchors
        return True


_Loader.yaml_implicit_resolvers = _resolvers()
_Dumper.yaml_implicit_resolvers = _resolvers()


@dataclass(frozen=True)
class Document:
    """A YAML document as plain values.

    ``places`` holds ``file:line:col`` of each key and each list item by its path (lines and columns from 1), ``values``
    that of what stands there; ``origin`` is the file's name for messages.
    """

    value: Any
    origin: str
    places: dict[Path, str] = field(default_factory=dict)
    values: dict[Path, str] = field(default_factory=dict)

    def where(self, path: Path, *, value: bool = False) -> str:
        """The position of the key at ``path`` (of its value, if asked), or of the nearest parent that was written."""
        if value and path in self.values:
            return self.values[path]
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, self.origin)


def dotted(path: Path) -> str:
    """``fleet.1.count``."""
    return ".".join(str(part) for part in path)


def read_yaml(text: str, origin: str) -> Document:
    """Read one document.

    Raises
    ------
    ScenarioError
        Bad syntax, more than one document, duplicate keys (both places named), keys that are not text, unknown tags.
    """
    builder = _Builder(origin)
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
        finally:
            loader.dispose()
        value = None if root is None else builder.value(root, ())
    except yaml.YAMLError as error:
        raise ScenarioError(_syntax(error, origin)) from None
    except RecursionError:
        raise ScenarioError(f"{origin}: nested too deeply") from None
    if builder.problems:
        raise ScenarioError(builder.problems)
    return Document(value, origin, builder.places, builder.values)


def dump(value: Any) -> str:
    """YAML text that `read_yaml` reads back to the same value; keys stay in order."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return text


def _syntax(error: Exception, origin: str) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        context = f" ({error.context})" if error.context else ""
        return f"{origin}:{mark.line + 1}:{mark.column + 1}: not YAML: {error.problem}{context}"
    return f"{origin}: not YAML: {error}"


class _Builder:
    """From PyYAML's nodes to values, noting places on the way."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.places: dict[Path, str] = {(): f"{origin}:1:1"}
        self.values: dict[Path, str] = {}
        self._faults: list[tuple[int, int, str]] = []
        self._open: set[int] = set()
        self._seen: set[int] = set()
        self._aliased = 0

    def at(self, node: yaml.Node) -> str:
        return f"{self.origin}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"

    @property
    def problems(self) -> list[str]:
        """One line a fault, in the order of the file."""
        return [f"{self.origin}:{line + 1}:{column + 1}: {reason}" for line, column, reason in sorted(self._faults)]

    def fault(self, node: yaml.Node, reason: str) -> None:
        self._faults.append((node.start_mark.line, node.start_mark.column, reason))

    def value(self, node: yaml.Node, path: Path) -> Any:
        self.values[path] = self.at(node)
        if id(node) in self._open:
            self.fault(node, "an anchor that contains itself")
            return None
        self._aliased += id(node) in self._seen
        if self._aliased > _MOST_ALIASED:
            raise ScenarioError(f"{self.origin}: aliases repeat more than {_MOST_ALIASED} values")
        self._seen.add(id(node))
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return self._sequence(node, path)
            return self._scalar(node)
        finally:
            self._open.discard(id(node))

    def _sequence(self, node: yaml.SequenceNode, path: Path) -> list[Any]:
        self._known_tag(node, "seq")
        items = []
        for index, item in enumerate(node.value):
            self.places[*path, index] = self.at(item)
            items.append(self.value(item, (*path, index)))
        return items

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        self._known_tag(node, "map")
        out: dict[str, Any] = {}
        for key, value in self._pairs(node, own=True):
            self.places[*path, key.value] = self.at(key)
            out[key.value] = self.value(value, (*path, key.value))
        return out

    def _pairs(self, node: yaml.MappingNode, *, own: bool) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        """Keys with values in order; merged ones come last, and only those that the mapping lacks."""
        first: dict[str, yaml.Node] = {}
        written: list[tuple[yaml.Node, yaml.Node]] = []
        merged: list[yaml.MappingNode] = []
        for key, value in node.value:
            if key.tag == f"{_TAG}merge":
                merged += self._bases(value)
            elif not isinstance(key, yaml.ScalarNode) or key.tag != f"{_TAG}str":
                shown = f" '{key.value}'" if isinstance(key, yaml.ScalarNode) else ""
                self.fault(key, f"the key{shown} is not text; put it in quotes")
            elif key.value in first:
                if own:
                    earlier = self.at(first[key.value])
                    self.fault(key, f"duplicate key '{key.value}', first at {earlier}")
            else:
                first[key.value] = key
                written.append((key, value))
        yield from written
        for base in merged:
            if id(base) in self._open:
                self.fault(base, "an anchor that contains itself")
                continue
            for key, value in self._pairs(base, own=False):
                if key.value not in first:
                    first[key.value] = key
                    yield key, value

    def _bases(self, node: yaml.Node) -> list[yaml.MappingNode]:
        bases = node.value if isinstance(node, yaml.SequenceNode) else [node]
        wrong = [b for b in bases if not isinstance(b, yaml.MappingNode)]
        for base in wrong:
            self.fault(base, "only mappings can be merged with '<<'")
        return [b for b in bases if isinstance(b, yaml.MappingNode)]

    def _scalar(self, node: yaml.Node) -> Any:
        text = node.value
        kind = node.tag.removeprefix(_TAG)
        if kind == "str":
            return text
        pattern = next((p for k, p, _ in _PATTERNS if k == kind), None)
        if pattern is None:
            self._known_tag(node, "str")
            return text
        if not pattern.fullmatch(text) and not (kind == "float" and re.fullmatch(r"[-+]?[0-9]+", text)):
            self.fault(node, f"'{text}' is not a YAML {kind}")
            return None
        try:
            value = _SCALARS[kind](text)
        except ValueError:  # Python refuses to read integers of thousands of digits
            value = math.inf
        if isinstance(value, float) and math.isinf(value) and "inf" not in text.lower():
            self.fault(node, f"'{text[:40]}' is out of range")
        return value

    def _known_tag(self, node: yaml.Node, kind: str) -> None:
        if node.tag != _TAG + kind:
            self.fault(node, f"unknown tag '{node.tag.replace(_TAG, '!!')}'")


def _integer(text: str) -> int:
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    return int(text[2:] if base != 10 else text, base)


def _float(text: str) -> float:
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


_SCALARS: Final[dict[str, Any]] = {
    "null": lambda _: None,
    "bool": lambda text: text.lower() == "true",
    "int": _integer,
    "float": _float,
}
