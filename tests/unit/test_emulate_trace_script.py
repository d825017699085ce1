"""Scripts traced without arithmetic: the same products as of the step itself, in little memory."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from morphling.errors import InputError, WorkloadError
from morphling.types import DType, Kind, Phase
from morphling.workload import training_step
from morphling.workload.models import model_named
from morphling.workload.traced import traced_from_json

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'morphling[live]'")

from morphling.emulate.tracing import trace_script  # noqa: E402
from morphling.run.trace import trace  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


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


def both(script, *args):
    """The trace without arithmetic, which has to be that of the executed step."""
    hollow = trace_script(script, args)
    real = trace_script(script, args, real=True)
    assert hollow.gemms == real.gemms
    assert (hollow.name, hollow.dtype) == (real.name, real.dtype)
    assert hollow.traced["left_out"] == real.traced["left_out"]
    assert (hollow.traced["way"], real.traced["way"]) == (
        "script, without arithmetic",
        "script, its first step executed",
    )
    return hollow


def test_the_examples_have_the_products_of_their_first_step():
    # a layer: q, k and v in one, scores, context, out and two of the MLP; the head; backward twice as many, but for
    # the gradient of what the first linear reads, which is needed by the embeddings
    traced = both(EXAMPLES / "train_gpt.py", "--length", "16", "--width", "32", "--batch", "2")
    assert len(traced.gemms) == 3 * (2 * 6 + 1)
    assert traced.traced["nan"] == []
    traced = both(EXAMPLES / "train_llama.py", *small_llama())
    assert len(traced.gemms) == 3 * (2 * 9 + 1)


def test_the_digits():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    assert len(both(EXAMPLES / "train_mlp_digits.py", "--width", "16").gemms) == 8


def small_llama():
    sizes = {"batch": 2, "length": 16, "vocabulary": 96, "width": 64, "ffn": 160, "heads": 4, "layers": 2}
    return [word for name, value in sizes.items() for word in (f"--{name}", str(value))]


CHECKPOINTS = """
import torch
from torch.utils.checkpoint import checkpoint
layers = [torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 8)) for _ in range(2)]
parameters = [p for l in layers for p in l.parameters()]
optimizer = torch.optim.AdamW(parameters, fused=True)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
h = torch.randn(4, 8, requires_grad=True)
for reentrant, layer in zip((True, False), layers):
    h = checkpoint(layer, h, use_reentrant=reentrant)
h.square().mean().backward()
torch.nn.utils.clip_grad_norm_(parameters, 1.0)
optimizer.step(); schedule.step()
"""

BATCHED = """
import torch
a, b, c = (torch.randn(3, *s, requires_grad=True) for s in ((4, 5), (5, 6), (4, 6)))
y = torch.baddbmm(c, a, b, beta=0.5) + torch.bmm(a, b) + torch.einsum("bij,bjk->bik", a, b)
z = torch.addmm(torch.zeros(4, 6), a[0], b[0])
torch.mm(a[1].detach(), b[1].detach(), out=torch.empty(4, 6))
with torch.inference_mode(): torch.nn.functional.linear(a[0], b[0].t())
(y.sum() + z.sum()).backward()
"""

TIED = """
import copy, torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 16), nn.Linear(16, 50, bias=False)
        self.head.weight = self.embedding.weight
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2)
    def forward(self, x):
        return self.head(self.body(self.embedding(x)))
model = Model()
mean = copy.deepcopy(model)
assert mean.head.weight is mean.embedding.weight and isinstance(mean.head.weight, nn.Parameter)
x = torch.randint(0, 50, (2, 7))
with torch.no_grad(): mean(x)
loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten()); loss.backward()
torch.optim.Adam(model.parameters(), foreach=True).step()
"""

CONVOLUTION = """
import torch
from torch import nn
net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 9, 10))
loss = nn.functional.cross_entropy(net(torch.randn(5, 1, 8, 8)), torch.randint(0, 10, (5,)))
loss.backward()
torch.mv(torch.ones(3, 2), torch.ones(2))
"""

AUTOCAST = """
import torch
from torch import nn
net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 2)).to(torch.bfloat16).float()
optimizer, scaler = torch.optim.SGD(net.parameters(), 0.1), torch.amp.GradScaler("cpu")
for _ in range(2):
    with torch.autocast("cpu", dtype=torch.bfloat16): loss = net(torch.randn(4, 8)).float().sum()
    scaler.scale(loss).backward(); scaler.unscale_(optimizer); scaler.step(optimizer); scaler.update()
"""

MASKS = """
import torch
from torch import nn
tokens = torch.randint(1, 100, (4, 16)); lengths = torch.tensor([16, 10, 12, 3])
mask = torch.arange(16) < lengths[:, None]
embedding, out = nn.Embedding(100, 32), nn.Linear(32, 100)
h = embedding(tokens)[mask]
assert h.shape == (41, 32)
loss = nn.functional.cross_entropy(out(h), tokens[mask])
experts = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))
for number, expert in enumerate(experts):
    loss = loss + expert(h[(torch.arange(len(h)) % 2 == number).nonzero().flatten()]).sum()
loss.backward()
"""

OWN = """
import torch
class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b
    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g @ b.t(), a.t() @ g
w = torch.randn(6, 5, requires_grad=True)
kept = torch.zeros(3, 4, 5)
for i in range(3): kept[i] = Product.apply(torch.ones(4, 6), w)
g = torch.func.grad(lambda a: (a @ w).sum())(torch.ones(2, 6))
h = torch.vmap(lambda a: a @ w)(torch.ones(3, 2, 6))
(kept.sum() + g.sum() + h.sum()).backward()
"""

THREADS = """
import threading, torch
net = torch.nn.Linear(4, 4); optimizer = torch.optim.SGD(net.parameters(), 0.1)
def train():
    for _ in range(3): net(torch.ones(8, 4)).sum().backward(); optimizer.step()
