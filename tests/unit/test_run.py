"""The front hall: run folders, repeatability across processes, what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import morphling
from morphling.errors import InputError, ScenarioError
from morphling.run import build, find_plugin, list_plugins
from morphling.scenario import load_scenario

SMALL = """
name: small
seed: 7
workload: {model: opt-125m, batch_size: 1, sequence_length: 32}
fleet:
  - profile: {compute: {uniform: [1 TFLOP/s, 2 TFLOP/s]}, memory: 2 GB, power: {idle: 1 W, max: 5 W}}
    count: 4
    link: {trace: mobiperf-wifi, offset: {uniform: [0 s, 600 s]}, latency: 5 ms}
strategy: {name: cleave}
"""


def test_run_folder_holds_everything(tmp_path):
    results = morphling.run(SMALL, out=tmp_path / "r", figures=False)
    names = {p.name for p in (tmp_path / "r").iterdir()}
    assert {
        "scenario.yaml",
        "manifest.json",
        "metrics.json",
        "events.parquet",
        "devices.parquet",
        "timeline.json",
    } <= names
    assert results.metrics["devices"] == 4
    assert (
        results.metrics["events_sha256"] == json.loads((tmp_path / "r" / "metrics.json").read_text())["events_sha256"]
    )
    assert results.verify()
    assert results.manifest["seed"] == 7
    assert results.manifest["executor"]["executor"] == "analytic"
    assert any("unlimited" in note for note in results.manifest["notes"])
    again = morphling.run(tmp_path / "r" / "scenario.yaml", out=tmp_path / "again", figures=False)
    assert again.metrics["events_sha256"] == results.metrics["events_sha256"]
    assert (tmp_path / "again" / "scenario.yaml").read_bytes() == (tmp_path / "r" / "scenario.yaml").read_bytes()


def test_run_can_be_called_twice_and_with_overrides(tmp_path):
    first = morphling.run(SMALL, ["seed=8"], base=tmp_path, figures=False)
    second = morphling.run(SMALL, {"seed": 8}, base=tmp_path, figures=False)
    third = morphling.run(SMALL, base=tmp_path, figures=False)
    assert first.folder != second.folder
    assert first.metrics["events_sha256"] == second.metrics["events_sha256"] != third.metrics["events_sha256"]


@pytest.mark.parametrize("hash_seed", ["1", "77"])
def test_another_process_gives_the_same_events(tmp_path, hash_seed):
    here = morphling.run(SMALL, out=tmp_path / "here", figures=False).metrics["events_sha256"]
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    done = subprocess.run(
        [sys.executable, "-m", "morphling", "run", str(path), "--no-figures", "--json", "--base", str(tmp_path)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["metrics"]["events_sha256"] == here


def test_a_full_folder_is_refused(tmp_path):
    (tmp_path / "x").write_text("mine")
    with pytest.raises(InputError, match="not empty"):
        morphling.run(SMALL, out=tmp_path, figures=False)


def test_strategy_section_is_checked_with_its_place(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(SMALL.replace("{name: cleave}", "{name: cleave, overlapp: none, tiles: yes}"))
    with pytest.raises(ScenarioError) as caught:
        build(load_scenario(path))
    text = str(caught.value)
    assert "s.yaml:9:" in text
    assert "did you mean 'overlap'?" in text
    assert "strategy.tiles" in text
    with pytest.raises(ScenarioError, match="from 1 to 1024"):
        build(load_scenario(SMALL, ["strategy.tiles=0"]))
    with pytest.raises(ScenarioError, match="did you mean 'cleave'"):
        build(load_scenario(SMALL, ["strategy.name=cleav"]))
    with pytest.raises(ScenarioError, match="profiled"):
        build(load_scenario(SMALL, ["execution.mode=profiled"]))


def test_devices_keep_their_numbers_when_another_group_changes():
    one = build(load_scenario(SMALL)).fleet
    two = build(load_scenario(SMALL, ["fleet.0.link.latency=9 ms"])).fleet
    assert (one.peak_flops == two.peak_flops)[:, :2].all()
    assert (one.links.offset_ns == two.links.offset_ns).all()


def test_up_and_down_are_not_swapped():
    text = SMALL.replace(
        "{trace: mobiperf-wifi, offset: {uniform: [0 s, 600 s]}, latency: 5 ms}",
        "{downlink: 8 Mbit/s, uplink: 2 Mbit/s}",
    )
    text += "coordinator: {downlink: 3 Gbit/s, uplink: 5 Gbit/s}\n"
    fleet = build(load_scenario(text)).fleet
    down, up = fleet.links.nominal_bps()
    assert set(down) == {8e6}
    assert set(up) == {2e6}
    assert (fleet.coordinator.uplink_bps, fleet.coordinator.downlink_bps) == (5_000_000_000, 3_000_000_000)


def test_plugins_come_through_entry_points():
    assert {"cleave"} <= {p.name for p in list_plugins("strategies")}
    assert {"analytic"} <= {p.name for p in list_plugins("executors")}
    assert find_plugin("strategies", None, "morphling.strategies.cleave:Cleave").name == "cleave"
    with pytest.raises(InputError, match=r"package\.module:Class"):
        find_plugin("strategies", None, "nothing")
    with pytest.raises(InputError, match="cannot be loaded"):
        find_plugin("strategies", None, "no_such_module:X")


def test_a_failed_run_leaves_no_folder(tmp_path):
    bad = SMALL.replace("memory: 2 GB", "memory: 1 kB")
    with pytest.raises(morphling.MorphlingError):
        morphling.run(bad, base=tmp_path, figures=False)
    assert not list(tmp_path.iterdir())
