"""Power modes: scaled by multiprocessors and clocks, named wherever a profile is, refused with the nearest."""

from __future__ import annotations

import shutil

import pytest

from morphling.errors import ProfileError, ScenarioError
from morphling.run.build import build
from morphling.scenario import data_folder, load_profile, load_scenario
from morphling.scenario.profiles import parse_profile

BOARD = (data_folder("device_profiles") / "jetson-orin-nx-16gb.yaml").read_text(encoding="utf-8")
SCENARIO = """\
name: modes
workload: {{model: opt-125m, batch_size: 8, sequence_length: 64}}
fleet:
  - {{profile: {0}, count: 2, link: {{downlink: 80 Mbit/s, uplink: 20 Mbit/s}}}}
coordinator: {{profile: {1}, downlink: 1 Gbit/s, uplink: 1 Gbit/s}}
strategy: {{name: cleave}}
"""


@pytest.mark.parametrize(
    ("name", "gflops", "half", "gbs", "idle", "watts"),
    [  # 2 x 128 lanes x SM x MHz; memory MHz x 2 x bytes of bus
        ("jetson-orin-nx-16gb@10w", 627, 5000, 68.3, 2, 10),
        ("jetson-orin-nx-16gb@15w", 627, 5000, 102.4, 3, 15),
        ("jetson-orin-nx-16gb@25w", 836, 6667, 102.4, 5, 25),
        ("jetson-orin-nx-16gb@40w", 2402, 19200, 102.4, 8, 40),
        ("jetson-orin-nx-8gb@20w", 836, 6667, 102.4, 4, 20),
        ("jetson-agx-orin-64gb@15w", 627, 5013, 136.5, 3, 15),
        ("jetson-agx-orin-64gb@30w", 1253, 10030, 204.8, 6, 30),
        ("jetson-agx-orin-64gb@50w", 3342, 26740, 204.8, 10, 50),
        ("jetson-agx-orin-32gb@40w", 2925, 23430, 204.8, 8, 40),
        ("jetson-orin-nano@7w", 418, 3330, 68.0, 1.4, 7),
        ("jetson-orin-nano-super@15w", 1253, 10020, 68.0, 3, 15),
        ("jetson-orin-nano-super@25w", 1880, 15030, 102.0, 5, 25),
        ("jetson-agx-xavier@10w", 266, 2134, 68.2, 2, 10),
        ("jetson-agx-xavier@15w", 686, 5498, 85.2, 3, 15),
        ("jetson-agx-xavier@30w", 922, 7386, 102.4, 6, 30),
        ("jetson-xavier-nx@15w", 852, 6800, 51.2, 3, 15),
        ("jetson-xavier-nx@10w", 617, 4924, 51.2, 2, 10),
        ("jetson-tx2@maxq", 435, 870, 42.6, 1.5, 7.5),
        ("jetson-tx2@maxp", 573, 1147, 51.2, 3, 15),
    ],
)
def test_a_mode_scales_its_board(name, gflops, half, gbs, idle, watts):
    profile = load_profile(name)
    assert profile.name == name
    assert profile.peak_flops["float32"] == pytest.approx(gflops * 1e9, rel=0.002)
    assert profile.peak_flops["float16"] == pytest.approx(half * 1e9, rel=0.002)
    assert profile.memory_bandwidth.value == pytest.approx(gbs * 1e9, rel=0.002)
    assert (profile.idle_w, profile.max_w) == (idle, watts)
    board = load_profile(name.partition("@")[0])
    assert profile.achieved_share == board.achieved_share
    assert profile.usable_memory == board.usable_memory


def test_a_mode_says_where_its_numbers_come_from():
    sources = load_profile("jetson-agx-orin-64gb@30w").sources
    assert sources["compute.float32"] == (
        "derived: 8 of 16 SM x 612 MHz of 1300 MHz of: 2 x 2048 lanes x 1300 MHz"
    )  # fmt: skip
    assert sources["efficiency.float32"].startswith("assumed: as in mode maxn, where: cupy issue 8151")
    assert sources["efficiency.float32"].endswith("(measured)")
    assert sources["power.max"].startswith("vendor: NVIDIA's nvpmodel file for p3701-0000")
    assert sources["power.idle"].startswith("assumed: 20% of the mode's budget")
    assert load_profile("jetson-agx-orin-64gb@15w").sources["memory_bandwidth"] == (
        "derived: 2133 MHz of 3200 MHz of: NVIDIA data sheet"
    )


