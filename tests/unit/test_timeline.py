"""The timeline: what is drawn, what is left out and said to be, and exact times."""

from __future__ import annotations

import json

import numpy as np
import pytest

from morphling.interfaces.recording import DispatchRecord, Recording
from morphling.interfaces.tasks import TaskTable
from morphling.results.accounting import account
from morphling.results.timeline import choose_devices, write_timeline


def record(serial, label, tasks, rows, lost=None):
    times = np.array(rows, np.int64).reshape(len(tasks), 7)
    started, ended = times[:, 2], np.where(times[:, 3] >= 0, times[:, 3], times[:, 6])
    work = np.where(started >= 0, ended - started, 0)
    gone = np.zeros(len(tasks), np.bool_) if lost is None else np.array(lost, np.bool_)
    columns = tuple(np.ascontiguousarray(c) for c in (*times.T, work))
    return DispatchRecord(serial, 0, label, int(times[:, 6].max(initial=0)), tasks, columns, gone)


def draw(path, dispatches, size, **options):
    recording = Recording(dispatches, max((d.settled_ns for d in dispatches), default=0), [], "")
    names = [f"phone#{i}" for i in range(size)]
    summary = write_timeline(path, recording, names, account(dispatches, size).device, **options)
    trace = json.loads(path.read_text(encoding="utf-8"))
    assert {key: trace["otherData"][key] for key in summary} == summary
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert len(spans) == summary["spans"]
    return trace, spans, summary


def test_spans_by_hand(tmp_path):
    tasks = TaskTable.build(device=[0, 1, 2], m=[2, 3, 0], n=4, k=5, bytes_in=[10, 0, 0], bytes_out=[7, 8, 0])
    rows = [
        [0, 1_234_567, 2_000_001, 3_000_000, 3_000_000, -1, 3_500_000],
        [5, 5, 5, 9, 9, 12, 12],
        [0, 0, 0, 4, 4, 4, 4],
    ]
    trace, spans, summary = draw(tmp_path / "t.json", [record(3, 'a "%d" PID', tasks, rows, [1, 0, 0])], 2)
    seen = [(s["pid"], s["tid"], s["ts"], s["dur"], s["args"]) for s in spans]
    assert seen == [
        (1, 1, 0, 1234.567, {"dispatch": 3, "row": 0, "bytes": 10, "end_ns": 1234567, "state": "lost"}),
        (
            1,
            2,
            2000.001,
            999.999,
            {"dispatch": 3, "row": 0, "m": 2, "n": 4, "k": 5, "end_ns": 3000000, "state": "lost"},
        ),
        (2, 2, 0.005, 0.004, {"dispatch": 3, "row": 1, "m": 3, "n": 4, "k": 5}),
        (3, 2, 0, 0.004, {"dispatch": 3, "row": 2, "m": 0, "n": 4, "k": 5}),
        (1, 3, 3000, 500, {"dispatch": 3, "row": 0, "bytes": 7, "end_ns": -1, "state": "lost"}),
        (2, 3, 0.009, 0.003, {"dispatch": 3, "row": 1, "bytes": 8}),
    ]
    assert {s["name"] for s in spans} == {'a "%d" PID'}
    assert (summary["devices"], summary["spans"], summary["spans_total"], summary["complete_until_ns"]) == (
        2,
        6,
        6,
        None,
    )
    names = {(e["pid"], e.get("tid")): e["args"]["name"] for e in trace["traceEvents"] if e["name"].endswith("_name")}
    assert names[1, None] == "phone#0"
    assert names[3, None] == "coordinator"
    assert [names[2, tid] for tid in (1, 2, 3)] == ["download", "compute", "upload"]


def test_spans_of_a_track_never_overlap(tmp_path):
    """Latency lets the next transfer begin while the last bits of one are under way."""
    tasks = TaskTable.build(device=[0, 0], bytes_in=10)
    rows = [[0, 3000, 3000, 4000, 4000, 4000, 4000], [2000, 5000, 5000, 6000, 6000, 6000, 6000]]
    _, spans, _ = draw(tmp_path / "t.json", [record(0, "", tasks, rows)], 1)
    downloads = sorted((s["ts"], s["dur"], s["args"].get("end_ns")) for s in spans if s["tid"] == 1)
    assert downloads == [(0, 2, 3000), (2, 3, None)]
    assert {s["name"] for s in spans} == {"row"}


def test_what_is_left_out_is_said(tmp_path):
    tasks = TaskTable.build(device=np.arange(100), bytes_in=1, bytes_out=1)
    base = np.tile(np.arange(7), (100, 1)) + np.arange(100)[:, None]
    dispatches = [record(i, "x", tasks, base + 1000 * i) for i in range(5)]
    _, spans, summary = draw(tmp_path / "t.json", dispatches, 200)
    assert summary == {
        "devices": 32,
        "devices_used": 100,
        "devices_total": 200,
        "spans": 32 * 5 * 3,
        "spans_total": 1500,
        "complete_until_ns": None,
    }
    _, spans, summary = draw(tmp_path / "t.json", dispatches, 200, devices=[4, 7], max_spans=15)
    assert (len(spans), summary["devices"], summary["complete_until_ns"]) == (15, 2, 0)
    assert {s["args"]["dispatch"] for s in spans} == {0, 1, 2}
    assert {s["pid"] for s in spans} == {5, 8}


def test_a_cap_that_falls_between_dispatches(tmp_path):
    tasks = TaskTable.build(device=[0, 1], bytes_in=1, bytes_out=1)
    rows = [[0, 1, 1, 2, 2, 3, 3]] * 2
    _, spans, summary = draw(tmp_path / "t.json", [record(i, "x", tasks, rows) for i in range(2)], 2, max_spans=6)
    assert (len(spans), summary["spans_total"], summary["complete_until_ns"]) == (6, 12, 0)


@pytest.mark.parametrize("dispatches", [[], [record(0, "", TaskTable.build(device=[]), [])]])
def test_nothing_to_draw_is_still_a_trace(tmp_path, dispatches):
    trace, spans, summary = draw(tmp_path / "t.json", dispatches, 3)
    assert (spans, summary["spans"], summary["spans_total"]) == ([], 0, 0)
    assert trace["traceEvents"][0]["args"]["name"] == "no device had a row"


def test_devices_are_spread_from_least_to_most_loaded():
    load = np.arange(1000)[::-1].copy()
    rows = np.ones(1000, np.int64)
    rows[:10] = 0
    picked = choose_devices(load, rows, 3)
    assert picked.tolist() == [10, 505, 999]
    assert choose_devices(load, rows, 2000).tolist() == list(range(10, 1000))
    assert choose_devices(load, rows * 0).tolist() == []
