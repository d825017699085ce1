"""What a run once took without a word and turned into a wrong number, a traceback or a dead process."""

from __future__ import annotations

import copy
import json

import pytest

from morphling.errors import EngineError, InputError, PlanError, RunError, ScenarioError
from morphling.run import build
from morphling.run.run import replay
from morphling.scenario import load_scenario
from morphling.scenario.traces import parse_trace
from morphling.types import Kind
from morphling.workload import Place

HEADER = "time_s,down_bps,up_bps\n"
CONFIG = {
    "model_type": "opt",
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "ffn_dim": 256,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 128,
    "word_embed_proj_dim": 64,
    "do_layer_norm_before": True,
    "activation_function": "relu",
}
DEVICE = {
    "profile": {"compute": "1 TFLOP/s", "memory": "1 GB"},
    "count": 1,
    "link": {"downlink": "80 Mbit/s", "uplink": "20 Mbit/s"},
}


@pytest.fixture
def scenario(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return {
        "name": "broken",
        "workload": {"model": str(tmp_path / "config.json"), "batch_size": 2, "sequence_length": 16},
        "fleet": [copy.deepcopy(DEVICE)],
        "strategy": {"name": "cleave"},
    }


def built(scenario, *sets):
    return build(load_scenario(scenario, list(sets)))


# ------------------------------------------------------------------------------------------------ links and draws


def test_traces_of_one_name_in_two_folders_are_two_traces(scenario, tmp_path):
    entries = []
    for folder, rate in (("a", 8_000_000), ("b", 80_000_000)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.csv").write_text(f"{HEADER}0,{rate},{rate}\n")
        entries.append({**DEVICE, "link": {"trace": str(tmp_path / folder / "x.csv")}})
    for order in (entries, entries[::-1]):
        down, up = built({**scenario, "fleet": order}).fleet.links.nominal_bps()
        assert sorted(down.tolist()) == sorted(up.tolist()) == [8e6, 80e6]
    assert down.tolist() == [80e6, 8e6]


def test_own_trace_named_as_a_shipped_one(scenario, tmp_path):
    (tmp_path / "mobiperf-lte.csv").write_text(f"{HEADER}0,123456,123456\n")
    fleet = [{**DEVICE, "link": {"trace": x}} for x in ("mobiperf-lte", str(tmp_path / "mobiperf-lte.csv"))]
    down, _ = built({**scenario, "fleet": fleet}).fleet.links.nominal_bps()
    assert down[0] > 1e6
    assert down[1] == 123456


def test_the_same_trace_in_two_entries_is_held_once(scenario):
    fleet = [{**DEVICE, "link": {"trace": "mobiperf-lte", "latency": x}} for x in ("1 ms", "2 ms")]
    assert built({**scenario, "fleet": fleet}).fleet.links.trace_names == ("mobiperf-lte",)


@pytest.mark.parametrize(
    ("field", "draw"),
    [
        ("link.uplink", "{lognormal: {median: 1 bit/s, sigma: 3}}"),  # rounds to 0 bit/s: nothing would ever arrive
        ("link.downlink", "{lognormal: {median: 1 Tbit/s, sigma: 3}}"),
        ("link.downlink", "2 Tbit/s"),
        ("link.latency", "{lognormal: {median: 4000000000 s, sigma: 9}}"),  # beyond int64 nanoseconds
        ("profile.memory", "{lognormal: {median: 1 B, sigma: 3}}"),
        ("profile.memory", "{lognormal: {median: 1 EB, sigma: 9}}"),  # beyond int64 bytes
    ],
)
def test_draws_that_integers_cannot_hold_are_refused(scenario, field, draw):
    with pytest.raises(ScenarioError, match=rf"fleet\.0\.{field}: device \d+ of 50 gets"):
        built(scenario, f"fleet.0.{field}={draw}", "fleet.0.count=50")


def test_draws_at_the_limits_are_taken(scenario):
    fleet = built(scenario, "fleet.0.link.uplink=1 bit/s", "fleet.0.link.downlink=1 Tbit/s").fleet
    assert fleet.links.nominal_bps()[0].tolist() == [1e12]
    assert fleet.links.nominal_bps()[1].tolist() == [1.0]


def test_offset_beyond_time_is_refused(scenario):
    link = {"trace": "mobiperf-lte", "offset": {"lognormal": {"median": "4000000000 s", "sigma": 9}}}
    with pytest.raises(ScenarioError, match=r"fleet\.0\.link\.offset: device"):
        built({**scenario, "fleet": [{**DEVICE, "count": 50, "link": link}]})


def test_trace_faster_than_links_go_is_refused_before_the_run(scenario, tmp_path):
    (tmp_path / "x.csv").write_text(f"{HEADER}0,{10**16},8000000\n")
    with pytest.raises(ScenarioError, match=r"fleet\.0\.link\.trace: .*the highest rate is 10000000000000000 bit/s"):
        built({**scenario, "fleet": [{**DEVICE, "link": {"trace": str(tmp_path / "x.csv")}}]})


@pytest.mark.parametrize("line", ["# Duration_s: 5", "# duration: 5 s", "#duration_s 5", "## duration_s: 5"])
def test_comment_that_nearly_gives_the_duration_is_refused(line):
    with pytest.raises(Exception, match="a duration is written '# duration_s: 600'"):
        parse_trace(f"{line}\n{HEADER}0,8000000,8000000\n", "x", "repeat")


def test_comment_that_speaks_of_durations_is_a_comment():
    text = f"# durations follow a lognormal\n# duration of the drive was 2 h\n{HEADER}0,8000000,8000000\n"
    assert parse_trace(text, "x", "repeat").period_ns == 10**9


# ----------------------------------------------------------------------------------------------------------- fields


def test_fields_that_nothing_reads_are_refused(scenario):
    with pytest.raises(ScenarioError, match=r"run\.record: dispatches is not there yet"):
        built(scenario, "run.record=dispatches")


@pytest.mark.parametrize("field", ["lm_head=devices", "fused_projections=true", "recompute=full"])
def test_paper_model_refuses_workload_options_it_does_not_follow(scenario, field):
    with pytest.raises(PlanError, match="is not in the list of model: paper"):
        replay(built(scenario, "strategy.model=paper", f"workload.{field}"))


@pytest.mark.parametrize("sets", [("strategy.model=paper", "strategy.overlap=none"), ("strategy.gemms=artifact",)])
def test_cleave_refuses_options_that_its_model_passes_over(scenario, sets):
    with pytest.raises(ScenarioError, match="model: p"):
        built(scenario, *sets)


def test_fleets_beyond_memory_are_refused(scenario):
    with pytest.raises(ScenarioError, match="2,147,483,647 devices are more than"):
        load_scenario(scenario, ["fleet.0.count=2147483647"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (json.dumps({**CONFIG, "num_hidden_layers": 10**6}), "beyond any model"),
        (json.dumps({**CONFIG, "ffn_dim": None}), "ffn_dim: missing$"),
        ("[" * 100_000, "cannot be read|not JSON"),
        (json.dumps(CONFIG).replace("64", "9" * 5000, 1), "cannot be read"),
    ],
)
def test_config_json_that_cannot_be_built(scenario, tmp_path, text, reason):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ScenarioError, match=reason):
        load_scenario(scenario)


def test_computing_for_centuries_is_told_apart_from_a_broken_executor(scenario):
    with pytest.raises(EngineError, match="would compute for"):
        replay(built(scenario, "fleet.0.profile.compute=0.000001 FLOP/s"))


@pytest.mark.parametrize("path", ["~no-such-user-here/x", "x" * 5000, "a\0b"])
@pytest.mark.parametrize(
    ("place", "suffix"),
    [("workload.model", ".json"), ("fleet.0.profile", ".yaml"), ("fleet.0.link.trace", ".csv")],
)
def test_what_cannot_be_a_path_is_a_fault_of_the_scenario(scenario, place, suffix, path):
    with pytest.raises(ScenarioError, match="cannot be a path"):
        load_scenario({**scenario, "fleet": [{**DEVICE, "link": {"trace": "mobiperf-lte"}}]}, {place: path + suffix})
    with pytest.raises(ScenarioError, match="cannot be a path"):
        load_scenario(path + ".yaml")


# ---------------------------------------------------------------------------------------------------------- plug-ins

PLUGIN = """
from dataclasses import dataclass
from morphling.interfaces.strategy import Done, Strategy
@dataclass(frozen=True)
class C: pass
class NoConfig(Strategy):
    def start(self, view): return Done("x")
class Abstract(Strategy):
    Config = C
class Broken(Strategy):
    Config = C
    def __init__(self, config): raise KeyError("oops")
    def start(self, view): return Done("x")
class Exits(Strategy):
    Config = C
    def start(self, view): raise SystemExit(0)
"""


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    (tmp_path / "break_plugin.py").write_text(PLUGIN)
    (tmp_path / "break_import.py").write_text("raise RuntimeError('boom')\n")
    (tmp_path / "break_syntax.py").write_text("def (\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (":X", "cannot be loaded: ValueError"),
        ("..:X", "cannot be loaded: TypeError"),
        ("break_import:X", "cannot be loaded: RuntimeError: boom"),
        ("break_syntax:X", "cannot be loaded: SyntaxError"),
        ("break_plugin:NoConfig", "has no Config class"),
        ("break_plugin:Abstract", "lacks start"),
        ("break_plugin:Broken", "cannot be made: KeyError: 'oops'"),
    ],
)
@pytest.mark.usefixtures("plugins")
def test_broken_plugins_become_messages_that_name_them(scenario, target, reason):
    with pytest.raises(InputError, match=f"{target.rpartition('.')[0]}.*{reason}"):
        built({**scenario, "strategy": {"plugin": target}})


