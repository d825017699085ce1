"""Energy and heat in results: worked by hand, into the run folder and back, refused where they do not fit, drawn."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pyarrow.parquet as pq
import pytest

from morphling.errors import InputError
from morphling.figures import draw_overview, overview
from morphling.fleet import Availability, Coordinator, Fleet, Links, Thermal
from morphling.interfaces.recording import DispatchRecord, HeatRecord, Recording, events_sha256
from morphling.interfaces.tasks import TaskTable
from morphling.results import Results, metrics, write_run
from morphling.results.human import human
from morphling.types import DType

S = 1_000_000_000
NAN = float("nan")
PARTS = ("energy_idle_j", "energy_compute_j", "energy_radio_up_j", "energy_radio_down_j")
HEAT = ("hottest_case_c", "lowest_clock", "throttled_devices", "throttled_s")


def fleet_of(**changed):
    """Device 0 and 2 are phones, device 1 is a board; all take 1 W idle and 5 W at full load; 2 leaves at 8 s."""
    peak, rates = np.full((3, len(DType)), 1e12), np.full(3, 8_000_000)
    fleet = Fleet(
        profile_names=("phone", "board"),
        profile=np.array([0, 1, 0], np.int32),
        group=np.zeros(3, np.int32),
        peak_flops=peak,
        efficiency=np.ones((3, len(DType))),
        memory_bytes=np.full(3, 1000),
        memory_bandwidth=np.full(3, np.inf),
        launch_s=np.zeros(3),
        idle_w=np.ones(3),
        max_w=np.full(3, 5.0),
        links=Links.constant(rates, rates),
        availability=Availability.of([[(0, 1 << 62)], [(0, 1 << 62)], [(0, 8 * S)]]),
        coordinator=Coordinator("server", peak[0], peak[0], 1 << 30, 1e9, idle_w=100.0, max_w=500.0),
        radio_up_j=np.array([1e-3, 2e-3, 3e-3]),
        radio_down_j=np.array([2e-3, 1e-3, 4e-3]),
        thermal=replace(Thermal.none(3), trip_c=np.array([42.0, NAN, 45.0])),
    )
    return replace(fleet, **changed)


def warmed(**changed):
    """Device 0 fell to 70 % for 2.5 s, device 2 kept its clock; their computing took 7.5 J and 2.25 J above idle."""
    curve = [[0, 0.0, 1.0, 25.0, 25.0], [0, 4.0, 0.7, 43.0, 50.0], [2, 0.0, 1.0, 25.0, 25.0], [2, 7.0, 1.0, 30.0, 31.0]]
    heat = HeatRecord(
        compute_j=np.array([7.5, 0.0, 2.25]),
        hottest_c=np.array([43.5, NAN, 30.0]),
        lowest_clock=np.array([0.7, NAN, 1.0]),
        throttled_ns=np.array([5 * S // 2, 0, 0]),
        curve=np.array(curve),
        watched=(0, 2),
    )
    return replace(heat, **changed)


def recorded(heat=None):
    """Ten seconds: computing takes 3 s, 4 s and 1 s; device 2 sends to device 0; a download of device 1 is cut."""
    tasks = TaskTable.build(
        device=[0, 1, 2, 1, 3],
        peer=[-1, -1, 0, -1, -1],
        bytes_in=[1000, 2000, 0, 10_000, 0],
        bytes_out=[500, 100, 700, 0, 0],
    )
    rows = np.array(
        [
            [0, 2, 2, 5, 5, 6, 6],
            [0, 1, 1, 5, 5, 6, 6],
            [6, 6, 6, 7, 7, 8, 8],
            [6, -1, -1, -1, -1, -1, 9],
            [8, 8, 8, 10, 10, 10, 10],
        ]
    )
    times = np.where(rows >= 0, rows * S, -1)
    work = np.array([3, 4, 1, 0, 2]) * S
    lost = np.array([0, 0, 0, 1, 0], np.bool_)
    columns = tuple(np.ascontiguousarray(c) for c in (*times.T, work))
    made = [DispatchRecord(0, 0, "forward/0", 10 * S, tasks, columns, lost)]
    left = np.array([8 * S]), np.array([2], np.int32), np.array([False])
    return Recording(made, 10 * S, [10 * S], events_sha256(made), left, heat)


def saved(folder, fleet, heat):
    write_run(folder, recorded(heat), fleet, {"wall_time_s": 1.0}, "")
    return Results.open(folder)


# --------------------------------------------------------------------------------------------------------------- energy


def test_energy_by_hand():
    got = metrics(recorded(warmed()), fleet_of())
    # 10 s, 10 s and 8 s at 1 W; heat knows 7.5 J and 2.25 J, the board computes for 4 s at 4 W above idle
    assert got["energy_idle_j"] == 28
    assert got["energy_compute_j"] == 7.5 + 4 * 4 + 2.25
    # sent: 500, 100 and 700 B; received: 1000 B and the 700 B of device 2, 2000 B; nothing of the download that was cut
    assert got["energy_radio_up_j"] == pytest.approx(8 * (0.5 + 0.2 + 2.1), rel=1e-15)
    assert got["energy_radio_down_j"] == pytest.approx(8 * (1.7 * 2 + 2.0), rel=1e-15)
    assert got["energy_j"] == sum(got[name] for name in PARTS) == pytest.approx(119.35, rel=1e-15)
    assert not set(got["not_available"]) & {"energy_j", *PARTS}


def test_without_heat_computing_takes_full_power():
    got = metrics(recorded(), fleet_of())
    assert got["energy_compute_j"] == 4 * (3 + 4 + 1)
    assert got["energy_j"] == pytest.approx(28 + 32 + 22.4 + 43.2, rel=1e-15)


def test_a_device_with_heat_that_did_not_compute_takes_no_energy_for_it():
    heat = warmed(compute_j=np.zeros(3), lowest_clock=np.full(3, NAN), throttled_ns=np.zeros(3, np.int64))
    got = metrics(recorded(heat), fleet_of())
    assert got["energy_compute_j"] == 16
    assert (got["lowest_clock"], got["throttled_devices"], got["throttled_s"]) == (None, 0, 0.0)
    assert got["not_available"]["lowest_clock"] == "no device that warms computed"


def test_a_radio_that_is_not_stated_is_left_out_of_every_total_and_it_is_said(tmp_path):
    fleet = fleet_of(radio_up_j=np.array([1e-3, NAN, 3e-3]))
    results = saved(tmp_path / "run", fleet, warmed())
    got, devices = results.metrics, results.devices()
    why = "1 of 3 devices (profiles: board) state no energy per bit of their radio; energy_j leaves it out"
    assert (got["energy_radio_up_j"], got["not_available"]["energy_radio_up_j"]) == (None, why)
    assert got["energy_j"] == pytest.approx(28 + 25.75 + 43.2, rel=1e-15)
    # what a device states is in its line, but no total of a device counts what the fleet's does not
    assert devices["energy_radio_up_j"].tolist() == pytest.approx([4.0, NAN, 16.8], nan_ok=True)
    assert devices["energy_j"].tolist() == pytest.approx([10 + 7.5 + 27.2, 10 + 16 + 16, 8 + 2.25])
    assert why in " ".join(results.table().caption.split())


def test_no_radio_is_stated_at_all():
    got = metrics(recorded(), fleet_of(radio_up_j=None, radio_down_j=None))
    assert (got["energy_j"], got["energy_radio_up_j"], got["energy_radio_down_j"]) == (60, None, None)
    assert "3 of 3 devices (profiles: board, phone)" in got["not_available"]["energy_radio_down_j"]


def test_without_power_there_is_no_total_but_the_radio_is_known():
    got = metrics(recorded(), fleet_of(max_w=np.array([5.0, NAN, 5.0])))
    assert (got["energy_j"], got["energy_compute_j"], got["energy_idle_j"]) == (None, None, 28)
    why = "1 of 3 devices (profiles: board) state no idle and maximum power"
    assert got["not_available"]["energy_j"] == got["not_available"]["energy_compute_j"] == why
    assert got["energy_radio_up_j"] == pytest.approx(22.4)


# ----------------------------------------------------------------------------------------------------------------- heat


def test_heat_by_hand():
    got = metrics(recorded(warmed()), fleet_of())
    assert {name: got[name] for name in HEAT} == {
        "hottest_case_c": 43.5,
        "lowest_clock": 0.7,
        "throttled_devices": 1,
        "throttled_s": 2.5,
    }
    assert [human(name, got[name]) for name in HEAT] == ["43.5 °C", "70.0 %", "1", "2.500 device-s"]


@pytest.mark.parametrize("heat", [None, warmed(hottest_c=np.full(3, NAN))])
def test_where_no_device_warms_it_says_so(heat):
    got = metrics(recorded(heat), fleet_of())
    assert {got[name] for name in HEAT} == {None}
    assert {got["not_available"][name] for name in HEAT} == {"no device warms in this run"}
    assert got["energy_compute_j"] == 32


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"hottest_c": np.full(4, 30.0)}, "heat.hottest_c is of 4 devices, the fleet has 3"),
        ({"curve": np.zeros((2, 4))}, r"heat.curve has the shape \(2, 4\), not \(rows, 5\)"),
        ({"watched": (0, 3)}, "heat.curve follows device 3 outside the fleet of 3"),
        ({"curve": np.full((1, 5), 7.0)}, "heat.curve follows device 7 outside the fleet of 3"),
    ],
)
def test_heat_of_another_fleet_is_refused(changed, words):
    with pytest.raises(InputError, match=words):
        metrics(recorded(warmed(**changed)), fleet_of())


def test_heat_and_energy_come_back_from_the_folder(tmp_path):
    heat = warmed(compute_j=np.array([0.1 + 0.2, 0.0, 1 / 3]))
    results = saved(tmp_path / "run", fleet_of(), heat)
    assert results.recompute() == results.metrics
    assert results.verify()
    back = results.recording().heat
    for name in ("compute_j", "hottest_c", "lowest_clock", "throttled_ns", "curve"):
        assert np.array_equal(getattr(back, name), getattr(heat, name), equal_nan=name != "throttled_ns"), name
    assert back.watched == (0, 2)
    frame, devices = results.heat(), results.devices()
    assert list(frame.columns) == ["device", "time_s", "clock", "case_c", "junction_c"]
    assert frame["device"].dtype == np.int32
    assert np.array_equal(frame.to_numpy(), heat.curve)
    assert devices["hottest_c"].tolist() == pytest.approx([43.5, NAN, 30.0], nan_ok=True)
    assert devices["throttled_s"].tolist() == pytest.approx([2.5, NAN, 0.0], nan_ok=True)
    assert devices["trip_c"].tolist() == pytest.approx([42.0, NAN, 45.0], nan_ok=True)
    (results.folder / "heat.parquet").unlink()
    for read in (results.heat, results.recording):
        with pytest.raises(InputError, match=r"heat\.parquet: no such file"):
            read()


def test_without_heat_there_is_no_file_and_no_line(tmp_path):
    results = saved(tmp_path / "run", fleet_of(), None)
    assert not (results.folder / "heat.parquet").exists()
    assert (len(results.heat()), results.heat().columns[0]) == (0, "device")
    assert results.recording().heat is None
    shown = set(results.table().columns[0].cells)
    assert not shown & set(HEAT)
    assert shown >= {"energy_j", *PARTS}


def test_the_table_leaves_out_only_the_time_where_no_clock_fell(tmp_path):
    never = warmed(throttled_ns=np.zeros(3, np.int64), lowest_clock=np.array([1.0, NAN, 1.0]))
    shown = set(saved(tmp_path / "a", fleet_of(), never).table().columns[0].cells)
    assert shown & set(HEAT) == set(HEAT) - {"throttled_s"}
    assert set(saved(tmp_path / "b", fleet_of(), warmed()).table().columns[0].cells) >= set(HEAT)


def test_a_folder_from_before_energy_was_split_is_read_and_drawn(tmp_path):
    results = saved(tmp_path / "run", fleet_of(), None)
    path = results.folder / "devices.parquet"
    table = pq.read_table(path)
    fresh = [*PARTS, "radio_up_j_per_bit", "radio_down_j_per_bit", "trip_c", "hottest_c", "lowest_clock"]
    pq.write_table(table.drop_columns([*fresh, "throttled_s", "throttled_ns"]), path)
    got = results.recompute()
    assert (got["energy_j"], got["energy_radio_up_j"]) == (60, None)
    assert len(overview(results).axes) == 4


# -------------------------------------------------------------------------------------------------------------- figures


def panel(figure, title):
    (found,) = [axes for axes in figure.axes if axes.get_title(loc="left") == title]
    return found


def many(count):
    """A run of ``count`` devices whose clocks are all followed."""
    pick = np.arange(count) % 3
    fleet = fleet_of()
    columns = ("profile", "group", "peak_flops", "efficiency", "memory_bytes", "memory_bandwidth", "launch_s", "idle_w")
    columns = (*columns, "max_w", "radio_up_j", "radio_down_j")
    rates = np.full(count, 8_000_000)
    fleet = replace(
        fleet,
        **{name: getattr(fleet, name)[pick] for name in columns},
        links=Links.constant(rates, rates),
        availability=Availability.always(count),
        thermal=replace(Thermal.none(count), trip_c=np.full(count, 42.0)),
    )
    curve = np.array([[i, t, 1 - t / 20, 25 + t, 26 + t] for i in range(count) for t in range(10)], float)
    heat = HeatRecord(
        compute_j=np.ones(count),
        hottest_c=np.full(count, 34.0),
        lowest_clock=np.full(count, 0.55),
        throttled_ns=np.full(count, S),
        curve=curve,
        watched=tuple(range(count)),
    )
    tasks = TaskTable.build(device=np.arange(count), bytes_in=0, bytes_out=0)
    times = tuple(np.full(count, t) for t in (0, 0, 0, 10 * S, 10 * S, 10 * S, 10 * S, 10 * S))
    made = [DispatchRecord(0, 0, "forward/0", 10 * S, tasks, times, np.zeros(count, np.bool_))]
    return fleet, Recording(made, 10 * S, [10 * S], events_sha256(made), heat=heat)


@pytest.mark.parametrize("count", [1, 3, 8, 11])
def test_clocks_and_temperatures_are_drawn_on_the_time_axis_of_the_run(tmp_path, count):
    fleet, recording = many(count)
    write_run(tmp_path / "run", recording, fleet, {}, "")
    results = Results.open(tmp_path / "run")
    figure = overview(results)
    clocks, warmth = panel(figure, "Clock"), panel(figure, "Temperature")
    drawn = min(count, 8)
    assert len(clocks.lines) == drawn
    assert len(warmth.lines) == 2 * drawn + 1
    assert clocks.lines[0].get_ydata().tolist() == pytest.approx([100 - 5 * t for t in range(10)])
    assert warmth.lines[-1].get_ydata() == [42.0, 42.0]
    assert clocks.get_xlim() == warmth.get_xlim() == panel(figure, "Who did what when").get_xlim() == (0, 10)
    assert (clocks.get_ylabel(), warmth.get_ylabel()) == ("share of full\nclock (%)", "temperature (°C)")
    assert warmth.get_xlabel() == "virtual time (s)"
    names = [text.get_text() for text in clocks.get_legend().get_texts()]
    assert names == results.devices()["name"].tolist()[:8]
    assert [text.get_text() for text in warmth.get_legend().get_texts()][-1] == "clock falls from 42 °C on"
    assert ("3 more devices were followed (not drawn)" in figure.get_supxlabel()) == (count == 11)
    assert draw_overview(results.folder).is_file()
    figure.draw_without_rendering()
    boxes = [axes.get_window_extent() for axes in (clocks, warmth, panel(figure, "Who did what when"))]
    assert len({(round(box.x0), round(box.x1)) for box in boxes}) == 1
    every = [axes.get_window_extent() for axes in figure.axes]
    assert [(a, b) for a, b in combinations(every, 2) if a.overlaps(b)] == []
    keys = [axes.get_legend().get_window_extent() for axes in (clocks, warmth)]
    assert not keys[0].overlaps(keys[1])
    assert min(key.x0 for key in keys) >= boxes[0].x1
    assert max(key.x1 for key in keys) <= figure.bbox.x1


def test_energy_is_drawn_by_profile_and_what_is_missing_is_said(tmp_path):
    figure = overview(saved(tmp_path / "a", fleet_of(), warmed()))
    axes = panel(figure, "Where the energy went")
    assert [text.get_text() for text in axes.get_yticklabels()] == ["phone\n× 2", "board\n× 1"]
    widths = [[bar.get_width() for bar in container] for container in axes.containers]
    assert np.array(widths) == pytest.approx(np.array([[18, 10], [9.75, 16], [20.8, 1.6], [27.2, 16]]))
    assert axes.get_xlabel() == "energy, summed over devices (J)"
    assert "energy" not in figure.get_supxlabel()
    silent = fleet_of(idle_w=np.array([1, NAN, 1]), radio_down_j=np.array([1e-3, 1e-3, NAN]))
    figure = overview(saved(tmp_path / "b", silent, None))
    assert "energy: 1 devices state no power (not drawn)" in figure.get_supxlabel()
    assert (
        "energy: 1 devices do not state what the radio takes; energy_j leaves out the others'" in figure.get_supxlabel()
    )
    figure = overview(saved(tmp_path / "c", fleet_of(idle_w=np.full(3, NAN)), None))
    assert "Where the energy went" not in [axes.get_title(loc="left") for axes in figure.axes]
