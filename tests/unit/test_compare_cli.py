"""`morphling compare`: tables and JSON, exit codes, permission, the bar."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from morphling.cli.compare import exit_code
from morphling.results import Comparison
from tests.side_strategies import NO_PLAN
from tests.unit.test_compare import CODE

ROOT = Path(__file__).resolve().parents[2]
YAML = """name: tiny
workload: {model: opt-125m, batch_size: 1, sequence_length: 16}
fleet: [{profile: {compute: 1 TFLOP/s, memory: 2 GB}, count: 2, link: {downlink: 8 Mbit/s, uplink: 8 Mbit/s}}]
strategy: {name: cleave}
"""


@pytest.fixture
def called(tmp_path):
    (tmp_path / "tiny.yaml").write_text(YAML)
    (tmp_path / "mine.py").write_text(CODE.read_text())

    def call(strategies, *words, **options):
        return subprocess.run(
            [sys.executable, "-m", "morphling", "compare", "tiny.yaml", "--strategies", strategies, *words],
            cwd=tmp_path, capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"},
            **{"stdin": subprocess.DEVNULL, **options},
        )  # fmt: skip

    return call


def test_a_table_with_what_cannot_be_served(called, tmp_path):
    done = called("mine.py:Waves,cleave:model=paper,mine.py:Never", "--seeds", "2", "--out", "all", "--allow-plugins")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].rstrip() == "tiny: seeds 0 to 1, ± 95 % interval"
    assert any(line.startswith("mine.py:Waves") and " 1.100 s " in line for line in lines)
    assert any(line.startswith("mine.py:Never") and " n/a" in line for line in lines)
    assert any(line.endswith(NO_PLAN) for line in lines)
    assert lines[-2:] == ["figure: all/figures/comparison.png", "folder: all"]
    assert (tmp_path / "all" / "figures" / "comparison.png").is_file()
    again = subprocess.run(
        [sys.executable, "-m", "morphling", "report", "all"], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"},
    )  # fmt: skip
    assert again.stdout == done.stdout


def test_json_is_all_that_is_on_stdout(called, tmp_path):
    done = called(
        "mine.py:Wrong,mine.py:Waves", "--jobs", "2", "--json", "--no-figures", "--base", "b", "--allow-plugins"
    )
    assert done.returncode == 1  # one failed
    said = json.loads(done.stdout)
    assert [(s["strategy"], s["state"]) for s in said["strategies"]] == [
        ("mine.py:Wrong", "failed"), ("mine.py:Waves", "done"),
    ]  # fmt: skip
    assert said["strategies"][1]["iteration_time_s"] == 1.1
    assert said["notes"][0].startswith("¹ TypeError")
    assert "on the way to a fault" in done.stderr
    (folder,) = (tmp_path / "b").iterdir()
    assert folder.name.startswith("compare-tiny-")
    assert said["folder"] == f"b/{folder.name}"
    assert Comparison.open(folder).labels == ["mine.py:Wrong", "mine.py:Waves"]


def test_not_one_number_is_a_failure(called):
    done = called("mine.py:Never", "--no-figures", "--allow-plugins")
    assert (done.returncode, done.stderr) == (1, "")
    assert NO_PLAN in done.stdout


@pytest.mark.parametrize(
    ("strategies", "words", "message"),
    [
        ("clave", (), "error: --strategies clave: strategy.name: unknown name 'clave'"),
        ("cleave:modle=paper", (), "did you mean 'model'?"),
        ("cleave,cleave", (), "'cleave' is there twice"),
        ("cleave", ("--seeds", "0"), "--seeds"),
        ("cleave", ("--jobs", "0"), "--jobs"),
        ("cleave", ("--set", "seed=x"), "--set seed"),
        ("cleave", ("--out", "mine.py"), "mine.py: is not a folder"),
        ("mine.py:Waves", (), "allow it with --allow-plugins"),
    ],
)
def test_wrong_input_is_exit_code_2_and_nothing_is_made(called, tmp_path, strategies, words, message):
    done = called(strategies, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.py", "tiny.yaml"]


def test_strategies_have_to_be_named(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "morphling", "compare", "quickstart"], cwd=tmp_path, capture_output=True, text=True,
        check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.returncode, "--strategies" in done.stderr) == (2, True)


def test_a_bar_is_shown_on_a_terminal(called, tmp_path):
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        command_line = ["compare", "tiny.yaml", "--strategies", "mine.py:Waves,cleave", "--jobs", "1", "--no-figures"]
        process = subprocess.Popen(
            [sys.executable, "-m", "morphling", *command_line, "--allow-plugins"],
            cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "120"},
        )  # fmt: skip
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = terminal.read(4096)
            except OSError:  # how Linux says that the other end is closed
                break
            if not part:
                break
            seen += part
        out, _ = process.communicate()
    assert process.returncode == 0
    assert b"/2" in seen
    assert b"folder: " in out


def test_the_exit_code():
    class Row:
        def __init__(self, state, time):
            self.state, self.values = state, {"iteration_time_s": time}

    class Compared:
        def __init__(self, *rows):
            self.rows = rows

    good, none, failed = Row("done", 1.0), Row("infeasible", None), Row("failed", None)
    assert [exit_code(Compared(*rows)) for rows in ([good], [good, none], [none], [good, failed])] == [0, 0, 1, 1]
