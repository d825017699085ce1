"""The formats by name, and the one door to them: `import_trace`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, TypeAlias

from morphling.errors import InputError, TraceError
from morphling.fleet import LinkTrace
from morphling.scenario.data import suggestion
from morphling.scenario.importers.bare import read_mahimahi, read_nyu, read_pensieve
from morphling.scenario.importers.fedscale import read_fedscale
from morphling.scenario.importers.mobiperf import read_mobiperf
from morphling.scenario.importers.named import read_csv, read_gophers, read_lumos, read_ucc
from morphling.scenario.importers.record import Imported, Options, Report, Session
from morphling.scenario.importers.speedtests import read_fcc, read_ndt, read_ookla
from morphling.scenario.importers.steps import Readings, laid_over, trace_of, with_uplink

__all__ = ["FORMATS", "Format", "import_trace"]

Found: TypeAlias = dict[str, Readings] | list[Session]

_STATED = frozenset({"up", "up_ratio"})
_UPLINK = _STATED | {"up_file"}
_SERIES = frozenset({"missing", "gaps", "pick"})
_TEXT = frozenset({"separator"})
_COMMA = frozenset({"decimal_comma"})
_COLUMNS = frozenset(
    {"time_column", "time_unit", "down_column", "down_unit", "up_column", "up_unit", "counter", "clock"}
)


@dataclass(frozen=True)
class Format:
    """A family of files: what its numbers are, which directions it has, and which options it takes."""

    unit: str
    direction: str
    about: str
    options: frozenset[str]
    read: Callable[[Sequence[Path], Report, Options], Found]
    joins_up_file: bool = False


_DOWN = "down"
_SERIES_TEXT = _SERIES | _TEXT
FORMATS: Final[dict[str, Format]] = {
    "mobiperf": Format(
        "kbit/s", "down and up in separate records (dir_up)", "MobiPerf records, JSON; a constant link a pair of tests",
        _STATED | {"direction", "pick"}, read_mobiperf,
    ),
    "ndt": Format(
        "Mbit/s", "down and up", "M-Lab NDT, joined (dl_mbps, ul_mbps), CSV or JSON; a constant link a row",
        frozenset({"pick"}) | _TEXT | _COMMA, read_ndt,
    ),
    "fedscale": Format(
        "kbit/s", "one number, read as down; down and up where dl_kbps and ul_kbps are given",
        "FedScale capacity (a constant link an entry) or behaviour (sessions), JSON or pickle",
        _STATED | {"pick"}, read_fedscale,
    ),
    "mahimahi": Format(
        "1,500 bytes a line, at that ms", "down in .down files, up in .up files",
        "Mahimahi delivery opportunities, summed to steps of 1 s (option step)",
        _UPLINK | {"step", "pick"}, read_mahimahi,
    ),
    "fcc": Format(
        "byte/s", "down (httpgetmt); up in the httppostmt file given as up_file",
        "FCC Measuring Broadband America raw tests, CSV; a trace a unit",
        _UPLINK | _SERIES_TEXT, read_fcc, joins_up_file=True,
    ),
    "pensieve": Format(
        "Mbit/s", _DOWN, "two columns, time in s and Mbit/s", _UPLINK | _SERIES | _COMMA | {"clock"}, read_pensieve
    ),
    "5gophers": Format(
        "Mbit/s", _DOWN, "5Gophers, CSV, a row a second, a trace an operator", _UPLINK | _SERIES_TEXT, read_gophers
    ),
    "lumos5g": Format(
        "Mbit/s", _DOWN, "Lumos5G v1.0, CSV, a row a second, a trace a run", _UPLINK | _SERIES_TEXT, read_lumos
    ),
    "nyu-mets": Format(
        "as each row says", _DOWN, "NYU-METS, value and unit, a row a second", _UPLINK | _SERIES_TEXT, read_nyu
    ),
    "ucc": Format(
        "kbit/s", "down; up only if asked for by up_column UL_bitrate, for it is mostly acknowledgements",
        "UCC 4G and 5G logs (G-NetTrack), CSV", _UPLINK | _SERIES_TEXT | {"up_column"}, read_ucc,
    ),
    "ookla": Format(
        "kbit/s", "down and up", "Ookla open data tiles, CSV or Parquet; a constant link a tile",
        frozenset({"pick"}) | _TEXT, read_ookla,
    ),
    "csv": Format(
        "as the columns' names or options say", "down; up if there is a column for it",
        "any CSV with named columns", _UPLINK | _SERIES_TEXT | _COMMA | _COLUMNS, read_csv,
    ),
}  # fmt: skip


def import_trace(
    format: str,  # noqa: A002 - the word that users know it by
    paths: Sequence[Path | str],
    *,
    strict: bool = False,
    watch: Callable[[int], None] | None = None,
    **options: Any,
) -> Imported:
    """Read files of a foreign format.

    Parameters
    ----------
    format : a name in `FORMATS`
    paths : one or more files
    strict : refuse what would be dropped or repaired
    watch : called with the number of bytes read since the last call
    options : fields of `Options`

    Returns
    -------
    Imported : traces in whole ns and whole bit/s, seen from the device, from time 0; and the report

    Raises
    ------
    InputError
        No such format or option, or an option that the format has no use for.
    TraceError
        A file that is malformed (as file:line: reason), a link with one direction and no word on the other.
    """
    if format not in FORMATS:
        raise InputError(f"unknown trace format '{format}', {suggestion(format, list(FORMATS))}")
    spec = FORMATS[format]
    chosen = _options(format, spec, options)
    sources = [Path(p) for p in paths]
    if not sources:
        raise InputError("no files to import")
    files = [p.name for p in sources] + ([Path(chosen.up_file).name] if chosen.up_file is not None else [])
    report = Report(format, files, spec.unit, spec.direction, strict, watch=watch)
    found = spec.read(sources, report, chosen)
    if any("missing" in what for what in report.repaired) and "missing" in spec.options:
        report.note(
            f"where a reading is missing, {'the link pauses' if chosen.missing == 'pause' else 'the last one goes on'}"
        )
    if isinstance(found, list):
        used = chosen.given()
        if used:
            raise InputError(f"these files hold sessions and no links: {', '.join(sorted(used))} has no use")
        return Imported([], report, found)
    traces = [trace_of(name, r, report, chosen) for name, r in _picked(found, chosen, sources[0]).items()]
    if format == "mahimahi":
        traces = _paired(traces, sources[0], report, chosen)
    return Imported(_complete(format, traces, spec, sources[0], report, chosen), report)


def _options(name: str, spec: Format, given: dict[str, Any]) -> Options:
    known = [f.name for f in fields(Options)]
    for key in given:
        if key not in known:
            raise InputError(f"unknown option '{key}' of an import, {suggestion(key, known)}")
    chosen = Options(**given)
    foreign = sorted(chosen.given() - spec.options)
    if foreign:
        raise InputError(
            f"format {name} has no use for {', '.join(foreign)}; it takes {', '.join(sorted(spec.options))}"
        )
    stated = sorted(chosen.given() & (_UPLINK | {"up_column"}))
    if len(stated) > 1:
        raise InputError(f"the uplink is given {len(stated)} times: {', '.join(stated)}")
    for key, values in (("missing", ("hold", "pause")), ("gaps", ("hold", "pause")), ("direction", ("down", None))):
        if getattr(chosen, key) not in values:
            raise InputError(f"{key}: must be one of {', '.join(v for v in values if v)}, found '{given[key]}'")
    for key, words in (
        ("clock", ("seconds", "milliseconds", "epoch-s", "epoch-ms")),
        ("separator", ("comma", "semicolon", "tab")),
        ("time_unit", ("s", "ms", "us")),
    ):
        if getattr(chosen, key) not in (None, *words):
            raise InputError(f"{key}: must be one of {', '.join(words)}, found '{given[key]}'")
    return chosen


def _picked(found: dict[str, Readings], options: Options, path: Path) -> dict[str, Readings]:
    if not found:
        raise TraceError(f"{path}: no link is left to import")
    if options.pick is None:
        return found
    picked = {name: r for name, r in found.items() if fnmatchcase(name, options.pick)}
    if not picked:
        raise TraceError(f"{path}: no trace is named like '{options.pick}'; there are {_some(list(found))}")
    return picked


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _paired(
    traces: list[tuple[LinkTrace, bool]], path: Path, report: Report, options: Options
) -> list[tuple[LinkTrace, bool]]:
    """Each ``NAME.up`` as the uplink of its ``NAME.down``; a file of another name is a downlink."""
    ups = {t.name.removesuffix(".up"): t for t, _ in traces if t.name.endswith(".up")}
    out = []
    for trace, _ in traces:
        stem = trace.name.removesuffix(".down")
        if trace.name.endswith(".up"):
            if f"{stem.removesuffix('.up')}.down" not in {t.name for t, _ in traces}:
                raise TraceError(f"{path}: {trace.name} has no .down beside it; give both files")
        elif stem in ups and not options.given() & _UPLINK:
            pair = laid_over(trace, ups[stem], path, report)
            out.append((LinkTrace(stem, pair.start_ns, pair.down_bps, pair.up_bps, pair.period_ns), True))
        else:
            out.append((LinkTrace(stem, trace.start_ns, trace.down_bps, trace.up_bps, trace.period_ns), stem in ups))
    return out


def _complete(
    name: str, traces: list[tuple[LinkTrace, bool]], spec: Format, path: Path, report: Report, options: Options
) -> list[LinkTrace]:
    """The traces with an uplink each."""
    stated = bool(options.given() & (_STATED if spec.joins_up_file else _UPLINK))
    own = [trace.name for trace, both in traces if both]
    bare = [trace.name for trace, both in traces if not both]
    if own and stated:
        raise TraceError(
            f"{path}: {_some(own)} has an uplink of its own; leave out {', '.join(options.given() & _UPLINK)}"
        )
    if bare and not stated:
        ways = (
            "up (--up '5 Mbit/s'), up_file or up_ratio"
            if "up_file" in spec.options
            else "up (--up '5 Mbit/s') or up_ratio"
        )
        raise TraceError(f"{path}: format {name} gives the downlink of {_some(bare)} only; give the uplink: {ways}")
    if not bare:
        return [trace for trace, _ in traces]
    if options.up_file is None:
        said = f"{options.up} (stated)" if options.up is not None else f"{options.up_ratio:g} x the downlink (stated)"
        report.direction += f"; up = {said}"
        return [with_uplink(trace, options) for trace, _ in traces]
    unit, direction, uplink = report.unit, report.direction, Path(options.up_file).name
    found = spec.read([Path(options.up_file)], report, options)
    if report.unit != unit:  # each file may have columns of its own
        report.unit = f"{unit} | {uplink}: {report.unit}"
    report.direction = f"{direction}; up = the rates of {uplink}"
    if isinstance(found, list):
        raise TraceError(f"{options.up_file}: holds sessions, no rates")
    uplinks = [trace_of(n, r, report, options)[0] for n, r in _picked(found, options, Path(options.up_file)).items()]
    if len(uplinks) != 1 or len(traces) != 1:
        raise TraceError(
            f"{options.up_file}: one trace and one uplink are needed, there are {len(traces)} and {len(uplinks)}; pick"
        )
    return [laid_over(traces[0][0], uplinks[0], Path(options.up_file), report)]
