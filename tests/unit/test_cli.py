"""The command line: exit codes, clean stdout, errors that say where."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def morphling(*args, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "morphling", *args], capture_output=True, text=True, cwd=cwd, check=False
    )


def test_help_and_version():
    done = morphling("--help")
    assert done.returncode == 0
    for command in ("run", "check", "report", "figures", "profiles", "traces", "strategies", "schema", "doctor"):
        assert command in done.stdout
    assert morphling("--version").stdout.startswith("morphling 0.")


def test_run_prints_a_table_and_the_folder(tmp_path):
    done = morphling("run", "quickstart", "--no-figures", "--out", str(tmp_path / "q"))
    assert done.returncode == 0, done.stderr
    assert "iteration_time_s" in done.stdout
    assert str(tmp_path / "q") in done.stdout.replace("\n", "")
    assert done.stderr == ""
    report = morphling("report", str(tmp_path / "q"), "--verify")
    assert "verified" in report.stdout
    twice = morphling("run", "quickstart", "--no-figures", "--out", str(tmp_path / "q"))
    assert twice.returncode == 2
    assert "not empty" in twice.stderr


def test_json_means_only_json(tmp_path):
    for args in (
        ["run", "quickstart", "--no-figures", "--base", str(tmp_path), "--json"],
        ["check", "quickstart", "--json"],
        ["profiles", "list", "--json"],
        ["profiles", "show", "jetson-nano", "--json"],
        ["traces", "list", "--json"],
        ["traces", "show", "mobiperf-lte", "--json"],
        ["strategies", "--json"],
        ["doctor", "--json"],
        ["schema"],
    ):
        done = morphling(*args)
        assert done.returncode == 0, (args, done.stderr)
        json.loads(done.stdout)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: x\nfleet: []\n", "workload"),
        ("name: [\n", "x.yaml:2"),
        ("- 1\n", "mapping"),
        ("", "x.yaml"),
    ],
)
def test_wrong_input_is_two(tmp_path, text, said):
    (tmp_path / "x.yaml").write_text(text)
    done = morphling("run", "x.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_missing_file_and_unknown_override(tmp_path):
    done = morphling("run", "quickstar", cwd=tmp_path)
    assert done.returncode == 2
    assert "quickstart" in done.stderr
    done = morphling("check", "quickstart", "--set", "fleet.9.count=2")
    assert done.returncode == 2
    assert "fleet.9" in done.stderr


def test_a_run_that_fails_is_one(tmp_path):
    done = morphling("run", "quickstart", "--base", str(tmp_path), "--set", "run.max_time=1 s")
    assert done.returncode == 1
    assert "run.max_time" in done.stderr
    assert not list(tmp_path.iterdir())


def test_check_prints_base_units():
    done = morphling("check", "quickstart")
    assert "10000000000 bit/s" in done.stdout
    assert "past_end: repeat" in done.stdout
