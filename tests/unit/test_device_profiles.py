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
KINDS = {"vendor", "derived", "measured", "assumed"}

# Peaks in GFLOP/s (float32, float16), memory in GB, bandwidth in GB/s; RTX: float16 accumulates in float16.
CATALOGUE = {
    "jetson-nano": (236, 472, 4, 25.6),
    "jetson-tx2": (666, 1331, 8, 59.7),
    "jetson-xavier-nx": (852, 6800, 8, 59.7),
    "jetson-agx-xavier": (1410, 11300, 32, 136.5),
    "jetson-orin-nano": (1280, 10200, 8, 68),
    "jetson-orin-nano-super": (2089, 16700, 8, 102),
    "jetson-orin-nx-8gb": (1567, 12500, 8, 102.4),
    "jetson-orin-nx-16gb": (1880, 15000, 16, 102.4),
    "jetson-agx-orin-32gb": (3333, 26700, 32, 204.8),
    "jetson-agx-orin-64gb": (5325, 42600, 64, 204.8),
    "jetson-thor-t5000": (8064, 258000, 128, 273),
    "jetson-thor-t4000": (4690, 150000, 64, 273),
    "snapdragon-888": (1720, 3440, 8, 51.2),
    "snapdragon-8-gen-1": (1675, 3350, 8, 51.2),
    "snapdragon-8-gen-2": (2089, 4178, 8, 67.2),
    "galaxy-s23-ultra": (2209, 4417, 8, 67.2),
    "snapdragon-8-gen-3": (2774, 5548, 12, 76.8),
    "galaxy-s24-ultra": (3072, 6144, 12, 76.8),
    "tensor-g2": (760, 1520, 8, 51.2),
    "tensor-g3": (1595, 3190, 8, 68.3),
    "dimensity-9300": (3990, 7980, 12, 76.8),
    "apple-a15": (1713, 1713, 4, 34.1),
    "apple-a16": (1789, 1789, 6, 51.2),
    "apple-a17-pro": (2147, 2147, 8, 51.2),
    "apple-m1": (2617, 2617, 8, 68.3),
    "apple-m1-pro": (5308, 5308, 16, 204.8),
    "apple-m2": (3579, 3579, 8, 102.4),
    "apple-m3": (3533, 3533, 8, 102.4),
    "apple-m3-max": (14130, 14130, 64, 400),
    "apple-m4": (4040, 4040, 16, 120),
    "apple-m4-max": (16160, 16160, 64, 546),
    "intel-iris-xe": (2000, 4000, 16, 68.3),
    "intel-uhd-620": (436, 738, 8, 29.7),
    "intel-arc-155h": (4608, 9216, 32, 120),
    "amd-radeon-780m": (4147, 8294, 32, 120),
    "gtx-1650-laptop": (2796, 5590, 4, 192),
    "rtx-3050-laptop": (7127, 28500, 4, 192),
    "rtx-3050-ti-laptop": (8678, 34700, 4, 192),
    "rtx-3060-laptop": (13080, 52300, 6, 336),
    "rtx-4060-laptop": (14560, 58200, 8, 256),
    "rtx-4070-laptop": (20040, 80200, 8, 256),
    "rtx-5060-laptop": (16620, 66500, 8, 384),
    "raspberry-pi-4": (57.6, None, 8, 12.8),
    "raspberry-pi-5": (154, 307, 8, 17),
    "cloud-server": (19500, 312000, 80, 2039),
}


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
    assert {p.stem for p in FILES} == set(CATALOGUE)


def test_the_peaks_are_those_of_the_sources(profile):
    single, half, memory, bandwidth = CATALOGUE[profile["name"]]
    assert _base(profile["compute"]["float32"]["value"]) == pytest.approx(single * 1e9, rel=1e-9)
    assert ("float16" in profile["compute"]) == (half is not None)
    if half is not None:
        assert _base(profile["compute"]["float16"]["value"]) == pytest.approx(half * 1e9, rel=1e-9)
    assert _base(profile["memory"]["value"]) == memory * 1e9
    assert _base(profile["memory_bandwidth"]["value"]) == pytest.approx(bandwidth * 1e9, rel=1e-9)


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
        assert number["kind"] in KINDS, where
    for name, mode in profile.get("power_modes", {}).get("modes", {}).items():
        assert set(mode) >= {"sm", "gpu_clock", "power", "source", "kind"}, name
        assert len(mode["source"]) >= 8, name
        assert mode["kind"] in KINDS, name


