"""`morphling profiles list` and `show`, and the rooflines that they draw."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import pytest

from morphling.errors import InputError
from morphling.figures.roofline import Roof, draw_rooflines, roofline_figure
from morphling.scenario import list_profiles, load_profile


def called(*arguments, columns="160"):
    env = {**os.environ, "COLUMNS": columns, "NO_COLOR": "1", "TERM": "dumb"}
    command = [sys.executable, "-m", "morphling", "profiles", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


def roof(name):
    r = load_profile(name)
    rates = {d: (r.peak_flops[d], r.achieved_flops[d]) for d in r.peak_flops}
    return Roof(r.name, r.memory_bandwidth.value, r.sustained_bandwidth, rates)


def test_list_shows_modes_and_filters_by_class():
    lines = called("list", "--class", "jetson").stdout.splitlines()
    row = next(line for line in lines if line.strip().startswith("jetson-orin-nx-16gb"))
    assert row.split() == [
        *("jetson-orin-nx-16gb", "jetson", "1.22", "9", "14.5", "84", "maxn*", "10w", "15w", "25w", "40w"),
    ]
    names = {line.split()[0] for line in lines if " jetson " in line}
    assert names == {n for n in list_profiles() if n.startswith("jetson")}
    phones = json.loads(called("list", "--class", "phone", "--json").stdout)
    assert {p["class"] for p in phones} == {"phone"}
    assert len(phones) == 12


def test_list_refuses_an_unknown_class():
    done = called("list", "--class", "phones")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --class: there is no class 'phones', did you mean 'phone'?\n"


def test_list_as_json_has_everything():
    found = {p["name"]: p for p in json.loads(called("list", "--json").stdout)}
    assert set(found) == set(list_profiles())
    board = found["jetson-agx-orin-64gb"]
    assert board["power_modes"]["reference"] == "maxn"
    assert board["power_modes"]["modes"]["30w"]["gpu_clock_hz"] == 612e6
    assert board["power_modes"]["modes"]["30w"]["memory_clock_hz"] is None
    assert found["apple-m1"]["power_modes"] is None


def test_show_prints_every_number_with_kind_and_source():
    text = called("show", "jetson-orin-nx-16gb@10w").stdout
    for number in load_profile("jetson-orin-nx-16gb@10w").numbers:
        row = next(line for line in text.splitlines() if line.strip().startswith(number.field + " "))
        assert number.value in row
        assert f" {number.kind} " in row
    # 0.65 x 626.7 GFLOP/s over 0.82 x 68.256 GB/s, and peak over peak.
    assert next(line for line in text.splitlines() if line.strip().startswith("float32 ")).split()[-2:] == [
        "9.18",
        "7.28",
    ]


def test_show_at_eighty_columns_loses_nothing():
    done = subprocess.run(
        [sys.executable, "-c", NARROW, "show", "jetson-tx2@maxq"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "…" not in done.stdout
    squeezed = "".join(done.stdout.split())
    assert "LineageOS/android_device_nvidia_quill" in squeezed


NARROW = """
import sys
import rich.console
class Console(rich.console.Console):
    def __init__(self, *a, **k):
        super().__init__(*a, force_terminal=True, width=80, color_system=None, **k)
rich.console.Console = Console
sys.argv[1:1] = ["profiles"]
from morphling.cli.app import main
main()
"""


def test_show_of_several_and_of_nothing():
    one, two = json.loads(called("show", "jetson-tx2", "jetson-tx2@maxq", "--json").stdout)
    assert (one["max_w"], two["max_w"]) == (15, 7.5)
    assert two["peak_flops"]["float32"] == pytest.approx(666e9 * 850 / 1300)
    assert two["ridge_flop_per_byte"]["float32"] == pytest.approx(
        0.5 * 666 * 850 / 1300 / (0.82 * 59.7 * 1331.2 / 1866)
    )
    done = called("show", "jetson-tx2@maxx")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: jetson-tx2 has no power mode 'maxx', did you mean 'maxq'?\n"


def test_a_figure_is_drawn(tmp_path):
    done = called("show", "jetson-tx2", "apple-m1", "--figure", tmp_path / "r.png")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"figure: {tmp_path / 'r.png'}"
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


def test_figures_that_cannot_be(tmp_path):
    with pytest.raises(InputError, match=r"a figure ends in \.png, \.pdf or \.svg"):
        draw_rooflines([roof("apple-m1")], tmp_path / "r.gif")
    with pytest.raises(InputError, match="no such folder"):
        draw_rooflines([roof("apple-m1")], tmp_path / "none" / "r.png")
    with pytest.raises(InputError, match="13 profiles are too many for one figure; 12 are the most"):
        draw_rooflines([roof("apple-m1")] * 13, tmp_path / "r.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("names", [["jetson-orin-nx-16gb"], ["rtx-3050-laptop", "jetson-thor-t5000", "apple-m4-max"]])
def test_lines_meet_at_the_ridge_and_labels_keep_clear(names):
    figure = roofline_figure([roof(n) for n in names])
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    for panel, name in zip(figure.axes, names, strict=True):
        record = load_profile(name)
        lines = {line.get_label().partition(":")[0]: line for line in panel.get_lines() if ":" in line.get_label()}
        for dtype, rate in record.achieved_flops.items():
            assert lines[dtype].get_ydata()[0] == rate
            assert lines[dtype].get_xdata()[0] == pytest.approx(rate / record.sustained_bandwidth)
        assert panel.get_xscale() == panel.get_yscale() == "log"
        assert panel.get_xlabel() == "arithmetic intensity (FLOP/B)"
        assert panel.yaxis.get_major_formatter()(1e12) == "1 TFLOP/s"
        boxes = [t.get_window_extent(renderer) for t in panel.texts if t.get_gid() == "ridge"]
        assert len(boxes) == len(record.compute)
        assert [a for a, b in itertools.combinations(boxes, 2) if a.overlaps(b)] == []
        slope = next(line for line in panel.get_lines() if line.get_linestyle() == "--")
        path = slope.get_path().transformed(panel.transData)
        assert [box for box in boxes if path.intersects_bbox(box, filled=False)] == []


def test_dtypes_of_one_rate_share_a_label():
    figure = roofline_figure([roof("apple-a15")])
    assert [t.get_text() for t in figure.axes[0].texts if t.get_gid() == "ridge"] == ["45.9"]
