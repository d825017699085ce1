"""Numbers in a trace without arithmetic: those that exist are right, the others are nan or end the trace in words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from morphling.errors import InputError

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'morphling[live]'")

from morphling.emulate.script import ScriptError  # noqa: E402
from morphling.emulate.tracing import trace_script  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
NET = "import torch\nnet = torch.nn.Linear(4, 4); optimizer = torch.optim.SGD(net.parameters(), 0.1)\n"
LOSS = NET + "x = net(torch.ones(2, 4)); loss = x.sum()\n"


def written(tmp_path, text, name="train.py"):
    path = tmp_path / name
    path.write_text(text)
    return path


def traced(tmp_path, text, note=str, **keys):
    return trace_script(written(tmp_path, text), (), note=note, **keys)


def cli(*args, cwd):
    command = [sys.executable, "-m", "morphling", "emulate", *map(str, args)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=env)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("if loss.item() < 9: pass", "< of what Tensor.item gave"),
        ("best = min(1.0, 2 * loss.item() + 1)", "< of what Tensor.item gave"),
        ("step = int(loss.item())", "int of what Tensor.item gave"),
        ("if loss > 0: pass", r"a tensor that is decided by \(if, while, and, or, not\)"),
        ("assert not torch.isnan(loss)", r"a tensor that is decided by"),
        ("rows = (x > 0).nonzero()", "the shape of nonzero"),
        ("rows = x[x > 0]", r"the shape of index\.Tensor"),
        ("import torch.nn.utils.rnn as r; r.pack_padded_sequence(x[None], torch.tensor([1, 1]))", "the shape of _pack"),
        ("torch.eye(4).to_sparse() @ x.t()", "mm, for which PyTorch has no shapes,"),
        ("kinds = x.unique()", "the shape of _unique2"),
        ("right = x.argmax(1).tolist()", r"Tensor\.tolist"),
        ("right = x.argmax(1)[0].item()", r"Tensor\.item"),
        ("right = int(x.argmax())", r"int\(tensor\)"),
        ("part = torch.arange(16)[x.argmax():]", "a tensor as an index"),
        ("array = x.detach().numpy()", r"Tensor\.numpy"),
        ("import numpy; array = numpy.asarray(x.detach())", "a numpy array of a tensor"),
        ("torch.save(x, 'x.pt')", r"saving a tensor \(pickle, torch\.save\)"),
        ("equal = torch.equal(x, x + 1)", "equal"),
        ("loss.backward(); net.weight.grad.data_ptr()", r"Tensor\.data_ptr"),
        (
            "net.weight.register_hook(lambda g: g if g.sum() > 0 else g * 2); loss.backward()",
            "a tensor that is decided",
        ),
        (
            "loss.backward(); torch.nn.utils.clip_grad_norm_(net.parameters(), 1, error_if_nonfinite=True)",
            "a tensor that is decided by",
        ),
        (
            "import numpy; array = numpy.zeros((2, 4), 'f')\ntorch.from_numpy(array).copy_(x.detach())",
            r"copy_ into memory that is not only PyTorch's \(a numpy array, say\)",
        ),
        ("kept = torch.zeros(4); array = kept.numpy(); kept[:] = x[0].detach()", "copy_ into memory that is not only"),
        ("square = torch.ones(2, 2); square.data = square.data.t(); square.tolist()", r"Tensor\.tolist"),
        (
            "r = torch.nn.utils.rnn\ntorch.nn.GRU(4, 4)(r.pack_padded_sequence(torch.ones(2, 1, 4), [2]))",
            r"PyTorch's own code \(data is not allocated yet\)",
        ),
    ],
)
def test_a_number_that_does_not_exist_ends_the_trace(tmp_path, monkeypatch, line, what):
    monkeypatch.chdir(tmp_path)
    number = LOSS.count("\n") + 1 + line.count("\n")
    with pytest.raises(InputError, match=rf"train\.py:{number}: {what}.* needs numbers .*; with --real the first step"):
        traced(tmp_path, LOSS + line + "\n")
    if (tmp_path / "x.pt").exists():  # what torch had written by then is no checkpoint
        with pytest.raises(RuntimeError, match="PytorchStreamReader"):
            torch.load(tmp_path / "x.pt")


def test_a_script_cannot_swallow_it(tmp_path):
    text = LOSS + "try:\n    if loss > 0: pass\nexcept:\n    pass\nprint('on')\n"
    with pytest.raises(InputError, match=r"train\.py:5: a tensor that is decided by"):
        traced(tmp_path, text)
    text = LOSS + "import threading\nt = threading.Thread(target=lambda: bool(loss > 0)); t.start(); t.join()\n"
    with pytest.raises(InputError, match=r"train\.py:5: a tensor that is decided by"):
        traced(tmp_path, text)


def test_a_script_that_decides_by_numbers_is_traced_with_a_real_step(tmp_path):
    text = LOSS + "if loss.item() < 1e9: loss.backward()\noptimizer.step()\n"
    assert len(traced(tmp_path, text, real=True).gemms) == 2
    done = cli(written(tmp_path, text), "--trace-only", cwd=tmp_path)
    assert done.returncode == 2
    assert "train.py:4: < of what Tensor.item gave needs numbers" in done.stderr
    assert not list(tmp_path.glob("*.json"))
    done = cli(tmp_path / "train.py", "--trace-only", "--real", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "traced: script, its first step executed\n2 matrix products, 128 FLOPs: train.gemms.json\n"
    done = cli(tmp_path / "train.py", "--real", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "error: --real goes with --trace-only; on a fleet every number is computed\n",
    )


def test_a_loss_that_is_printed_is_nan_and_said_once_a_line(tmp_path, capsys):
    said = []
    text = LOSS + "total = 0.0\nfor _ in range(2):\n    total += loss.item() / 2\n"
    text += "print(f'{loss:.3f}', '%.2f' % loss, round(total, 2), total, float(loss), -abs(total))\nprint(loss)\n"
    result = traced(tmp_path, text, said.append)
    assert capsys.readouterr().out == (
        "nan nan nan nan nan nan\ntensor(without numbers, size=(), dtype=torch.float32)\n"
    )
    places = ["train.py:6: Tensor.item", "train.py:7: Tensor.item", "train.py:7: float(tensor)"]
    assert result.traced["nan"] == places
    assert [x.split("/")[-1].split(" gives")[0] for x in said] == places


def test_an_end_that_may_be_for_a_nan_says_so(tmp_path):
    text = LOSS + "import math, sys\nif not math.isfinite(loss.item()): sys.exit('loss is bad')\n"
    with pytest.raises(
        ScriptError, match=r"asked to exit: loss is bad \(in a trace .* that train\.py:5: Tensor\.item is"
    ):
        traced(tmp_path, text)


def test_numbers_that_exist_are_right(tmp_path):
    text = """
