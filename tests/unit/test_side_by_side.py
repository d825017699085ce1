"""Runs in several processes: order, progress, what is ended from outside, interrupts, and nothing left behind."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing.connection import Pipe
from pathlib import Path

import pytest

from morphling.errors import InputError
from morphling.results import Results
from morphling.run.run_request import RunRequest, replay_request
from morphling.run.side_by_side import cores, run_side_by_side
from morphling.scenario import load_scenario
from tests.unit.test_compare import CODE, TINY

ROOT = Path(__file__).resolve().parents[2]
HEARS_INTERRUPTS = (  # where a shell starts the tests in the background, they are ignored
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from morphling.cli import main; main()"
)
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}


def request(tmp_path, name, key=None, **changes):
    key = key or name
    source = {**TINY, "strategy": {"plugin": f"{CODE}:{name}"}}
    return RunRequest(key, source, (), tmp_path / key, **{"allow_plugins": True, **changes})


def left(tmp_path):
    return sorted(path.name for path in tmp_path.iterdir())


def test_ends_come_in_the_order_of_the_requests_whatever_happens_between(tmp_path):
    requests = [
        request(tmp_path, "Waves", "a"), request(tmp_path, "Killed"), request(tmp_path, "Wrong"),
        request(tmp_path, "Never"), request(tmp_path, "Waves", "b"), request(tmp_path, "Waves", "c"),
    ]  # fmt: skip
    seen = []
    ends = run_side_by_side(requests, jobs=2, progress=seen.append)
    assert [end.key for end in ends] == ["a", "Killed", "Wrong", "Never", "b", "c"]
    assert [end.state for end in ends] == ["done", "failed", "failed", "infeasible", "done", "done"]
    assert "SIGKILL" in ends[1].reason
    assert "memory runs out" in ends[1].reason
    assert (ends[2].error, "side_strategies.py" in ends[2].traceback) == ("TypeError", True)
    assert (ends[3].error, ends[3].traceback) == ("Infeasible", None)
    assert left(tmp_path) == ["a", "b", "c"]
    digests = {Results.open(end.folder).metrics["events_sha256"] for end in ends if end.folder}
    assert len(digests) == 1
    assert (seen[-1].done, seen[-1].total, seen[-1].running) == (6, 6, {})
    assert all(len(now.running) <= 2 for now in seen)


RAISING = """import beside_raising
from tests.side_strategies import Waves


class {name}(Waves):
    def start(self, view):
        {body}