def test_nothing_but_numbers_with_a_source_is_a_number(profile):
    def leaves(node):
        if isinstance(node, dict) and "value" not in node:
            return [leaf for key, child in node.items() if key != "power_modes" for leaf in leaves(child)]
        return [] if isinstance(node, dict) else [node]

    assert [leaf for leaf in leaves(profile) if not isinstance(leaf, str)] == []
    assert len(leaves(profile)) == 3  # name, title and class


def test_every_dtype_has_a_peak_and_an_efficiency(profile):
    assert profile["compute"].keys() == profile["efficiency"].keys()
    assert profile["compute"].keys() >= ({"float32"} if profile["name"] == "raspberry-pi-4" else {"float16", "float32"})
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
    assert checked >= 1 or profile["name"] in {
        *("cloud-server", "raspberry-pi-4", "raspberry-pi-5", "jetson-thor-t4000", "intel-uhd-620")
    }


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("jetson-orin-nano-super", "float32", 1.31),
        ("jetson-orin-nano-super", "float16", 10.18),
        ("jetson-agx-orin-64gb", "float32", 3.88),
        ("jetson-thor-t5000", "float32", 6.17),
        ("jetson-thor-t5000", "tfloat32", 63.9),
        ("jetson-thor-t5000", "float16", 110.6),
        ("jetson-thor-t5000", "bfloat16", 108.5),
        ("rtx-3050-laptop", "float32", 5.16),
        ("rtx-3050-laptop", "bfloat16", 15.2),
        ("rtx-3050-laptop", "tfloat32", 7.7),
        ("rtx-3050-ti-laptop", "float16", 18.3),
        ("rtx-3060-laptop", "float16", 25.7),
        ("rtx-4070-laptop", "float16", 46.3),
        ("rtx-5060-laptop", "float32", 12.82),
        ("gtx-1650-laptop", "float16", 0.34),
        ("amd-radeon-780m", "float16", 4.53),
        ("intel-arc-155h", "float16", 7.70),
        ("apple-m1-pro", "float32", 4.28),
        ("apple-m1-pro", "bfloat16", 2.30),
        ("apple-m3-max", "float32", 11.5),
        ("apple-m4", "float16", 3.12),
        ("apple-m4-max", "float32", 13.8),
        ("raspberry-pi-4", "float32", 0.0238),
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


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("1.88 TFLOP/s", "0 TFLOP/s", "6:20: compute.float32.value: '0 TFLOP/s': a compute rate of zero is not"),
        ("1.88 TFLOP/s", "-2 TFLOP/s", "6:20: compute.float32.value: '-2 TFLOP/s': a compute rate cannot be negative"),
        ("1.88 TFLOP/s", "nan TFLOP/s", "6:20: compute.float32.value: 'nan TFLOP/s': a compute rate must be a finite"),
        (
            "1.88 TFLOP/s",
            ".nan",
            "6:20: compute.float32.value: nan: a compute rate must be a finite number with a unit",
        ),
        (
            "1.88 TFLOP/s",
            ".inf",
            "6:20: compute.float32.value: inf: a compute rate must be a finite number with a unit",
        ),
        (
            "0.65, source",
            "1.02, source",
            "11:20: efficiency.float32.value: a share in (0, 1] is needed, found 1.02: noth",
        ),
        ("{value: 0.82", "{value: 1.5", "18:28: memory_efficiency.value: a share in (0, 1] is needed, found 1.5: noth"),
        ("102.4 GB/s", "102.4", "17:27: memory_bandwidth.value: 102.4: a memory bandwidth needs a unit: 102.4 GB/s"),
        ("102.4 GB/s", "102.4 GB", "17:27: memory_bandwidth.value: '102.4 GB' is a size; a memory bandwidth is needed"),
        (
            "{value: 1.5 GB",
            "{value: 17 GB",
            "16:18: memory_reserved: the reserve of 17 GB leaves nothing of the memory",
        ),
        ("{value: 16 GB", "{value: 1 GB", "16:18: memory_reserved: the reserve of 1.5 GB leaves nothing of the memory"),
        (', source: "2 x 1024 lanes x 918 MHz"', "", "6:12: compute.float32: missing key 'source'"),
        ('"2 x 1024 lanes x 918 MHz"', '""', "6:42: compute.float32.source: must not be empty"),
    ],
)
def test_numbers_that_cannot_be_are_refused(old, new, message):
    from morphling.errors import ProfileError
    from morphling.scenario.profiles import parse_profile

    text = (FOLDER / "jetson-orin-nx-16gb.yaml").read_text(encoding="utf-8")
    assert old in text
    with pytest.raises(ProfileError) as caught:
        parse_profile(text.replace(old, new, 1), "p.yaml")
    assert f"p.yaml:{message}" in str(caught.value)
