"""`morphling traces import`: foreign trace formats into files that scenarios name."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer

__all__ = ["IMPORT_HELP", "import_command"]

# Written out here, so that `--help` costs no import of numpy; a test holds it against the formats themselves.
FORMAT_HELP: Final = {
    "mobiperf": "JSON records, kbit/s; down and up in separate records (dir_up); a constant link a pair of tests",
    "ndt": "M-Lab NDT, joined, CSV or JSON, Mbit/s; down and up; a constant link a row",
    "fedscale": "JSON or pickle, kbit/s; one number, read as down; behaviour files give sessions",
    "mahimahi": "1,500 bytes a line at that ms; down in .down files, up in .up files; steps of --step (1 s)",
    "fcc": "FCC MBA raw CSV, byte/s; down (httpgetmt), up in the httppostmt file given by --up-file",
    "pensieve": "two columns, time in s and Mbit/s; down",
    "5gophers": "CSV, a row a second, Mbit/s; down",
    "lumos5g": "CSV, a row a second, Mbit/s; down",
    "nyu-mets": "value and unit, a row a second; down",
    "ucc": "G-NetTrack CSV, kbit/s; down (--up-column UL_bitrate is mostly acknowledgements)",
    "ookla": "tiles, CSV or Parquet, kbit/s; down and up; a constant link a tile",
    "csv": "any CSV: columns and units by --down-column, --down-unit, …; down, and up if it has a column",
}
_FORMATS: Final = "\n\n".join(f"{name}: {text}." for name, text in FORMAT_HELP.items())


def import_command(
    format: Annotated[str, typer.Argument(metavar="FORMAT", help="One of those above.")],  # noqa: A002
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Files of that format.")],
    out: Annotated[Path, typer.Option("-o", "--output", help="File to write, or a folder for several traces.")],
    up: Annotated[str | None, typer.Option(help="The uplink, if the files have none, such as '5 Mbit/s'.")] = None,
    up_file: Annotated[Path | None, typer.Option(help="File of the same format whose rates are the uplink.")] = None,
    up_ratio: Annotated[float | None, typer.Option(help="The uplink as a share of the downlink, such as 0.2.")] = None,
    pick: Annotated[str | None, typer.Option(help="Only traces whose name fits; * and ? are wild.")] = None,
    missing: Annotated[str, typer.Option(help="No reading: hold the last one, or pause.")] = "hold",
    gaps: Annotated[str, typer.Option(help="A hole of more than 10 steps: hold the last reading, or pause.")] = "hold",
    clock: Annotated[str | None, typer.Option(help="What times are: seconds, milliseconds, epoch-s, epoch-ms.")] = None,
    separator: Annotated[str | None, typer.Option(help="comma, semicolon or tab; found out if left out.")] = None,
    decimal_comma: Annotated[bool, typer.Option("--decimal-comma", help="Numbers are written as 3,5.")] = False,
    time_column: Annotated[str | None, typer.Option(help="csv: name of the column of times.")] = None,
    time_unit: Annotated[str | None, typer.Option(help="csv: s, ms or us.")] = None,
    down_column: Annotated[str | None, typer.Option(help="csv: name of the column of the downlink.")] = None,
    down_unit: Annotated[str | None, typer.Option(help="csv: its unit, such as Mbit/s.")] = None,
    up_column: Annotated[str | None, typer.Option(help="csv, ucc: name of the column of the uplink.")] = None,
    up_unit: Annotated[str | None, typer.Option(help="csv: its unit.")] = None,
    counter: Annotated[bool, typer.Option("--counter", help="csv: the columns count (units such as B).")] = False,
    step: Annotated[str | None, typer.Option(help="mahimahi: length of a step, such as '100 ms'.")] = None,
    direction: Annotated[str | None, typer.Option(help="mobiperf: 'down', if no record has dir_up.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse what would be dropped or repaired.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Convert traces of other formats, and say what was read, dropped and repaired."""
    from morphling.scenario.importers import import_trace, write_csv

    given = {
        "up": up, "up_file": up_file, "up_ratio": up_ratio, "pick": pick, "clock": clock, "separator": separator,
        "time_column": time_column, "time_unit": time_unit, "down_column": down_column, "down_unit": down_unit,
        "up_column": up_column, "up_unit": up_unit, "step": step, "direction": direction,
    }  # fmt: skip
    options: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    options |= {"missing": missing, "gaps": gaps, "decimal_comma": decimal_comma, "counter": counter}
    with _watched(files) as watch:
        imported = import_trace(format, files, strict=strict, watch=watch, **options)
        written = write_csv(imported, out)
    if as_json:
        facts = {**imported.report.plain(), "traces": [t.name for t in imported.traces]}
        print(json.dumps({**facts, "written": [str(p) for p in written]}, indent=2))
        return
    for line in imported.report.lines():
        print(line)
    place = str(written[0]) if len(written) == 1 else f"{len(written)} files in {out}"
    print(f"wrote: {place}")


IMPORT_HELP: Final = f"""Convert traces of other formats, and say what was read, dropped and repaired.

Rates are seen from the device. A link with one direction needs the other one stated: --up, --up-file or --up-ratio.

{_FORMATS}
"""


@contextmanager
def _watched(files: list[Path]) -> Iterator[Callable[[int], None] | None]:
    """A bar of the bytes read, for people at a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        total = sum(f.stat().st_size for f in files if f.is_file())
        task = bar.add_task("reading", total=total)
        yield lambda size: bar.advance(task, size)
