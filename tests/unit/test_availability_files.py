"""Recordings of availability: what is read, what is refused with its place, and a run in which devices leave."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from morphling.errors import ScenarioError, TraceError
from morphling.scenario import LoadedScenario, load_scenario
from morphling.scenario.availability_files import Cleaned, behaviour_records, client_records, parse_counts
from morphling.scenario.sessions import parse_sessions
from morphling.types import FAR_NS

S = 10**9
HEAD = "client,start_s,end_s\n"
SCENARIO = """\
name: s
seed: 5
workload: {model: opt-125m, batch_size: 8, sequence_length: 128}
fleet: [{profile: &p {compute: 5 TFLOP/s, memory: 4 GB}, count: 2, link: {downlink: 8 Mbit/s, uplink: 2 Mbit/s}}]
coordinator: {profile: *p}
strategy: {name: cleave}
"""


def loaded(folder: Path, availability: str, *more: str) -> LoadedScenario:
    (folder / "s.yaml").write_text(f"{SCENARIO}availability: {availability}\n")
    return load_scenario(folder / "s.yaml", list(more))


def behaviour(**clients: tuple[list[float], list[float], float]) -> str:
    body = {k: {"active": a, "inactive": i, "finish_time": f, "duration": 0} for k, (a, i, f) in clients.items()}
    return json.dumps(body)


# ------------------------------------------------------------------------------------------------------------- FedScale


def test_fedscale_clients_repeat_with_finish_time(tmp_path):
    (tmp_path / "b.json").write_text(behaviour(a=([1, 5.5], [3, 6], 10), b=([0], [4], 8)))
    here = loaded(tmp_path, "{model: fedscale, path: b.json, horizon: 16 s}").availability
    assert here.ptr.tolist() == [0, 4, 6]
    assert [x / S for x in here.start_ns.tolist()] == [1, 5.5, 11, 15.5, 0, 8]
    assert [x / S for x in here.end_ns.tolist()[:3]] == [3, 6, 13]
    assert here.end_ns.tolist()[3:] == [16 * S, 4 * S, 12 * S]
    assert (here.model, here.limit_ns) == ("fedscale", 16 * S)


def test_a_fedscale_file_may_start_elsewhere(tmp_path):
    (tmp_path / "b.json").write_text(behaviour(a=([1, 6], [3, 9], 10), b=([0], [4], 8)))
    here = loaded(tmp_path, "{model: fedscale, path: b.json, horizon: 10 s, start: 7 s}").availability
    # client a from its 7th second on: there till 9, back at 11, there from 16; b: 7 of 8 s, so back after 1 s
    assert [x / S for x in here.start_ns.tolist()] == [0, 4, 9, 1, 9]
    assert [x / S for x in here.end_ns.tolist()[:2]] == [2, 6]


def test_fedscale_faults_name_client_and_session(tmp_path):
    path = tmp_path / "b.json"

    def said(text: str) -> str:
        path.write_text(text)
        with pytest.raises(TraceError) as caught:
            behaviour_records(path, Cleaned("b.json", repair=False))
        return str(caught.value).removeprefix(f"{path}:")

    assert "1: not JSON" in said("{")
    assert said('["a"]') == "1: a JSON object is needed, one key a client; this is a list"
    assert said('{"a": 1}') == "1: client a: a mapping is needed, found int"
    assert said('{"a": {}, \n"a": {}}') == "1: client a: missing key 'active'"
    assert said(behaviour(a=([], [], 5))[:-1] + ',\n"a": 1}') == "2: duplicate key 'a'"
    assert said('{"a": {"active": [], "active": []}}').endswith("duplicate key 'active'")
    assert said('{"a": {"communication": 2}}').endswith("this is a capacity file, not one of behaviour")
    nan = '{"a": {"active": [NaN], "inactive": [1], "finish_time": 2}}'
    assert said(nan).startswith("1: client a: active[0]: 'nan' is not a number of seconds")
    assert said(behaviour(a=([1], [], 5))).endswith("1 times in active, but 0 in inactive")
    assert said('{"a": {"active": [], "inactive": []}}').endswith("missing key 'finish_time'")
    assert said(behaviour(a=([-1], [3], 10))).startswith("1: client a: active[0]: '-1' is not")
    assert said(behaviour(a=([1], [10**400], 10))).startswith("1: client a: inactive[0]: a number of that size is not")
    assert "client a, session 1: the session starts before the one" in said(behaviour(a=([1, 2], [3, 4], 10)))
    assert said(behaviour(a=([5], [3], 10))) == "1: client a, session 0: the session ends before it starts"
    assert said(behaviour(a=([5], [11], 10))) == "1: client a, session 0: the session ends after finish_time"
    assert said(behaviour(a=([5], [7], 10), b=([5], [11], 10))).startswith("1: client b, session 0")
    assert said(behaviour(a=([], [], 0))).endswith("finish_time is 0: a period must be longer")
    assert "client a, session 0: the session is empty (repair" in said(behaviour(a=([5], [5], 10)))
    text = '{"a": {"active": ["1"], "inactive": [2], "finish_time": 3}}'
    assert said(text).endswith("a number of seconds is needed, found '1'")
    assert said(text.replace('"1"', "[[1]]")).endswith("a number of seconds is needed, found a list")


def test_json_and_pickle_are_read_alike(tmp_path):
    clients = {1: {"active": [0.1, 2], "inactive": [0.3, 3.0000000004], "finish_time": 10.5, "model": "x"}}
    clients["b"] = {"active": [], "inactive": [], "finish_time": 1}
    (tmp_path / "b.json").write_text(json.dumps(clients))
    (tmp_path / "b.pickle").write_bytes(pickle.dumps(clients))
    found = []
    for name in ("b.json", "b.pickle"):
        here = loaded(tmp_path, f"{{model: fedscale, path: {name}, horizon: 16 s}}").availability
        found.append([here.ptr.tolist(), here.start_ns.tolist(), here.end_ns.tolist()])
    assert found[0] == found[1]
    assert found[0][1] == [100_000_000, 2 * S, 10_600_000_000, 12_500_000_000]
    assert found[0][2] == [300_000_000, 3 * S, 10_800_000_000, 13_500_000_000]


class Evil:
    """Asks for a command to be run as it is read."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return (os.system, (self.command,))


