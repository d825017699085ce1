"""How an emulated script ends: its own errors and exit codes, threads that outlive it, a fleet that cannot go on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from morphling.errors import PlanError, RunError

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'morphling[live]'")

from morphling.emulate.interception import Interception  # noqa: E402
from morphling.emulate.script import ScriptError  # noqa: E402
from morphling.emulate.tracing import Tracer  # noqa: E402
from morphling.run.emulate import emulate  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PROFILE = {"compute": "1 TFLOP/s", "memory": "8 GB"}
LINK = {"downlink": "80 Mbit/s", "uplink": "20 Mbit/s", "latency": "2 ms"}
FLEET = {
    "name": "tiny",
    "workload": {"model": "opt-125m", "batch_size": 1, "sequence_length": 8, "dtype": "float32"},
    "fleet": [{"profile": PROFILE, "count": 5, "link": LINK}],
    "strategy": {"name": "cleave"},
}


def written(tmp_path, text, name="train.py"):
    path = tmp_path / name
    path.write_text(text)
    return path


def cli(*args, cwd):
    command = [sys.executable, "-m", "morphling", "emulate", *map(str, args)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=env)


def test_the_errors_behind_an_error_are_the_scripts_own_too(tmp_path):
    text = (
        "import torch\ndef f(x):\n    try:\n        return x @ x\n    except RuntimeError as error:\n"
        "        raise ValueError('mine') from error\nf(torch.ones(2, 3))\n"
    )
    script = written(tmp_path, text)
    alone = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False).stderr
    assert cli(script, "--scenario", written(tmp_path, yaml.dump(FLEET), "fleet.yaml"), cwd=tmp_path).stderr.startswith(
        alone
    )
    assert cli(script, "--trace-only", cwd=tmp_path).stderr.startswith(alone)


@pytest.mark.parametrize(("given", "said"), [("[1]", r": \[1\]$"), ("True", " with code 1$"), ("'bye'", ": bye$")])
def test_what_a_script_exits_with_may_be_anything(tmp_path, given, said):
    with pytest.raises(ScriptError, match=f"asked to exit{said}") as stop:
        emulate(written(tmp_path, f"import sys; sys.exit({given})"), FLEET, out=tmp_path / "run", figures=False)
    assert stop.value.exit_code == 1


def test_a_thread_that_outlives_the_script_is_waited_for(tmp_path):
    text = (
        "import threading, time, torch\nm = torch.nn.Linear(4, 4); o = torch.optim.SGD(m.parameters(), 0.1)\n"
        "def run():\n    time.sleep(0.3)\n    m(torch.ones(8, 4)).sum().backward()\n    o.step()\n"
        "threading.Thread(target=run).start()\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "torch.pool = ThreadPoolExecutor(1); torch.pool.submit(int).result()\n"  # which would wait for ever
    )
    try:
        run = emulate(written(tmp_path, text), FLEET, out=tmp_path / "run", figures=False)
        assert run.manifest["emulation"]["steps"] == 1
        assert run.manifest["emulation"]["calls"]["sharded"] == 2  # the output, and the weights' gradient
    finally:
        torch.pool.shutdown()
        del torch.pool


def test_the_scripts_path_survives_a_change_of_folder(tmp_path, monkeypatch):
    text = "import os; from pathlib import Path\nos.chdir('/')\nprint(Path(__file__).read_text()[:9])\n"
    written(tmp_path, text)
    monkeypatch.chdir(tmp_path)
    run = emulate("train.py", FLEET, base="runs", figures=False)
    assert run.folder.resolve().parent == tmp_path.resolve() / "runs"


def test_a_fleet_that_cannot_make_a_step_is_not_the_scripts_error(tmp_path):
    text = "import torch\nm = torch.nn.Linear(4, 4); o = torch.optim.SGD(m.parameters(), 0.1)\n"
    text += "for _ in range(9):\n    m(torch.ones(8, 4)).sum().backward(); o.step()\n"
    data = {**FLEET, "strategy": {"name": "ddp"}}
    rows = "".join(f"{d},0,0.05\n" for d in range(5))
    listed = written(tmp_path, "device,start_s,end_s\n" + rows, "gone.csv")
    with pytest.raises(RunError, match=r"no device is online .*; \d steps of the script have ended") as stop:
        emulate(written(tmp_path, text), {**data, "availability": sessions(listed)}, out=tmp_path / "run")
    assert not isinstance(stop.value, ScriptError)
    listed.write_text(listed.read_text().replace(",0,", ",0.01,"))
    with pytest.raises(
        PlanError, match=r"ddp has to share the batch before .* at 0 s, and cannot: no device is online"
    ):
        emulate(written(tmp_path, text), {**data, "availability": sessions(listed)}, out=tmp_path / "run")


def sessions(path):
    return {"model": "sessions", "path": str(path)}


class Whole:
    """Computes every product whole, and counts the rest."""

    def __init__(self):
        self.flops = 0.0

    def product(self, product):
        return product.plain()

    def central(self, name, flops, dtype):
        self.flops += flops


def test_tensors_that_consist_of_others_come_back_as_those():
    nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged)
    with Interception(Whole()) as mode:
        out = torch.nn.functional.linear(nested, torch.ones(5, 4))
    assert out.values().eq(4).all()
    assert mode.coverage.sharded == {"mm": 2 * 5 * 4 * 5}
    with Tracer() as tracer:
        torch.nn.functional.linear(nested, torch.ones(5, 4))
        torch.eye(4).to_sparse() @ torch.ones(4, 2)  # no dense operands: nothing to note
    assert [(g.m, g.n, g.k) for g in tracer.gemms] == [(5, 5, 4)]


def test_a_bilinear_layer_is_the_coordinators():
    whole = Whole()
    with Interception(whole) as mode:
        out = torch.nn.functional.bilinear(torch.ones(4, 3), torch.ones(4, 5), torch.ones(2, 3, 5))
    assert out.eq(15).all()
    assert mode.coverage.central == {"_trilinear": 2 * 4 * 2 * 3 * 5}
    assert whole.flops == 2 * 4 * 2 * 3 * 5
