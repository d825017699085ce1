"""Session files: devices not listed are always there; overlaps, unknown devices and bad lines are errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from morphling.errors import ScenarioError, TraceError
from morphling.scenario import load_scenario
from morphling.scenario.sessions import availability_of, parse_sessions, stays_of
from morphling.types import FAR_NS

HEAD = "device,start_s,end_s\n"


def test_sessions_in_any_order() -> None:
    by, rows = parse_sessions(f"# from a test\n{HEAD}2,50,\n0,0.5,2\n2,0,40.000000001\n", "s.csv")
    assert by == "device"
    found = availability_of(stays_of(rows), 4)
    assert found.ptr.tolist() == [0, 1, 2, 4, 5]
    assert found.start_ns.tolist() == [500_000_000, 0, 0, 50_000_000_000, 0]
    assert found.end_ns.tolist() == [2_000_000_000, FAR_NS, 40_000_000_001, FAR_NS, FAR_NS]
    assert found.model == "sessions"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "s.csv: no header"),
        ("0,0,1\n", "s.csv:1: the header must be 'device,start_s,end_s' or 'client,start_s,end_s', found '0,0,1'"),
        (f"{HEAD}0,1\n", "s.csv:2: 3 values are needed (device,start_s,end_s), found 2"),
        (f"{HEAD}-1,0,1\n", "s.csv:2: device: '-1' is not an index, 0 or more"),
        (f"{HEAD}0,x,1\n", "s.csv:2: start_s: 'x' is not a number of seconds, 0 or more"),
        (f"{HEAD}0,1,1\n", "s.csv:2: device 0: the session is empty"),
        (f"{HEAD}0,2,1\n", "s.csv:2: device 0: the session ends before it starts"),
        (f"{HEAD},0,1\n", "s.csv:2: 3 values are needed (device,start_s,end_s), found no device"),
        (f"{HEAD}0,0,1e-10\n", "s.csv:2: end_s: '1e-10' is finer than a nanosecond"),
        (f"{HEAD}4,0,1\n", "s.csv:2: there is no device 4: the fleet has devices 0 to 3"),
        (f"{HEAD}1,5,9\n1,0,5\n", "s.csv:2: device 1 is there already: this session touches s.csv:3"),
        (f"{HEAD}1,0,\n1,7,9\n", "s.csv:3: device 1 is there already: this session touches s.csv:2"),
    ],
)
def test_errors_name_the_line(text: str, message: str) -> None:
    with pytest.raises(TraceError) as caught:
        availability_of(stays_of(parse_sessions(text, "s.csv")[1]), 4)
    assert str(caught.value).startswith(message)


def test_a_scenario_reads_the_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text(f"{HEAD}1,0,40\n")
    text = """\
name: s
workload: {model: opt-125m, batch_size: 8, sequence_length: 128}
fleet: [{profile: &p {compute: 5 TFLOP/s, memory: 4 GB}, count: 2, link: {downlink: 8 Mbit/s, uplink: 2 Mbit/s}}]
coordinator: {profile: *p}
availability: {model: sessions, path: s.csv}
strategy: {name: cleave}
"""
    (tmp_path / "s.yaml").write_text(text)
    loaded = load_scenario(tmp_path / "s.yaml")
    assert loaded.availability.end_ns.tolist() == [FAR_NS, 40_000_000_000]
    assert str(tmp_path / "s.csv") in loaded.inputs
    with pytest.raises(ScenarioError, match=r"s.yaml:5:15: availability: .*s.csv:2: there is no device 1"):
        load_scenario(tmp_path / "s.yaml", ["fleet.0.count=1"])