def test_a_hostile_pickle_runs_nothing(tmp_path):
    mark = tmp_path / "was-here"
    hostile = {"1": {"active": [0], "inactive": Evil(f"touch {mark}"), "finish_time": 10}}
    (tmp_path / "s.yaml").write_text(f"{SCENARIO}availability: {{model: fedscale, path: b.pickle, horizon: 1 h}}\n")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        (tmp_path / "b.pickle").write_bytes(pickle.dumps(hostile, protocol))
        with pytest.raises(ScenarioError) as caught:
            load_scenario(tmp_path / "s.yaml")
        reason = "the pickle asks for posix.system; only plain" if protocol >= 2 else "not JSON"
        assert reason in str(caught.value)
        assert not mark.exists()
    command = [sys.executable, "-m", "morphling", "check", str(tmp_path / "s.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"s.yaml:7:15: availability: {tmp_path}/b.pickle: the pickle asks for posix.system" in done.stderr
    assert "Traceback" not in done.stderr
    assert not mark.exists()
    pickle.loads((tmp_path / "b.pickle").read_bytes())  # the same bytes, read without care
    assert mark.exists()


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([1], "a mapping of entries is needed, found list"),
        ({}, "a mapping of entries is needed"),
        ({(1, 2): {}}, "b.pickle:1: a client's key is a text or a whole number, not tuple"),
        ({1: {}, "1": {}}, "b.pickle:1: client 1: missing key 'active'"),
        ({"a": {"active": [float("inf")], "inactive": [1], "finish_time": 2}}, "active[0]: 'inf' is"),
        ({"a": {"active": [True], "inactive": [1], "finish_time": 2}}, "active[0]: a number of seconds is needed"),
    ],
)
def test_pickles_that_are_not_behaviour(tmp_path, clients, message):
    (tmp_path / "b.pickle").write_bytes(pickle.dumps(clients))
    with pytest.raises(TraceError) as caught:
        behaviour_records(tmp_path / "b.pickle", Cleaned("b", repair=False))
    assert message in str(caught.value)


# ----------------------------------------------------------------------------------------------------- clients in a CSV


def test_clients_in_a_csv(tmp_path):
    (tmp_path / "c.csv").write_text(f"# made up\n{HEAD}7,100,110\n7,120,\n3,90,105\n3,108,109.5\n")
    here = loaded(tmp_path, "{model: sessions, path: c.csv, start: 100 s}").availability
    assert here.ptr.tolist() == [0, 2, 4]
    assert here.start_ns.tolist() == [0, 20 * S, 0, 8 * S]
    assert here.end_ns.tolist() == [10 * S, FAR_NS, 5 * S, 9_500_000_000]


