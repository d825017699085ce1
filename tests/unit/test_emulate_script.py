"""Unmodified scripts on an emulated fleet: the same losses and gradients, their own output, errors and exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from morphling.errors import InputError, PlanError
from morphling.results import Results

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'morphling[live]'")

from morphling.emulate.clock import FleetClock  # noqa: E402
from morphling.emulate.emulated_run import EmulatedRun  # noqa: E402
from morphling.emulate.emulation import Emulation  # noqa: E402
from morphling.emulate.script import ScriptError, watched_by  # noqa: E402
from morphling.executors.analytic import Analytic  # noqa: E402
from morphling.fleet import Availability  # noqa: E402
from morphling.run.emulate import emulate  # noqa: E402
from morphling.strategies.cleave import Cleave  # noqa: E402
from morphling.strategies.uniform_tp import UniformTp  # noqa: E402
from morphling.testing import tiny_fleet, tiny_workload  # noqa: E402
from morphling.types import FAR_NS  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
FLEET = {
    "name": "tiny",
    "workload": {"model": "opt-125m", "batch_size": 1, "sequence_length": 8, "dtype": "float32"},
    "fleet": [
        {
            "profile": {"compute": "1 TFLOP/s", "memory": "1 GB"},
            "count": 5,
            "link": {"downlink": "80 Mbit/s", "uplink": "20 Mbit/s", "latency": "2 ms"},
        }
    ],
    "strategy": {"name": "cleave"},
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def written(tmp_path, text, name="train.py"):
    path = tmp_path / name
    path.write_text(text)
    return path


def on_the_fleet(run, fleet=None, *, strategy=Cleave, **keys):
    """What ``run`` returns on an emulated fleet; the emulation, what was covered, what was warned of."""
    fleet = fleet or tiny_fleet(5)
    warned = []
    emulation = Emulation(FleetClock(EmulatedRun(fleet, tiny_workload(), strategy, Analytic(fleet=fleet))), **keys)
    with watched_by(emulation, warned.append) as coverage:
        out = run()
    return out, emulation, coverage, warned


def training(steps=20):
    """Losses, gradients and weights of a small transformer after some steps."""
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, batch_first=True)
    model = torch.nn.Sequential(torch.nn.Linear(7, 32), layer, torch.nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = torch.randn(6, 9, 7), torch.randint(3, (6, 9))
    losses = []
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.grad.clone() for p in model.parameters()], [p.detach().clone() for p in model.parameters()]


def require_same(plain, emulated):
    assert np.allclose(plain[0], emulated[0], rtol=1e-5)
    for wanted, have in zip(plain[1] + plain[2], emulated[1] + emulated[2], strict=True):
        assert float((wanted - have).abs().max()) <= 1e-5 * float(wanted.abs().max())


@pytest.mark.parametrize("batched", ["devices", "coordinator"])
def test_losses_gradients_and_weights_are_those_of_plain_pytorch(batched):
    plain = training()
    emulated, emulation, coverage, warned = on_the_fleet(training, check_numerics=True, batched=batched)
    require_same(plain, emulated)
    assert [x.loss for x in emulation.losses] == emulated[0]
    assert [x.step for x in emulation.losses] == list(range(1, 21))
    assert warned == []
    report = coverage.report()
    # a step: forward 8 products (2 of them batched), backward twice that, less the dX that the input does not need
    assert sum(report["calls"].values()) == 20 * (8 + 15)
    assert report["calls"]["central"] == (0 if batched == "devices" else 20 * 6)
    assert (report["coverage"] == 1) == (batched == "devices")
    assert emulation.checked == report["calls"]["sharded"]


@pytest.mark.parametrize("strategy", [Cleave, UniformTp])
def test_devices_lost_in_the_middle_leave_the_loss_right(strategy):
    plain = training(6)
    quiet = on_the_fleet(lambda: training(6), strategy=strategy)[1].clock.now_ns
    fleet = tiny_fleet(5)
    slow = int(fleet.links.up_bps.argmin())  # always under way: whenever it leaves, rows are lost
    sessions = [[(0, FAR_NS)]] * 5
    sessions[slow] = [(0, round(quiet * 0.231))]
    sessions[slow - 1] = [(0, round(quiet * 0.41)), (round(quiet * 0.7), FAR_NS)]
    fleet = replace(fleet, availability=Availability.of(sessions))
    emulated, emulation, _, _ = on_the_fleet(lambda: training(6), fleet, strategy=strategy, check_numerics=True)
    require_same(plain, emulated)
    assert emulation.clock.lost_rows > 0
    assert sum(r["rows"] for r in emulation.clock.recoveries) == emulation.clock.lost_rows
    # equal parts are done sooner without the slowest device
    assert (emulation.clock.now_ns > quiet) == (strategy is Cleave)


def test_the_example_gives_the_same_losses_and_a_run_folder(tmp_path, capsys):
    script = ROOT / "examples" / "train_gpt.py"
    small = ["--steps", "20", "--batch", "2", "--length", "16", "--width", "32", "--layers", "1"]
    plain = tmp_path / "plain.csv"
    command = [sys.executable, script, *small, "--losses", plain]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    alone = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    lines = []
    results = emulate(
        script, ROOT / "scenarios" / "examples" / "emulate_cleave_64.yaml", small, out=tmp_path / "run",
        say=lines.append, reference=plain,
    )  # fmt: skip
    assert capsys.readouterr().out.splitlines()[:3] == alone.stdout.splitlines()[:3]
    wanted = np.loadtxt(plain, delimiter=",", skiprows=1)
    losses = np.loadtxt(tmp_path / "run" / "losses.csv", delimiter=",", skiprows=1)
    assert np.allclose(losses[:, 1], wanted[:, 1], rtol=1e-5)
    assert (np.diff(losses[:, 3]) > 0).all()
    assert (tmp_path / "run" / "figures" / "loss.png").stat().st_size > 10_000
    assert len(lines) == 20
    assert re.fullmatch(r"step +1  loss 4\.\d+  virtual time 0\.\d+ s", lines[0])
    assert results.metrics["iterations"] == 20
    assert results.metrics["makespan_s"] == pytest.approx(losses[-1, 3])
    assert Results.open(tmp_path / "run").verify()
    said = results.manifest["emulation"]
    assert said["coverage"] == 1
    assert said["flops"]["escaped"] == 0
    assert said["steps"] == 20
    assert said["devices"] == 64
    assert said["host_memory_bytes"] > 1e8
    assert results.manifest["versions"]["torch"] == torch.__version__
    assert said["repeated"] > said["replayed"]


def test_the_flops_are_those_of_the_workload():
    """A layer like OPT's, traced, has the products that the DAG of that model has."""
    from morphling.types import DType
    from morphling.workload import model_from_config, training_step

    config = {
        "architectures": ["OPTForCausalLM"], "model_type": "opt", "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "ffn_dim": 96, "vocab_size": 50, "max_position_embeddings": 64,
        "word_embed_proj_dim": 32, "do_layer_norm_before": True, "activation_function": "relu",
    }  # fmt: skip
    work = training_step(model_from_config(config, "tiny", "here"), 3, 16, DType.FLOAT32)

    def run():
        block = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        layers = [torch.nn.TransformerEncoderLayer(32, 4, 96, **block) for _ in range(2)]
        model = torch.nn.Sequential(torch.nn.Embedding(50, 32), *layers, torch.nn.LayerNorm(32))
        head = torch.nn.Linear(32, 50, bias=False)
        ids = torch.randint(50, (3, 16))
        torch.nn.functional.cross_entropy(head(model(ids)).flatten(0, 1), ids.flatten()).backward()

    coverage = on_the_fleet(run)[2]
    assert coverage.report()["flops"]["sharded"] == work.dag.gemm_flops()


