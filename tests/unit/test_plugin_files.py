"""Strategies from files and classes: run only where allowed, recorded, and every fault of them told with its line."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import morphling
from morphling.errors import InputError, ScenarioError
from morphling.interfaces.strategy import Done, IterationDone, Strategy
from morphling.run import build, check
from morphling.run import replay_scenario as run
from morphling.scenario import load_scenario

ROOT = Path(__file__).resolve().parents[2]

SCENARIO = """name: small
workload: {model: opt-125m, batch_size: 1, sequence_length: 32}
fleet:
  - profile: {compute: 1 TFLOP/s, memory: 2 GB}
    count: 2
    link: {downlink: 8 Mbit/s, uplink: 8 Mbit/s}
strategy:
  plugin: code/mine.py:Mine
"""

CODE = """from __future__ import annotations
from dataclasses import dataclass
from pathlib import Path
from morphling.interfaces.strategy import Done, IterationDone, Strategy

Path(__file__).with_name("was-run").touch()

@dataclass(frozen=True)
class Config:
    wait: int = 3

class Mine(Strategy):
    Config = Config
    def start(self, view):
        return [IterationDone(), Done(f"waited {self.config.wait}")]
"""


@pytest.fixture
def scenario(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text(CODE)
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO)
    return path


def was_run(scenario):
    return (scenario.parent / "code" / "was-run").exists()


def rewritten(scenario, code):
    (scenario.parent / "code" / "mine.py").write_text(code)
    return load_scenario(scenario)


def command(scenario, *words):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "morphling", *words],
        cwd=scenario.parent, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- permission


def test_without_permission_nothing_is_run(scenario, tmp_path):
    with pytest.raises(ScenarioError, match=r"small\.yaml:8:11: strategy\.plugin: .*code/mine\.py is Python code"):
        run(scenario, out=tmp_path / "r", figures=False)
    assert not was_run(scenario)
    assert not (tmp_path / "r").exists()


def test_with_permission_it_runs_and_is_recorded(scenario, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)  # the path starts from the scenario, not from here
    results = run(scenario, out=tmp_path / "r", figures=False, allow_plugins=True)
    file = str(tmp_path / "code" / "mine.py")
    assert results.manifest["inputs_sha256"][file] == hashlib.sha256(CODE.encode()).hexdigest()
    written = load_scenario(tmp_path / "r" / "scenario.yaml")
    assert (written.scenario.strategy.plugin, written.scenario.strategy.config) == (f"{file}:Mine", {"wait": 3})
    with pytest.raises(InputError, match="is Python code"):
        run(written, out=tmp_path / "again", figures=False)
    again = run(written, out=tmp_path / "again", figures=False, allow_plugins=True)
    assert again.metrics["events_sha256"] == results.metrics["events_sha256"]


def test_the_command_line_asks_only_on_a_terminal(scenario):
    done = command(scenario, "run", "small.yaml", "--no-figures")
    assert done.returncode == 2
    assert "mine.py is Python code" in done.stderr
    assert "--allow-plugins" in done.stderr
    assert not was_run(scenario)
    done = command(scenario, "run", "small.yaml", "--no-figures", "--allow-plugins", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["iterations"] == 1
    assert was_run(scenario)


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 2), ("\n", 2)])
def test_on_a_terminal_somebody_is_asked(scenario, answer, code):
    screen, terminal = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb"}
    words = [sys.executable, "-m", "morphling", "run", "small.yaml", "--no-figures", "--json"]
    try:
        os.write(screen, answer.encode())  # typed ahead
        done = subprocess.run(
            words, cwd=scenario.parent, env=env, stdin=terminal, stderr=terminal, stdout=subprocess.PIPE, check=False
        )
        said = os.read(screen, 100_000).decode()
    finally:
        os.close(screen)
        os.close(terminal)
    assert done.returncode == code
    assert "mine.py" in said
    assert hashlib.sha256(CODE.encode()).hexdigest() in said
    assert "Run it? [y/N]" in said
    assert was_run(scenario) == (code == 0)


def test_check_runs_nothing_and_says_so(scenario):
    done = command(scenario, "check", "small.yaml", "--set", "strategy.wait=4")
    assert done.returncode == 0
    assert "mine.py was not run: its class Mine and the strategy's other keys are not checked" in done.stderr
    assert not was_run(scenario)
    assert "wait: 4" in done.stdout
    done = command(scenario, "check", "small.yaml", "--set", "strategy.wiat=4", "--allow-plugins")
    assert done.returncode == 2
    assert "did you mean 'wait'?" in done.stderr


def test_check_still_checks_the_rest(scenario):
    with pytest.raises(ScenarioError, match="record"):
        check(load_scenario(scenario, ["run.record=dispatches"]))
    with pytest.raises(ScenarioError, match="unknown name 'fast' among executors"):
        check(load_scenario(scenario, ["execution.mode=fast"]))
    checked, unread = check(load_scenario(scenario), allow_plugins=True)
    assert (checked.scenario.strategy.config, unread) == ({"wait": 3}, [])


# -------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("class Mine(Strategy):", "class Mine(Strategy:", r"mine\.py:12: SyntaxError: "),
        ("from pathlib", "import no_such_module\nfrom pathlib", r"mine\.py:3: ModuleNotFoundError: .*no_such_module"),
        ("class Config:\n", "class Config:\n    import neighbour\n", r"mine\.py:10: ModuleNotFoundError"),
        ("class Mine(S", "class Main(S", r"mine\.py: has no 'Mine', did you mean 'Main'\?"),
        ("class Mine(S", "class Other(S", r"mine\.py: has no 'Mine'; strategies in it: Other"),
        ("class Mine(Strategy)", "class Mine", r"mine\.py:12: Mine is not a Strategy"),
        ("class Mine(S", "Mine = 3\nclass Other(S", r"mine\.py:12: Mine is not a Strategy"),
        ("def start", "def begin", r"mine\.py:12: Mine lacks start"),
        ("    Config = Config\n", "", r"mine\.py:12: Mine has no Config class"),
        ("class Mine(S", "raise SystemExit(0)\nclass Mine(S", r"mine\.py:12: SystemExit: 0"),
        ("    def start", "    def __init__(self, c): 1 / 0\n    def start", r"cannot be made: .*mine\.py:14: ZeroDiv"),
        ("class Mine(S", "\0class Mine(S", "mine.py.*null bytes"),
        ("wait: int = 3", "wait: int", "strategy: missing key 'wait'"),
        ("@dataclass(frozen=True)", "", r"mine\.py:12: Mine has a Config that cannot be read as a dataclass"),
        ("wait: int = 3", "wait: Nowhere = 3", r"mine\.py:12: Mine has a Config that .*NameError.*Nowhere"),
        ("wait: int = 3", "wait: int = 3\n    def __post_init__(self): 1 / 0", "Config cannot be made: ZeroDiv"),
    ],
)
def test_faults_of_the_file(scenario, old, new, said):
    assert CODE.count(old) == 1
    loaded = rewritten(scenario, CODE.replace(old, new))
    (scenario.parent / "code" / "neighbour.py").touch()
    with pytest.raises(InputError, match=said) as caught:
        build(loaded, allow_plugins=True)
    assert str(caught.value).startswith(f"{scenario}:")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("code/mine.py", r"small\.yaml:8:11: strategy\.plugin: 'code/mine\.py' names no class; write it as"),
        ("code/nine.py:Mine", r"small\.yaml:8:11: strategy\.plugin: .*code/nine\.py: cannot be read: No such file"),
        ("code.py:Mine", r"code\.py: cannot be read"),
        ("x" * 5000 + ".py:Mine", r"strategy\.plugin: 'x+…' cannot be a path"),
    ],
)
def test_faults_of_the_path(scenario, target, said):
    (scenario.parent / "code.py").mkdir()
    scenario.write_text(SCENARIO.replace("code/mine.py:Mine", target))
    with pytest.raises(ScenarioError, match=said):
        load_scenario(scenario)


def test_what_is_run_is_what_was_read(scenario):
    loaded = load_scenario(scenario)
    (scenario.parent / "code" / "mine.py").write_text(CODE + "# changed\n")
    with pytest.raises(InputError, match=r"mine\.py: changed since the scenario was read"):
        build(loaded, allow_plugins=True)
    assert not was_run(scenario)


def test_a_changed_file_is_run_anew_and_an_unchanged_one_is_not(scenario):
    first, same = (type(build(load_scenario(scenario), allow_plugins=True).strategy) for _ in range(2))
    other = type(build(rewritten(scenario, CODE.replace("= 3", "= 5")), allow_plugins=True).strategy)
    assert first is same
    assert other is not first
    assert other.Config().wait == 5
    assert pickle.loads(pickle.dumps(first.Config(4))) == first.Config(4)


# -------------------------------------------------------------------------------------------------------------- classes


class Waits(Strategy):
    from morphling.executors.analytic import AnalyticConfig as Config

    def start(self, view):
        return [IterationDone(), Done()]


def mapping(plugin):
    import yaml

    return {**yaml.safe_load(SCENARIO), "strategy": {"plugin": plugin}}


def test_a_class_can_be_passed(tmp_path):
    given = mapping(Waits)
    results = morphling.run(given, out=tmp_path / "r", figures=False)
    assert given == mapping(Waits)  # the caller's mapping is as it was
    assert results.metrics["iterations"] == 1
    (note,) = [n for n in results.manifest["notes"] if "passed as a class" in n]
    assert note.startswith(f"strategy {__name__}:Waits was passed")
    local = type("Local", (Waits,), {})
    assert isinstance(build(load_scenario(mapping(local))).strategy, local)
    assert isinstance(build(load_scenario(mapping("a:B"), {"strategy.plugin": Waits})).strategy, Waits)
    with pytest.raises(
        ScenarioError, match=r"strategy\.plugin: .*builtins:int is not a Strategy|int is not a Strategy"
    ):
        build(load_scenario(mapping(int)))
    with pytest.raises(ScenarioError, match=r"strategy\.plugin: text is needed"):
        load_scenario(mapping(Waits(None)))