"""


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return 1 / 0", "ZeroDivisionError: division by zero (HERE:7)"),
        ("return beside_raising.asked()", "KeyError: 'left out' (HERE:7)"),  # what it imports is not its own
        ("raise ValueError('first\\nsecond')", "ValueError: first (HERE:7)\nsecond"),
        ("return [3]", None),  # the engine refuses it, on purpose: no place
    ],
)
def test_the_reason_says_where_the_strategy_s_own_code_failed(tmp_path, monkeypatch, body, reason):
    (tmp_path / "beside_raising.py").write_text("def asked():\n    return {}['left out']\n")
    monkeypatch.syspath_prepend(tmp_path)
    code = tmp_path / "mine.py"
    code.write_text(RAISING.format(name="Mine", body=body))
    source = {**TINY, "strategy": {"plugin": f"{code}:Mine"}}
    end = replay_request(RunRequest("a", source, (), tmp_path / "a", allow_plugins=True))
    assert end.state == "failed"
    if reason is None:
        assert "mine.py:7" not in end.reason
    else:
        assert end.reason == reason.replace("HERE", str(code))


def test_one_run_needs_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr("morphling.run.side_by_side._Process", None)
    (end,) = run_side_by_side([request(tmp_path, "Waves")])
    assert end.state == "done"
    assert run_side_by_side([]) == []
    assert cores() >= 1


def test_a_module_of_the_caller_is_found_by_the_others(tmp_path, monkeypatch):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "beside_it.py").write_text(CODE.read_text())
    monkeypatch.syspath_prepend(tmp_path / "modules")
    source = {**TINY, "strategy": {"plugin": "beside_it:Waves"}}
    requests = [RunRequest(key, source, (), tmp_path / key) for key in "ab"]
    assert [end.state for end in run_side_by_side(requests, jobs=2)] == ["done", "done"]


def test_a_script_without_a_guard_may_compare(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import morphling\n"
        f"done = morphling.compare({TINY!r}, 'cleave:model=paper,cleave:model=paper:tiles=2', out='all', jobs=2,"
        " figures=False)\n"
        "print(*(row.state for row in done.rows))\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=ENV, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("done done\n", "")


def test_inputs_that_changed_are_refused(tmp_path):
    one = request(tmp_path, "Waves")
    inputs = load_scenario(one.source).inputs
    assert replay_request(replace(one, inputs=inputs)).state == "done"
    end = replay_request(replace(one, out=tmp_path / "b", inputs={**inputs, str(CODE): "0" * 64}))
    assert (end.state, end.error) == ("failed", "InputError")
    assert end.reason == f"{CODE}: changed since the first of these runs was prepared; start again"
    assert left(tmp_path) == ["Waves"]


def test_what_makes_no_sense_is_refused(tmp_path):
    with pytest.raises(InputError, match="jobs: at least 1"):
        run_side_by_side([], jobs=0)
    with pytest.raises(InputError, match="several runs are to be written into"):
        run_side_by_side([request(tmp_path, "Waves"), request(tmp_path, "Waves")])


# ---------------------------------------------------------------------------------------------------------- interrupts


def started(tmp_path, *names):
    """The command with its processes, once the second of ``names`` is at work."""
    (tmp_path / "tiny.yaml").write_text(
        "name: tiny\nworkload: {model: opt-125m, batch_size: 1, sequence_length: 16}\n"
        "fleet: [{profile: {compute: 1 TFLOP/s, memory: 2 GB}, count: 2,\n"
        "         link: {downlink: 8 Mbit/s, uplink: 8 Mbit/s}}]\nstrategy: {name: cleave}\n"
    )
    command = ["compare", "tiny.yaml", "--strategies", ",".join(f"{CODE}:{name}" for name in names), "--allow-plugins"]
    process = subprocess.Popen(
        [sys.executable, "-c", HEARS_INTERRUPTS, *command, "--jobs", "2", "--out", "all", "--no-figures"],
        cwd=tmp_path, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    folder = tmp_path / "all" / "side_strategies.py-Waves-seed0" / "manifest.json"
    for _ in range(600):
        if folder.is_file() or process.poll() is not None:
            break
        time.sleep(0.1)
    assert folder.is_file(), process.communicate()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return process, [int(pid) for pid in children.read_text().split()] if children.is_file() else []


def gone(pids):
    for _ in range(100):
        if not any(Path(f"/proc/{pid}/stat").is_file() for pid in pids):
            return True
        time.sleep(0.1)
    return False


def test_an_interrupt_stops_all_and_leaves_finished_folders(tmp_path):
    process, children = started(tmp_path, "Waves", "Slow")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")
    assert left(tmp_path / "all") == ["side_strategies.py-Waves-seed0"]
    assert gone(children)


def test_runs_end_when_their_parent_is_killed(tmp_path):
    process, children = started(tmp_path, "Waves", "Slow")
    process.kill()
    process.communicate(timeout=60)
    assert gone(children)


def test_a_run_ends_when_its_parent_was_gone_before_it_came_up(tmp_path):
    """What it was to do had been sent already, and its pipe is open: it sees neither its parent go nor an end."""
    ours, theirs = Pipe()
    with ours, theirs:
        ours.send_bytes(pickle.dumps(sys.argv))
        ours.send_bytes(pickle.dumps(request(tmp_path, "Slow")))
        late = f"from morphling.run.side_by_side import serve; serve({theirs.fileno()}, {os.getppid()})"
        ended = subprocess.run(
            [sys.executable, "-c", late], env=ENV, pass_fds=[theirs.fileno()], timeout=300, check=False
        )
    assert ended.returncode == 0
    assert left(tmp_path) == []
