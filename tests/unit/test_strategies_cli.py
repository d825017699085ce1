"""`morphling strategies`: what is listed, of whom, and that nothing broken becomes a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from morphling.errors import ScenarioError
from morphling.scenario import config_fields, configured, load_scenario

ROOT = Path(__file__).resolve().parents[2]

CODE = """from __future__ import annotations
from dataclasses import dataclass
from morphling.interfaces.executor import Executor
from morphling.interfaces.strategy import Done, Strategy

@dataclass(frozen=True)
class Config:
    \"\"\"Mine.

    wait : seconds until nothing happens, which is
        told here at some length so that it has to be broken over several lines of a terminal
    \"\"\"
    wait: float
    of: int = 2

@dataclass(frozen=True)
class BadConfig:
    of: NoSuchType = 2

class Mine(Strategy):
    \"\"\"Waits ``wait`` seconds.\"\"\"
    Config = Config
    def start(self, view): return Done()

class Strange(Mine):
    Config = BadConfig

class Half(Strategy):
    Config = Config

class Steady(Executor):
    \"\"\"Always the same.\"\"\"
    Config = Config
    def __init__(self, config, *, fleet): raise KeyError("no fleet")
    def durations(self, tasks, start_ns): ...
    def describe(self): ...

not_a_class = 3
"""


@pytest.fixture
def site(tmp_path):
    """Two installed distributions, of which one is mostly broken."""
    (tmp_path / "strange_code.py").write_text(CODE)
    (tmp_path / "strange_exit.py").write_text("raise SystemExit(0)\n")
    install(
        tmp_path, "strangers", "1.2", "[morphling.strategies]\n"
        "a-mine = strange_code:Mine\nb-gone = no_such_module:X\nc-missing = strange_code:Nobody\n"
        "d-half = strange_code:Half\ne-value = strange_code:not_a_class\nf-exit = strange_exit:X\n"
        "g-strange = strange_code:Strange\nh-twice = strange_code:Mine\n"
        "[morphling.executors]\nsteady = strange_code:Steady\nwrong = strange_code:Mine\n",
    )  # fmt: skip
    install(tmp_path, "others", "3", "[morphling.strategies]\nh-twice = strange_code:Mine\n")
    return tmp_path


def install(site, name, version, points):
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "entry_points.txt").write_text(points)


def command(site, *words):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(site)]), "COLUMNS": "80", "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-m", "morphling", *words], cwd=site, env=env, capture_output=True, text=True, check=False
    )


def test_all_are_listed_with_their_cause(site):
    done = command(site, "strategies", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = {p["name"]: p for p in json.loads(done.stdout)} if len(json.loads(done.stdout)) else {}
    assert [(p["name"], p["distribution"]) for p in json.loads(done.stdout) if p["name"] == "h-twice"] == [
        ("h-twice", "others"),
        ("h-twice", "strangers"),
    ]
    assert found["a-mine"] == {
        "name": "a-mine",
        "distribution": "strangers",
        "version": "1.2",
        "target": "strange_code:Mine",
        "about": "Waits ``wait`` seconds.",
        "parameters": [
            {
                "name": "wait",
                "type": "float",
                "required": True,
                "default": None,
                "about": "seconds until nothing happens, which is told here at some length so that it has to be broken "
                "over several lines of a terminal",
            },
            {"name": "of", "type": "int", "required": False, "default": 2, "about": ""},
        ],
        "cause": None,
    }
    assert found["cleave"]["cause"] is None
    assert {p["name"] for p in found["cleave"]["parameters"]} >= {"model", "overlap", "tiles", "cache"}
    causes = {name: p["cause"] for name, p in found.items() if p["cause"]}
    assert causes == {
        "b-gone": "ModuleNotFoundError: No module named 'no_such_module'",
        "c-missing": "AttributeError: module 'strange_code' has no attribute 'Nobody'",
        "d-half": "lacks start",
        "e-value": "is not a Strategy",
        "f-exit": "SystemExit: 0",
        "g-strange": "has a Config that cannot be read as a dataclass or pydantic model "
        "(NameError: name 'NoSuchType' is not defined)",
        "h-twice": "another distribution offers the same name; give plugin: package.module:Class instead",
    }


def test_as_text_at_eighty_columns(site):
    done = command(site, "strategies")
    assert (done.returncode, done.stderr) == (0, "")
    listed = done.stdout.split("\n\n")  # built-in ones stand between, by name
    assert (
        listed[[part.split()[0] for part in listed].index("a-mine")]
        == """a-mine  strangers 1.2  strange_code:Mine
  Waits wait seconds.
  wait: float  (required)
      seconds until nothing happens, which is told here at some length so
      that it has to be broken over several lines of a terminal
  of: int  (default 2)"""
    )
    assert (
        """b-gone  strangers 1.2  no_such_module:X
  broken: ModuleNotFoundError: No module named 'no_such_module'"""
        in listed
    )
    assert max(len(line) for line in done.stdout.splitlines() if "broken" not in line) <= 80
    assert "cleave  morphling 0.1.0  morphling.strategies.cleave:Cleave" in done.stdout


def test_one_of_them_and_executors(site):
    done = command(site, "strategies", "cleave", "--json")
    assert [p["name"] for p in json.loads(done.stdout)] == ["cleave"]
    done = command(site, "strategies", "cleav")
    assert done.returncode == 2
    assert "unknown name 'cleav' (installed: " in done.stderr
    assert " a-mine, alpa, asteroid, b-gone, c-missing, cleave, " in done.stderr
    listed = json.loads(command(site, "strategies", "--executors", "--json").stdout)
    assert {p["name"]: p["cause"] for p in listed if p["distribution"] == "strangers"} == {
        "steady": None,
        "wrong": "is not an Executor",
    }
    assert "analytic" in {p["name"] for p in listed}
    assert "no parameters" in command(site, "strategies", "analytic", "--executors").stdout


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["strategy={name: h-twice}"], "'h-twice' is offered by others 3 (strange_code:Mine) and strangers 1.2"),
        (["strategy={name: b-gone}"], "'b-gone' of strangers 1.2 (no_such_module:X) is broken: ModuleNotFoundError"),
        (["strategy={name: f-exit}"], "is broken: SystemExit: 0"),
        (["strategy={name: d-half}"], "strategy.name: d-half lacks start"),
        (["execution={mode: wrong}"], "execution.mode: wrong is not an Executor"),
        (["execution={mode: stead}"], "unknown name 'stead' among executors, did you mean 'steady'?"),
        (["execution={mode: steady}"], "execution: missing key 'wait'"),
        (["execution={mode: steady, wait: 1.0}"], "steady cannot be made: KeyError: 'no fleet'"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(site, sets, said):
    done = command(site, "check", "quickstart", *(word for s in sets for word in ("--set", s)))
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


# ---------------------------------------------------------------------------------------------------------- parameters


@dataclass
class Plain:
    """What there is.

    kind : one of two;
        and no more
    Not a field.
    sizes : how many
    """

    kind: Literal["a", "b"]
    sizes: list[int] = field(default_factory=lambda: [1, 2])
    share: float | None = None
    pair: tuple[int, float] = (1, 2.0)
    odd: Any = object


class Model(BaseModel):
    """kind : not said here."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    kind: Literal["a", "b"] = Field("a", description="one of two")
    size: int = Field(ge=1)


