"""Scenarios: faults all at once with their places, every default filled, resolved scenarios load to themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from morphling.errors import ScenarioError
from morphling.fleet import PastEnd, sample
from morphling.scenario import fleet_draw, json_schema, load_scenario, resolved, shipped_names
from morphling.scenario.schema import ConstantLink, InlineProfile, TraceLink
from morphling.types import FAR_NS

PROFILE = "{compute: 5 TFLOP/s, memory: 4 GB}"
DRAINED = "power: {idle: 1 W, max: 2 W}, battery: {capacity: 1 Wh, reserve: 0}"
SMALL = f"""\
name: small
workload: {{model: opt-125m, batch_size: 8, sequence_length: 128}}
fleet:
  - {{profile: {PROFILE}, count: 3, link: {{downlink: 80 Mbit/s, uplink: 20 Mbit/s}}}}
  - {{profile: {PROFILE}, link: {{downlink: 10 MB/s, uplink: 1 MB/s, latency: 5 ms, duplex: half}}}}
coordinator: {{profile: {PROFILE}}}
strategy: {{name: cleave, model: physical, tile: 5e9}}
"""
RICH = f"""\
name: rich
seed: 42
workload: {{model: gpt2, batch_size: 8, sequence_length: 128, dtype: bfloat16, lm_head: devices, recompute: full}}
fleet:
  - profile:
      name: box
      compute: {{float32: {{choice: [1 TFLOP/s, 2 TFLOP/s], weights: [3, 1]}}, float16: 0.1 TFLOP/s}}
      memory: {{uniform: [1 GB, 3 GB]}}
      memory_bandwidth: {{normal: {{mean: 50 GB/s, std: 5 GB/s, min: 20 GB/s}}}}
      efficiency: {{float32: 0.5, float16: 1}}
      launch: 0.3333333 us
      power: {{idle: 0 W, max: 15.5 W}}
    count: 2
    link: {{trace: {{path: t.csv}}, offset: {{uniform: [0 s, 10 s]}}, past_end: hold}}
  - profile: {{compute: 1 TFLOP/s, memory: 1 GiB}}
    link:
      downlink: {{lognormal: {{median: 20 Mbit/s, sigma: 0.5, max: 1 Gbit/s}}}}
      uplink: 2 Mbit/s
      latency: {{uniform: [1 ms, 0.1 s]}}
