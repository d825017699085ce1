"""Results: hand-computed metrics, the run folder, and the way back from it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from morphling.errors import InputError, RunError
from morphling.fleet import Availability, Coordinator, Fleet, Links
from morphling.interfaces.events import EVENT_COLUMNS
from morphling.interfaces.recording import DispatchRecord, Recording, events_sha256
from morphling.interfaces.tasks import TaskTable
from morphling.results import Results, metrics, new_run_folder, take_folder, write_run
from morphling.results.human import bytes_text, human, seconds_text
from morphling.results.metrics import phase_of
from morphling.results.sweep import peak_level
from morphling.types import DType

S = 1_000_000_000

RECOVERY_PARTS = [
    f"recovery_{part}" for part in ("detection", "planning", "redispatch", "setup", "recompute", "waiting")
]


def make_fleet(size: int = 3, availability: Availability | None = None, idle_w: float = 1.0) -> Fleet:
    peak = np.full((size, len(DType)), 1e12)
    rates = np.full(size, 8_000_000)
    return Fleet(
        profile_names=("phone", "board"),
        profile=(np.arange(size) % 2).astype(np.int32),
        group=np.zeros(size, np.int32),
        peak_flops=peak,
        efficiency=np.ones((size, len(DType))),
        memory_bytes=np.full(size, 1000),
        memory_bandwidth=np.full(size, np.inf),
        launch_s=np.zeros(size),
        idle_w=np.full(size, idle_w),
        max_w=np.full(size, 5.0),
        links=Links.constant(rates, rates),
        availability=availability or Availability.always(size),
        coordinator=Coordinator("server", peak[0], peak[0], 1 << 30, 1e9) if size else None,
    )


def record(serial, time, label, tasks, rows, lost=None):
    """``rows``: seven times for each row."""
    times = np.array(rows, np.int64).reshape(len(tasks), 7)
    started, ended = times[:, 2], np.where(times[:, 3] >= 0, times[:, 3], times[:, 6])
    work = np.where(started >= 0, ended - started, 0)
    return DispatchRecord(
        serial=serial,
        time_ns=time,
        label=label,
        settled_ns=int(times[:, 6].max(initial=time)),
        tasks=tasks,
        times=tuple(np.ascontiguousarray(c) for c in (*times.T, work)),
        lost=np.zeros(len(tasks), np.bool_) if lost is None else np.array(lost, np.bool_),
    )


def recorded(dispatches, end_ns=None, iterations=(), churn=None):
    end = max((d.settled_ns for d in dispatches), default=0) if end_ns is None else end_ns
    made = Recording(dispatches, end, list(iterations), events_sha256(dispatches))
    return made if churn is None else replace(made, churn=churn)


@pytest.fixture
def run():
    """Two devices of three used, and the coordinator (3); device 1 leaves at 6 s with its second row half computed."""
    first = TaskTable.build(device=[0, 1, 0], bytes_in=[100, 200, 0], bytes_out=[7, 9, 11], resident_bytes=[40, 50, 60])
    again = TaskTable.build(device=[1, 3], bytes_in=[1000, 0], bytes_out=[5000, 0], resident_bytes=[70, 99])
    redo = TaskTable.build(device=[0], bytes_in=[1000], bytes_out=[5000], resident_bytes=[30])
    ready = 1 * S  # a row without download starts and ends its download at once
    return recorded(
        [
            record(
                0,
                0,
                "forward/0",
                first,
                [
                    [0, 2 * S, 2 * S, 3 * S, 3 * S, 4 * S, 4 * S],
                    [0, 1 * S, 1 * S, 3 * S, 3 * S, 5 * S, 5 * S],
                    [ready, ready, 3 * S, 5 * S, 5 * S, 5 * S, 5 * S],
                ],
            ),
            record(
                1,
                5 * S,
                "backward/0",
                again,
                [
                    [5 * S, 5 * S + S // 4, 5 * S + S // 2, -1, -1, -1, 6 * S],
                    [5 * S, 5 * S, 5 * S, 8 * S, 8 * S, 8 * S, 8 * S],
                ],
                lost=[1, 0],
            ),
            record(2, 6 * S, "recovery/0", redo, [[6 * S, 7 * S, 7 * S, 8 * S, 8 * S, 10 * S, 10 * S]]),
        ],
        iterations=[5 * S, 10 * S],
        churn=(np.array([6 * S]), np.array([1], np.int32), np.array([False])),
    )


def test_metrics_by_hand(run):
    got = metrics(run, make_fleet(), 2.5)
    expected = {
        "iteration_time_s": 5.0,
        "iteration_time_min_s": 5.0,
        "iteration_time_max_s": 5.0,
        "iterations": 2,
        "makespan_s": 10.0,
        "compute_s": 1 + 2 + 2 + 0.5 + 1,
        "download_s": 2 + 1 + 0 + 0.25 + 1,
        "upload_s": 1 + 2 + 0 + 0 + 2,
        "coordinator_compute_s": 3.0,
        "bytes_down": 100 + 200 + 1000 + 1000,
        "bytes_up": 7 + 9 + 11 + 5000,
        # Device 0 holds rows 0 and 2 together from 3 s to 4 s; device 1 never more than 70.
        "peak_device_memory_bytes": 100,
        "coordinator_peak_memory_bytes": 99,
        "device_utilization": (4 + 2.5) / 30,
        "energy_j": 3 * 10 * 1.0 + 4.0 * 6.5,
        "energy_idle_j": 30.0,
        "energy_compute_j": 26.0,
        "energy_radio_up_j": None,
        "hottest_case_c": None,
        "devices": 3,
        "devices_used": 2,
        "dispatches": 3,
        "rows": 6,
        "lost_rows": 1,
        "recovery_time_s": 4.0,
        "loss_instants": 1,
        "unrecovered_losses": 0,
        "wall_time_s": 2.5,
        "events_sha256": run.events_sha256,
        "paused_s": 0.0,
        "pauses": 0,
        "first_pause_s": None,
        "not_available": {
            "first_pause_s": "there was no pause: a device was online all the time",
            **dict.fromkeys(["battery_departures", "lowest_battery_share"], "no device has a battery"),
            **dict.fromkeys(
                ["energy_radio_up_j", "energy_radio_down_j"],
                "3 of 3 devices (profiles: board, phone) state no energy per bit of their radio; energy_j leaves it "
                "out",
            ),
            **dict.fromkeys(
                ["hottest_case_c", "lowest_clock", "throttled_devices", "throttled_s"], "no device warms in this run"
            ),
            **dict.fromkeys(
                [
                    f"recovery_{part}_s"
                    for part in ("detection", "planning", "redispatch", "setup", "recompute", "waiting")
                ],
                "the strategy reports no recoveries",
            ),
            **dict.fromkeys(
                ["recovery_moved_bytes", "iteration_time_before_loss_s", "iteration_time_after_recovery_s"],
                "the strategy reports no recovery that was dispatched",
            ),
        },
    }
    assert {name: got[name] for name in expected} == expected
    assert got["phases"]["backward"] == {
        "dispatches": 1,
        "rows": 2,
        "lost_rows": 1,
        "bytes_down": 1000,
        "bytes_up": 0,
        "download_s": 0.25,
        "compute_s": 0.5,
        "upload_s": 0.0,
        "coordinator_compute_s": 3.0,
    }
    assert list(got["phases"]) == ["forward", "backward", "recovery"]


def test_a_cut_transfer_is_not_delivered():
    tasks = TaskTable.build(device=[0], bytes_in=[1000], bytes_out=[10], resident_bytes=[5])
    got = metrics(recorded([record(0, 0, "x", tasks, [[S, -1, -1, -1, -1, -1, 3 * S]], [1])]), make_fleet())
    assert (got["bytes_down"], got["bytes_up"], got["download_s"], got["lost_rows"]) == (0, 0, 2.0, 1)
    assert got["peak_device_memory_bytes"] == 5
    assert (got["recovery_time_s"], got["unrecovered_losses"]) == (None, 1)
    assert "recovery" in got["not_available"]["recovery_time_s"]


def test_all_rows_lost_before_they_began():
    tasks = TaskTable.build(device=[0, 1], bytes_in=3, bytes_out=4, resident_bytes=9)
    got = metrics(recorded([record(0, 0, "x", tasks, [[-1] * 6 + [S]] * 2, [1, 1])]), make_fleet())
    assert (got["rows"], got["lost_rows"], got["bytes_down"], got["peak_device_memory_bytes"]) == (2, 2, 0, 0)
    assert (got["compute_s"], got["download_s"], got["upload_s"], got["makespan_s"]) == (0, 0, 0, 1)


def test_a_row_without_download_holds_memory_from_its_computing():
    tasks = TaskTable.build(device=[0, 0], bytes_in=[1, 0], bytes_out=0, resident_bytes=[40, 60])
    rows = [[0, 2, 2, 4, 4, 4, 4], [0, 0, 4, 9, 9, 9, 9]]
    assert metrics(recorded([record(0, 0, "x", tasks, rows)]), make_fleet())["peak_device_memory_bytes"] == 60
    tasks = replace(tasks, bytes_in=np.array([1, 1]))
    assert metrics(recorded([record(0, 0, "x", tasks, rows)]), make_fleet())["peak_device_memory_bytes"] == 100


@pytest.mark.parametrize(("start", "peak"), [(99, 12), (100, 7)])
def test_large_dispatches_that_overlap_are_swept_together(start, peak):
    many = TaskTable.build(
        device=np.full(70_000, 1, np.int32), bytes_in=1, resident_bytes=np.r_[5, np.zeros(69_999, int)]
    )
    rows = np.tile([0, 0, 0, 100, 100, 100, 100], (70_000, 1))
    late = TaskTable.build(device=[1], bytes_in=1, resident_bytes=7)
    run = recorded(
        [
            record(0, 0, "x", many, rows),
            record(1, start, "x", late, [[start, start, start, start + 1, start + 1, start + 1, start + 1]]),
        ],
        end_ns=1000,
    )
    got = metrics(run, make_fleet())
    assert got["peak_device_memory_bytes"] == peak


def test_nothing_dispatched_says_what_is_not_available():
    got = metrics(recorded([]), make_fleet())
    assert (got["rows"], got["makespan_s"], got["devices_used"], got["phases"]) == (0, 0.0, 0, {})
    assert set(got["not_available"]) >= {"iteration_time_s", "device_utilization", "recovery_time_s", "wall_time_s"}
    empty = record(0, 0, "", TaskTable.build(device=[]), [])
    assert metrics(recorded([empty], end_ns=5), make_fleet())["phases"]["unlabelled"]["dispatches"] == 1


def test_power_that_is_not_stated_is_not_guessed(run):
    got = metrics(run, make_fleet(idle_w=float("nan")))
    assert got["energy_j"] is None
    assert "3 of 3 devices" in got["not_available"]["energy_j"]
    assert "board, phone" in got["not_available"]["energy_j"]


def test_a_device_that_is_away_uses_no_idle_power(run):
    here = Availability.of([[(0, 1 << 62)], [(0, 6 * S)], [(2 * S, 4 * S), (9 * S, 1 << 62)]])
    assert metrics(run, make_fleet(availability=here))["energy_j"] == (10 + 6 + 3) * 1.0 + 4.0 * 6.5


def test_rows_beyond_the_fleet_are_refused(run):
    with pytest.raises(InputError, match="outside the fleet of 2"):
        metrics(run, make_fleet(2))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(0, 9), st.integers(0, 50)), min_size=1))
@settings(max_examples=150, deadline=None)
def test_the_sweep_equals_counting_every_instant(rows):
    rows.sort(key=lambda r: r[0])
    group, start, length, weight = (np.array(c, np.int64) for c in zip(*rows, strict=True))
    end = start + length
    counts = np.unique(group, return_counts=True)[1]
    for big in (0, 1 << 61):  # far from zero, (group, time) does not fit one integer and is cut into portions
        s, e = start.copy(), end.copy()
        e[end == end.max()] += big
        for g, top in zip(np.unique(group), peak_level(counts, s, e, weight), strict=True):
            mine = group == g
            instants = np.unique(np.concatenate([s[mine], e[mine]]))
            held = [weight[mine & (s <= t) & (t < e)].sum() for t in instants]
            assert top == max(held)


def test_many_small_dispatches_equal_one_by_one():
    rng = np.random.default_rng(1)
    tasks = [
        TaskTable.build(
            device=rng.integers(0, 4, 700), bytes_in=5, bytes_out=3, resident_bytes=rng.integers(1, 99, 700)
        )
        for _ in range(3)
    ]
    dispatches = []
    for serial in range(300):
        start = serial * 50 + np.sort(rng.integers(0, 300, 700))
        steps = np.cumsum(np.column_stack([start, *(rng.integers(0, 9, 700) for _ in range(5))]), axis=1)
        dispatches.append(
            record(serial, serial * 50, f"p{serial % 3}", tasks[serial % 3], np.column_stack([steps, steps[:, 5]]))
        )
    run = recorded(dispatches)
    got = metrics(run, make_fleet())
    device, held, start, end = (
        np.concatenate(x)
        for x in zip(
            *((d.tasks.device, d.tasks.resident_bytes, d.times[0], d.times[6]) for d in dispatches), strict=True
        )
    )
    tops = []
    for i in range(4):
        mine = device == i
        change = np.concatenate([held[mine], -held[mine]])
        order = np.lexsort((change, np.concatenate([start[mine], end[mine]])))
        tops.append(np.cumsum(change[order]).max())
    assert got["rows"] == 210_000
    assert (got["peak_device_memory_bytes"], got["coordinator_peak_memory_bytes"]) == (max(tops[:3]), tops[3])
    assert got["bytes_down"] == 5 * np.count_nonzero(device < 3)
    assert sum(p["rows"] for p in got["phases"].values()) == 210_000


# ------------------------------------------------------------------------------------------------------- the run folder


@pytest.fixture
def folder(run, tmp_path):
    write_run(
        tmp_path / "run",
        run,
        make_fleet(),
        {"wall_time_s": 2.5, "seed": 1},
        "name: x\n",
        extra={"executor": {"rung": "analytic"}},
    )
    return tmp_path / "run"


def test_the_folder_holds_what_it_should(run, folder):
    held = {p.name for p in folder.iterdir()}
    assert held == {
        "scenario.yaml",
        "manifest.json",
        "metrics.json",
        "events.parquet",
        "dispatches.parquet",
        "devices.parquet",
        "churn.parquet",
        "timeline.json",
    }
    assert [p.name for p in folder.parent.iterdir()] == ["run"]
    results = Results.open(folder)
    assert results.metrics == metrics(run, make_fleet(), 2.5)
    assert results.manifest["executor"] == {"rung": "analytic"}
    assert results.scenario_yaml == "name: x\n"
    events = results.events()
    assert tuple(events.columns) == EVENT_COLUMNS
    assert events["row"].tolist() == [0, 1, 2, 0, 1, 0]
    assert events["bytes_in"].tolist() == [100, 200, 0, 1000, 0, 1000]
    assert events["label"].tolist() == ["forward/0"] * 3 + ["backward/0"] * 2 + ["recovery/0"]
    assert events["compute_end_ns"].tolist() == [3 * S, 3 * S, 5 * S, -1, 8 * S, 8 * S]
    assert results.events(["lost"])["lost"].tolist() == [0, 0, 0, 1, 0, 0]
    devices = results.devices()
    assert devices["name"].tolist() == ["phone#0", "board#1", "phone#2"]
    assert devices["profile"].tolist() == ["phone", "board", "phone"]
    assert devices["bytes_down"].tolist() == [1100, 1200, 0]
    assert devices["bytes_up"].tolist() == [5018, 9, 0]
    assert devices["peak_memory_bytes"].tolist() == [100, 70, 0]
    assert devices["compute_s"].tolist() == [4.0, 2.5, 0.0]
    assert results.dispatches()["compute_ns"].tolist() == [5 * S, S // 2, S]


def test_the_fingerprint_and_the_metrics_come_back_from_the_folder(run, folder):
    results = Results.open(folder)
    assert results.verify()
    assert results.recompute() == results.metrics
    back = results.recording()
    assert events_sha256(back.dispatches) == run.events_sha256
    assert [c.tolist() for c in back.churn] == [c.tolist() for c in run.churn]
    assert (back.end_ns, back.iteration_ends_ns) == (run.end_ns, run.iteration_ends_ns)


def test_a_changed_event_is_noticed(folder):
    table = pq.read_table(folder / "events.parquet")
    column = table["upload_end_ns"].to_numpy().copy()
    column[0] += 1
    at = table.schema.get_field_index("upload_end_ns")
    pq.write_table(table.set_column(at, "upload_end_ns", [column]), folder / "events.parquet")
    assert not Results.open(folder).verify()
    pq.write_table(table.slice(0, 5), folder / "events.parquet")
    with pytest.raises(InputError, match=r"events\.parquet: holds 1 rows less"):
        Results.open(folder).verify()


@pytest.mark.parametrize("name", ["metrics.json", "manifest.json"])
def test_missing_or_damaged_json_is_named(folder, name):
    (folder / name).write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        Results.open(folder)
    (folder / name).unlink()
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        Results.open(folder)


def test_missing_or_damaged_tables_are_named(folder):
    with pytest.raises(InputError, match="no such run folder"):
        Results.open(folder / "nowhere")
    results = Results.open(folder)
    with pytest.raises(InputError, match="no such event columns: lots"):
        results.events(["lots"])
    (folder / "events.parquet").write_bytes(b"PAR1 no")
    (folder / "devices.parquet").unlink()
    with pytest.raises(InputError, match=r"events\.parquet"):
        results.events()
    with pytest.raises(InputError, match=r"devices\.parquet"):
        results.devices()


@pytest.mark.parametrize("size", [0, 3])
def test_an_empty_run_is_written_and_read(tmp_path, size):
    empty = record(0, 0, "", TaskTable.build(device=[]), [])
    for name, run in (("a", recorded([])), ("b", recorded([empty]))):
        write_run(tmp_path / name, run, make_fleet(size), {}, "")
        results = Results.open(tmp_path / name)
        assert results.verify()
        assert results.recompute() == results.metrics
        assert (len(results.events()), len(results.devices())) == (0, size)
        assert results._repr_html_().count("<tr>") == len(results.summary())


def test_row_groups_hold_many_dispatches_and_split_large_ones(tmp_path):
    tasks = TaskTable.build(device=np.zeros(40_000, np.int32), bytes_in=1)
    rows = np.tile(np.arange(7), (40_000, 1))
    run = recorded([record(i, i * 10, "a", tasks, rows + i * 10) for i in range(4)])
    write_run(tmp_path / "r", run, make_fleet(), {}, "")
    file = pq.ParquetFile(tmp_path / "r" / "events.parquet")
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [80_000, 80_000]
    back = Results.open(tmp_path / "r").recording().dispatches
    assert all(d.tasks is back[0].tasks for d in back)
    assert events_sha256(back) == run.events_sha256


def test_folders_are_never_written_over(tmp_path, run, folder):
    when = datetime(2025, 3, 1, 12, 0, 5, tzinfo=UTC)
    names = [new_run_folder(tmp_path / "runs", "a b/c", when).name for _ in range(3)]
    assert names == ["a-b-c-20250301T120005Z", "a-b-c-20250301T120005Z-2", "a-b-c-20250301T120005Z-3"]
    with pytest.raises(InputError, match="is not empty"):
        write_run(folder, run, make_fleet(), {}, "")
    with pytest.raises(InputError, match="is not a folder"):
        take_folder(folder / "metrics.json")
    write_run(tmp_path / "runs" / names[0], run, make_fleet(), {}, "")
    assert Results.open(tmp_path / "runs" / names[0]).verify()


def test_an_interrupted_writer_leaves_nothing(tmp_path, run):
    def interrupted(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_run(tmp_path / "r", run, make_fleet(), {}, "", draw=interrupted)
    assert list(tmp_path.iterdir()) == []


def test_a_figure_that_fails_costs_nothing_else(tmp_path, run):
    def failing(_):
        raise ValueError("no ink")

    with pytest.raises(RunError, match="are written, but the figures could not be drawn: no ink"):
        write_run(tmp_path / "r", run, make_fleet(), {}, "", draw=failing)
    assert Results.open(tmp_path / "r").verify()


def test_reports_become_plain_json(tmp_path, run):
    extra = {"strategy": {"bound": float("inf"), "sizes": np.arange(3), "share": np.float64(0.5), "names": {"b", "a"}}}
    write_run(tmp_path / "r", run, make_fleet(), {}, "", extra=extra)
    strategy = json.loads((tmp_path / "r" / "manifest.json").read_text())["strategy"]
    assert strategy == {"bound": "inf", "sizes": [0, 1, 2], "share": 0.5, "names": ["a", "b"]}
    with pytest.raises(ValueError, match="both manifest and extra hold seed"):
        write_run(tmp_path / "q", run, make_fleet(), {"seed": 1}, "", extra={"seed": 2})


# ---------------------------------------------------------------------------------------------------------- fingerprint


def test_the_fingerprint_sees_every_part(run):
    base = events_sha256(run.dispatches)
    assert base == events_sha256(list(run.dispatches))
    first = run.dispatches[0]
    rows = np.arange(3)
    others = [
        replace(first, serial=9),
        replace(first, time_ns=1),
        replace(first, label="forward/1"),
        replace(first, lost=np.array([True, False, False])),
        replace(first, tasks=replace(first.tasks, bytes_out=first.tasks.bytes_in, bytes_in=first.tasks.bytes_out)),
        *(replace(first, times=tuple(c + 1 if i == j else c for j, c in enumerate(first.times))) for i in range(8)),
    ]
    prints = {events_sha256([other, *run.dispatches[1:]]) for other in others}
    assert len(prints | {base}) == len(others) + 1
    assert events_sha256([replace(first, tasks=first.tasks.take(rows)), *run.dispatches[1:]]) == base


# --------------------------------------------------------------------------------------------------------------- people


def test_numbers_for_people(folder):
    assert [bytes_text(x) for x in (0, 1023, 1024, 3_661_000_000, 1 << 20)] == [
        "0 B",
        "1,023 B",
        "1.00 KiB",
        "3.41 GiB",
        "1.00 MiB",
    ]
    assert [seconds_text(x) for x in (0, 4e-9, 0.0125, 612.34, 5400)] == [
        "0 s",
        "4.000 ns",
        "12.50 ms",
        "612.3 s",
        "5,400 s (1 h 30 min)",
    ]
    assert human("device_utilization", 0.2166) == "21.7 %"
    assert human("energy_j", 1_234_500.0) == "1.23 MJ"
    assert human("rows", 6_000_000) == "6,000,000"
    assert human("energy_j", None) == "not available"
    assert [phase_of(x) for x in ("forward/3", "backward:1", "a b", "")] == ["forward", "backward", "a", "unlabelled"]
    results = Results.open(folder)
    assert ("bytes_down", 2300, "B") in results.summary()
    # this run lost rows and had two iterations, but no pause, no heat, no battery, and no waiting, set-up or moves
    assert results.table().row_count == len(results.summary()) - 3 - 4 - 2 - 3
    assert "2.25 KiB" in results._repr_html_()


@pytest.mark.parametrize(
    ("took", "words"),
    [
        (10.5, "plan: estimated 10.00 s an iteration"),
        (None, "plan: estimated 10.00 s an iteration"),
        (29.7, "plan: estimated 10.00 s an iteration; iterations took 2.97 times that"),
        (5.0, "plan: estimated 10.00 s an iteration; iterations took 0.50 times that"),
    ],
)
def test_an_estimate_that_did_not_come_true_says_so(tmp_path, took, words):
    manifest = {"strategy": {"estimate_s": 10.0, "lower_bounds": {"uplink": 2.0, "compute": 0.0}}}
    (note,) = Results(tmp_path, {"iteration_time_s": took}, manifest).notes()
    assert note == f"{words}; at the rates it reckoned with no plan beats uplink 2.000 s"


def test_an_estimate_of_something_else_is_not_held_against_iterations(tmp_path):
    manifest = {"strategy": {"estimate_s": 10.0, "estimate_of": "for the first update"}}
    (note,) = Results(tmp_path, {"iteration_time_s": 1.6}, manifest).notes()
    assert note == "plan: estimated 10.00 s for the first update"
