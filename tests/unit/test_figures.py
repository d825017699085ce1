"""Figures: what is drawn for one row, for none, for many devices, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from morphling.errors import InputError
from morphling.figures import draw_overview, overview
from morphling.figures.spans import merge, pick_lanes
from morphling.fleet import Availability, Coordinator, Fleet, Links
from morphling.interfaces.recording import DispatchRecord, Recording, events_sha256
from morphling.interfaces.tasks import TaskTable
from morphling.results import Results, write_run
from morphling.types import DType

S = 1_000_000_000


def make_fleet(size):
    peak = np.full((size, len(DType)), 1e12)
    rates = np.full(size, 8_000_000)
    return Fleet(
        profile_names=("phone",),
        profile=np.zeros(size, np.int32),
        group=np.zeros(size, np.int32),
        peak_flops=peak,
        efficiency=np.ones((size, len(DType))),
        memory_bytes=np.full(size, 1 << 30),
        memory_bandwidth=np.full(size, np.inf),
        launch_s=np.zeros(size),
        idle_w=np.ones(size),
        max_w=np.full(size, 5.0),
        links=Links.constant(rates, rates),
        availability=Availability.always(size),
        coordinator=Coordinator("server", np.ones(5), np.ones(5), 1 << 30, 1e9),
        radio_up_j=np.full(size, 1e-7),
        radio_down_j=np.full(size, 1e-7),
    )


def saved(folder, size, used, count=1, label="forward/{}"):
    """``count`` dispatches; device i of those used downloads for 1 + i ns, computes for 2 s, uploads for 1 s."""
    dispatches = []
    for serial in range(count):
        tasks = TaskTable.build(device=used, bytes_in=np.asarray(used) + 1, bytes_out=3, resident_bytes=1 << 20)
        rows = np.add.outer(np.asarray(used, np.int64), np.array([0, 1, 1, 1 + 2 * S, 1 + 2 * S, 1 + 3 * S, 1 + 3 * S]))
        rows[:, 0] = 0
        rows += serial * 4 * S
        times = tuple(np.ascontiguousarray(c) for c in (*rows.T, np.maximum(rows[:, 3] - rows[:, 2], 0)))
        settled = int(rows.max(initial=0))
        lost = np.zeros(len(used), np.bool_)
        dispatches.append(DispatchRecord(serial, serial * 4 * S, label.format(serial), settled, tasks, times, lost))
    end = max((d.settled_ns for d in dispatches), default=0)
    write_run(folder, Recording(dispatches, end, [end], events_sha256(dispatches)), make_fleet(size), {}, "")
    return Results.open(folder)


def words(figure):
    texts = [figure.get_suptitle(), figure.get_supxlabel()]
    for axes in figure.axes:
        texts += [axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel(), *(t.get_text() for t in axes.texts)]
        texts += [t.get_text() for t in axes.get_yticklabels()]
    return "\n".join(texts)


def test_a_small_run_shows_every_device_and_the_coordinator(tmp_path):
    figure = overview(saved(tmp_path / "run", 3, [0, 1, 2, 3]))
    shown = words(figure)
    for text in ("phone#0\n(least busy)", "phone#1\n(median)", "phone#2\n(busiest)", "coordinator", "virtual time (s)"):
        assert text in shown
    assert "3 of 3 devices used" in shown
    assert "12 device" not in shown
    assert figure.get_supxlabel() == ""
    assert len(figure.axes[0].collections) == 12


@pytest.mark.parametrize(("size", "used"), [(0, []), (3, []), (1, [0]), (3, [2])])
def test_few_devices_or_none(tmp_path, size, used):
    results = saved(tmp_path / "run", size, used)
    path = draw_overview(results.folder)
    assert path == results.folder / "figures" / "overview.png"
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    shown = words(overview(results))
    assert ("no device had a row" in shown) == (not used)
    assert ("nothing was transferred" in shown) == (not used)
    assert ("the fleet has no devices" in shown) == (size == 0)
    if size == 3 and used:
        assert "2 none down, 2 none up (not drawn)" in shown
        assert "2 devices held nothing (not drawn)" in shown


def test_many_devices_and_phases_are_thinned_out_and_it_is_said(tmp_path):
    results = saved(tmp_path / "run", 5000, list(range(5000)), 12, label="phase{}/x")
    figure = overview(results)
    shown = words(figure)
    assert "5 others" in shown
    assert "each stroke is the range of 12 neighbouring devices" in shown
    assert all(len(line.get_xdata()) <= 2000 for line in figure.axes[2].lines)
    figure.savefig(tmp_path / "x.png")


def test_merged_spans_are_counted(tmp_path):
    results = saved(tmp_path / "run", 1, [0], 4000)
    figure = overview(results)
    assert "spans drawn as one with their neighbours (gaps below" in words(figure)


def test_a_damaged_folder_is_named(tmp_path):
    results = saved(tmp_path / "run", 2, [0, 1])
    (results.folder / "events.parquet").write_bytes(b"no")
    with pytest.raises(InputError, match=r"events\.parquet"):
        overview(results)


def test_a_figure_drawn_while_writing_names_the_run(tmp_path, monkeypatch):
    seen = []
    tasks = TaskTable.build(device=[])
    empty = DispatchRecord(0, 0, "", 0, tasks, (np.zeros(0, np.int64),) * 7, np.zeros(0, np.bool_))
    run = Recording([empty], 0, [], events_sha256([empty]))
    monkeypatch.chdir(tmp_path)
    write_run(Path("named"), run, make_fleet(1), {}, "", draw=lambda f: seen.append(words(overview(Results.open(f)))))
    assert seen[0].startswith("named\n")
    assert [p.name for p in tmp_path.iterdir()] == ["named"]


def test_merging_by_hand():
    start, end = np.array([10, 0, 3, 40]), np.array([20, 5, 4, 41])
    assert merge(start, end, 0).tolist() == [[0, 5], [10, 10], [40, 1]]
    assert merge(start, end, 6).tolist() == [[0, 20], [40, 1]]
    assert merge(start[:0], end[:0], 6).shape == (0, 2)
    assert pick_lanes(np.array([5.0, 1.0, 9.0, 2.0]), np.array([1, 1, 1, 0])) == [
        (1, "least busy"),
        (0, "median"),
        (2, "busiest"),
    ]
