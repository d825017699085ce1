"""What an import is asked and what it gives: options, the report of what was read, dropped and repaired, the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias

from morphling.errors import TraceError
from morphling.fleet import LinkTrace

__all__ = ["Imported", "Options", "Report", "Session", "Tally"]

Session: TypeAlias = tuple[int, int, int]
"""Device, start (ns), end (ns): when a device is there."""

_SHOWN = 5
"""How many places of each kind the report names."""


@dataclass(frozen=True)
class Options:
    """What the caller decides; a format refuses an option that it has no use for.

    ``up`` (a rate such as ``"5 Mbit/s"``), ``up_file`` (a file of the same format that holds the uplink) or
    ``up_ratio`` (uplink as a share of the downlink) give the uplink where the format has none.  ``pick`` keeps the
    traces whose name fits this pattern (``*`` and ``?``).  ``missing`` and ``gaps`` say what an absent reading and a
    hole in time mean: the last reading goes on (``hold``) or nothing moves (``pause``).  ``clock`` confirms what kind
    of clock the times are from.  The rest names columns, units and separators of the file.
    """

    up: str | None = None
    up_file: str | Path | None = None
    up_ratio: float | None = None
    pick: str | None = None
    missing: Literal["hold", "pause"] = "hold"
    gaps: Literal["hold", "pause"] = "hold"
    clock: Literal["seconds", "milliseconds", "epoch-s", "epoch-ms"] | None = None
    separator: Literal["comma", "semicolon", "tab"] | None = None
    decimal_comma: bool = False
    time_column: str | None = None
    time_unit: Literal["s", "ms", "us"] | None = None
    down_column: str | None = None
    down_unit: str | None = None
    up_column: str | None = None
    up_unit: str | None = None
    counter: bool = False
    step: str | None = None
    direction: Literal["down"] | None = None

    def given(self) -> set[str]:
        """Names of the options that differ from their default."""
        return {f.name for f in fields(self) if getattr(self, f.name) != f.default}


@dataclass
class Tally:
    """How often something happened, and the first few places (``file:line``)."""

    count: int = 0
    places: list[str] = field(default_factory=list)


@dataclass
class Report:
    """What was read, what was dropped, what was repaired; unit and direction of the source."""

    format: str
    files: list[str]
    unit: str
    direction: str
    strict: bool = False
    read: int = 0
    dropped: dict[str, Tally] = field(default_factory=dict)
    repaired: dict[str, Tally] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    watch: Callable[[int], None] | None = None

    def drop(self, what: str, path: Path, line: int, count: int = 1) -> None:
        """Count a reading that is left out.  Strict: raises `TraceError` instead."""
        self._count(self.dropped, what, path, line, count)

    def repair(self, what: str, path: Path, line: int, count: int = 1) -> None:
        """Count a reading that was put right by a documented rule.  Strict: raises `TraceError` instead."""
        self._count(self.repaired, what, path, line, count)

    def note(self, text: str) -> None:
        """Say once something that is neither dropped nor repaired."""
        if text not in self.notes:
            self.notes.append(text)

    def lines(self) -> list[str]:
        """The report as text, one fact a line."""
        out = [
            f"format: {self.format}",
            f"files: {', '.join(self.files)}",
            f"unit: {self.unit}",
            f"direction: {self.direction}",
            f"read: {self.read} readings",
        ]
        for verb, tallies in (("dropped", self.dropped), ("repaired", self.repaired)):
            out += [f"{verb}: {t.count} x {what} (first: {', '.join(t.places)})" for what, t in tallies.items()]
            if not tallies:
                out.append(f"{verb}: nothing")
        return out + [f"note: {text}" for text in self.notes]

    def plain(self) -> dict[str, Any]:
        """The report as JSON has it."""
        tallies = {
            verb: {what: {"count": t.count, "first": t.places} for what, t in found.items()}
            for verb, found in (("dropped", self.dropped), ("repaired", self.repaired))
        }
        head = {name: getattr(self, name) for name in ("format", "files", "unit", "direction", "strict", "read")}
        return {**head, **tallies, "notes": self.notes}

    def _count(self, tallies: dict[str, Tally], what: str, path: Path, line: int, count: int) -> None:
        if self.strict:
            raise TraceError(f"{path}:{line}: {what} (strict: nothing is dropped or repaired)")
        tally = tallies.setdefault(what, Tally())
        tally.count += count
        place = f"{path.name}:{line}"
        if len(tally.places) < _SHOWN and place not in tally.places:
            tally.places.append(place)


@dataclass(frozen=True)
class Imported:
    """Traces in whole ns and whole bit/s, seen from the device; or sessions, if the files tell who is there when."""

    traces: list[LinkTrace]
    report: Report
    sessions: list[Session] = field(default_factory=list)
