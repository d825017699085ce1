"""MobiPerf records (JSON): TCP throughput tests, uplink and downlink in records of their own.

``tcp_speed_results`` holds about 15 one-second samples in kbit/s that the application sorted ascending: they are a
distribution and not a time series.  A test therefore becomes one constant rate, the median of its samples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from morphling.errors import TraceError
from morphling.scenario.importers.reading import json_items, json_number, rate
from morphling.scenario.importers.record import Options, Report
from morphling.scenario.importers.speedtests import constant
from morphling.scenario.importers.steps import Readings

__all__ = ["read_mobiperf"]

_PAIR_US = 600 * 1_000_000


@dataclass(frozen=True)
class _Test:
    path: Path
    line: int
    device: str
    time_us: float
    network: str
    bps: float


def read_mobiperf(paths: Sequence[Path], report: Report, options: Options) -> dict[str, Readings]:
    """Pairs of a downlink and an uplink test of one device and network type, at most 10 minutes apart.

    If ``up`` or ``up_ratio`` states the uplink, every downlink test is a link and uplink tests are left out.
    """
    down: list[_Test] = []
    up: list[_Test] = []
    rtts: list[float] = []
    for path in paths:
        for line, _, item in json_items(path, report):
            report.read += 1
            if not isinstance(item, Mapping):
                raise TraceError(f"{path}:{line}: a record is needed, found {type(item).__name__}")
            _take(item, path, line, down, up, rtts, report, options)
    if rtts:
        report.note(f"{len(rtts)} pings, median round trip {median(rtts):g} ms: state half of it as the link's latency")
    report.note("samples are sorted by the application: each test is one constant rate, the median of its samples")
    found: dict[str, Readings] = {}
    count: dict[str, int] = {}
    of_device: dict[tuple[str, str], list[_Test]] = {}
    for test in up:
        of_device.setdefault((test.device, test.network), []).append(test)
    stated = options.up is not None or options.up_ratio is not None
    for test in down:
        name = f"{test.device}-{count.setdefault(test.device, 0)}"
        count[test.device] += 1
        if stated:
            constant(found, name, test.bps, None, report, test.path, test.line)
            continue
        near = of_device.get((test.device, test.network), [])
        partner = _partner(test, near)
        if partner is None:
            report.drop("downlink test without an uplink test within 10 minutes", test.path, test.line)
        else:
            near.remove(partner)
            constant(found, name, test.bps, partner.bps, report, test.path, test.line)
    for test in (t for tests in of_device.values() for t in tests):
        report.drop("uplink test that is in no pair", test.path, test.line)
    if down and not found and not stated:
        raise TraceError(
            f"{paths[0]}: no downlink test has an uplink test of the same device within 10 minutes; state the uplink "
            "with up or up_ratio"
        )
    return found


def _take(
    item: Mapping[str, Any],
    path: Path,
    line: int,
    down: list[_Test],
    up: list[_Test],
    rtts: list[float],
    report: Report,
    options: Options,
) -> None:
    values = _part(item, "values", path, line)
    kind = item.get("type", "tcpthroughput")
    if item.get("success", True) not in (True, "true"):
        report.drop("measurement that failed", path, line)
    elif kind == "ping":
        rtt = json_number(values.get("mean_rtt_ms"), path, line, "mean_rtt_ms")
        if not math.isnan(rtt):
            rtts.append(rtt)
    elif kind != "tcpthroughput":
        report.drop("record that is neither tcpthroughput nor ping", path, line)
    else:
        test = _test(item, values, path, line, report)
        if test is not None:
            (up if _sends(item, path, line, report, options) else down).append(test)


def _test(item: Mapping[str, Any], values: Mapping[str, Any], path: Path, line: int, report: Report) -> _Test | None:
    properties = _part(item, "properties", path, line) or _part(item, "device_properties", path, line)
    samples = values.get("tcp_speed_results", item.get("tcp_speed_results"))
    if isinstance(samples, str):
        try:
            samples = json.loads(samples)
        except (ValueError, RecursionError):
            raise TraceError(f"{path}:{line}: tcp_speed_results: is not a JSON list") from None
    if not isinstance(samples, list):
        raise TraceError(f"{path}:{line}: tcp_speed_results: a list of kbit/s is needed")
    field = "tcp_speed_results"
    rates = [rate(json_number(s, path, line, field), 1e3, report, path, line, field) for s in samples]
    rates = [r for r in rates if not math.isnan(r)]
    if not rates:
        report.drop("test without samples", path, line)
        return None
    device = item.get("device_id", item.get("id"))
    if not isinstance(device, str | int):
        raise TraceError(f"{path}:{line}: device_id is needed")
    time = json_number(item.get("timestamp", properties.get("timestamp")), path, line, "timestamp")
    return _Test(path, line, str(device), time, str(properties.get("network_type", "")).upper(), median(rates))


def _sends(item: Mapping[str, Any], path: Path, line: int, report: Report, options: Options) -> bool:
    sends = _part(item, "parameters", path, line).get("dir_up")
    if sends is None:
        if options.direction is None:
            raise TraceError(f"{path}:{line}: dir_up is missing; if all tests are downlink, say so (direction down)")
        report.note("records without dir_up are taken for downlink tests, as stated (direction down)")
        return False
    if sends not in (True, False, "true", "false"):
        raise TraceError(f"{path}:{line}: dir_up: true or false is needed, found {sends!r}")
    return sends in (True, "true")


def _part(item: Mapping[str, Any], key: str, path: Path, line: int) -> Mapping[str, Any]:
    part = item.get(key, {})
    if not isinstance(part, Mapping):
        raise TraceError(f"{path}:{line}: {key}: a mapping is needed, found {type(part).__name__}")
    return part


def _partner(test: _Test, up: list[_Test]) -> _Test | None:
    """The nearest in time of the uplink tests of this device and network; a test without a time has none."""
    near = [u for u in up if abs(u.time_us - test.time_us) <= _PAIR_US]
    return min(near, key=lambda u: abs(u.time_us - test.time_us), default=None)
