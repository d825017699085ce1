"""Speed tests, one measurement a record: M-Lab NDT, Ookla tiles, FCC Measuring Broadband America."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from morphling.errors import TraceError
from morphling.scenario.importers.clocks import dated_ns
from morphling.scenario.importers.named import column_at
from morphling.scenario.importers.reading import json_items, json_number, number, rate, table
from morphling.scenario.importers.record import Options, Report
from morphling.scenario.importers.steps import Readings
from morphling.types import SECOND_NS

__all__ = ["constant", "read_fcc", "read_ndt", "read_ookla"]

_HOUR_NS = 3600 * SECOND_NS
_LOWEST_BPS = 1000.0
_NDT_ARTEFACT: Final = (0.4209e6, 0.4210e6)
_FCC_TIMES: Final = ("%Y-%m-%d %H:%M:%S",)
_MOST_LINKS = 100_000


def constant(
    found: dict[str, Readings], name: str, down: float, up: float | None, report: Report, path: Path, line: int
) -> None:
    """Add a link of one measurement, unless a direction of it is missing or did not move."""
    given = [down] if up is None else [down, up]
    if any(math.isnan(r) or r < _LOWEST_BPS for r in given):
        report.drop("measurement with a direction missing, negative or below 1 kbit/s", path, line)
        return
    if name in found:
        raise TraceError(f"{path}:{line}: '{name}' is given twice")
    if len(found) >= _MOST_LINKS:
        raise TraceError(f"{path}:{line}: more than {_MOST_LINKS} links; choose some of them by name (pick)")
    found[name] = Readings(path)
    found[name].add(0, down, up, line)


def read_ndt(paths: Sequence[Path], report: Report, options: Options) -> dict[str, Readings]:
    """``dl_mbps`` and ``ul_mbps`` of joined tests (CSV, or a JSON list): each row is one constant link.

    Rows with 0.4209 < ul < 0.4210 Mbit/s are an artefact of that upload test and are left out.
    """
    found: dict[str, Readings] = {}
    for path in paths:
        for line, dl, ul in _ndt_rows(path, report, options):
            report.read += 1
            down = rate(dl, 1e6, report, path, line, "dl_mbps", alone=True)
            up = rate(ul, 1e6, report, path, line, "ul_mbps", alone=True)
            if _NDT_ARTEFACT[0] < up < _NDT_ARTEFACT[1]:
                report.drop("artefact row (0.4209 < ul_mbps < 0.4210)", path, line)
            else:
                constant(found, f"{path.stem}-{line}", down, up, report, path, line)
    return found


def _ndt_rows(path: Path, report: Report, options: Options) -> Iterator[tuple[int, float, float]]:
    fields = ("dl_mbps", "ul_mbps")
    if path.suffix.lower() == ".json":
        for line, _, item in json_items(path, report):
            if not isinstance(item, Mapping) or any(f not in item for f in fields):
                raise TraceError(f"{path}:{line}: a record with dl_mbps and ul_mbps is needed")
            yield line, *(json_number(item[f], path, line, f) for f in fields)  # type: ignore[misc]
        return
    names, rows = table(path, report, options)
    places = [column_at(names, f, path) for f in fields]
    for line, cells in rows:
        dl, ul = (
            number(cells[p], path, line, f, decimal_comma=options.decimal_comma)
            for p, f in zip(places, fields, strict=True)
        )
        yield line, dl, ul


def read_ookla(paths: Sequence[Path], report: Report, options: Options) -> dict[str, Readings]:
    """``avg_d_kbps`` and ``avg_u_kbps`` of tiles (CSV or Parquet): each tile is one constant link, named by quadkey."""
    found: dict[str, Readings] = {}
    for path in paths:
        tiles = _ookla_parquet(path) if path.suffix.lower() == ".parquet" else _ookla_csv(path, report, options)
        for line, key, down, up in tiles:
            report.read += 1
            if options.pick is not None and not fnmatchcase(key, options.pick):
                continue
            rates = [
                rate(v, 1e3, report, path, line, c, alone=True) for v, c in ((down, "avg_d_kbps"), (up, "avg_u_kbps"))
            ]
            constant(found, key, rates[0], rates[1], report, path, line)
    return found


def _ookla_csv(path: Path, report: Report, options: Options) -> Iterator[tuple[int, str, float, float]]:
    names, rows = table(path, report, options)
    key, down, up = (column_at(names, c, path) for c in ("quadkey", "avg_d_kbps", "avg_u_kbps"))
    for line, cells in rows:
        yield line, cells[key], number(cells[down], path, line, names[down]), number(cells[up], path, line, names[up])


def _ookla_parquet(path: Path) -> Iterator[tuple[int, str, float, float]]:
    import pyarrow as pa  # noqa: PLC0415 - slow to load, for this format only
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        with pq.ParquetFile(path) as file:
            names = ["quadkey", "avg_d_kbps", "avg_u_kbps"]
            for name in names:
                column_at(file.schema_arrow.names, name, path)
            row = 0
            for batch in file.iter_batches(columns=names):
                for key, *rates in zip(*(batch.column(n).to_pylist() for n in names), strict=True):
                    row += 1
                    down, up = (json_number(v, path, row, n) for v, n in zip(rates, names[1:], strict=True))
                    yield row, str(key), down, up
    except (pa.ArrowException, OSError) as error:
        raise TraceError(f"{path}: cannot be read as Parquet: {error}") from None


def read_fcc(paths: Sequence[Path], report: Report, options: Options) -> dict[str, Readings]:
    """``bytes_sec`` of httpgetmt files by unit; the uplink is that of the same hour in the httppostmt ``up_file``.

    Of the rows of one test (same unit and time) the last ``sequence`` counts; a row without a success is missing.
    """
    down = _fcc_units(paths, report, options)
    up = None
    if options.up_file is not None:
        tests = _fcc_units([Path(options.up_file)], report, options)
        up = {unit: {at // _HOUR_NS: row[1] for at, row in sorted(of.items())} for unit, of in tests.items()}
    found = {}
    for unit, of_unit in down.items():
        readings = None
        for at, (_, bps, line, path) in of_unit.items():
            readings = readings or Readings(path)
            sent = None if up is None else up.get(unit, {}).get(at // _HOUR_NS, math.nan)
            if sent is not None and math.isnan(sent):
                report.repair("no upload test in the same hour", path, line)
            readings.add(at, bps, sent, line)
        if readings is not None:
            found[f"unit-{unit}"] = readings
    return found


def _fcc_units(paths: Sequence[Path], report: Report, options: Options) -> dict[str, dict[int, Any]]:
    wanted = ("unit_id", "dtime", "bytes_sec", "sequence", "successes")
    units: dict[str, dict[int, Any]] = {}
    for path in paths:
        names, rows = table(path, report, options)
        unit_at, time_at, *places = (column_at(names, c, path) for c in wanted)
        for line, cells in rows:
            report.read += 1
            unit = cells[unit_at]
            if options.pick is not None and not fnmatchcase(f"unit-{unit}", options.pick):
                continue
            at = dated_ns(cells[time_at], _FCC_TIMES, path, line, "dtime")
            value, sequence, successes = (number(cells[p], path, line, names[p]) for p in places)
            bps = rate(value if successes > 0 else math.nan, 8.0, report, path, line, "bytes_sec")
            tests = units.setdefault(unit, {})
            if at in tests:
                report.drop("earlier sequence of the same test", path, line)
                if not sequence > tests[at][0]:
                    continue
            tests[at] = (sequence, bps, line, path)
    return units