first = threading.Thread(target=lambda: net(torch.ones(3, 4))); first.start(); first.join()
second = threading.Thread(target=train); second.start(); second.join()
net(torch.ones(99, 4))
"""

RECURRENT = """
import torch
from torch import nn
lstm, gru, cell = nn.LSTM(8, 16, 2, batch_first=True), nn.GRU(8, 16), nn.LSTMCell(8, 16)
x = torch.randn(3, 5, 8)
(lstm(x)[0].sum() + gru(x)[0].sum() + cell(x[:, 0])[0].sum()).backward()
"""


@pytest.mark.parametrize(
    ("text", "products", "left_out"),
    [
        # two layers of two linears: forward, once more from the checkpoint, dX and dW of each; a checkpoint that is not
        # reentrant leaves out the last one, whose operands are all that is needed
        (CHECKPOINTS, 2 * (2 + 2 + 2 * 2) - 1, {}),
        # five products of which four are differentiated, and one that gave its result to a tensor of its own
        (BATCHED, 4 + 2 + 4 * 2, {}),
        # a layer: q, k, v in one, scores, context, out, two of the MLP (the mean has no backward pass)
        (TIED, 4 * (2 * 6 + 1), {}),
        (CONVOLUTION, 3, {"convolution": 1, "convolution_backward": 1, "mv": 1}),
        (AUTOCAST, 2 + 3, {}),
        (MASKS, 3 * 3, {}),
        (OWN, None, {}),
        (THREADS, 1 + 2, {}),
        # three steps of a GRU: a product of all inputs, and one a step, forward and as dW; dX of two states; a cell:
        # two, and their dW
        (RECURRENT, 2 * (1 + 3) + 2 + 2 * 2, {"mkldnn_rnn_layer": 2, "mkldnn_rnn_layer_backward": 2}),
    ],
    ids=["checkpoints", "batched", "tied", "convolution", "autocast", "masks", "own", "threads", "recurrent"],
)
def test_a_script_has_the_products_of_its_first_step(tmp_path, text, products, left_out):
    traced = both(written(tmp_path, text))
    assert products is None or len(traced.gemms) == products
    assert left_out is None or traced.traced["left_out"] == left_out


def test_llama_with_seven_billion_parameters_needs_little_memory(tmp_path):
    code = (
        "import sys\nfrom morphling.run.trace import trace\ntrace(sys.argv[1], out=sys.argv[2])\n"
        "from morphling.emulate.emulation import host_memory_bytes\nprint(host_memory_bytes(), file=sys.stderr)\n"
    )
    out = tmp_path / "llama.json"
    command = [sys.executable, "-c", code, str(EXAMPLES / "train_llama.py"), str(out)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert done.stdout == "6,738,415,616 parameters\n"
    assert int(done.stderr) < 2 << 30  # the weights alone are 27 GB, and as many of gradients
    traced = traced_from_json(json.loads(out.read_text()), "llama")
    step = training_step(model_named("llama-2-7b"), 8, 1024, DType.FLOAT32).dag
    dag, products = traced.dag(DType.FLOAT32), step.select(kind=Kind.GEMM)
    assert len(traced.gemms) == 867
    assert sizes(dag, range(len(dag))) == sizes(step, products.tolist())
    assert traced.flops == step.gemm_flops()
    assert dag.gemm_flops(phase=Phase.FORWARD) == step.gemm_flops(phase=Phase.FORWARD)


def sizes(dag, products):
    """Sorted; PyTorch makes weight gradients [out x in], which is the transposed product of the same size."""
    return sorted((*sorted((int(dag.m[i]), int(dag.n[i]))), int(dag.k[i]), int(dag.count[i])) for i in products)


def test_how_a_file_was_traced_stands_in_it(tmp_path):
    script = written(tmp_path, "import sys, torch\nx = torch.ones(2, 3) @ torch.ones(3, 4)\nprint(x.sum().item())\n")
    traced = trace(script, ["--deep"], out=tmp_path / "out.json")
    value = json.loads((tmp_path / "out.json").read_text())
    assert value["traced"] == {
        "way": "script, without arithmetic",
        "script": "train.py",
        "script_sha256": hashlib.sha256(script.read_bytes()).hexdigest(),
        "arguments": ["--deep"],
        "nan": ["train.py:3: Tensor.item"],
        "torch": torch.__version__,
        "left_out": {},
    }
    again = traced_from_json(value, "x")
    assert (again.gemms, again.traced) == (traced.gemms, traced.traced)
    assert traced_from_json({**value, "traced": {}}, "x").traced == {}
    with pytest.raises(WorkloadError, match=r"x: traced: a mapping is needed, not 'by hand'"):
        traced_from_json({**value, "traced": "by hand"}, "x")
    with pytest.raises(InputError, match="--real executes a step of a script"):
        trace(None, model="torch.nn:Linear", real=True, out=tmp_path / "model.json")


def test_nothing_stays_behind(tmp_path):
    from torch._subclasses.fake_tensor import FakeTensor

    before = {**vars(FakeTensor)}, torch.load, torch.tensor, torch.utils.swap_tensors, threading.Thread.start
    trace_script(written(tmp_path, MASKS), ())
    after = {**vars(FakeTensor)}, torch.load, torch.tensor, torch.utils.swap_tensors, threading.Thread.start
    assert before == after
    assert type(torch.ones(2)) is torch.Tensor