def test_output_arguments_and_steps(tmp_path, capsys):
    script = written(tmp_path, "import sys, pathlib\nprint(sys.argv[1:], __name__, pathlib.Path(__file__).name)\n")
    results = emulate(script, FLEET, ["--x", "3"], out=tmp_path / "run", figures=False)
    out = capsys.readouterr()
    assert (out.out, out.err) == ("['--x', '3'] __main__ train.py\n", "")
    assert results.metrics["dispatches"] == 0
    assert any("no step of an optimizer was seen" in n for n in results.notes())
    assert any("no matrix product was seen" in n for n in results.notes())


def cli(*args, cwd):
    command = [sys.executable, "-m", "morphling", "emulate", *map(str, args)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=env)


@pytest.fixture
def fleet_file(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(json.dumps(FLEET))
    return path


def test_the_command_keeps_its_own_words_on_stderr(tmp_path, fleet_file):
    text = "import torch\nw = torch.ones(4, 4, requires_grad=True)\no = torch.optim.SGD([w], 0.1)\n"
    text += "(w @ w).sum().backward()\no.step()\nprint('mine')\n"
    done = cli(written(tmp_path, text), "--scenario", fleet_file, "--no-figures", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "mine\n"), done.stderr
    assert "loss 64 " in done.stderr
    assert "run folder: runs/tiny-train-" in done.stderr


def test_a_script_that_raises_keeps_its_traceback(tmp_path, fleet_file):
    text = "import torch\ndef f(x):\n    return torch.mm(x, torch.ones(5, 5))\nprint('before')\nf(torch.ones(2, 3))\n"
    script = written(tmp_path, text)
    done = cli(script, "--scenario", fleet_file, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == "before\n"
    alone = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.stderr.startswith(alone.stderr.rstrip("\n").rsplit("\n", 1)[0])
    assert "mat1 and mat2 shapes cannot be multiplied" in done.stderr
    assert "morphling/emulate" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_uniform_tp_by_name(tmp_path):
    """Five equal devices: every product is cut into five, and Cleave (which may leave some out) is no slower."""
    text = "import torch\nw = torch.ones(50, 50, requires_grad=True)\no = torch.optim.SGD([w], 0.1)\n"
    text += "(w @ w).sum().backward()\no.step()\n"
    script = written(tmp_path, text)
    uniform = {**FLEET, "strategy": {"name": "uniform-tp"}}
    results = emulate(script, uniform, out=tmp_path / "uniform", figures=False, check_numerics=True)
    assert results.manifest["emulation"]["coverage"] == 1
    assert results.manifest["emulation"]["last_loss"] == 50**3
    assert len(results.events()) == 3 * 5
    assert any("equal rectangles" in a for a in results.manifest["strategy"]["assumptions"])
    cleave = emulate(script, FLEET, out=tmp_path / "cleave", figures=False)
    assert cleave.metrics["makespan_s"] <= results.metrics["makespan_s"]


def test_exit_codes_of_the_script(tmp_path):
    emulate(written(tmp_path, "import sys; sys.exit(0)"), FLEET, out=tmp_path / "run", figures=False)
    with pytest.raises(ScriptError, match="asked to exit with code 3") as stop:
        emulate(written(tmp_path, "import sys; sys.exit(3)"), FLEET, out=tmp_path / "other", figures=False)
    assert stop.value.exit_code == 3
    assert not (tmp_path / "other").exists()


def test_what_the_fleet_cannot_do_ends_the_run_even_if_the_script_swallows_it(tmp_path):
    text = "import torch\ntry:\n    torch.ones(4, 4) @ torch.ones(4, 4)\nexcept Exception:\n    print('swallowed')\n"
    small = {**FLEET, "fleet": [{**FLEET["fleet"][0], "profile": {"compute": "1 TFLOP/s", "memory": "8 B"}}]}
    with pytest.raises(PlanError, match="memory"):
        emulate(written(tmp_path, text), small, out=tmp_path / "run", figures=False)
    assert not (tmp_path / "run").exists()


def test_wrong_input(tmp_path):
    with pytest.raises(InputError, match=r"nothing\.py: no such script"):
        emulate(tmp_path / "nothing.py", FLEET)
    with pytest.raises(InputError, match="cleave, as it is configured, says neither where the rows"):
        emulate(written(tmp_path, ""), {**FLEET, "strategy": {"name": "cleave", "model": "paper"}})
    reference = written(tmp_path, "step,los\n1,2\n", "plain.csv")
    with pytest.raises(InputError, match=r"plain\.csv:1: no column loss; it has step, los"):
        emulate(written(tmp_path, ""), FLEET, reference=reference)
    with pytest.raises(InputError, match="cleave, as it is configured, says neither where the rows"):
        emulate(written(tmp_path, ""), {**FLEET, "strategy": {"name": "cleave", "model": "paper"}})
    reference = written(tmp_path, "step,loss\n1,2\n2,x\n", "plain.csv")
    with pytest.raises(InputError, match=r"plain\.csv:3: loss: a number is needed, not 'x'"):
        emulate(written(tmp_path, ""), FLEET, reference=reference)


def test_threads_are_seen_and_said():
    import threading

    class Own(threading.Thread):
        def run(self):
            torch.ones(4, 4) @ torch.ones(4, 4)

    def run():
        threads = [Own() for _ in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    _, _, coverage, warned = on_the_fleet(run)
    assert coverage.calls["sharded"] == 3
    assert warned == ["products of several threads share one virtual clock: they are computed one after another"]


def test_a_forked_process_is_left_alone(tmp_path):
    """A forked process computes by itself; nothing of it is counted, nothing breaks."""
    text = (
        "import os, torch\ntorch.set_num_threads(1)\na = torch.ones(4, 4)\npid = os.fork()\nb = a @ a\n"
        "if pid == 0:\n    os._exit(int(b[0, 0] != 4))\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), b[0, 0].item())\n"
    )
    path = tmp_path / "fleet.yaml"
    path.write_text(json.dumps(FLEET))
    done = cli(written(tmp_path, text), "--scenario", path, "--no-figures", "--out", tmp_path / "run", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "0 4.0\n"), done.stderr
    assert Results.open(tmp_path / "run").manifest["emulation"]["calls"]["sharded"] == 1


def test_escaped_products_are_counted():
    """Where the mode is off, the watchdog still sees them."""
    from torch.utils._python_dispatch import _disable_current_modes

    def run():
        with _disable_current_modes():
            torch.ones(4, 5) @ torch.ones(5, 6)
        torch.ones(4, 5) @ torch.ones(5, 6)

    _, _, coverage, warned = on_the_fleet(run)
    report = coverage.report()
    assert report["flops"] == {"sharded": 240, "central": 0, "uncounted": 0, "escaped": 240}
    assert report["coverage"] == 0.5
    assert "mm was computed where no product can be seen" in warned[0]


def test_attention_takes_the_path_of_products():
    def run():
        q = torch.randn(2, 3, 8, 4, requires_grad=True)
        torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
        layer = torch.nn.TransformerEncoderLayer(16, 2, 8, batch_first=True).eval()
        with torch.no_grad():
            layer(torch.randn(2, 5, 16))

    _, _, coverage, warned = on_the_fleet(run)
    assert coverage.report()["by_operation"].keys() == {"sharded"}
    assert warned == []


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_compile_is_said_to_do_nothing():
    layer = torch.nn.Linear(3, 4)

    def run():
        return torch.compile(layer)(torch.ones(2, 3))

    out, _, coverage, warned = on_the_fleet(run)
    assert torch.allclose(out, layer(torch.ones(2, 3)))
    assert coverage.calls["sharded"] == 1
    assert any("torch.compile does nothing" in w for w in warned)


def test_everything_is_put_back():
    import threading

    before = torch.autograd.backward, threading.Thread.start, torch.compile, torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(ZeroDivisionError):
        on_the_fleet(lambda: 1 / 0)
    after = torch.autograd.backward, threading.Thread.start, torch.compile, torch.backends.mha.get_fastpath_enabled()
    assert before == after


def test_several_backward_passes_make_one_step():
    def run():
        w = torch.ones(2, 2, requires_grad=True)
        optimizer = torch.optim.SGD([w], 0.0)
        for scale in (1.0, 3.0):
            (scale * (w @ w)).sum().backward()
        optimizer.step()
        (w @ w).backward(torch.ones(2, 2))
        optimizer.step()

    _, emulation, _, _ = on_the_fleet(run)
    assert [(x.step, x.loss) for x in emulation.losses[:2]] == [(1, 8.0), (1, 24.0)]
    assert np.isnan(emulation.losses[2].loss)
    assert emulation.losses[0].backward_s < emulation.losses[1].backward_s < emulation.losses[1].step_end_s
    assert emulation.losses_csv().splitlines()[3].startswith("2,nan,")


def test_uniform_tensor_parallelism_with_a_lost_device():
    from morphling.strategies.uniform_tp import UniformTp

    def uniform(fleet):
        run = EmulatedRun(fleet, tiny_workload(), UniformTp, Analytic(fleet=fleet))
        emulation = Emulation(FleetClock(run), check_numerics=True)
        with watched_by(emulation, str):
            return training(3), emulation.clock

    plain = training(3)
    emulated, quiet = uniform(tiny_fleet(4))
    require_same(plain, emulated)
    slowest = int(np.argmin(tiny_fleet(4).links.nominal_bps()[1]))  # whom everybody waits for
    stays = [[(0, round(quiet.now_ns * 0.41) if d == slowest else FAR_NS)] for d in range(4)]
    gone = Availability.of(stays)
    emulated, clock = uniform(replace(tiny_fleet(4), availability=gone))
    require_same(plain, emulated)
    assert clock.lost_rows > 0


def data_parallel(fleet, run, **keys):
    from morphling.emulate.replicas import ReplicaClock
    from morphling.strategies.ddp import Ddp, DdpConfig

    made = lambda: Ddp(DdpConfig(detection_s=0.01, setup_s=0.0))  # noqa: E731
    on = EmulatedRun(fleet, tiny_workload(batch_size=6), made, Analytic(fleet=fleet))
    emulation = Emulation(ReplicaClock(on), check_numerics=True, **keys)
    with watched_by(emulation, str) as coverage:
        out = run()
    return out, emulation, coverage


def test_data_parallel_splits_the_batch_and_steps_take_iterations():
    from morphling.engine import Engine
    from morphling.strategies.ddp import Ddp, DdpConfig

    plain = training()
    fleet = tiny_fleet(3)
    emulated, emulation, coverage = data_parallel(fleet, training)
    require_same(plain, emulated)
    assert coverage.report()["coverage"] == 1
    alone = Engine(
        fleet, tiny_workload(batch_size=6), Ddp(DdpConfig(setup_s=0.0)), Analytic(fleet=fleet), iterations=20
    ).run()
    clock = emulation.clock
    assert clock.now_ns == alone.iteration_ends_ns[-1]
    assert clock.finish().iteration_ends_ns == alone.iteration_ends_ns
    devices, samples = clock.shares
    assert samples.sum() == 6
    shapes = {(tuple(s), partial): w.tiles for (s, partial), w in clock.kept.items()}
    forward = shapes[(1, 54, 32, 7), False]  # 6 samples of 9 tokens
    assert (forward.row1 - forward.row0).tolist() == (9 * samples[samples > 0]).tolist()
    gradient = shapes[(1, 32, 7, 54), True]
    assert (gradient.in1 - gradient.in0).tolist() == (9 * samples[samples > 0]).tolist()
    scores = next(t for (s, _), t in shapes.items() if s[0] == 24)  # 6 samples x 4 heads
    assert np.bincount(scores.device, minlength=3)[devices].tolist() == (4 * samples).tolist()


def test_data_parallel_with_a_lost_device():
    from morphling.engine import Engine
    from morphling.strategies.ddp import Ddp, DdpConfig

    plain = training(8)
    quiet = data_parallel(tiny_fleet(3), lambda: training(8))[1].clock.now_ns
    fleet = replace(tiny_fleet(3), availability=Availability.of([[(0, quiet // 3)], [(0, FAR_NS)], [(0, FAR_NS)]]))
    emulated, emulation, _ = data_parallel(fleet, lambda: training(8))
    require_same(plain, emulated)
    config = DdpConfig(detection_s=0.01, setup_s=0.0)
    alone = Engine(fleet, tiny_workload(batch_size=6), Ddp(config), Analytic(fleet=fleet), iterations=8).run()
    assert emulation.clock.finish().iteration_ends_ns == alone.iteration_ends_ns
    assert emulation.clock.shares[0].tolist() == [1, 2]
    assert len(emulation.clock.report()["recoveries"]) == 1


def test_the_digits_are_learned_alike(tmp_path, capfd):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    script = ROOT / "examples" / "train_mlp_digits.py"
    small = ["--epochs", "2", "--width", "32"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    alone = subprocess.run([sys.executable, script, *small], capture_output=True, text=True, check=True, env=env)
    emulate(script, FLEET, small, out=tmp_path / "run")
    assert capfd.readouterr().out == alone.stdout
    assert alone.stdout.count("right") == 2


def test_figures_are_drawn_again(tmp_path):
    emulate(written(tmp_path, "import torch\ntorch.ones(3, 3) @ torch.ones(3, 3)\n"), FLEET, out=tmp_path / "run")
    (tmp_path / "run" / "figures" / "loss.png").unlink()
    command = [sys.executable, "-m", "morphling", "figures", str(tmp_path / "run")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=env)
    assert [Path(line).name for line in done.stdout.splitlines()] == ["overview.png", "loss.png"]
