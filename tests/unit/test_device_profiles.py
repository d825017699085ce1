"""The shipped device profiles: complete, sourced, plausible."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from morphling.types import DType

FOLDER = Path(__file__).parents[2] / "device_profiles"
FILES = sorted(FOLDER.glob("*.yaml"))
UNITS_TIMES_CLOCK = re.compile(r".*?(\d+)(?: tensor cores| SM)? x (\d+) (?:lanes|FLOP) x (\d+) MHz.*")
SCALE = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def _read(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _numbers(node: object, where: str = ""):
    """Every ``{value, source, kind}`` in a profile, with its dotted place."""
    if isinstance(node, dict):
        if "value" in node:
            yield where, node
        else:
            for key, child in node.items():
                yield from _numbers(child, f"{where}.{key}".lstrip("."))


def _base(text: str) -> float:
    number, prefix = re.fullmatch(r"([\d.]+) ([kMGT]?)(?:FLOP/s|B/s|B|W)", text).groups()
    return float(number) * SCALE[prefix]


@pytest.fixture(params=FILES, ids=lambda p: p.stem)
def profile(request):
    return _read(request.param)


def test_the_promised_devices_are_there():
    assert {p.stem for p in FILES} >= {
        *("jetson-nano", "jetson-tx2", "jetson-xavier-nx", "jetson-agx-xavier", "jetson-orin-nano"),
        *("jetson-orin-nano-super", "jetson-orin-nx", "jetson-agx-orin", "snapdragon-888", "snapdragon-8-gen-1"),
        *("snapdragon-8-gen-2", "snapdragon-8-gen-3", "tensor-g3", "apple-a17-pro", "apple-m1", "rtx-4060-laptop"),
        *("raspberry-pi-5", "cloud-server"),
    }


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_file_is_called_what_its_profile_is_called(path):
    assert _read(path)["name"] == path.stem
    assert _read(path)["class"] in {"jetson", "phone", "laptop", "server", "board"}


def test_every_number_has_a_source_and_a_kind(profile):
    found = dict(_numbers(profile))
    assert len(found) >= 9
    for where, number in found.items():
        assert set(number) == {"value", "source", "kind"}, where
        assert len(number["source"]) >= 8, where
        assert number["kind"] in {"vendor", "derived", "measured", "assumed"}, where


def test_every_dtype_has_a_peak_and_an_efficiency(profile):
    assert profile["compute"].keys() == profile["efficiency"].keys()
    assert profile["compute"].keys() >= {"float16", "float32"}
    assert profile["compute"].keys() <= {d.label for d in DType}
    for share in profile["efficiency"].values():
        assert 0 < share["value"] <= 1


def test_memory_is_left_for_training(profile):
    assert _base(profile["memory"]["value"]) > _base(profile["memory_reserved"]["value"]) > 0
    assert 0 < profile["memory_efficiency"]["value"] <= 1


def test_idle_power_is_below_full_power(profile):
    assert 0 < _base(profile["power"]["idle"]["value"]) < _base(profile["power"]["max"]["value"])


def test_lanes_times_clock_is_the_stated_peak(profile):
    checked = 0
    for rate in profile["compute"].values():
        found = UNITS_TIMES_CLOCK.fullmatch(rate["source"])
        if found is not None:
            count, per_cycle, mhz = (int(found[i]) for i in (1, 2, 3))
            assert _base(rate["value"]) == pytest.approx(count * per_cycle * mhz * 1e6, rel=0.005)
            checked += 1
    assert checked >= 1 or profile["name"] in {"cloud-server", "raspberry-pi-5"}


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("jetson-orin-nano-super", "float32", 1.31),
        ("jetson-orin-nano-super", "float16", 10.18),
        ("jetson-agx-orin", "float32", 3.88),
        ("snapdragon-8-gen-2", "float32", 0.463),
        ("snapdragon-8-gen-2", "float16", 0.605),
        ("rtx-4060-laptop", "float32", 9.08),
        ("rtx-4060-laptop", "float16", 30.8),
        ("rtx-4060-laptop", "bfloat16", 30.9),
        ("jetson-nano", "float32", 0.12),
        ("raspberry-pi-5", "float32", 0.0704),
    ],
)
def test_measured_efficiency_gives_the_measured_rate_back(name, dtype, tflops):
    profile = _read(FOLDER / f"{name}.yaml")
    assert profile["efficiency"][dtype]["kind"] == "measured"
    achieved = _base(profile["compute"][dtype]["value"]) * profile["efficiency"][dtype]["value"]
    assert achieved == pytest.approx(tflops * 1e12, rel=0.02)


@pytest.mark.parametrize("name", [p.stem for p in FILES])
def test_the_reader_accepts_every_profile(name):
    from morphling.scenario import profiles

    record = profiles.load_profile(name)
    assert record.name == name


def test_the_reader_lists_every_profile():
    from morphling.scenario import profiles

    listed = {getattr(entry, "name", entry) for entry in profiles.list_profiles()}
    assert listed >= {p.stem for p in FILES}
