"""Importers: each format by its unit and direction, on files written here."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from morphling.cli.traces_import import FORMAT_HELP
from morphling.errors import InputError, TraceError
from morphling.scenario import load_scenario, load_trace
from morphling.scenario.importers import FORMATS, import_trace, write_csv
from morphling.scenario.sessions import parse_sessions


def put(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def one(*args, **options):
    imported = import_trace(*args, **options)
    assert len(imported.traces) == 1
    return imported.traces[0], imported.report


def test_the_help_names_every_format() -> None:
    assert list(FORMAT_HELP) == list(FORMATS)
    for name, text in FORMAT_HELP.items():
        assert "down" in text or name == "fedscale"


def test_pensieve_is_mbit_per_s_from_a_first_time_that_is_not_zero(tmp_path: Path) -> None:
    path = put(tmp_path, "a.log", "190.0\t2.369816\n195.0\t3.0\n200.0\t0.5\n")
    trace, report = one("pensieve", [path], up="1 Mbit/s")
    assert trace.start_ns.tolist() == [0, 5_000_000_000, 10_000_000_000]
    assert trace.down_bps.tolist() == [2_369_816, 3_000_000, 500_000]
    assert trace.up_bps.tolist() == [1_000_000] * 3
    assert trace.period_ns == 15_000_000_000
    assert (report.read, report.dropped, report.repaired) == (3, {}, {})


def test_one_direction_needs_the_other(tmp_path: Path) -> None:
    path = put(tmp_path, "a.log", "0 2\n1 3\n")
    with pytest.raises(
        TraceError, match=r"pensieve gives the downlink of a only; give the uplink: up .* up_file or up_r"
    ):
        import_trace("pensieve", [path])
    trace, _ = one("pensieve", [path], up_ratio=0.25)
    assert trace.up_bps.tolist() == [500_000, 750_000]
    up = put(tmp_path, "b.log", "0 1\n0.5 4\n")
    trace, report = one("pensieve", [path], up_file=up)
    assert trace.start_ns.tolist() == [0, 500_000_000]
    assert (trace.down_bps.tolist(), trace.up_bps.tolist()) == ([2_000_000] * 2, [1_000_000, 4_000_000])
    assert trace.period_ns == 1_000_000_000
    assert list(report.dropped) == ["end of the longer direction (1 s)"]
    with pytest.raises(InputError, match="given 2 times: up, up_ratio"):
        import_trace("pensieve", [path], up="1 Mbit/s", up_ratio=1.0)
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(TraceError, match="above 0 is needed"):
            import_trace("pensieve", [path], up_ratio=bad)


def test_nyu_units_differ_from_row_to_row(tmp_path: Path) -> None:
    path = put(tmp_path, "bus.csv", "1.5,Mbits/sec\n700,Kbits/sec\n5000,bits/sec\n")
    trace, _ = one("nyu-mets", [path], up="1 Mbit/s")
    assert trace.down_bps.tolist() == [1_500_000, 700_000, 5000]
    with pytest.raises(TraceError, match=r"bus.csv:1: unit: 'MB/s' is none of"):
        import_trace("nyu-mets", [put(tmp_path, "bus.csv", "1.5,MB/s\n")], up="1 Mbit/s")


def test_mahimahi_lines_are_1500_bytes_and_pairs_are_one_link(tmp_path: Path) -> None:
    down = put(tmp_path, "x.down", "0\n0\n999\n1000\n2000\n")
    up = put(tmp_path, "x.up", "5\n2000\n")
    trace, report = one("mahimahi", [down, up])
    assert trace.name == "x"
    assert trace.down_bps.tolist() == [36_000, 24_000]
    assert trace.up_bps.tolist() == [12_000, 12_000]
    assert trace.period_ns == 2_000_000_000
    assert any("lost in Mahimahi" in note for note in report.notes)
    fine, _ = one("mahimahi", [down, up], step="100 ms")
    spans = np.diff(np.append(fine.start_ns, fine.period_ns)) / 1e9
    assert float((fine.down_bps * spans).sum()) == 5 * 12_000
    with pytest.raises(TraceError, match="gives the downlink of x only"):
        import_trace("mahimahi", [down])
    with pytest.raises(TraceError, match="the last time is 0 ms"):
        import_trace("mahimahi", [put(tmp_path, "z.down", "0\n0\n")], up="1 Mbit/s")
    with pytest.raises(TraceError, match=r"z.down:2: '1.5' is not a whole number of milliseconds"):
        import_trace("mahimahi", [put(tmp_path, "z.down", "0\n1.5\n")], up="1 Mbit/s")
    with pytest.raises(TraceError, match="more than 10000000 steps"):
        import_trace("mahimahi", [put(tmp_path, "z.down", "0\n99999999999999\n")], up="1 Mbit/s")


def test_gophers_gives_a_trace_an_operator_and_a_run(tmp_path: Path) -> None:
    text = "seq_num,A_throughput_mbps,B_throughput_mbps\n0,1,10\n1,2,20\n0,3,30\n"
    path = put(tmp_path, "car.csv", text.replace("0,3,30\n", "2,,30\n0,4,40\n1,5,50\n"))
    imported = import_trace("5gophers", [path], up_ratio=1.0)
    rates = {t.name: t.down_bps.tolist() for t in imported.traces}
    assert rates["car-A"] == [1_000_000, 2_000_000, 2_000_000]
    assert rates["car-B"] == [10_000_000, 20_000_000, 30_000_000]
    assert rates["car-B-run2"] == [40_000_000, 50_000_000]
    assert imported.report.repaired["missing reading of A_throughput_mbps"].places == ["car.csv:4"]


def test_lumos_gives_a_trace_a_run(tmp_path: Path) -> None:
    path = put(tmp_path, "l.csv", "run_num,seq_num,Throughput\n1,1,100\n1,2,50\n2,1,7\n")
    traces = import_trace("lumos5g", [path], up="1 Mbit/s").traces
    assert [(t.name, t.down_bps.tolist()) for t in traces] == [
        ("l-run1", [100_000_000, 50_000_000]),
        ("l-run2", [7_000_000]),
    ]


def test_ucc_is_kbit_per_s_and_its_uplink_only_on_request(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        "u.csv",
        "Timestamp,DL_bitrate,UL_bitrate\n2019.12.31_23.59.59,8000,100\n2020.01.01_00.00.00,-,200\n"
        "2020.01.01_00.00.01,4000,300\n2020.01.01_00.00.01,6000,500\n",
    )
    trace, report = one("ucc", [path], up="2 Mbit/s")
    assert trace.down_bps.tolist() == [8_000_000, 8_000_000, 5_000_000]
    assert trace.start_ns.tolist() == [0, 1_000_000_000, 2_000_000_000]
    assert report.repaired["missing reading of DL_bitrate"].count == 1
    assert report.repaired["time given twice, mean taken"].places == ["u.csv:5"]
    trace, report = one("ucc", [path], up_column="UL_bitrate", missing="pause")
    assert trace.up_bps.tolist() == [100_000, 200_000, 400_000]
    assert trace.down_bps.tolist() == [8_000_000, 0, 5_000_000]
    assert any("acknowledgements" in note for note in report.notes)


def test_ndt_drops_the_artefact_and_counts_it(tmp_path: Path) -> None:
    path = put(tmp_path, "n.csv", "date,dl_mbps,ul_mbps\n2022-06-02,93.089,23.041\n2022-06-19,41.5,0.42099\n")
    trace, report = one("ndt", [path])
    assert (trace.name, trace.down_bps.tolist(), trace.up_bps.tolist()) == ("n-2", [93_089_000], [23_041_000])
    assert [t.count for t in report.dropped.values()] == [1]
    listed = put(tmp_path, "n.json", json.dumps([{"dl_mbps": "93.089", "ul_mbps": "23.041"}]))
    assert one("ndt", [listed])[0].up_bps.tolist() == [23_041_000]
    with pytest.raises(TraceError, match=r"n.csv:3: artefact row .*strict"):
        import_trace("ndt", [path], strict=True)


def test_ookla_tiles_from_csv_and_parquet(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = put(tmp_path, "o.csv", "quadkey,avg_d_kbps,avg_u_kbps,tests\n0231,100000,20000,3\n0232,50000,,1\n")
    trace, report = one("ookla", [path])
    assert (trace.name, trace.down_bps.tolist(), trace.up_bps.tolist()) == ("0231", [100_000_000], [20_000_000])
    assert sum(t.count for t in report.dropped.values()) == 1
    assert report.repaired == {}
    table = pa.table({"quadkey": ["0231", "0299"], "avg_d_kbps": [100_000, 5], "avg_u_kbps": [20_000, 5]})
    pq.write_table(table, tmp_path / "o.parquet")
    assert one("ookla", [tmp_path / "o.parquet"], pick="0231")[0].up_bps.tolist() == [20_000_000]
    with pytest.raises(TraceError, match="cannot be read as Parquet"):
        import_trace("ookla", [put(tmp_path, "bad.parquet", "no")])


def test_fcc_joins_down_and_up_by_unit_and_hour(tmp_path: Path) -> None:
    head = "unit_id,dtime,bytes_sec,sequence,successes\n"
    get = put(
        tmp_path,
        "get.csv",
        head + "7,2022-10-23 18:12:10,1000,0,1\n7,2022-10-23 18:12:10,2000,1,1\n7,2022-10-23 19:00:00,3000,0,1\n",
    )
    post = put(tmp_path, "post.csv", head + "7,2022-10-23 18:40:00,500,0,1\n7,2022-10-23 19:10:00,600,0,1\n")
    trace, report = one("fcc", [get], up_file=post)
    assert (trace.name, trace.down_bps.tolist(), trace.up_bps.tolist()) == ("unit-7", [16_000, 24_000], [4000, 4800])
    assert report.dropped["earlier sequence of the same test"].count == 1
    with pytest.raises(TraceError, match="gives the downlink of unit-7 only"):
        import_trace("fcc", [get])


def test_mobiperf_pairs_within_ten_minutes_and_takes_the_median(tmp_path: Path) -> None:
    def test(device, minute, up, rates):
        return {
            "device_id": device,
            "type": "tcpthroughput",
            "success": True,
            "timestamp": minute * 60_000_000,
            "properties": {"network_type": "LTE"},
            "parameters": {"dir_up": up},
            "values": {"tcp_speed_results": json.dumps(rates)},
        }

    records = [
        test("a", 0, up=False, rates=[1000, 2000, 9000]),
        test("a", 9, up=True, rates=[100, 300]),
        test("b", 0, up=False, rates=[1000]),
        test("b", 11, up=True, rates=[100]),
        {"type": "ping", "values": {"mean_rtt_ms": 40}},
    ]
    path = put(tmp_path, "m.json", json.dumps(records, indent=1))
    trace, report = one("mobiperf", [path])
    assert (trace.name, trace.down_bps.tolist(), trace.up_bps.tolist()) == ("a-0", [2_000_000], [200_000])
    assert sum(t.count for t in report.dropped.values()) == 2
    assert any("median round trip 40 ms" in note for note in report.notes)
    alone = put(tmp_path, "d.json", json.dumps([{"id": "x", "tcp_speed_results": [5000]}]))
    with pytest.raises(TraceError, match=r"d.json:1: dir_up is missing"):
        import_trace("mobiperf", [alone], up_ratio=0.5)
    assert one("mobiperf", [alone], up_ratio=0.5, direction="down")[0].up_bps.tolist() == [2_500_000]


def test_fedscale_capacity_is_exact_from_json_and_pickle(tmp_path: Path) -> None:
    entries = {1: {"computation": 162.0, "communication": 5000.0}}
    as_json = put(tmp_path, "c.json", json.dumps(entries))
    as_pickle = tmp_path / "c.pickle"
    as_pickle.write_bytes(pickle.dumps(entries))
    for path in (as_json, as_pickle):
        with pytest.raises(TraceError, match=r"give the uplink: up .* or up_ratio"):
            import_trace("fedscale", [path])
        trace, _ = one("fedscale", [path], up_ratio=1.0)
        assert (trace.name, trace.down_bps.tolist(), trace.up_bps.tolist()) == ("device-1", [5_000_000], [5_000_000])
    both = put(tmp_path, "g.json", json.dumps({"1": {"communication": 1, "dl_kbps": 8000, "ul_kbps": 2000}}))
    assert one("fedscale", [both])[0].up_bps.tolist() == [2_000_000]


class Evil:
    def __reduce__(self):
        return (print, ("a pickle was executed",))


def test_a_pickle_executes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "e.pickle"
    path.write_bytes(pickle.dumps({1: Evil()}))
    with pytest.raises(TraceError, match=r"the pickle asks for builtins\.print; only plain numbers"):
        import_trace("fedscale", [path], up_ratio=1.0)
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer)
    pickler.persistent_id = lambda value: 1 if value == "x" else None
    pickler.dump({1: "x"})
    path.write_bytes(buffer.getvalue())
    with pytest.raises(TraceError, match="objects outside itself"):
        import_trace("fedscale", [path], up_ratio=1.0)
    path.write_bytes(b"\x80\x04nonsense")
    with pytest.raises(TraceError, match="not a pickle that can be read"):
        import_trace("fedscale", [path], up_ratio=1.0)
    assert capsys.readouterr().out == ""


def test_fedscale_behaviour_becomes_sessions(tmp_path: Path) -> None:
    entries = {
        "a": {"active": [0, 20, 25, 50], "inactive": [10, 30, 40, 50], "finish_time": 100},
        "b": {"active": [5], "inactive": [5], "finish_time": 100},
        "c": {"active": [1], "inactive": [2], "finish_time": 100},
    }
    imported = import_trace("fedscale", [put(tmp_path, "b.json", json.dumps(entries))])
    assert [(d, s // 10**9, e // 10**9) for d, s, e in imported.sessions] == [(0, 0, 10), (0, 20, 40), (1, 1, 2)]
    assert {k: t.count for k, t in imported.report.dropped.items()} == {
        "session of no length": 2,
        "device that is never there": 1,
    }
    write_csv(imported, tmp_path / "s.csv")
    by, rows = parse_sessions((tmp_path / "s.csv").read_text(encoding="utf-8"), "s")
    assert (by, len(rows)) == ("device", 3)


def test_a_scenario_names_a_foreign_trace(tmp_path: Path) -> None:
    put(tmp_path, "a.log", "0 2\n1 3\n")

    def load(trace):
        entry = {"count": 1, "profile": "jetson-orin-nano", "link": {"trace": trace, "past_end": "hold"}}
        source = {
            "name": "t",
            "workload": {"model": "opt-125m", "batch_size": 1, "sequence_length": 8},
            "fleet": [entry],
            "strategy": {"name": "cleave"},
        }
        return load_scenario(source, folder=tmp_path)

    loaded = load({"path": "a.log", "format": "pensieve", "up": "1 Mbit/s"})
    trace = loaded.trace(loaded.scenario.fleet[0].link)
    assert (trace.down_bps.tolist(), trace.up_bps.tolist()) == ([2_000_000, 3_000_000], [1_000_000] * 2)
    assert int(trace.past_end) == 1
    assert str(tmp_path / "a.log") in loaded.inputs
    for bad, message in (
        ({"path": "a.log", "format": "pensieve"}, "give the uplink"),
        ({"path": "a.log", "up": "1 Mbit/s"}, "name the time column"),
        ({"path": "no.log", "format": "pensieve", "up": "1 Mbit/s"}, "cannot be read: No such file"),
        ({"path": "a.log", "format": "pensief"}, "pensieve"),
    ):
        with pytest.raises(InputError, match=message):
            load(bad)


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    path = put(tmp_path, "a.log", "0 2\n0.25 3\n")
    imported = import_trace("pensieve", [path], up="1 Mbit/s")
    assert write_csv(imported, tmp_path / "out.csv") == [tmp_path / "out.csv"]
    text = (tmp_path / "out.csv").read_text(encoding="utf-8")
    assert "# format: pensieve\n# files: a.log\n# unit: Mbit/s\n# direction: down" in text
    assert str(tmp_path) not in text
    back = load_trace("out.csv", "repeat", tmp_path)
    assert back.start_ns.tolist() == [0, 250_000_000]
    assert (back.down_bps.tolist(), back.period_ns) == ([2_000_000, 3_000_000], 500_000_000)
    many = import_trace(
        "5gophers", [put(tmp_path, "c.csv", "seq_num,A_throughput_mbps,B_throughput_mbps\n0,1,1\n")], up_ratio=1.0
    )
    with pytest.raises(InputError, match="2 traces do not fit into one file; pick one"):
        write_csv(many, tmp_path / "many.csv")
    assert [p.name for p in write_csv(many, tmp_path / "many")] == ["c-A.csv", "c-B.csv"]