coordinator: {{profile: {PROFILE}, downlink: 100 Gbit/s, uplink: 10 Gbit/s}}
availability: {{model: sessions, sessions: [{{device: 2, start: 0 s, end: 40 s}}, {{device: 2, start: 50 s}}]}}
strategy: {{plugin: 'a.b:C', list: [1, 'no', {{x: 1e-5}}]}}
execution: {{mode: profiled, table: x}}
run: {{iterations: 2, record: dispatches, max_time: 1 h}}
"""


@pytest.fixture
def trace_folder(tmp_path: Path) -> Path:
    (tmp_path / "t.csv").write_text("time_s,down_bps,up_bps\n0,24000000,3000000\n1,12000000,4000000\n")
    return tmp_path


def problems(text: str, *overrides: str, folder: Path | None = None) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(text, overrides, folder=folder)
    return list(caught.value.problems)


def test_values_are_in_base_units_and_defaults_are_filled() -> None:
    loaded = load_scenario(SMALL)
    scenario = loaded.scenario
    link = scenario.fleet[0].link
    assert isinstance(link, ConstantLink)
    assert (link.downlink, link.uplink, link.latency, link.duplex) == (80_000_000, 20_000_000, 0.0, "full")
    slow = scenario.fleet[1].link
    assert isinstance(slow, ConstantLink)
    assert (slow.downlink, slow.uplink, slow.latency, slow.duplex) == (80_000_000, 8_000_000, 0.005, "half")
    assert (scenario.seed, scenario.size, scenario.fleet[1].count) == (0, 4, 1)
    assert (scenario.workload.dtype, scenario.workload.lm_head, scenario.workload.recompute) == (
        "float16",
        "coordinator",
        "none",
    )
    assert scenario.coordinator.downlink is None
    assert (scenario.execution.mode, scenario.run.iterations, scenario.run.record) == ("analytic", 1, "rows")
    assert scenario.strategy.config == {"model": "physical", "tile": 5e9}
    assert (loaded.model.name, loaded.availability.size, loaded.availability.model) == ("opt-125m", 4, "always")
    profile = loaded.profile(scenario.fleet[0].profile)
    assert isinstance(profile, InlineProfile)
    assert (profile.compute, profile.memory, profile.efficiency, profile.launch) == (5e12, 4_000_000_000, 1.0, 0.0)


def test_resolved_loads_to_itself(trace_folder: Path) -> None:
    for text in (SMALL, RICH):
        first = load_scenario(text, folder=trace_folder)
        again = load_scenario(first.resolved_yaml())
        assert again.scenario == first.scenario
        assert again.resolved_yaml() == first.resolved_yaml()


def test_resolved_says_base_units_and_every_default() -> None:
    out = resolved(load_scenario(SMALL).scenario)
    assert out["fleet"][0]["link"] == {
        "downlink": "80000000 bit/s",
        "uplink": "20000000 bit/s",
        "latency": "0 s",
        "duplex": "full",
        "tcp": None,
    }
    assert out["cells"] == []
    assert out["fleet"][0]["cell"] is None
    assert out["fleet"][0]["profile"]["memory"] == "4000000000 B"
    assert out["run"] == {"iterations": 1, "record": "rows", "max_time": None}
    assert out["availability"] == {"model": "always"}
    assert list(out)[:3] == ["name", "seed", "workload"]


def test_rich_values(trace_folder: Path) -> None:
    loaded = load_scenario(RICH, folder=trace_folder)
    entry = loaded.scenario.fleet[0]
    assert isinstance(entry.profile, InlineProfile)
    assert isinstance(entry.link, TraceLink)
    assert loaded.trace(entry.link).past_end is PastEnd.HOLD
    assert loaded.trace(entry.link).down_bps.tolist() == [24_000_000, 12_000_000]
    assert list(loaded.inputs) == [str(trace_folder / "t.csv")]
    assert isinstance(entry.profile.compute, dict)
    assert fleet_draw(entry.profile.compute["float32"]) == sample.Choice((1e12, 2e12), (3, 1))
    assert fleet_draw(entry.profile.compute["float16"]) == sample.Constant(1e11)
    assert fleet_draw(entry.profile.memory) == sample.Uniform(10**9, 3 * 10**9)
    assert entry.profile.memory_bandwidth is not None
    assert fleet_draw(entry.profile.memory_bandwidth) == sample.Normal(50e9, 5e9, 20e9, None)
    link = loaded.scenario.fleet[1].link
    assert isinstance(link, ConstantLink)
    assert fleet_draw(link.downlink) == sample.Lognormal(20e6, 0.5, None, 10**9)
    assert loaded.availability.ptr.tolist() == [0, 1, 2, 4]
    assert loaded.availability.end_ns.tolist() == [FAR_NS, FAR_NS, 40_000_000_000, FAR_NS]


def test_all_faults_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(f"""\
nam: x
workload: {{model: opt-13b, batch_size: 1.5, sequence_length: true, dtype: flaot16}}
fleet:
  - {{profile: {PROFILE}, coun: 192, link: {{downlink: 5 mbps}}}}
  - profile: {{compute: {{unifrom: [5 TFLOP/s, 7 TFLOP/s]}}, memory: {{uniform: [1 GB]}}}}
    count: "3x"
    link: {{downlink: {{uniform: [9 MB/s, 1 MB/s]}}, uplink: {{normal: {{mean: 5 MB/s, std: 1 MB/s}}}}, latency: 0}}
