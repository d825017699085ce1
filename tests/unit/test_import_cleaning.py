"""Cleaning is a decision: each rule by its count and place, what strict refuses, and what mutated files end in."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from morphling.errors import InputError, MorphlingError, TraceError
from morphling.scenario.importers import import_trace, write_csv

COLUMNS = {"down_column": "down_mbps", "up": "1 Mbit/s"}


def put(folder: Path, text: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(path: Path, **options):
    imported = import_trace("csv", [path], **{"up": "1 Mbit/s"} | options)
    return imported.traces[0], imported.report


def seconds(trace) -> list[float]:
    return [t / 1e9 for t in trace.start_ns.tolist()]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_marks_and_separators(tmp_path: Path, separator: str) -> None:
    text = "time_s,down_mbps\r\n0,1.5\r\n1,2.5\r\n\r\n".replace(",", separator)
    trace, report = read(put(tmp_path, b"\xef\xbb\xbf" + text.encode()))
    assert trace.down_bps.tolist() == [1_500_000, 2_500_000]
    assert (report.dropped, report.repaired) == ({}, {})


def test_decimal_comma_is_declared(tmp_path: Path) -> None:
    path = put(tmp_path, "time_s;down_mbps\n0;1,5\n0,5;2,5\n")
    with pytest.raises(
        TraceError, match=r"t\.csv:2: down_mbps: '1,5' has a comma; if it is a decimal comma, declare it"
    ):
        read(path)
    trace, _ = read(path, decimal_comma=True)
    assert (seconds(trace), trace.down_bps.tolist()) == ([0, 0.5], [1_500_000, 2_500_000])
    with pytest.raises(TraceError, match="has a point, and a decimal comma was declared"):
        read(put(tmp_path, "time_s;down_mbps\n0;1.5\n"), decimal_comma=True)


def test_order_and_repetition(tmp_path: Path) -> None:
    path = put(tmp_path, "time_s,down_mbps\n0,1\n2,3\n1,2\n2,5\n")
    trace, report = read(path)
    assert (seconds(trace), trace.down_bps.tolist()) == ([0, 1, 2], [1_000_000, 2_000_000, 4_000_000])
    assert report.repaired["time out of order, sorted"].places == ["t.csv:4"]
    assert report.repaired["time given twice, mean taken"].places == ["t.csv:5"]
    with pytest.raises(TraceError, match=r"t\.csv:4: time out of order, sorted \(strict"):
        read(path, strict=True)


def test_missing_is_not_zero(tmp_path: Path) -> None:
    path = put(tmp_path, "time_s,down_mbps\n0,\n1,4\n2,-\n3,NaN\n4,0\n5,-3\n6,6\n")
    trace, report = read(path)
    assert seconds(trace) == [0, 1, 2, 3, 4, 5]
    assert trace.down_bps.tolist() == [4_000_000, 4_000_000, 4_000_000, 0, 0, 6_000_000]
    assert report.repaired["missing reading of down_mbps"].count == 3
    assert report.repaired["negative reading of down_mbps, taken as missing"].places == ["t.csv:7"]
    assert report.dropped["reading before the first of its direction"].count == 1
    paused, _ = read(path, missing="pause")
    assert paused.down_bps.tolist() == [4_000_000, 0, 0, 0, 0, 6_000_000]
    with pytest.raises(TraceError, match=r"t\.csv:2: missing reading"):
        read(path, strict=True)
    for empty in ("-", "nan", ""):
        with pytest.raises(TraceError, match="no reading of the downlink at all"):
            read(put(tmp_path, f"time_s,down_mbps\n0,{empty}\n1,{empty}\n"))


def test_gaps(tmp_path: Path) -> None:
    path = put(tmp_path, "time_s,down_mbps\n0,1\n1,2\n2,3\n60,4\n61,5\n")
    trace, report = read(path)
    assert seconds(trace) == [0, 1, 2, 60, 61]
    assert report.repaired["gap of more than 10 steps, the last reading goes on"].places == ["t.csv:5"]
    trace, _ = read(path, gaps="pause")
    assert (seconds(trace)[3], trace.down_bps.tolist()[3]) == (3, 0)


def test_clocks_are_confirmed(tmp_path: Path) -> None:
    epoch = put(tmp_path, "time_s,down_mbps\n1546300800,1\n1546300801,2\n")
    with pytest.raises(
        TraceError, match=r"t\.csv:2: time_s: '1546300800' looks like a date .* confirm with clock epoch-s"
    ):
        read(epoch)
    assert seconds(read(epoch, clock="epoch-s")[0]) == [0, 1]
    millis = put(tmp_path, "time_s,down_mbps\n0,1\n1000,2\n2000,2\n")
    with pytest.raises(TraceError, match="a step of 1000 looks like milliseconds"):
        read(millis)
    assert seconds(read(millis, clock="milliseconds")[0]) == [0, 1, 2]
    assert seconds(read(millis, clock="seconds")[0]) == [0, 1000, 2000]
    dated = put(tmp_path, "time_ms,down_mbps\n1546300800000,1\n1546300800500,2\n")
    with pytest.raises(TraceError, match="confirm with clock epoch-ms"):
        read(dated)
    assert seconds(read(dated, clock="epoch-ms")[0]) == [0, 0.5]


def test_counters_that_reset(tmp_path: Path) -> None:
    path = put(tmp_path, "time_s,rx\n0,1000\n1,126000\n2,50\n3,250050\n4,500050\n")
    with pytest.raises(TraceError, match="column 'rx' does not name its unit"):
        read(path, down_column="rx", counter=True)
    trace, report = read(path, down_column="rx", down_unit="B", counter=True)
    assert seconds(trace) == [0, 1, 2, 3]
    assert trace.down_bps.tolist() == [1_000_000, 1_000_000, 2_000_000, 2_000_000]
    assert report.repaired["counter rx was reset, reading taken as missing"].places == ["t.csv:4"]
    assert trace.period_ns == 4_000_000_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"t\.csv: is empty"),
        ("time_s,down_mbps\n", "no readings"),
        ("time_s,down_mbps\n0,1,2\n", r"t\.csv:2: 2 values are needed, found 3"),
        ("time_s,down_mbps\n0\n", r"t\.csv:2: 2 values are needed, found 1"),
        ("time_s,down_mbps\n0,fast\n", r"t\.csv:2: down_mbps: 'fast' is not a finite number"),
        ("time_s,down_mbps\n0,inf\n", r"t\.csv:2: down_mbps: 'inf' is not a finite number"),
        ("time_s,down_mbps\n0,1e300\n", r"t\.csv:2: down_mbps: 1e\+300 is out of range"),
        ("time_s,down_mbps\nx,1\n", r"t\.csv:2: time_s: 'x' is not a time"),
        ("time_s,down_mbps\n1e999999999,1\n", r"t\.csv:2: time_s: '1e999999999' is not a time"),
        ("time_s,down_mbps,down_mbps\n0,1,1\n", r"t\.csv:1: column 'down_mbps' appears twice"),
        ("when,down_mbps\n0,1\n", r"t\.csv:1: name the time column"),
        ("time_s,down_mbps\n0,0\n1,0\n", "is 0 in every reading: nothing would ever arrive"),
        ("time_s,down_bps\n0,5\n1,6\n", "the highest rate is 6 bit/s; is the unit right"),
        (b"time_s,down_mbps\n0,\xff\n", r"t\.csv:2: is not UTF-8 text \(byte 2 of the line\)"),
        (b"time_s,down_mbps\n0,\x001\n", r"t\.csv:2: has a zero byte"),
        ('time_s,down_mbps\n0,"1\n', r"t\.csv:2: not a row of a table"),
    ],
)
def test_malformed_files_name_the_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read(put(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", r"j\.json:1: not JSON"),
        ("[]", r"j\.json: holds no records"),
        ("3", r"j\.json:1: not JSON: '\[' is needed"),
        ('[\n{"dl_mbps": 1, "ul_mbps": 1}\n{}]', r"j\.json:3: not JSON: ',' is needed"),
        ('[\n{"dl_mbps": 1, "ul_mbps": 1},\n{"dl_mbps": []}]', r"j\.json:3: a record with dl_mbps and ul_mbps"),
        ('[{"dl_mbps": true, "ul_mbps": 1}]', r"j\.json:1: dl_mbps: a number is needed, found bool"),
        ('[{"dl_mbps": 1, "ul_mbps": 1}] x', "something follows the end"),
    ],
)
def test_malformed_json_names_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        import_trace("ndt", [put(tmp_path, text, "j.json")])


def test_options_that_have_no_use_are_refused(tmp_path: Path) -> None:
    path = put(tmp_path, "0 1\n", "a.log")
    with pytest.raises(InputError, match="format pensieve has no use for step; it takes"):
        import_trace("pensieve", [path], step="1 s")
    with pytest.raises(InputError, match="unknown option 'upp' of an import, did you mean 'up'"):
        import_trace("pensieve", [path], upp="1 Mbit/s")
    with pytest.raises(InputError, match="unknown trace format 'pensive', did you mean 'pensieve'"):
        import_trace("pensive", [path])
    with pytest.raises(InputError, match="missing: must be one of hold, pause, found 'zero'"):
        import_trace("pensieve", [path], missing="zero")
    with pytest.raises(TraceError, match="no trace is named like 'b'; there are a"):
        import_trace("pensieve", [path], pick="b", up="1 Mbit/s")
    with pytest.raises(TraceError, match="up: 5: a rate needs a unit"):
        import_trace("pensieve", [path], up="5")


def test_the_command_writes_or_says_why(tmp_path: Path) -> None:
    def command(*args: str):
        line = [sys.executable, "-m", "morphling", "traces", "import", *args]
        return subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path)

    put(tmp_path, "time_s,down_mbps\n0,1\n1,\n", "t.csv")
    bad = command("csv", "t.csv", "-o", "o.csv", "--up", "1 Mbit/s", "--strict")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "t.csv:3: missing reading of down_mbps (strict" in bad.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.csv"]
    good = command("csv", "t.csv", "-o", "o.csv", "--up", "1 Mbit/s", "--json")
    assert (good.returncode, good.stderr) == (0, "")
    facts = json.loads(good.stdout)
    assert (facts["read"], facts["written"], facts["traces"]) == (2, ["o.csv"], ["t"])
    assert facts["repaired"] == {"missing reading of down_mbps": {"count": 1, "first": ["t.csv:3"]}}
    head = (tmp_path / "o.csv").read_text(encoding="utf-8")
    assert "# repaired: 1 x missing reading of down_mbps (first: t.csv:3)" in head
    text = command("--help").stdout
    assert "mahimahi: 1,500 bytes a line" in text
    assert "seen from the device" in text


PIECES = [b"", b"\0", b",", b";", b"\n", b"-", b"nan", b"9" * 20, b"\xff", b'"', b"e9", b"{", b"]"]

SAMPLES = {
    "pensieve": (b"0.0\t2.36\n5.0\t3.37\n10.0\t1.5\n", {"up": "1 Mbit/s"}),
    "nyu-mets": (b"0.27,Mbits/sec\n700,Kbits/sec\n9,bits/sec\n", {"up": "1 Mbit/s"}),
    "mahimahi": (b"0\n0\n10\n500\n1200\n", {"up": "1 Mbit/s"}),
    "5gophers": (b"seq_num,A_throughput_mbps\n0,25.7\n1,65.0\n2,3\n", {"up": "1 Mbit/s"}),
    "lumos5g": (b"run_num,seq_num,Throughput\n1,1,100\n1,2,50\n", {"up": "1 Mbit/s"}),
    "ucc": (b"Timestamp,DL_bitrate\n2019.12.31_23.59.59,8000\n2020.01.01_00.00.00,-\n", {"up": "1 Mbit/s"}),
    "ndt": (b"date,dl_mbps,ul_mbps\n2022-06-02,93.089,23.041\n2022-06-03,9,4\n", {}),
    "ookla": (b"quadkey,avg_d_kbps,avg_u_kbps\n0231,100000,20000\n0232,5000,2000\n", {}),
    "fcc": (
        b"unit_id,dtime,bytes_sec,sequence,successes\n7,2022-10-23 18:12:10,1000,0,1\n7,2022-10-23 19:12:10,2000,0,1\n",
        {"up": "1 Mbit/s"},
    ),
    "mobiperf": (b'[{"id": 1,\n"parameters": {"dir_up": false}, "tcp_speed_results": [50, 60]}]', {"up": "1 Mbit/s"}),
    "fedscale": (b'{"1": {"communication": 5000},\n"2": {"communication": 700}}', {"up": "1 Mbit/s"}),
    "csv": (b"time_s,down_mbps,up_mbps\n0,1.5,1\n1,2.5,2\n", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", [*SAMPLES, "pickle"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutated_files_end_in_an_error_or_a_right_trace(tmp_path: Path, name: str, data: st.DataObject) -> None:
    if name == "pickle":
        buffer = io.BytesIO()
        pickle.dump({1: {"communication": 5000.0}}, buffer)
        sample, options = buffer.getvalue(), {"up": "1 Mbit/s"}
    else:
        sample, options = SAMPLES[name]
    raw = bytearray(sample)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(raw)))
        piece = data.draw(st.sampled_from(PIECES))
        raw[at : at + data.draw(st.integers(0, 3))] = piece
    path = tmp_path / "fuzz.txt"
    path.write_bytes(raw)
    try:
        imported = import_trace("fedscale" if name == "pickle" else name, [path], **options)
        out = write_csv(imported, tmp_path / ("f.csv" if len(imported.traces) == 1 else "folder"))
    except MorphlingError as error:
        message = str(error)
    else:
        message = ""
    if message:
        assert "fuzz.txt" in message or "folder" in message  # two traces of one file name
        return
    assert out
    missing = sum("missing" in what or "negative" in what for what in imported.report.repaired)
    for trace in imported.traces:
        assert trace.start_ns[0] == 0
        assert (np.diff(trace.start_ns) > 0).all()
        assert trace.period_ns > trace.start_ns[-1]
        for rates in (trace.down_bps, trace.up_bps):
            assert rates.min() >= 0
            assert rates.any()
            if not missing and name not in {"mahimahi", "fcc"} and not (rates > 0).all():
                assert b"0" in raw  # a zero is written there


def test_the_report_says_which_columns_were_read_and_their_units(tmp_path: Path) -> None:
    path = put(tmp_path, "Time_ms,Down_Gbps,up_kbps\n0,1,2000\n1000,,2000\n")
    imported = import_trace("csv", [path])
    assert imported.report.unit == "Time_ms in ms; Down_Gbps in Gbit/s; up_kbps in kbit/s"
    assert imported.report.direction == "down = Down_Gbps and up = up_kbps"
    assert imported.report.notes == ["where a reading is missing, the last one goes on"]
    assert imported.traces[0].down_bps.tolist() == [10**9] * 2
    report = import_trace("csv", [path], up="1 Mbit/s").report
    assert "column up_kbps is left out: the uplink is stated" in report.notes
    with pytest.raises(InputError, match="the uplink is given 2 times: up, up_column"):
        import_trace("csv", [path], up="1 Mbit/s", up_column="up_kbps")
    with pytest.raises(TraceError, match="down_bps and down_mbps could each be the down column"):
        read(put(tmp_path, "time_s,down_bps,down_mbps\n0,1,2\n"))


def test_an_empty_mahimahi_file_is_called_empty(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"x\.down: is empty"):
        import_trace("mahimahi", [put(tmp_path, "", "x.down")], up="1 Mbit/s")
