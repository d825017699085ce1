"""Device profile files: every number with its source; faults with file, line, column and field."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from morphling.errors import ProfileError
from morphling.scenario import list_profiles, load_profile
from morphling.scenario.profiles import parse_profile

GOOD = """\
name: jetson-orin-nano
title: NVIDIA Jetson Orin Nano 8 GB
class: jetson
compute:
  float32: {value: 1.28 TFLOP/s, source: "2 x 1024 lanes x 625 MHz", kind: derived}
  float16: {value: 10.2 TFLOP/s, source: data sheet, kind: vendor}
efficiency:
  float32: {value: 0.65, source: a benchmark, kind: measured}
  float16: {value: 0.5, source: a benchmark, kind: measured}
memory: {value: 8 GB, source: data sheet, kind: vendor}
memory_reserved: {value: 1.5 GB, source: operating system, kind: assumed}
memory_bandwidth: {value: 68 GB/s, source: data sheet, kind: vendor}
memory_efficiency: {value: 0.75, source: a benchmark, kind: measured}
launch: {value: 10 us, source: a benchmark, kind: measured}
power: {idle: {value: 2 W, source: meter, kind: measured}, max: {value: 15 W, source: mode, kind: vendor}}
"""


def test_numbers_in_base_units() -> None:
    profile = parse_profile(GOOD, "p.yaml")
    assert profile.peak_flops == {"float32": 1.28e12, "float16": 10.2e12}
    assert profile.achieved_share == {"float32": 0.65, "float16": 0.5}
    assert profile.usable_memory == 6_500_000_000
    assert profile.sustained_bandwidth == 51e9
    assert (profile.launch_s, profile.idle_w, profile.max_w) == (1e-5, 2.0, 15.0)
    assert profile.sources["compute.float32"] == "derived: 2 x 1024 lanes x 625 MHz"
    assert profile.sources["power.max"] == "vendor: mode"
    assert profile.device_class == "jetson"


def test_what_may_be_left_out() -> None:
    lines = [line for line in GOOD.splitlines() if not line.startswith(("launch", "power", "memory_reserved"))]
    profile = parse_profile("\n".join(lines), "p.yaml")
    assert profile.usable_memory == 8_000_000_000
    assert profile.launch_s == 0.0
    assert math.isnan(profile.idle_w)
    assert math.isnan(profile.max_w)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            ", source: a benchmark, kind: measured}\nmemory:",
            ", kind: measured}\nmemory:",
            ":9:12: efficiency.float16: missing key 'source'",
        ),
        ('source: "2 x 1024 lanes x 625 MHz"', "source: ''", ":5:42: compute.float32.source: must not be empty"),
        (
            "1.28 TFLOP/s",
            "0 TFLOP/s",
            ":5:20: compute.float32.value: '0 TFLOP/s': a compute rate of zero is not allowed here",
        ),
        ("1.28 TFLOP/s", "-1 TFLOP/s", ":5:20: compute.float32.value: '-1 TFLOP/s': a compute rate cannot be negative"),
        ("1.28 TFLOP/s", ".nan", ":5:20: compute.float32.value: nan: a compute rate must be a finite number"),
        ("value: 0.65", "value: 1.2", ":8:20: efficiency.float32.value: a share in (0, 1] is needed, found 1.2"),
        ("value: 0.65", "value: 0", ":8:20: efficiency.float32.value: a share in (0, 1] is needed, found 0"),
        ("value: 0.65", "value: .nan", ":8:20: efficiency.float32.value: a share in (0, 1] is needed, found nan"),
        ("1.5 GB", "8 GB", ":11:18: memory_reserved: the reserve of 8 GB leaves nothing of the memory of 8 GB"),
        (
            "68 GB/s",
            "68",
            ":12:27: memory_bandwidth.value: 68: a memory bandwidth needs a unit: 68 GB/s (68 000 000 000 B/s)?",
        ),
        ("8 GB,", "8 Gb,", ":10:17: memory.value: '8 Gb' is ambiguous"),
        ("kind: derived", "kind: guessed", ":5:76: compute.float32.kind: must be one of vendor, derived, measured"),
        (
            "class: jetson",
            "class: jetsom",
            ":3:8: class: must be one of jetson, phone, laptop, server, board, found 'jetsom', did you mean 'jetson'?",
        ),
        ("launch:", "lunch:", ":14:1: lunch: unknown key, did you mean 'launch'?"),
        (
            "  float16: {value: 0.5,",
            "  bfloat16: {value: 0.5,",
            ":1:1: compute and efficiency must name the same dtypes; only one of them has bfloat16, float16",
        ),
        ("value: 2 W", "value: 20 W", ":15:8: power: max is below idle"),
        ("8 GB, source", "8.0000000001 GB, source", ":10:17: memory.value: '8.0000000001 GB' is finer than 1 B"),
        ("name: jetson-orin-nano", "name: 5", ":1:7: name: text is needed, found 5"),
    ],
)
def test_each_fault_names_its_place(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(ProfileError) as caught:
        parse_profile(GOOD.replace(old, new), "p.yaml")
    assert f"p.yaml{message}" in str(caught.value)


def test_all_faults_at_once() -> None:
    with pytest.raises(ProfileError) as caught:
        parse_profile(GOOD.replace("1.28 TFLOP/s", "1").replace("8 GB,", "8,").replace("launch", "lunch"), "p.yaml")
    assert [line.split(": ")[1] for line in str(caught.value).splitlines()] == [
        "compute.float32.value",
        "memory.value",
        "lunch",
    ]


def test_not_yaml_and_not_there(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"p.yaml:\d:\d: not YAML"):
        parse_profile("a: [", "p.yaml")
    with pytest.raises(ProfileError, match=r"p\.yaml:1:1: a mapping is needed, found a list"):
        parse_profile("[1]", "p.yaml")
    with pytest.raises(ProfileError, match="no such file"):
        load_profile("./x.yaml", tmp_path)
    with pytest.raises(ProfileError, match="unknown device profile 'jetson-nanu', did you mean 'jetson-nano'"):
        load_profile("jetson-nanu")


def test_by_path(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(GOOD)
    assert load_profile("mine.yaml", tmp_path) == parse_profile(GOOD, "elsewhere")


def test_shipped_profiles_load_under_their_own_name() -> None:
    names = list_profiles()
    assert "cloud-server" in names
    for name in names:
        profile = load_profile(name)
        assert profile.name == name
        assert all(source.split(": ")[1] for source in profile.sources.values())
