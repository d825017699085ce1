"""Imported traces as files of ours: the rows, and what is known about their origin in the comments above them."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from morphling.errors import InputError
from morphling.fleet import LinkTrace
from morphling.scenario.importers.record import Imported
from morphling.types import SECOND_NS

__all__ = ["write_csv"]

_ROWS = 50_000


def write_csv(imported: Imported, out: Path | str) -> list[Path]:
    """Write one trace (or the sessions) to the file ``out``; several traces into the folder ``out``, a file each.

    Every file is written beside its place and moved there when it is whole, so that an error leaves nothing behind.

    Returns
    -------
    list of Path : what was written

    Raises
    ------
    InputError
        Several traces and a file's name, two traces whose names make one file, or a place that cannot be written.
    """
    out = Path(out)
    head = _head(imported)
    if imported.sessions:
        rows = (f"{device},{_seconds(start)},{_seconds(end)}" for device, start, end in imported.sessions)
        return _written({out: _text([*head, "device,start_s,end_s"], rows)})
    if len(imported.traces) == 1:
        return _written({out: _rows(imported.traces[0], head)})
    if out.suffix:
        raise InputError(
            f"{out}: {len(imported.traces)} traces do not fit into one file; pick one of them (--pick NAME, such as "
            f"{imported.traces[0].name}) or give a folder"
        )
    files: dict[Path, Iterable[str]] = {}
    for trace in imported.traces:
        path = out / f"{re.sub(r'[^A-Za-z0-9._-]', '_', trace.name)}.csv"
        if path in files:
            raise InputError(f"{path}: two traces would be written to this file")
        files[path] = _rows(trace, head)
    return _written(files)


def _head(imported: Imported) -> list[str]:
    """Comment lines; file names without their folders, and without anything that would end a line."""
    lines = [f"imported by morphling {version('morphling')}", *imported.report.lines()]
    return ["# " + re.sub(r"[^\x20-\x7e\x80-\U0010ffff]|[\x80-\x9f\u2028\u2029]", "?", line) for line in lines]


def _seconds(ns: int) -> str:
    whole, rest = divmod(int(ns), SECOND_NS)
    return f"{whole}.{rest:09d}".rstrip("0") if rest else str(whole)


def _rows(trace: LinkTrace, head: list[str]) -> Iterator[str]:
    columns = ("time_s,down_bps,up_bps",)
    yield from _text([*head, f"# trace: {re.sub(r'[^A-Za-z0-9._-]', '_', trace.name)}"], ())
    yield from _text([f"# duration_s: {_seconds(trace.period_ns)}", *columns], ())
    for at in range(0, len(trace.start_ns), _ROWS):
        part = slice(at, at + _ROWS)
        start, down, up = (x[part].tolist() for x in (trace.start_ns, trace.down_bps, trace.up_bps))
        yield "".join(f"{_seconds(t)},{d},{u}\n" for t, d, u in zip(start, down, up, strict=True))


def _text(head: list[str], rows: Iterable[str]) -> Iterator[str]:
    yield "".join(f"{line}\n" for line in head)
    for row in rows:
        yield f"{row}\n"


def _written(files: dict[Path, Iterable[str]]) -> list[Path]:
    done: list[tuple[str, Path]] = []
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            number, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            done.append((name, path))
            with os.fdopen(number, "w", encoding="utf-8", newline="\n") as file:
                file.writelines(text)
            Path(name).chmod(0o644)
        for name, path in done:
            Path(name).replace(path)
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be written: {error.strerror}") from None
    finally:
        for name, _ in done:
            with suppress(FileNotFoundError):
                Path(name).unlink()
    return [path for _, path in done]
