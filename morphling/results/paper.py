"""The data and the words of a published figure that was made again: what is claimed, what came out, what is not known.

Our numbers stand beside a claim, never in its place; where published values are not public, the text says so.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from morphling.results.human import digits

__all__ = ["REPORT_FILE", "Claim", "PaperPoint", "ratios", "read_report", "section", "write_points"]

REPORT_FILE = "REPORT.md"


@dataclass(frozen=True)
class Claim:
    """What is published.

    text, source : in words, and where;  low, high : the band of ratios that it names
    points_public : whether the values of the published figure can be had
    """

    text: str
    source: str
    low: float
    high: float
    points_public: bool


@dataclass(frozen=True)
class PaperPoint:
    """One value: ``seconds`` of an iteration, or None with the ``reason``; ``failed`` tells an error from a refusal."""

    panel: str
    series: str
    x: int
    seconds: float | None
    reason: str | None
    failed: bool
    assumptions: tuple[str, ...]


def write_points(path: Path, figure: str, points: Sequence[PaperPoint], claim: Claim) -> Path:
    """The points as CSV, one line each, with the reason where there is no value."""
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["figure", "model", "strategy", "devices", "iteration_time_s", "reason", "claim_source"])
        for p in points:
            seconds = "" if p.seconds is None else repr(p.seconds)
            out.writerow([figure, p.panel, p.series, p.x, seconds, p.reason or "", claim.source])
    return path


def _by(points: Sequence[PaperPoint], panel: str) -> dict[str, dict[int, PaperPoint]]:
    found: dict[str, dict[int, PaperPoint]] = {}
    for p in points:
        if p.panel == panel:
            found.setdefault(p.series, {})[p.x] = p
    return found


def ratios(points: Sequence[PaperPoint], compared: str) -> str:
    """For each panel and series the span of its ratios to ``compared``, in words."""
    words = []
    for panel in dict.fromkeys(p.panel for p in points):
        series = _by(points, panel)
        own = series.get(compared, {})
        for name, mine in series.items():
            if name == compared:
                continue
            found = [
                (p.seconds / own[x].seconds, x)  # type: ignore[operator] # asked below
                for x, p in mine.items()
                if p.seconds is not None and x in own and own[x].seconds
            ]
            if not found:
                words.append(f"{panel}: {name} has no value to compare")
                continue
            (low, low_x), (high, high_x) = min(found), max(found)
            span = f"{_ratio(low)} (at {low_x:,})"
            if len(found) > 1:
                span += f" to {_ratio(high)} (at {high_x:,})"
            words.append(f"{panel}: {name} takes {span} times as long as {compared}")
    return "; ".join(words)


def _ratio(value: float) -> str:
    """Two significant digits, also below 1: 0.067 is not 0.1."""
    return f"{value:.2g}" if value < 1 else digits(value, 2)


def read_report(path: Path) -> str:
    """The report so far, or its heading."""
    if path.is_file():
        return path.read_text(encoding="utf-8")
    return "# Published figures, made again\n"


def section(
    name: str, title: str, points: Sequence[PaperPoint], claim: Claim, compared: str, version: str, setting: str = ""
) -> str:
    """The section of the report: claim and source, our values, what is assumed, what is not known."""
    public = (
        "" if claim.points_public else " The values of the published figure are not public, so none of them is drawn."
    )
    own = "- Our numbers come from our own fleet (seed 42) and models; they are not the paper's measurements."
    lines = [
        f"\n## {name}\n",
        f"{title}. Made by Morphling {version}: `morphling figures --only {name}`.\n",
        f"- **Published:** {claim.text}. Source: {claim.source}.{public}",
        f"- **Ours:** {ratios(points, compared)}. The published claim is a ratio of {claim.low:g} to {claim.high:g}.",
        f"{own} {setting}\n",
    ]
    for panel in dict.fromkeys(p.panel for p in points):
        series = _by(points, panel)
        xs = sorted({x for mine in series.values() for x in mine})
        lines += [
            f"`model: {panel}`, seconds a batch:\n",
            f"| devices | {' | '.join(series)} |",
            f"|---|{'---|' * len(series)}",
        ]
        notes: list[str] = []
        for x in xs:
            cells = [_cell(mine.get(x), notes) for mine in series.values()]
            lines.append(f"| {x:,} | {' | '.join(cells)} |")
        lines += ["", *(f"{number}. {note}" for number, note in enumerate(notes, 1)), ""] if notes else [""]
        for label, mine in series.items():
            said = next((p.assumptions for p in mine.values() if p.assumptions), ())
            if said:
                lines.append(f"{label} assumes: {'; '.join(said)}.\n")
    return "\n".join(lines)


def _cell(point: PaperPoint | None, notes: list[str]) -> str:
    if point is None:
        return ""
    if point.seconds is not None:
        return f"{digits(point.seconds, 4)}"
    reason = point.reason or "no reason given"
    if reason not in notes:
        notes.append(reason)
    return f"{'failed' if point.failed else 'n/a'} ({notes.index(reason) + 1})"
