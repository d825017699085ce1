"""Populations in a scenario and on the command line: whose links come out, what is written, what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import morphling
from morphling.cli.app import app
from morphling.errors import InputError, MorphlingError, ScenarioError, TraceError
from morphling.fleet.populations import LINK_POPULATIONS, device_traces, link_means
from morphling.run import build
from morphling.scenario import load_scenario, load_trace, resolved_yaml
from morphling.scenario.schema import PopulationLink

TEXT = """
name: population
seed: 4
workload: {model: gpt2, batch_size: 2, sequence_length: 64}
fleet:
  - {profile: jetson-orin-nano, count: 2, link: {downlink: 80 Mbit/s, uplink: 20 Mbit/s}}
  - {profile: snapdragon-8-gen-3, count: 3, link: {population: lte, latency: 35 ms, duration: 60 s}}
strategy: {name: cleave}
"""


def links(*overrides):
    return build(load_scenario(TEXT, overrides)).fleet.links


def test_each_device_of_the_group_follows_a_trace_of_its_own():
    got = links()
    assert len(set(got.trace.tolist()[2:])) == 3
    assert got.latency_ns.tolist() == [0, 0, 35_000_000, 35_000_000, 35_000_000]
    expected = device_traces("lte", 4, 3, 60, scope="fleet/1/link.population")
    for device, trace in enumerate(expected, start=2):
        steps = slice(*got.trace_ptr[got.trace[device] : got.trace[device] + 2])
        assert got.down_bps[steps].tolist() == trace.down_bps.tolist()
        assert got.up_bps[steps].tolist() == trace.up_bps.tolist()
        assert got.period_ns[got.trace[device]] == 60_000_000_000


def test_without_variation_a_device_keeps_its_mean_pair():
    got = links("fleet.1.link.variation=false")
    down, up = link_means("lte", 4, 3, "fleet/1/link.population")
    nominal = got.nominal_bps()
    assert nominal[0].tolist() == [80e6, 80e6, *down]
    assert nominal[1].tolist() == [20e6, 20e6, *up]
    assert np.diff(got.trace_ptr).tolist() == [1, 1, 1, 1]


def test_a_larger_group_begins_with_the_smaller_one():
    small, large = links().nominal_bps(), links("fleet.1.count=7").nominal_bps()
    assert large[0][:5].tolist() == small[0].tolist()
    assert large[1][:5].tolist() == small[1].tolist()


def test_it_runs_repeatably_and_says_that_the_drawn_traces_repeat(tmp_path):
    one, two = (morphling.run(TEXT, out=tmp_path / name, figures=False) for name in "ab")
    assert one.metrics["events_sha256"] == two.metrics["events_sha256"]
    assert any("lte (drawn)" in note for note in one.notes())


def test_the_resolved_scenario_loads_to_the_same():
    loaded = load_scenario(TEXT)
    assert load_scenario(resolved_yaml(loaded.scenario)).scenario == loaded.scenario


def test_the_schema_knows_every_population():
    assert set(PopulationLink.model_fields["population"].annotation.__args__) == set(LINK_POPULATIONS)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("fleet.1.link.population=lted", "lte"),
        ("fleet.1.link.duration=10.5 s", "fleet.1.link.duration.*not a whole number of steps"),
        ("fleet.1.link.step=1 ns", "fleet.1.link.duration: 3 devices .* 180,000,000,000 steps"),
        ("fleet.1.link.uplink=3 Mbit/s", "uplink"),
        ("fleet.1.link.variation=1", "variation"),
    ],
)
def test_what_is_wrong_names_its_field(override, said):
    with pytest.raises(ScenarioError, match=said):
        links(override)


def test_a_misspelt_population_key_is_told_apart_from_a_constant_link():
    with pytest.raises(ScenarioError, match="did you mean 'population'"):
        load_scenario(TEXT.replace("population: lte", "popualtion: lte"))


# --------------------------------------------------------------------------------------------------------- command line


def command(*args):
    """What is printed; an error of ours is raised, as `main` would turn it into exit code 2."""
    return CliRunner().invoke(app, ["traces", *map(str, args)], catch_exceptions=False).stdout


def test_generate_writes_the_device_that_the_library_draws(tmp_path):
    path = tmp_path / "h.csv"
    said = command("generate", "home-wifi-ndt", "--seed", 3, "--duration", "30 s", "--step", "500 ms", "-o", path)
    assert "1 trace of home-wifi-ndt, seed 3" in said
    read, made = load_trace(str(path)), next(device_traces("home-wifi-ndt", 3, 1, 30, 0.5))
    assert read.down_bps.tolist() == made.down_bps.tolist()
    assert read.up_bps.tolist() == made.up_bps.tolist()
    assert read.period_ns == made.period_ns
    down, up = (int(x[0]) for x in link_means("home-wifi-ndt", 3, 1))
    assert f"# means of this device while up: down {down} bit/s, up {up} bit/s" in path.read_text(encoding="utf-8")


def test_several_devices_become_a_folder_that_begins_with_the_single_one(tmp_path):
    command("generate", "lte", "--count", 3, "--duration", "20 s", "-o", tmp_path / "three")
    command("generate", "lte", "--duration", "20 s", "-o", tmp_path / "one.csv")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one.csv", "three"]
    names = [f"lte-0000{i}.csv" for i in range(3)]
    assert sorted(p.name for p in (tmp_path / "three").iterdir()) == names
    assert (tmp_path / "three" / names[0]).read_bytes() == (tmp_path / "one.csv").read_bytes()
    assert len({(tmp_path / "three" / name).read_bytes() for name in names}) == 3


@pytest.mark.parametrize("name", ["mobiperf-lte", "mobiperf-wifi", "mobiperf-5g"])
def test_the_command_makes_the_shipped_bytes(name, tmp_path):
    from morphling.scenario.data import find_file

    command("generate", name, "--seed", 7, "-o", tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_bytes() == find_file("network_traces", name).read_bytes()


@pytest.mark.parametrize(
    ("args", "error", "said"),
    [
        (["lted"], TraceError, "no population is called 'lted'"),
        (["mobiperf-lte", "--count", "2"], TraceError, "one median link"),
        (["lte", "--duration", "10"], InputError, "needs a unit"),
        (["lte", "--duration", "10 s", "--step", "3 s"], TraceError, "whole number of steps"),
        (["lte", "--step", "1 us"], TraceError, "600,000,000 steps is too long"),
        (["lte", "--seed", "-1"], InputError, "seed"),
    ],
)
def test_what_cannot_be_generated_is_refused_and_nothing_is_written(tmp_path, args, error, said):
    with pytest.raises(error, match=said):
        command("generate", *args, "-o", tmp_path / "t")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "t.csv").write_text("mine", encoding="utf-8")
    with pytest.raises(MorphlingError, match="exists already"):
        command("generate", "lte", "-o", tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text(encoding="utf-8") == "mine"
    with pytest.raises(MorphlingError, match="no such folder"):
        command("generate", "lte", "-o", tmp_path / "none" / "t.csv")


def test_show_prints_percentiles_of_both_directions_and_of_their_ratio(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "# duration_s: 4\ntime_s,down_bps,up_bps\n0,8000000,2000000\n1,0,0\n2,6000000,1000000\n", encoding="utf-8"
    )
    said = command("show", path)
    assert "6 Mbit/s" in said
    assert "down/up" in said
    assert "paused 25.0% of the time, at most 1 s at once" in said
    facts = json.loads(command("show", path, "--json"))
    assert facts["down_bps"]["50"] == 6_000_000
    assert facts["ratio"] == {"5": 4, "25": 4, "50": 6, "75": 6, "95": 6}
    assert "never paused" in command("show", "mobiperf-wifi")


def test_show_draws(tmp_path):
    assert "t.png" in command("show", "mobiperf-5g", "--figure", tmp_path / "t.png").replace("\n", "")
    assert (tmp_path / "t.png").read_bytes()[:4] == b"\x89PNG"
    json.loads(command("show", "mobiperf-5g", "--json", "--figure", tmp_path / "u.png"))
