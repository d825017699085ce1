"""Logs of temperatures as CSV: what is read, what is counted, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from morphling.errors import TraceError
from morphling.scenario.thermal_log import LogColumns, read_thermal_log


def written(tmp_path, text):
    path = tmp_path / "log.csv"
    path.write_text(text, encoding="utf-8")
    return path


def rows(count, extra=""):
    return "".join(f"{i},{30 + i % 3}{extra}\n" for i in range(count))


def test_usual_columns_are_found_and_others_named(tmp_path):
    text = "time_s,case_c,junction_c,clock,load,power_w,note\n0,30,31,1,0.5,4,7\n1,30.5,32,0.8,1,5,7\n"
    log, report = read_thermal_log(written(tmp_path, text))
    assert log.time_s.tolist() == [0, 1]
    assert log.case_c.tolist() == [30, 30.5]
    assert log.junction_c.tolist() == [31, 32]
    assert log.clock.tolist() == [1, 0.8]
    assert log.load.tolist() == [0.5, 1]
    assert log.power_w.tolist() == [4, 5]
    assert log.starts.tolist() == [0]
    assert report.notes == ["columns not used: note"]
    assert report.read == 2


def test_foreign_names_and_units(tmp_path):
    text = "ms;batt;gpu;MHz;util\n0;30;31;500;1\n1000;30;31;1000;0\n"
    columns = LogColumns("ms", "batt", "gpu", "MHz", "util", time_unit="ms", full_clock_hz=1e9)
    log, _ = read_thermal_log(written(tmp_path, text), columns)
    assert log.time_s.tolist() == [0, 1]
    assert log.clock.tolist() == [0.5, 1]
    assert log.load.tolist() == [1, 0]
    assert log.power_w is None


def test_a_constant_load_and_a_window(tmp_path):
    columns = LogColumns(constant_load=0.5, start_s=2, end_s=7)
    log, report = read_thermal_log(written(tmp_path, "time_s,case_c\n" + rows(10)), columns)
    assert log.time_s.tolist() == [2, 3, 4, 5, 6, 7]
    assert log.load.tolist() == [0.5] * 6
    assert report.notes == ["samples outside the times asked for were left out"]


def test_missing_readings_are_counted(tmp_path):
    text = "time_s,case_c,load\n0,,1\n1,30,\n2,30,1\n3,nan,0\n4,31,\n5,31,1\n"
    log, report = read_thermal_log(written(tmp_path, text))
    assert log.time_s.tolist() == [1, 2, 3, 4, 5]
    assert np.isnan(log.case_c).tolist() == [False, False, True, False, False]
    assert log.load.tolist() == [1, 1, 0, 0, 1]
    assert {what: t.count for what, t in report.dropped.items()} == {
        "missing reading of case_c, not compared": 2,
        "row before the first reading of case": 1,
    }
    assert {what: (t.count, t.places) for what, t in report.repaired.items()} == {
        "missing reading of load, the last one held": (2, ["log.csv:3", "log.csv:6"]),
    }


def test_a_gap_begins_a_new_stretch_at_a_temperature(tmp_path):
    text = "time_s,case_c\n" + rows(20) + "100,\n101,35\n102,35\n"
    log, report = read_thermal_log(written(tmp_path, text))
    assert log.starts.tolist() == [0, 20]
    assert log.time_s[20] == 101
    assert log.stretches(0, log.size) == [(0, 20), (20, 22)]
    assert log.stretches(5, 20) == [(5, 20)]
    assert report.repaired["gap of more than 10 usual steps, a new stretch begins after it"].places == ["log.csv:22"]
    assert report.dropped["row after a gap, before the first temperature"].count == 1


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        (
            "time_s,temp\n0,30\n",
            None,
            "log.csv:1: there is no column 'case_c', known: time_s, temp; name",
        ),
        ("time_s,case_C\n0,30\n", LogColumns(case="case_c"), "log.csv:1: there is no column 'case_c', did you mean"),
        ("time_s,case_c\n0,30\n", LogColumns(load="use"), "log.csv:1: there is no column 'use'"),
        ("time_s,case_c\n0,30\n", LogColumns(junction="case_c"), "log.csv:1: one column cannot be two things at once"),
        ("time_s,case_c\n0,30\n1,30\n1,31\n", None, "log.csv:4: time_s: 1 s is not after 1 s"),
        ("time_s,case_c\n5,30\n4,30\n", None, "log.csv:3: time_s: 4 s is not after 5 s"),
        ("time_s,case_c\n0,30\n,30\n", None, "log.csv:3: time_s: a time is missing"),
        ("time_s,case_c\n0,30\n1,warm\n", None, "log.csv:3: case_c: 'warm' is not a finite number"),
        ("time_s,case_c\n0,30\n1,inf\n", None, "log.csv:3: case_c: 'inf' is not a finite number"),
        (
            "time_s,case_c\n0,30500\n",
            None,
            "log.csv:2: case_c: 30500 degC is no temperature of a device; is it in th",
        ),
        ("time_s,case_c\n0,303\n", None, "log.csv:2: case_c: 303 degC is no temperature of a device; is it in kel"),
        ("time_s,case_c,load\n0,30,80\n", None, "log.csv:2: load: a load in [0, 1] is needed, found 80; is it in perc"),
        ("time_s,case_c,load\n0,30,-1\n", None, "log.csv:2: load: a load in [0, 1] is needed, found -1"),
        (
            "time_s,case_c,clock\n0,30,903\n",
            None,
            "log.csv:2: clock: a share of the full clock is needed, found 903",
        ),
        (
            "time_s,case_c,clock\n0,30,1000\n",
            LogColumns(full_clock_hz=9.03e8),
            "log.csv:2: clock: 1000 MHz is not between 0 and the full clock of 903 MHz",
        ),
        ("time_s,case_c,power_w\n0,30,-2\n", None, "log.csv:2: power_w: -2 W is no power of a device"),
        ("time_s,case_c,power_w\n0,30,45000\n", None, "is it in milliwatts?"),
        ("time_s,case_c,load\n0,30,1\n", LogColumns(constant_load=1.0), "log.csv:1: the log has a column 'load'"),
        ("time_s,case_c\n0,30\n1\n", None, "log.csv:3: 2 values are needed, found 1"),
        ("time_s,case_c\n0,30\n", None, "log.csv: has 1 samples that can be used"),
        ("", None, "log.csv: is empty"),
    ],
)
def test_bad_logs_are_refused_with_their_place(tmp_path, text, columns, message):
    with pytest.raises(TraceError) as caught:
        read_thermal_log(written(tmp_path, text), columns)
    assert message in str(caught.value)


def test_many_gaps_are_refused(tmp_path):
    times = [i + 100 * (i // 20) for i in range(300)]
    text = "time_s,case_c\n" + "".join(f"{t},30\n" for t in times)
    with pytest.raises(TraceError, match=r"log.csv:22: the first of 14 gaps; a log may have 10 at most"):
        read_thermal_log(written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time_s,case_c\n" + rows(20) + "100,35\n101,35\n", r"log.csv:22: gap .* \(strict"),
        ("time_s,case_c\n0,30\n1,\n2,30\n", r"log.csv:3: missing reading of case_c, not compared \(strict"),
        ("time_s,case_c,load\n0,30,1\n1,30,\n", r"log.csv:3: missing reading of load"),
    ],
)
def test_strict_refuses_what_would_be_counted(tmp_path, text, message):
    with pytest.raises(TraceError, match=message):
        read_thermal_log(written(tmp_path, text), strict=True)