def shown(config):
    return [(f.name, f.type, f.required, f.default, f.about) for f in config_fields(config)]


def test_fields_of_dataclasses_and_models():
    assert shown(Plain)[:4] == [
        ("kind", "a | b", True, None, "one of two; and no more"),
        ("sizes", "list of int", False, [1, 2], "how many"),
        ("share", "float | null", False, None, ""),
        ("pair", "list of int or float", False, [1, 2.0], ""),
    ]
    assert shown(Plain)[4][:3] == ("odd", "Any", False)
    assert shown(Model) == [("kind", "a | b", False, "a", "one of two"), ("size", "int", True, None, "")]


def test_unknown_keys_of_a_lenient_model_are_refused():
    loaded = load_scenario("quickstart")
    made = configured(loaded, "strategy", {"size": 3}, Model)
    assert type(made) is Model
    assert made == Model(size=3)
    with pytest.raises(ScenarioError, match=r"strategy\.sise: unknown key, did you mean 'size'\?"):
        configured(loaded, "strategy", {"sise": 3, "size": 3}, Model)
    with pytest.raises(ScenarioError, match=r"strategy\.size: must be at least 1, found 0"):
        configured(loaded, "strategy", {"size": 0}, Model)


def test_what_is_installed_is_looked_through_once_until_it_changes(site, monkeypatch):
    from morphling.run import plugins

    scans = []
    scanned = plugins.entry_points
    monkeypatch.setattr(plugins, "entry_points", lambda **of: scans.append(of) or scanned(**of))
    monkeypatch.setattr(plugins, "_KEPT", {})
    monkeypatch.syspath_prepend(site)
    monkeypatch.chdir("/")

    def names():
        return {plugin.name for plugin in plugins.list_plugins("strategies")}

    def age(seconds):
        then = time.time() - seconds
        os.utime(site, (then, then))

    before = names()
    assert names() == before
    assert len(scans) == 2  # the folder has just been made: not kept
    age(60)
    assert names() == names() == before
    assert len(scans) == 3
    assert len(plugins.list_plugins("executors")) > 0  # kept for each kind
    assert len(scans) == 4
    install(site, "late", "1.0", "[morphling.strategies]\nlate-waves = strange_code:Good\n")
    assert names() == before | {"late-waves"}
    age(30)
    assert names() == names() == before | {"late-waves"}
    assert len(scans) == 6
    monkeypatch.setattr(sys, "path", [x for x in sys.path if x != str(site)])
    assert "late-waves" not in names()
