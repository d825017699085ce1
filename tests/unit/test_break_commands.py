"""Exit codes and what is left behind when a command is cut short, has nowhere to write, or is not read to the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import morphling
from morphling.errors import InputError, RunError
from morphling.results import check_room, new_run_folder

TINY = """\
name: tiny
workload: {model: opt-125m, batch_size: 1, sequence_length: 16}
fleet: [{profile: apple-m1, count: 2, link: {downlink: 80 Mbit/s, uplink: 20 Mbit/s}}]
strategy: {name: cleave}
"""
MORPHLING = [sys.executable, "-m", "morphling"]
FULL = Path("/dev/full")


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


def called(*arguments, cwd, **options):
    return subprocess.run([*MORPHLING, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, **options)  # noqa: PLW1510


@pytest.mark.parametrize("command", [["profiles", "list", "--json"], ["schema"], ["run", "tiny.yaml", "--no-figures"]])
def test_reader_of_a_pipe_may_stop_reading(tiny, command):
    with subprocess.Popen(
        [*MORPHLING, *command], cwd=tiny.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (0, b"")


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
@pytest.mark.parametrize("command", [["schema"], ["profiles", "list"], ["run", "tiny.yaml", "--json", "--no-figures"]])
def test_full_disk_behind_stdout_is_a_message(tiny, command):
    with FULL.open("w") as full:
        done = subprocess.run(  # noqa: PLW1510
            [*MORPHLING, *command], cwd=tiny.parent, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_closed_stdout_is_no_failure(tiny):
    done = subprocess.run(  # noqa: PLW1510
        [*MORPHLING, "check", "tiny.yaml"], cwd=tiny.parent, preexec_fn=lambda: os.close(1), stderr=subprocess.PIPE
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_interrupt_is_130_and_leaves_nothing(tiny):
    long = [*MORPHLING, "run", "tiny.yaml", "--base", "runs", "--set", "run.iterations=1000000"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # A shell starts what runs in the background with interrupts ignored, and children inherit that.
    heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    with subprocess.Popen(long, cwd=tiny.parent, preexec_fn=heard, **pipes) as process:  # noqa: PLW1509
        time.sleep(4)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate()
    assert (process.returncode, out, errors) == (130, b"", b"interrupted\n")
    assert [p.name for p in tiny.parent.iterdir()] == ["tiny.yaml"]


def test_interrupt_while_writing_leaves_nothing(tiny, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("morphling.results.write.write_timeline", interrupted)
    for where in ({"out": tiny.parent / "x"}, {"base": tiny.parent / "runs"}):
        with pytest.raises(KeyboardInterrupt):
            morphling.run(tiny, figures=False, **where)
    left = {p for p in tiny.parent.rglob("*") if p.name != "runs"}
    assert left == {tiny}


@pytest.mark.parametrize("option", ["--out", "--base"])
def test_place_that_takes_no_folder_is_refused_before_the_run(tiny, option):
    done = called("run", "tiny.yaml", option, "tiny.yaml/x", "--set", "run.iterations=1000000", cwd=tiny.parent)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "is not a folder" in done.stderr
    assert [p.name for p in tiny.parent.iterdir()] == ["tiny.yaml"]


def test_room_is_checked_without_leaving_anything(tmp_path):
    check_room(tmp_path / "a" / "b" / "c")
    (tmp_path / "empty").mkdir()
    check_room(tmp_path / "empty")
    assert [p.name for p in tmp_path.rglob("*")] == ["empty"]
    (tmp_path / "empty" / "file").write_text("")
    with pytest.raises(InputError, match="is not empty"):
        check_room(tmp_path / "empty")
    with pytest.raises(InputError, match="not a folder"):
        check_room(tmp_path / "empty" / "file")
    (tmp_path / "dangling").symlink_to(tmp_path / "empty" / "file" / "gone")
    with pytest.raises(InputError):
        check_room(tmp_path / "dangling")


def test_base_that_cannot_be_made_is_an_error_with_its_name(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file: cannot be made"):
        new_run_folder(tmp_path / "file", "x")


@pytest.mark.parametrize("flags", [[], ["-O"], ["-OO"]])
def test_same_events_with_any_hash_seed_and_without_assertions(tiny, flags):
    seen = set()
    for number, seed in enumerate(("0", "77")):
        done = subprocess.run(  # noqa: PLW1510
            [
                sys.executable,
                *flags,
                "-m",
                "morphling",
                "run",
                str(tiny),
                "--json",
                "--no-figures",
                "--out",
                f"r{number}",
            ],
            cwd=tiny.parent,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert (done.returncode, done.stderr) == (0, "")
        seen.add(json.loads(done.stdout)["metrics"]["events_sha256"])
    assert len(seen) == 1