def test_the_reference_mode_is_the_profile():
    board, mode = load_profile("jetson-xavier-nx"), load_profile("jetson-xavier-nx@20w")
    assert mode.name == "jetson-xavier-nx@20w"
    assert mode.model_copy(update={"name": board.name, "title": board.title}) == board


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("jetson-orin-nx-16gb@26w", "jetson-orin-nx-16gb has no power mode '26w', did you mean '25w'?"),
        ("jetson-orin-nx-16gb@25W", "jetson-orin-nx-16gb has no power mode '25W', did you mean '25w'?"),
        ("jetson-orin-nx-16gb@turbo", "no power mode 'turbo', known: maxn, 10w, 15w, 25w, 40w"),
        ("jetson-orin-nx-16gb@", "no power mode '', known: maxn, 10w"),
        ("apple-m1@20w", "apple-m1 has no power modes; name it without '@20w'"),
        ("snapdragon-8-gen-3@max", "snapdragon-8-gen-3 has no power modes; name it without '@max'"),
        ("jetson-thor-t5000@40w", "jetson-thor-t5000 has no power modes"),
        ("jetson-orin-nx-16g@25w", "unknown device profile 'jetson-orin-nx-16g', did you mean 'jetson-orin-nx-16gb'?"),
    ],
)
def test_what_is_no_mode(name, message):
    with pytest.raises(ProfileError) as caught:
        load_profile(name)
    assert message in str(caught.value)


def test_names_of_the_first_version_still_work():
    assert load_profile("jetson-orin-nx").name == "jetson-orin-nx-16gb"
    assert load_profile("jetson-agx-orin@30w").name == "jetson-agx-orin-64gb@30w"


def test_a_mode_in_a_scenario():
    loaded = load_scenario(SCENARIO.format("jetson-orin-nx-16gb@25w", "jetson-agx-orin-64gb@50w"))
    text = loaded.resolved_yaml()
    assert "profile: jetson-orin-nx-16gb@25w" in text
    assert "profile: jetson-agx-orin-64gb@50w" in text
    assert load_scenario(text).scenario == loaded.scenario
    built = build(loaded)
    fleet, coordinator = built.fleet, built.fleet.coordinator
    assert fleet.profile_names == ("jetson-orin-nx-16gb@25w",)
    assert fleet.peak_flops[0, 0] == pytest.approx(835.6e9, rel=1e-3)
    assert coordinator.name == "jetson-agx-orin-64gb@50w"
    assert coordinator.max_w == 50


def test_a_mode_behind_a_path(tmp_path):
    shutil.copy(data_folder("device_profiles") / "jetson-tx2.yaml", tmp_path / "my@board.yaml")
    loaded = load_scenario(SCENARIO.format("./my@board.yaml@maxq", "./my@board.yaml"), folder=tmp_path)
    assert loaded.scenario.fleet[0].profile == f"{tmp_path / 'my@board.yaml'}@maxq"
    assert loaded.scenario.coordinator.profile == str(tmp_path / "my@board.yaml")
    assert loaded.profile(loaded.scenario.fleet[0].profile).max_w == 7.5
    assert list(loaded.inputs) == [str(tmp_path / "my@board.yaml")]


def test_a_wrong_mode_in_a_scenario_names_its_place(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.format("jetson-orin-nx-16gb@26w", "apple-m1@5w"))
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    assert f"{path}:4:15: fleet.0.profile: jetson-orin-nx-16gb has no power mode '26w', did you mean '25w'?" in lines[0]
    assert f"{path}:5:24: coordinator.profile: apple-m1 has no power modes; name it without '@5w'" in lines[1]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("reference: maxn", "reference: max", "power_modes.modes: the reference mode 'max' is not among them, did you"),
        ("{sm: 4, gpu_clock: 612 MHz, memory", "{sm: 9, gpu_clock: 612 MHz, memory", "10w runs 9 multiprocessors"),
        ("memory_clock: 2133 MHz", "memory_clock: 3300 MHz", "10w clocks the memory at 3300 MHz, above the 3200 MHz"),
        ("memory_clock: 3200 MHz, ", "", "10w caps the memory's clock, so the reference mode maxn must state it"),
        ("sm: 8, gpu_clock: 408 MHz", "sm: 0, gpu_clock: 408 MHz", "power_modes.modes.25w.sm: must be at least 1"),
        ("gpu_clock: 408 MHz", "gpu_clock: 408", "power_modes.modes.25w.gpu_clock: 408: a frequency needs a unit"),
        ("gpu_clock: 408 MHz", "gpu_clock: 0 MHz", "a frequency of zero is not allowed here"),
        ("power: 25 W, kind: vendor", "power: 0 W, kind: vendor", "a power of zero is not allowed here"),
        ("25 W, kind: vendor,", "25 W,", "power_modes.modes.25w: missing key 'kind'"),
        (
            "    25w:",
            "    25W:",
            "power_modes.modes.25W: the name of a mode has small letters, digits and '-' only, did you mean '25w'?",
        ),
    ],
)
def test_wrong_modes_in_a_profile(old, new, message):
    assert BOARD.count(old) >= 1
    with pytest.raises(ProfileError) as caught:
        parse_profile(BOARD.replace(old, new, 1), "p.yaml")
    line = str(caught.value).splitlines()[0]
    assert message in line
    assert line.startswith(("p.yaml:2", "p.yaml:3"))
