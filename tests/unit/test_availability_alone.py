"""Availability without a scenario: what `morphling traces show` makes of names and files."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from itertools import pairwise

import pytest

from morphling.errors import InputError, TraceError
from morphling.figures.availability import availability_figure, draw_availability
from morphling.figures.axes import ranks, time_scale
from morphling.fleet import Availability
from morphling.fleet.presence import presence
from morphling.scenario import availability_source
from morphling.types import FAR_NS

S = 10**9
BEHAVIOUR = {
    "a": {"active": [1, 5.5], "inactive": [3, 6], "finish_time": 10},
    "b": {"active": [0], "inactive": [4], "finish_time": 8},
}


def spans(here):
    return list(zip(here.device().tolist(), here.start_ns.tolist(), here.end_ns.tolist(), strict=True))


def run(*args):
    command = [sys.executable, "-m", "morphling", "traces", "show", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_files_are_known_by_how_they_begin(tmp_path):
    for name, raw in (
        ("b.json", json.dumps(BEHAVIOUR).encode()),
        ("bom.json", b"\xef\xbb\xbf \n" + json.dumps(BEHAVIOUR).encode()),
        ("b.dat", pickle.dumps(BEHAVIOUR)),
    ):
        (tmp_path / name).write_bytes(raw)
        source = availability_source(str(tmp_path / name))
        assert (source.kind, source.name) == ("fedscale", name)
        here, notes = source.load()
        # until the longest period, 10 s: b's second turn is under way then
        assert spans(here) == [(0, S, 3 * S), (0, 5_500_000_000, 6 * S), (1, 0, 4 * S), (1, 8 * S, FAR_NS)]
        assert notes == []
    (tmp_path / "t.csv").write_text("# x\ntime_s,down_bps,up_bps\n0,1000,1000\n")
    assert availability_source(str(tmp_path / "t.csv")) is None
    assert availability_source("mobiperf-lte") is None
    assert availability_source("nothing-of-the-kind") is None
    with pytest.raises(InputError, match="did you mean 'desktops-boinc'"):
        availability_source("desktop-boinc")


def test_sessions_by_device_and_by_client(tmp_path):
    path = tmp_path / "s.csv"
    path.write_text("# x\ndevice,start_s,end_s\n2,4,\n0,1,3\n")
    here, _ = availability_source(str(path)).load()
    assert spans(here) == [(0, S, 3 * S), (1, 0, FAR_NS), (2, 4 * S, FAR_NS)]  # device 1 is not listed: always there
    path.write_text("client,start_s,end_s\nx,104,110\nx,110,112\ny,100,103\n")
    source = availability_source(str(path))
    with pytest.raises(TraceError, match=r"s\.csv:3: client x: the session touches the one before it \(repair"):
        source.load()
    here, notes = source.load(repair=True, start_ns=100 * S)
    assert spans(here) == [(0, 4 * S, 12 * S), (1, 0, 3 * S)]
    assert len(notes) == 1
    _, notes = source.load(repair=True)
    assert notes[1] == "the first session starts at 100 s; start makes that virtual time 0"
    one, _ = source.load(1, repair=True)
    assert one.size == 1
    with pytest.raises(TraceError, match="has 2 devices; 3 cannot be shown"):
        source.load(3, repair=True)
    path.write_text("device,start_s,end_s\n999999999,1,3\n")
    with pytest.raises(TraceError, match=r"1,000,000,000 cannot be shown"):
        availability_source(str(path)).load()
    path.write_text("client,start,end\nx,1,2\n")
    with pytest.raises(TraceError, match=r"s\.csv:1: the header must be .*, found 'client,start,end'"):
        availability_source(str(path)).load()


def test_a_fit_is_drawn_by_its_seed():
    source = availability_source("desktops-boinc")
    first, again, other = (source.load(50, 3600 * S, seed)[0] for seed in (1, 1, 2))
    assert (first.size, first.horizon_ns, first.model) == (50, 3600 * S, "desktops-boinc")
    assert spans(first) == spans(again)
    assert spans(first) != spans(other)
    with pytest.raises(TraceError, match="start and repair are for FedScale"):
        source.load(start_ns=1)


def test_show_prints_percentiles_and_draws(tmp_path):
    (tmp_path / "b.json").write_text(json.dumps(BEHAVIOUR))
    done = run(tmp_path / "b.json", "--until", "40 s", "--figure", tmp_path / "b.png", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    # 40 s are 4 periods of a (2.5 of 10 s) and 5 of b (4 of 8 s)
    assert facts["share"]["devices"] == [0.25, 0.5]
    assert facts["online"]["mean"] == 0.75
    assert (facts["sessions"]["count"], facts["sessions"]["percentiles_s"]["99"]) == (12, pytest.approx(4.0))
    assert facts["gaps"]["percentiles_s"]["1"] == 2.5
    assert (tmp_path / "b.png").read_bytes()[:4] == b"\x89PNG"
    table = run("phones-flash", "--devices", "40", "--until", "2 h")
    assert "availability phones-flash, 40 devices, first" in table.stdout
    assert "source: phones that are locked" in table.stdout


def test_show_refuses_what_means_nothing(tmp_path):
    hostile = tmp_path / "h.pickle"
    hostile.write_bytes(b"\x80\x04cos\nsystem\n(S'touch was-here'\ntR.")
    for args, words in (
        (("mobiperf-lte", "--until", "4 s"), "--until: only for availability; mobiperf-lte is a link trace"),
        (("phones-flash", "--figure", tmp_path / "x.foo"), "a figure ends in .png, .pdf or .svg"),
        (("phones-flash", "--figure", tmp_path / "no" / "x.png"), "no such folder"),
        (("phones-flash", "--until", "4"), "4"),
        ((hostile,), "the pickle asks for os.system; only plain"),
    ):
        done = run(*args)
        assert (done.returncode, words in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr


# ------------------------------------------------------------------------------------------------------------- drawings


def test_the_drawing_says_units_and_counts(tmp_path):
    here = Availability.of([[(0, 2 * S), (4 * S, 5 * S), (8 * S, FAR_NS)], [(1 * S, 3 * S)]])
    figure = availability_figure(presence(here, 10 * S, points=10), "x")
    over, lengths, share = figure.axes
    assert "2 devices, first 10 s  ·  online on average 0.7 (35.0%), from 0 to 2" in figure.get_suptitle()
    assert (over.get_xlabel(), over.get_ylabel()) == ("virtual time (s)", "devices")
    assert (share.get_ylabel(), lengths.get_ylabel()) == ("% of the time", "% that are no longer")
    sessions, gaps = lengths.lines
    assert (sessions.get_xdata().tolist(), sessions.get_ydata().tolist()) == ([1, 1, 2], [0, 50, 100])
    assert (gaps.get_xdata().tolist(), gaps.get_ydata().tolist()) == ([2, 2, 3], [0, 50, 100])
    assert share.lines[0].get_ydata().tolist() == [50, 20]
    assert lengths.get_xlabel() == "length (s)"
    with pytest.raises(InputError, match="a figure ends in"):
        draw_availability(presence(here, 10 * S), "x", tmp_path / "a.txt")


def test_ticks_are_times_people_read_and_do_not_collide():
    for until in (1e-3, 50.0, 1e4, 1e6, 1e9):
        own = [[(0, 1000), (2000, 2000 + int(until * 5e8)), (3000 + int(until * 5e8), FAR_NS)]]
        figure = availability_figure(presence(Availability.of(own), int(until * S), points=10), "x")
        figure.canvas.draw()
        boxes = [label.get_window_extent() for label in figure.axes[1].get_xticklabels() if label.get_text()]
        assert len(boxes) >= 2
        assert all(a.x1 < b.x0 for a, b in pairwise(boxes)), until


def test_scales_and_ranks():
    assert [time_scale(x)[1] for x in (2e-9, 3e-6, 0.5, 1.5, 7199, 7200, 172_800)] == [
        "ns", "µs", "ms", "s", "s", "h", "d",
    ]  # fmt: skip
    assert ranks(5, 10).tolist() == [0, 1, 2, 3, 4]
    assert ranks(101, 3).tolist() == [0, 50, 100]