import copy, pickle, numpy as np, torch
from torch import nn
drop = [x.item() for x in torch.linspace(0, 0.4, 3)]
assert [round(x, 6) for x in drop] == [0, 0.2, 0.4]
data = torch.from_numpy(np.arange(160, dtype=np.float32).reshape(20, 8))
order = torch.randperm(20)
assert sorted(order.tolist()) == list(range(20)) and data[order].shape == (20, 8)
mask = torch.arange(20) % 2 == 0
assert data[mask].shape == (10, 8) and mask.nonzero().flatten().tolist() == list(range(0, 20, 2))
assert bool(mask.any()) and int(mask.sum()) == 10 and f"{data[0, 1]:.2f}" == "1.00" and list(range(mask.sum()))[-1] == 9
words = torch.tensor([3, 1, 2]); words[0] = 7; words += 1
assert words.tolist() == [8, 2, 3] and repr(words) == "tensor([8, 2, 3])" and words.numpy().sum() == 13
assert pickle.loads(pickle.dumps(words)).tolist() == [8, 2, 3] and copy.deepcopy(words)[1] == 2
assert words.sort().values.tolist() == [2, 3, 8] and torch.equal(words, words.clone())
view = words[1:]; view.zero_()
assert words.tolist() == [8, 0, 0]
scale = nn.Parameter(torch.tensor([1.0, 2.0])); own = torch.from_numpy(np.ones((8, 2), np.float32)).requires_grad_()
assert scale.numpy(force=True).tolist() == [1, 2] and np.asarray(scale.detach()).sum() == 3 and scale.tolist() == [1, 2]
net = nn.BatchNorm1d(2, momentum=None)
net(((data @ own) * scale)).sum().backward()
assert own.grad.shape == (8, 2) and scale.grad.shape == (2,) and net.num_batches_tracked.item() == 1
words = words.clone(); words[1] = (data @ own).argmax()
square = torch.arange(4).view(2, 2); square.data = square.data.t()
assert square.dtype == torch.int64
view = torch.arange(4).view(2, 2); view.t_()
assert view.tolist() == [[0, 2], [1, 3]]
words.tolist()
"""
    with pytest.raises(InputError, match=r"train\.py:28: Tensor\.tolist needs"):
        traced(tmp_path, text)


def test_a_step_of_data_loaders_is_that_of_one_process(tmp_path):
    text = """
