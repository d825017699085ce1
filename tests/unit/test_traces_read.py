"""Trace files: exact times, whole rates, errors as file:line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from morphling.errors import TraceError
from morphling.fleet import PastEnd
from morphling.scenario import list_traces, load_trace
from morphling.scenario.traces import exact_ns, parse_trace

HEAD = "time_s,down_bps,up_bps\n"


def test_columns_and_directions() -> None:
    trace = parse_trace(f"# origin: a test\n# duration_s: 10\n{HEAD}0,24000000,3000000\n2.5,0,4000000\n", "t", "hold")
    assert trace.start_ns.tolist() == [0, 2_500_000_000]
    assert trace.down_bps.tolist() == [24_000_000, 0]
    assert trace.up_bps.tolist() == [3_000_000, 4_000_000]
    assert trace.start_ns.dtype == trace.down_bps.dtype == trace.up_bps.dtype == np.int64
    assert (trace.period_ns, trace.past_end, trace.name) == (10_000_000_000, PastEnd.HOLD, "t")


def test_the_last_step_lasts_as_long_as_the_one_before() -> None:
    assert parse_trace(f"{HEAD}0,1000,1000\n1,2000,1000\n4,3000,1000\n", "t", "repeat").period_ns == 7_000_000_000


def test_a_single_row_is_a_constant() -> None:
    trace = parse_trace(f"{HEAD}0,8000,5000", "t", PastEnd.REPEAT)
    assert len(trace.start_ns) == 1
    assert trace.period_ns > 0


def test_times_are_exact() -> None:
    assert exact_ns("0.1") == 100_000_000
    assert exact_ns("16777216.000000001") == 16_777_216_000_000_001
    assert exact_ns("1e-9") == 1
    assert exact_ns("5.") == 5_000_000_000
    with pytest.raises(ValueError, match="finer than a nanosecond"):
        exact_ns("0.10000000000000000000000000000000001")


def test_windows_line_ends_and_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    path.write_bytes(b"\xef\xbb\xbf" + f"{HEAD}0,8000,5000\n1,9000,5000\n".replace("\n", "\r\n").encode())
    assert load_trace("w.csv", "repeat", tmp_path).down_bps.tolist() == [8000, 9000]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.csv: no header; the first line after comments must be 'time_s,down_bps,up_bps'"),
        (HEAD, "f.csv:1: no steps after the header"),
        ("0,1000,1000\n", "f.csv:1: the header must be 'time_s,down_bps,up_bps', found '0,1000,1000'"),
        ("time_s,down_mbps,up_mbps\n0,1,1", "f.csv:1: the header must be"),
        (f"{HEAD}1,1000,1000", "f.csv:2: the first step must start at 0 s, found 1.0 s"),
        (f"# x\n{HEAD}0,1000,1000\n2,1000,1000\n2,1000,1000", "f.csv:5: time_s must grow from line to line"),
        (f"{HEAD}0,1000,1000\n3,1000,1000\n2,1000,1000", "f.csv:4: time_s must grow from line to line"),
        (f"{HEAD}0,1000", "f.csv:2: 3 values are needed (time_s,down_bps,up_bps), found 2"),
        (f"{HEAD}0,1000,1000\n\n1,1000,1000", "f.csv:3: 3 values are needed"),
        (f"{HEAD}0,-5,1000", "f.csv:2: down_bps: '-5' is not a whole number of bit/s, 0 or more"),
        (f"{HEAD}0,1000,2.5", "f.csv:2: up_bps: '2.5' is not a whole number of bit/s, 0 or more"),
        (f"{HEAD}0,1000,nan", "f.csv:2: up_bps: 'nan' is not a whole number"),
        (f"{HEAD}0,1000,{'9' * 30}", "f.csv:2: up_bps: '999999999999999999999999999999' is out of range"),
        (f"{HEAD}-1,1000,1000", "f.csv:2: time_s: '-1' is not a number of seconds, 0 or more"),
        (f"{HEAD}nan,1000,1000", "f.csv:2: time_s: 'nan' is not a number of seconds, 0 or more"),
        (f"{HEAD}0.0000000001,1000,1000", "f.csv:2: time_s: '0.0000000001' is finer than a nanosecond"),
        (f"{HEAD}0,1000,1000\n9e9,1000,1000", "f.csv:3: time_s: '9e9' is out of range"),
        (f"# duration_s: 1\n{HEAD}0,1000,1000\n1,1000,1000", "f.csv:1: duration_s ends before the last step starts"),
        (f"# duration_s: x\n{HEAD}0,1000,1000", "f.csv:1: duration_s: 'x' is not a number of seconds"),
        (f"# duration_s: 1\n# duration_s: 2\n{HEAD}0,1000,1000", "f.csv:2: duration_s is given twice, first in line 1"),
        (f"{HEAD}0,80,10\n", "f.csv: the highest rate is 80 bit/s; the columns are in bit/s, not kbit/s or Mbit/s"),
        (
            f"{HEAD}0,1000,0\n1,1000,0",
            "f.csv: up_bps is 0 in every step, and the trace repeats: nothing would ever arrive",
        ),
        (f"{HEAD}0,0,1000", "f.csv: down_bps is 0 in every step"),
    ],
)
def test_errors_name_the_line(text: str, message: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse_trace(text, "f", "repeat", "f.csv")
    assert message in str(caught.value)


def test_a_pause_is_allowed_and_a_dead_direction_that_ends_too() -> None:
    assert parse_trace(f"{HEAD}0,1000,0\n", "t", "error").up_bps.tolist() == [0]


def test_missing_files_and_names(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        load_trace("nothing.csv", "repeat", tmp_path)
    with pytest.raises(TraceError, match="unknown network trace 'mobiperf-lte2', did you mean 'mobiperf-lte'"):
        load_trace("mobiperf-lte2")
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(TraceError, match="is not UTF-8 text"):
        load_trace("b.csv", "repeat", tmp_path)


def test_shipped_traces_load() -> None:
    assert {"mobiperf-lte", "mobiperf-wifi", "mobiperf-5g"} <= set(list_traces())
    for name in list_traces():
        trace = load_trace(name)
        assert trace.name == name
        assert trace.period_ns > trace.start_ns[-1]