strategy: {{}}
""")
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    lines = path.read_text().splitlines()
    found = []
    for problem in caught.value.problems:
        line, column, reason = problem.removeprefix(f"{path}:").split(":", 2)
        found.append((int(line), lines[int(line) - 1][int(column) - 1 :].split()[0], reason.strip()))
    assert found == [
        (1, "nam:", "missing key 'name'"),
        (1, "nam:", "nam: unknown key, did you mean 'name'?"),
        (2, "1.5,", "workload.batch_size: a whole number is needed, found 1.5"),
        (2, "true,", "workload.sequence_length: a whole number is needed, found true"),
        (
            2,
            "flaot16}",
            (
                "workload.dtype: must be one of float32, float16, bfloat16, tfloat32, int8, found 'flaot16', "
                "did you mean 'float16'?"
            ),
        ),
        (4, "coun:", "fleet.0.coun: unknown key, did you mean 'count'?"),
        (4, "{downlink:", "fleet.0.link: missing key 'uplink'; a link has a downlink and an uplink, or a trace"),
        (
            4,
            "5",
            "fleet.0.link.downlink: '5 mbps' is ambiguous: 5 Mbit/s (5 000 000 bit/s) or 5 MB/s (40 000 000 bit/s)?",
        ),
        (
            5,
            "{unifrom:",
            (
                "fleet.1.profile.compute: a compute rate such as '5 TFLOP/s' is needed, found a mapping with keys "
                "unifrom; did you mean 'uniform'?"
            ),
        ),
        (5, "[1", "fleet.1.profile.memory.uniform: two values are needed: the lowest and the highest"),
        (6, '"3x"', "fleet.1.count: a whole number is needed, found '3x'"),
        (7, "{uniform:", "fleet.1.link.downlink: uniform: the lower bound comes first"),
        (7, "{normal:", "fleet.1.link.uplink: normal: give min, or values of zero and below would be drawn"),
        (7, "0}", "fleet.1.link.latency: 0: a time needs a unit: 0 s or 0 ms (0 s)?"),
        (8, "{}", "strategy: give either name or plugin"),
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=-1", "--set seed: must be at least 0, found -1"),
        ("seed=true", "--set seed: a whole number is needed, found true"),
        ("name=../up", "--set name: may hold letters, digits, '.', '_' and '-'"),
        ("fleet=[]", "--set fleet: must not be empty"),
        ("fleet={}", "--set fleet: a list is needed, found a mapping"),
        ("fleet.0=x", "--set fleet.0: a mapping is needed, found 'x'"),
        ("fleet.0.count=0", "--set fleet.0.count: must be at least 1, found 0"),
        ("fleet.0.count=1e3", "--set fleet.0.count: a whole number is needed, found 1000.0"),
        (
            "fleet.0.link={}",
            "--set fleet.0.link: missing key 'downlink'; a link has a downlink and an uplink, or a trace",
        ),
        (
            "fleet.0.link.trace=mobiperf-lte",
            "fleet.0.link.downlink: unknown key, a link has either a trace, or a downlink and an uplink",
        ),
        ("fleet.0.link.downlink=0 bit/s", "--set fleet.0.link.downlink: '0 bit/s': a rate of zero is not allowed here"),
        ("fleet.0.link.downlink=0.5 bit/s", "--set fleet.0.link.downlink: '0.5 bit/s' is finer than 1 bit/s"),
        ("fleet.0.link.downlink=1e19 bit/s", "is too large: the limit is 1000000000000000000 bit/s"),
        (
            "fleet.0.link.downlink={choice: []}",
            "--set fleet.0.link.downlink: fleet.0.link.downlink.choice: must not be empty",
        ),
        ("fleet.0.link.downlink={choice: [1 MB/s], weights: [1, 2]}", "choice: 1 values but 2 weights"),
        (
            "fleet.0.link.downlink={choice: [1 MB/s], weights: [0]}",
            "choice: each weight must be a finite number above zero",
        ),
        ("fleet.0.link.downlink={uniform: [0 bit/s, 5 bit/s]}", "a rate of zero is not allowed here"),
        ("fleet.0.link.downlink={uniform: [1 bit/s, 5 bit/s, 6 bit/s]}", "at most 2 values are needed, found 3"),
        ("fleet.0.link.downlink={lognormal: {median: 1 MB/s, sigma: 0}}", "sigma: must be above 0"),
        (
            "fleet.0.link.downlink={lognormal: {median: 1 MB/s, sigma: 1, min: 2 MB/s, max: 1 MB/s}}",
            "min must be below max",
        ),
        ("fleet.0.link.latency=0.1 ns", "'0.1 ns' is finer than 1 ns"),
        ("fleet.0.link.duplex=both", "must be one of full, half, found 'both'"),
        ("fleet.0.profile={}", "--set fleet.0.profile: missing key 'compute'"),
        ("fleet.0.profile.compute={}", "compute: no dtype has a rate"),
        (
            "fleet.0.profile.compute={float61: 1 TFLOP/s}",
            "must be one of float32, float16, bfloat16, tfloat32, int8, found 'float61', did you mean 'float16'?",
        ),
        ("fleet.0.profile.compute=0 FLOP/s", "a compute rate of zero is not allowed here"),
        ("fleet.0.profile.efficiency=1.2", "a share in (0, 1] is needed, found 1.2"),
        (
            "fleet.0.profile.efficiency={float16: 0.5}",
            "efficiency is given for float16, compute for all dtypes at once",
        ),
        ("fleet.0.profile.power={idle: 5 W, max: 1 W}", "power: max is below idle"),
        (
            "coordinator.profile.memory={uniform: [1 GB, 2 GB]}",
            "the coordinator is one machine; give numbers, not distributions",
        ),
        ("fleet.0.profile.battery={capacity: 10 Wh, reserve: 0.2}", "battery: a battery needs power: {idle, max}"),
        ("fleet.0.profile.battery={capacity: 10, reserve: 0.2}", "10: an energy needs a unit: 10 Wh"),
        (
            f"coordinator.profile={PROFILE[:-1]}, {DRAINED}}}",
            "profile: the coordinator is plugged in; leave battery out",
        ),
        ("coordinator.uplink=0 bit/s", "a rate of zero is not allowed here"),
        (
            "availability.model=session",
            "renewal, phones-flash, desktops-boinc, found 'session', did you mean 'sessions'?",
        ),
        ("availability={model: always, path: x.csv}", "must be one of"),
        ("availability={model: sessions}", "--set availability: missing key 'sessions'"),
        (
            "availability={model: sessions, sessions: [{device: 0, start: 5 s, end: 5 s}]}",
            "a session ends after it starts",
        ),
        (
            "availability={model: sessions, sessions: [{device: 4}]}",
            "there is no device 4: the fleet has devices 0 to 3",
        ),
        ("strategy={model: paper}", "--set strategy: give either name or plugin"),
        ("strategy.plugin=a:B", "strategy: give either name or plugin"),
        ("execution.mode=3", "--set execution.mode: text is needed, found 3"),
        ("execution=fast", "--set execution: a mapping is needed, found 'fast'"),
        ("run.iterations=0", "--set run.iterations: must be at least 1, found 0"),
        ("run.max_time=10", "--set run.max_time: 10: a time needs a unit: 10 s or 10 ms (0.01 s)?"),
        ("workload.model=opt-126m", "--set workload.model: unknown model 'opt-126m'; did you mean opt-125m"),
        ("workload.model=./config.json", "config.json"),
        ("workload.batch_size=0", "must be at least 1, found 0"),
        ("workload.colour=red", "--set workload.colour: unknown key, known: batch_size, dtype"),
        (
            "fleet.0.profile=jetson-nanu",
            "--set fleet.0.profile: unknown device profile 'jetson-nanu', did you mean 'jetson-nano'?",
        ),
        ("fleet.0.profile=./none.yaml", "--set fleet.0.profile: no such file"),
    ],
)
def test_each_fault(override: str, message: str) -> None:
    assert any(message in line for line in problems(SMALL, override))


def test_faults_of_named_files_are_gathered_under_the_field(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("name: x\n")
    (tmp_path / "t.csv").write_text("time,down,up\n")
    text = SMALL.replace(f"profile: {PROFILE}, count", "profile: p.yaml, count").replace(
        "downlink: 10 MB/s, uplink: 1 MB/s", "trace: t.csv"
    )
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    lines = caught.value.problems
    assert f"{path}:4:15: fleet.0.profile: {tmp_path}/p.yaml:1:1: missing key 'title'" in lines
    assert f"{path}:5:65: fleet.1.link.trace: {tmp_path}/t.csv:1: the header must be" in lines[-1]


def test_relative_paths_start_from_the_scenario(trace_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = trace_folder / "s.yaml"
    path.write_text(SMALL.replace("downlink: 10 MB/s, uplink: 1 MB/s", "trace: ./t.csv"))
    monkeypatch.chdir("/")
    loaded = load_scenario(path)
    assert resolved(loaded.scenario)["fleet"][1]["link"]["trace"] == str(trace_folder / "t.csv")
    assert sorted(loaded.inputs) == sorted([str(path), str(trace_folder / "t.csv")])
    assert load_scenario(loaded.resolved_yaml()).scenario == loaded.scenario


def test_a_mapping_is_not_changed() -> None:
    source = {
        "name": "m",
        "workload": {"model": "opt-125m", "batch_size": 1, "sequence_length": 8},
        "fleet": [
            {
                "profile": {"compute": "1 TFLOP/s", "memory": "1 GB"},
                "link": {"downlink": "1 Mbit/s", "uplink": "2 Mbit/s"},
            }
        ],
        "coordinator": {"profile": {"compute": "1 TFLOP/s", "memory": "1 GB"}},
        "strategy": {"name": "cleave"},
    }
    before = json.dumps(source)
    loaded = load_scenario(source, {"fleet.0.count": 5, "strategy": {"name": "other", "deep": [1, 2]}})
    assert json.dumps(source) == before
    assert loaded.scenario.fleet[0].count == 5
    assert loaded.scenario.strategy.config == {"deep": [1, 2]}
    with pytest.raises(ScenarioError, match=r"^scenario: workload: missing key 'model'$"):
        load_scenario({**source, "workload": {"batch_size": 1, "sequence_length": 8}})


def test_config_json(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
        "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100, "max_position_embeddings": 64,
        "tie_word_embeddings": False, "hidden_act": "silu",
    }  # fmt: skip
    folder = tmp_path / "tiny-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    loaded = load_scenario(SMALL, ["workload.model=tiny-llama/config.json"], folder=tmp_path)
    assert (loaded.model.name, loaded.model.hidden_size, loaded.model.layers) == ("tiny-llama", 64, 2)
    for text, message in (
        ('{"a": 1,\n "a": 2}', "duplicate key 'a'"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": 1,}', "config.json:1:9: not JSON"),
        ("[1]", "a JSON object is needed"),
    ):
        (folder / "config.json").write_text(text)
        assert message in problems(SMALL, "workload.model=tiny-llama/config.json", folder=tmp_path)[0]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("no-such-file.yaml", "no such file"),
        ("quickstrat", "unknown scenario 'quickstrat'"),
        ("\n", "scenario: a scenario is a mapping with name, workload, fleet and strategy"),
        ("- 1\n", "scenario: a scenario is a mapping"),
        ("a: [\n", "not YAML"),
    ],
)
def test_nothing_to_load(source: str, message: str) -> None:
    assert message in problems(source)[0]


def test_an_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"name: \xff\n")
    with pytest.raises(ScenarioError, match=r"x\.yaml: is not UTF-8 text"):
        load_scenario(tmp_path / "x.yaml")
    with pytest.raises(ScenarioError, match="cannot be read"):
        load_scenario(tmp_path)


def test_later_checks_can_name_the_place() -> None:
    loaded = load_scenario(SMALL, ["fleet.1.count=2"])
    assert loaded.where("workload", "model") == "scenario:2:19"
    column = SMALL.splitlines()[3].index("3,") + 1
    assert str(loaded.fault(("fleet", 0, "count"), "too many")) == f"scenario:4:{column}: fleet.0.count: too many"
    assert str(loaded.fault(("fleet", 1, "count"), "too many")) == "--set fleet.1.count: too many"

    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid")
        model: int
        tiles: int = 1

    with pytest.raises(ValidationError) as caught:
        Config.model_validate(loaded.scenario.strategy.config)
    assert loaded.faults(caught.value, ("strategy",), Config).problems == (
        "scenario:7:33: strategy.model: a whole number is needed, found 'physical'",
        "scenario:7:43: strategy.tile: unknown key, did you mean 'tiles'?",
    )


def test_json_schema_accepts_what_loads(trace_folder: Path) -> None:
    schema = json_schema()
    checker = jsonschema.Draft202012Validator(schema)
    checker.check_schema(schema)
    for text in (SMALL, RICH):
        loaded = load_scenario(text, folder=trace_folder)
        checker.validate(loaded.document.value)
        checker.validate(resolved(loaded.scenario))
    for path, wrong in (("name", 5), ("seed", -1), ("strategy", "x"), ("colour", "red"), ("fleet", [])):
        assert not checker.is_valid({**resolved(loaded.scenario), path: wrong}), path
    link = resolved(loaded.scenario)["fleet"][1]["link"]
    assert link["uplink"] == "2000000 bit/s"
    bad = json.loads(json.dumps(resolved(loaded.scenario)).replace("2000000 bit/s", "2 mbps"))
    assert not checker.is_valid(bad)


def test_every_field_is_described() -> None:
    for schema in (json_schema("scenario"), json_schema("profile")):
        for model in [schema, *schema["$defs"].values()]:
            for name, field in model.get("properties", {}).items():
                # A description equal to the one of the model that the field holds is written there only.
                there = schema["$defs"].get(field.get("$ref", "").rpartition("/")[2], {})
                assert field.get("description") or there.get("description"), (model["title"], name)


def test_shipped_scenarios_load() -> None:
    for name in shipped_names("scenarios"):
        loaded = load_scenario(name)
        assert load_scenario(loaded.resolved_yaml()).scenario == loaded.scenario


def test_hash_seed_does_not_reach_the_resolved_bytes(trace_folder: Path) -> None:
    (trace_folder / "r.yaml").write_text(RICH)
    code = "import sys; from morphling.scenario import load_scenario as l; print(l(sys.argv[1]).resolved_yaml())"
    out = {
        subprocess.run(
            [sys.executable, "-c", code, str(trace_folder / "r.yaml")],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(out) == 1


def test_misspelt_names_are_told_together_with_misspelt_keys(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(
        "name: x\n"
        "workload: {model: opt-125, batch_size: 1, sequence_length: 8, dtpe: float16}\n"
        "fleet:\n"
        "  - {profile: jetson-nan, link: {trace: mobiperf-lt}}\n"
        "coordinator: {profile: cloud-servr}\n"
        "strategy: {name: cleave}\n"
    )
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    hints = ("opt-125m", "'dtype'", "jetson-nano", "mobiperf-lte", "cloud-server")
    assert len(caught.value.problems) == len(hints)
    for hint, problem in zip(hints, caught.value.problems, strict=True):
        assert hint in problem
    assert [p.split(":")[1] for p in caught.value.problems] == ["2", "2", "4", "4", "5"]
