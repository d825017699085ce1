"""The table of a comparison: two lines a strategy, ``n/a`` where there is no number, and the reasons below."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from morphling.results.human import bytes_text, count_text, digits, human, seconds_text

if TYPE_CHECKING:
    from rich.table import Table

    from morphling.results.comparison import Comparison, StrategySummary

__all__ = [
    "Line",
    "broken",
    "comparison_html",
    "comparison_lines",
    "comparison_table",
    "seconds",
    "short_reason",
    "significant",
    "table_notes",
]

HEADS = ("strategy", "time an\niteration", "ratio\nto 1st", "bytes a\ndevice*", "peak\nmemory", "utili-\nzation",
         "energy*", "recovery*")  # fmt: skip
NOT_AVAILABLE, FAILED, NOTHING_LOST = "n/a", "failed", "-"
_SHORT, _BRIEF = 34, 12
_LEAST_LABEL, _AIRY = 12, 100
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Line:
    """One strategy in the table: its label, why it has no numbers (shortened), and a text of up to two lines a column.

    ``state`` as of `morphling.results.comparison.StrategySummary`; ``over`` : some device has too little memory.
    """

    label: str
    state: str
    short: str | None
    cells: tuple[str, ...]
    over: bool


@dataclass(frozen=True)
class _Column:
    """``name`` : the value that makes it ``n/a``, and whose remarks are told; ``show`` : its text."""

    name: str
    show: Callable[[Mapping[str, Any]], str]


def _time(v: Mapping[str, Any]) -> str:
    half = v["iteration_time_ci95_s"]
    return seconds(v["iteration_time_s"]) + ("" if half is None else f"\n± {seconds(half)}")


def _ratio(v: Mapping[str, Any]) -> str:
    half = v["ratio_ci95"]
    return significant(v["ratio"], 3) + ("" if half is None else f"\n± {significant(half, 2)}")


def _bytes(v: Mapping[str, Any]) -> str:
    return f"{bytes_text(v['bytes_down_per_device'])} ↓\n{bytes_text(v['bytes_up_per_device'])} ↑"


def _memory(v: Mapping[str, Any]) -> str:
    return f"{bytes_text(v['peak_memory_bytes'])}\n{'fits' if v['fits'] else 'over'} {_percent(v['peak_memory_share'])}"


def _recovery(v: Mapping[str, Any]) -> str:
    if v["lost_rows"] == 0:
        return NOTHING_LOST
    return f"{seconds(v['recovery_time_s'])}\n{_count(v['lost_rows'])} lost"


_COLUMNS = (
    _Column("iteration_time_s", _time),
    _Column("ratio", _ratio),
    _Column("bytes_down_per_device", _bytes),
    _Column("peak_memory_share", _memory),
    _Column("device_utilization", lambda v: _percent(v["device_utilization"])),
    _Column("energy_j", lambda v: human("energy_j", v["energy_j"])),
    _Column("recovery_time_s", _recovery),
)


def seconds(value: float) -> str:
    """As `seconds_text`, without the hours in parentheses."""
    return seconds_text(value).partition(" (")[0]


def significant(value: float, count: int) -> str:
    """``value`` to that many significant digits, with all its whole digits: 0.0687, 1.00, 1,234."""
    if value == 0 or abs(value) < 1e-9:
        return f"{value:.0g}"
    places = count - 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(0, places)}f}"


def _percent(share: float) -> str:
    return f"{significant(100 * share, 2)} %"


def _count(value: float) -> str:
    return count_text(value) if isinstance(value, int) else digits(value, 3)


def short_reason(reason: str, most: int = _SHORT) -> str:
    """The beginning of a reason, up to its first stop and at most that long."""
    text = re.sub(r"^\d+ of \d+ seeds: ", "", reason).strip().partition("\n")[0]
    parts = re.split(r"([;:.](?:\s|$))", text)
    first = parts[0]
    brief = len(first) < _BRIEF or " " not in first  # TypeError: …, OPT-13B: …, tensor_parallel: …
    if brief and len(parts) > 2 and parts[1].startswith(":"):
        first += parts[1] + parts[2]
    first = first.strip()
    if len(first) <= most:
        return first
    return first[: most - 1].rsplit(" ", 1)[0].rstrip(",") + "…"


def comparison_lines(comparison: Comparison) -> tuple[list[Line], list[str]]:
    """The strategies as lines of text, and the notes that their raised numbers stand for, from 1."""
    notes: list[str] = []

    def mark(text: str | None) -> str:
        if text is None:
            return ""
        if text not in notes:
            notes.append(text)
        return str(notes.index(text) + 1).translate(_RAISED)

    return [_line(row, mark) for row in comparison.rows], notes


def _line(row: StrategySummary, mark: Callable[[str | None], str]) -> Line:
    if row.state != "done":
        word = FAILED if row.state == "failed" else NOT_AVAILABLE
        cells = (word + mark(row.reason), *[NOT_AVAILABLE] * (len(_COLUMNS) - 1))
        return Line(row.label, row.state, short_reason(row.reason or ""), cells, over=False)
    cells = tuple(_cell(column, row, mark) for column in _COLUMNS)
    return Line(row.label, row.state, None, cells, over=row.values["fits"] is False)


def _cell(column: _Column, row: StrategySummary, mark: Callable[[str | None], str]) -> str:
    reason = row.why.get(column.name)
    if reason is not None and not (column.name == "recovery_time_s" and row.values["lost_rows"] == 0):
        return NOT_AVAILABLE + mark(reason)
    first, *rest = column.show(row.values).split("\n")
    return "\n".join([first + mark(row.remarks.get(column.name)), *rest])


def table_notes(comparison: Comparison) -> list[str]:
    """What the star is about, and the reasons behind the raised numbers, each with its own."""
    notes = [f"{str(i).translate(_RAISED)} {note}" for i, note in enumerate(comparison_lines(comparison)[1], 1)]
    return [*notes, "* of the whole run, all iterations; recoveries that overlap are added up"]


def _title(comparison: Comparison) -> str:
    seeds = comparison.seeds
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}, ± 95 % interval"
    return f"{comparison.record['name']}: {which}"


def comparison_table(comparison: Comparison, width: int | None = None) -> Table:
    """A `rich` table for ``width`` columns (None: as many as it likes).

    Numbers are never cut or wrapped: where there is too little room for them and the least of a label, the table is
    wider than ``width``, which its own ``width`` then says.
    """
    from rich import box  # noqa: PLC0415 - scripts that print nothing need no rich
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    lines, _ = comparison_lines(comparison)
    gap = 2 if width is None or width >= _AIRY else 1
    numbers = [max(_span(text) for text in column) for column in zip(HEADS[1:], *(x.cells for x in lines), strict=True)]
    whole = max(_span(text) for line in lines for text in (line.label, f"({line.short or ''})"))
    room = None if width is None else width - sum(numbers) - gap * len(numbers)
    label = whole if room is None else max(_LEAST_LABEL, min(whole, room))
    table = Table(
        title=_title(comparison),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, gap - 1, 0, 0),
        pad_edge=False,
        width=label + sum(numbers) + gap * len(numbers),
    )
    for head, columns in zip(HEADS, (label, *numbers), strict=True):
        table.add_column(head, justify="left" if head == "strategy" else "right", width=columns, overflow="fold")
    for line in lines:
        style = {"failed": "red", "infeasible": "dim"}.get(line.state, "")
        name = Text(line.label if len(line.label) <= label else broken(line.label))
        if line.short is not None:
            name.append(f"\n({line.short})", style="dim")
        cells = [
            Text(cell, style=style or ("red" if line.over and i == 3 else "")) for i, cell in enumerate(line.cells)
        ]
        table.add_row(name, *cells)
    return table


def _span(text: str) -> int:
    return max(len(part) for part in text.split("\n"))


def broken(label: str) -> str:
    """Keys on lines of their own: narrow columns then break where people would."""
    return re.sub(r"(?<=\.py):|:(?=[\w.-]+=)", "\n ", label)


def comparison_html(comparison: Comparison) -> str:
    """The table and its notes as HTML."""
    lines, _ = comparison_lines(comparison)

    def row(tag: str, cells: list[str]) -> str:
        shown = (html.escape(cell).replace("\n", "<br>") for cell in cells)
        return "<tr>" + "".join(f"<{tag} style='text-align:right'>{cell}</{tag}>" for cell in shown) + "</tr>"

    head = row("th", [x.replace("-\n", "").replace("\n", " ") for x in HEADS])
    body = "".join(row("td", [line.label + (f"\n({line.short})" if line.short else ""), *line.cells]) for line in lines)
    below = "<br>".join(html.escape(note) for note in table_notes(comparison))
    return f"<table><caption>{html.escape(_title(comparison))}</caption>{head}{body}</table><p>{below}</p>"