def test_repairs_are_asked_for_and_counted(tmp_path):
    (tmp_path / "c.csv").write_text(f"{HEAD}0,1,2\n0,2,4\n0,5,5\n1,0,9\n")
    found = loaded(tmp_path, "{model: sessions, path: c.csv, repair: true}")
    assert (found.availability.start_ns.tolist(), found.availability.end_ns.tolist()) == (
        [1 * S, 0],
        [4 * S, 9 * S],
    )
    assert len(found.remarks) == 1
    assert "1 empty sessions left out, 1 joined to the one that they touch" in found.remarks[0]
    assert "c.csv:3" in found.remarks[0]
    with pytest.raises(ScenarioError, match=r"c\.csv:3: client 0: the session touches the one before it \(repair"):
        loaded(tmp_path, "{model: sessions, path: c.csv}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "c.csv: no header"),
        (f"{HEAD}0,1\n", "c.csv:2: 3 values are needed"),
        (f"{HEAD}0,-1,4\n", "c.csv:2: start_s: '-1' is not a number of seconds, 0 or more"),
        (f"{HEAD}0,nan,4\n", "c.csv:2: start_s: 'nan' is not"),
        (f"{HEAD}0,5,4\n", "c.csv:2: client 0: the session ends before it starts"),
        (f"{HEAD}0,5,5\n", "c.csv:2: client 0: the session is empty"),
        (f"{HEAD}0,1,5\n1,0,2\n0,4,6\n", "c.csv:4: client 0: the session starts before the one before it has ended"),
        (f"{HEAD}0,1,\n0,4,6\n", "c.csv:3: client 0: the session starts before"),
    ],
)
def test_faults_in_a_csv_name_the_line(text, message):
    with pytest.raises(TraceError) as caught:
        client_records(parse_sessions(text, "c.csv")[1], Cleaned("c.csv", repair=False))
    assert str(caught.value).startswith(message)


def test_too_few_clients_are_drawn_only_when_asked(tmp_path):
    (tmp_path / "c.csv").write_text(f"{HEAD}0,1,2\n1,3,4\n")
    with pytest.raises(ScenarioError, match="2 clients for 40 devices"):
        loaded(tmp_path, "{model: sessions, path: c.csv}", "fleet.0.count=40")
    text = "{model: sessions, path: c.csv, assign: draw}"
    first, again = (loaded(tmp_path, text, "fleet.0.count=40").availability for _ in range(2))
    assert first.start_ns.tolist() == again.start_ns.tolist()
    assert 5 < first.start_ns.tolist().count(S) < 35
    (tmp_path / "d.csv").write_text("device,start_s,end_s\n0,1,2\n")
    with pytest.raises(ScenarioError, match="assign, repair and start are for files with header 'client"):
        loaded(tmp_path, "{model: sessions, path: d.csv, repair: true}")


# ----------------------------------------------------------------------------------------------------------------- spot


def test_spot_counts(tmp_path):
    (tmp_path / "n.csv").write_text("0,0\n0,2\n0.5,2\n0.5,1\n1,1\n")
    here = loaded(tmp_path, "{model: spot, path: n.csv, time_unit: h}").availability
    assert sorted(here.end_ns.tolist()) == [1800 * S, FAR_NS]
    assert here.limit_ns == 3600 * S
    with pytest.raises(ScenarioError, match="missing key 'time_unit'"):
        loaded(tmp_path, "{model: spot, path: n.csv}")
    with pytest.raises(ScenarioError, match="2 devices are there at once, but the fleet has 1"):
        loaded(tmp_path, "{model: spot, path: n.csv, time_unit: h}", "fleet.0.count=1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "n.csv: no lines"),
        ("0,1\n2\n", "n.csv:2: 2 values are needed"),
        ("0,1\n-2,1\n", "n.csv:2: time: '-2' is not a time of 0 s or more"),
        ("time,nodes\n0,1\n", "n.csv:1: time: 'time' is not"),
        ("0,1\n1e999,1\n", "n.csv:2: time"),
        ("0,1.5\n", "n.csv:1: count: '1.5' is not a whole number"),
        ("5,1\n4,1\n", "n.csv:2: time goes back"),
    ],
)
def test_faults_in_counts_name_the_line(text, message):
    with pytest.raises(TraceError) as caught:
        parse_counts(text, "n.csv", "s")
    assert str(caught.value).startswith(message)