import numpy as np, torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler, random_split
class Rows(Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return np.full(8, i, np.float32), i % 3, {"number": torch.tensor(i)}
many = DataLoader(Rows(), 16, shuffle=True, num_workers=2, drop_last=True, timeout=9, persistent_workers=True)
table = TensorDataset(torch.randn(40, 8), torch.arange(40) % 3)
weighed = DataLoader(table, 8, sampler=WeightedRandomSampler(torch.ones(40), 40))
part = DataLoader(random_split(table, [30, 10])[0], 5, shuffle=True)
net = torch.nn.Linear(8, 3)
for (x, y, more), (a, b), (c, _) in zip(many, weighed, part):
    assert [n % 3 for n in more["number"].tolist()] == y.tolist() and x[:, 0].tolist() == more["number"].tolist()
    entropy = torch.nn.functional.cross_entropy
    (entropy(net(x), y) + entropy(net(a), b) + net(c).sum()).backward()
    torch.optim.SGD(net.parameters(), 0.1).step()
assert many.num_workers == 2
"""
    said = []
    result = traced(tmp_path, text, said.append)
    assert [(g.m, g.n, g.k) for g in result.gemms[:3]] == [(16, 3, 8), (8, 3, 8), (5, 3, 8)]
    assert len(result.gemms) == 6
    assert said == ["DataLoader: data is loaded in the process of the script"]


def test_checkpoints_are_loaded_large_ones_as_shapes(tmp_path, monkeypatch):
    net = torch.nn.Linear(40, 45)
    torch.save({"net": net.state_dict(), "step": 4}, tmp_path / "large.pt")
    torch.save({"ids": torch.tensor([1, 2]), "state": torch.get_rng_state()}, tmp_path / "small.pt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("morphling.emulate.reading.LOADED_BYTES", 7500)
    assert (tmp_path / "small.pt").stat().st_size < 7500 < (tmp_path / "large.pt").stat().st_size
    text = """
import torch
small = torch.load("small.pt"); assert small["ids"].tolist() == [1, 2]
torch.set_rng_state(small["state"])
large = torch.load("large.pt"); assert large["step"] == 4
net = torch.nn.Linear(40, 45); net.load_state_dict(large["net"])
net(torch.ones(2, 40)).sum().backward()
"""
    said = []
    assert len(traced(tmp_path, text, said.append).gemms) == 2
    assert said == ["torch.load of large.pt: shapes alone, since it is larger than 7,500 bytes"]


def test_errors_are_the_scripts_own(tmp_path):
    text = "import torch\nnet = torch.nn.Linear(4, 4)\ndef f():\n    return net(net(torch.ones(2, 5)))\nf()\n"
    script = written(tmp_path, text)
    alone = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False).stderr
    with pytest.raises(ScriptError, match=r"mat1 and mat2 shapes cannot be multiplied \(2x5 and 4x4\)") as caught:
        trace_script(script, ())
    assert caught.value.trace == alone
    text = LOSS + "torch.cat((x, x.sum(0)))\n"
    hint = r"\(in a trace without arithmetic; with --real the first step is executed\)$"
    with pytest.raises(ScriptError, match=f"raised RuntimeError: .*{hint}") as caught:
        traced(tmp_path, text)
    assert "fake" not in caught.value.trace
    with pytest.raises(KeyboardInterrupt):
        traced(tmp_path, LOSS + "raise KeyboardInterrupt\n")
    with pytest.raises(ScriptError, match="with code 7") as caught:
        traced(tmp_path, LOSS + "import sys; sys.exit(7)\n")
    assert caught.value.exit_code == 7


def test_a_thread_that_outlives_the_script_is_traced_to_its_end(tmp_path):
    text = LOSS + (
        "import threading, time\ndef run():\n    time.sleep(0.2); loss.backward(); optimizer.step()\n"
        "threading.Thread(target=run).start()\n"
    )
    assert len(traced(tmp_path, text).gemms) == 2