@pytest.mark.usefixtures("plugins")
def test_strategy_that_exits_does_not_look_done(scenario):
    with pytest.raises(RunError, match="Exits asked to exit"):
        replay(built({**scenario, "strategy": {"plugin": "break_plugin:Exits"}}))


# ------------------------------------------------------------------------------------------------------ conservation


@pytest.mark.parametrize(
    "sets", [(), ("workload.recompute=full",), ("workload.lm_head=devices",), ("workload.fused_projections=true",)]
)
@pytest.mark.parametrize("count", [1, 3, 50])
def test_devices_do_exactly_the_dag(scenario, count, sets):
    world = built(scenario, f"fleet.0.count={count}", "run.iterations=2", *sets)
    dag = world.workload.dag
    handed = (dag.kind == Kind.GEMM) & (dag.place == Place.DEVICES)
    rows = [(d.column("device") < world.fleet.size, d) for d in replay(world).dispatches]
    flops = sum(int(d.column("flops")[on].sum()) for on, d in rows)
    up = sum(int(d.column("bytes_out")[on].sum()) for on, d in rows)
    assert flops == 2 * 2 * int((dag.m * dag.n * dag.k)[handed].sum())
    assert up == 2 * 2 * int((dag.m * dag.n)[handed].sum())


def test_one_device_one_after_another_is_the_hand_formula(scenario):
    world = built(scenario, "strategy.overlap=none", "strategy.cache=false", "fleet.0.link.latency=10 ms")
    seen = 0
    for d in replay(world).dispatches:
        if len(d) == 1 and d.column("device")[0] == 0:
            down, up = int(d.column("bytes_in")[0]), int(d.column("bytes_out")[0])
            compute = int(d.column("flops")[0]) / 1e12
            want = down * 8 / 80e6 + compute + up * 8 / 20e6 + 2 * 0.01
            assert (d.column("settled_ns")[0] - d.time_ns) / 1e9 == pytest.approx(want, abs=4e-9)
            seen += 1
    assert seen >= 3


def test_twice_the_rates_halve_communication(scenario):
    fast = {"compute": "1000000 TFLOP/s", "memory": "1 TB"}
    quick = {**scenario, "coordinator": {"profile": fast}, "fleet": [{**DEVICE, "profile": fast, "count": 3}]}
    first = replay(built(quick))
    second = replay(built(quick, "fleet.0.link={downlink: 160 Mbit/s, uplink: 40 Mbit/s}"))
    assert first.end_ns / second.end_ns == pytest.approx(2, rel=1e-5)