# ---------------------------------------------------------------------------------------------------- whole scenarios


@pytest.mark.parametrize(
    ("availability", "message"),
    [
        ("{model: phones-flash}", "missing key 'horizon'"),
        ("{model: phones-flesh, horizon: 1 h}", "did you mean 'phones-flash'?"),
        ("{model: renewal, on: {weibull: {shape: 0.5, scale: 1 h}}, horizon: 1 h}", "missing key 'off'"),
        ("{model: renewal, on: {weibul: {}}, off: {exponential: {mean: 1 h}}, horizon: 1 h}", "weibul"),
        (
            "{model: renewal, on: {exponential: {mean: 1 h}}, off: {exponential: {mean: 1 s, min: 1 h}}, horizon: 1 h}",
            "the bounds keep",
        ),
        (
            "{model: renewal, on: {exponential: {mean: 1 h, min: 2 h, max: 1 h}}, off: {weibull: {}}, horizon: 1 h}",
            "min must be below max",
        ),
        ("{model: phones-flash, horizon: 1 h, past_horizon: repeat}", "repeat needs run.max_time"),
        ("{model: phones-flash, horizon: 1 h, start_hour: 24}", "must be below 24"),
    ],
)
def test_faults_of_models(tmp_path, availability, message):
    with pytest.raises(ScenarioError) as caught:
        loaded(tmp_path, availability)
    assert message in str(caught.value)


EVERYTHING = """\
{model: renewal, on: {weibull: {shape: 0.5, scale: 1 h}}, off: {lognormal: {median: 1 h, sigma: 2, min: 1 s}},
  diurnal: {ratio: 2, peak_hour: 4.5}, share: {beta: {alpha: 0.5, beta: 5}}, initial: 0.5, horizon: 1 h}"""


def test_every_model_resolves_to_itself(tmp_path):
    (tmp_path / "b.json").write_text(behaviour(a=([1], [3], 10), b=([0], [4], 8)))
    (tmp_path / "n.csv").write_text("0,2\n10,1\n")
    (tmp_path / "c.csv").write_text(f"{HEAD}0,1,2\n1,3,4\n")
    for text in (
        "{model: fedscale, path: b.json, horizon: 1 h, past_horizon: hold}",
        "{model: spot, path: n.csv, time_unit: min}",
        "{model: sessions, path: c.csv, assign: draw}",
        EVERYTHING,
        "{model: desktops-boinc, horizon: 24 h}",
    ):
        first = loaded(tmp_path, text)
        again = load_scenario(first.resolved_yaml())
        assert again.scenario == first.scenario
        assert again.availability.start_ns.tolist() == first.availability.start_ns.tolist()


CHURN = """\
{model: renewal, on: {lognormal: {median: 8 s, sigma: 1}}, off: {lognormal: {median: 2 s, sigma: 1}},
  initial: stationary, horizon: 10 h}"""


def test_cleave_finishes_though_devices_leave(tmp_path):
    from morphling.run import replay_scenario

    found = loaded(tmp_path, CHURN, "fleet.0.count=12", "fleet.0.link={downlink: 80 Mbit/s, uplink: 20 Mbit/s}")
    first = replay_scenario(found, out=tmp_path / "a", figures=False)
    again = replay_scenario(found, out=tmp_path / "b", figures=False)
    assert first.metrics["lost_rows"] > 0
    assert first.metrics["iterations"] == 1
    assert first.metrics["events_sha256"] == again.metrics["events_sha256"]


def test_show_prints_and_draws(tmp_path):
    (tmp_path / "s.yaml").write_text(f"{SCENARIO}availability: {{model: phones-flash, horizon: 24 h}}\n")

    def show(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "morphling", "availability", "show", str(tmp_path / "s.yaml"), *args]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = show("--set", "fleet.0.count=64", "--figure", str(tmp_path / "a.png"), "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["model"], facts["devices"], facts["until_s"]) == ("phones-flash", 64, 86_400.0)
    assert len(facts["share"]["devices"]) == 64
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    table = show("--until", "2 h")
    assert "availability phones-flash" in table.stdout
    late = show("--until", "25 h")
    assert (late.returncode, "availability.horizon" in late.stderr) == (2, True)
