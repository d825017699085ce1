"""The products of a training step as a graph: from a script, from a model without weights, and as a file."""

from __future__ import annotations

import json

import pytest

from morphling.errors import Infeasible, InputError, RunError, WorkloadError
from morphling.types import DType, Kind, Phase
from morphling.workload import model_from_config, training_step
from morphling.workload.traced import traced_from_json

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'morphling[live]'")

from morphling.emulate.tracing import trace_model  # noqa: E402
from morphling.run.trace import trace  # noqa: E402

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 160,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 96,
    "max_position_embeddings": 128, "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip


class Layer(torch.nn.Module):
    """A layer like Llama's: q, k, v, o, gate, up and down without bias."""

    def __init__(self, width, ffn, heads):
        super().__init__()
        self.heads = heads
        self.norm = torch.nn.ModuleList([torch.nn.LayerNorm(width) for _ in range(2)])
        self.qkvo = torch.nn.ModuleList([torch.nn.Linear(width, width, bias=False) for _ in range(4)])
        self.gate, self.up = (torch.nn.Linear(width, ffn, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(ffn, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        h = self.norm[0](x)
        q, k, v = (p(h).view(batch, length, self.heads, -1).transpose(1, 2) for p in self.qkvo[:3])
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.qkvo[3](y.transpose(1, 2).reshape(batch, length, width))
        h = self.norm[1](x)
        return x + self.down(torch.nn.functional.silu(self.gate(h)) * self.up(h))


class LikeLlama(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.embedding = torch.nn.Embedding(96, 64)
        self.layers = torch.nn.Sequential(*(Layer(64, 160, 4) for _ in range(layers)))
        self.head = torch.nn.Linear(64, 96, bias=False)

    def forward(self, ids):
        logits = self.head(self.layers(self.embedding(ids)))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


def like_llama(layers=3):
    return trace_model(f"{__name__}:LikeLlama", {"layers": layers}, 2, 16)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or type(sys)(__name__))
    vars(sys.modules[__name__]).setdefault("LikeLlama", LikeLlama)


def step():
    return training_step(model_from_config(LLAMA, "tiny", "here"), 2, 16, DType.FLOAT32)


def shapes(dag, products):
    """Sorted; PyTorch makes weight gradients [out x in], which is the transposed product of the same size."""
    return sorted((*sorted((int(dag.m[i]), int(dag.n[i]))), int(dag.k[i]), int(dag.count[i])) for i in products)


def require_the_dag_of(traced, work):
    """The same products, FLOPs and level structure as the DAG that is written from the model's config."""
    dag, ours = traced.dag(DType.FLOAT32), work.dag
    products = ours.select(kind=Kind.GEMM)
    assert shapes(dag, range(len(dag))) == shapes(ours, products.tolist())
    assert traced.flops == dag.gemm_flops() == ours.gemm_flops()
    forward = dag.gemm_flops(phase=Phase.FORWARD)
    assert forward == ours.gemm_flops(phase=Phase.FORWARD)


def test_a_model_like_llama_has_the_products_of_llamas_dag():
    traced = like_llama()
    require_the_dag_of(traced, step())
    # a layer forward: q k v together, scores, context, o, gate and up together, down: 6 levels; the head is one more
    dag = traced.dag(DType.FLOAT32)
    forward = dag.level[dag.phase == Phase.FORWARD]
    assert len(set(forward.tolist())) == 3 * 6 + 1
    widths = [len(x) for x in dag.levels()]
    assert max(widths[: 3 * 6 + 1]) == 3


def test_llama_of_transformers():
    pytest.importorskip("transformers", reason="transformers is not installed")
    require_the_dag_of(trace_model("transformers:LlamaForCausalLM", LLAMA, 2, 16), step())


def test_operands_with_the_same_content_share_their_number():
    traced = like_llama(1)
    q, k, v = traced.gemms[:3]
    assert q.a == k.a == v.a
    assert len({q.b, k.b, v.b}) == 3
    assert q.b_transposed
    assert q.waits_for == k.waits_for == ()


def test_a_file_and_back(tmp_path):
    traced = like_llama(1)
    value = json.loads(traced.to_json())
    again = traced_from_json(value, "x.json")
    assert (again.name, again.dtype, again.gemms) == ("LikeLlama", "float32", traced.gemms)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"m": 0}, r"x: gemms.1: m: a whole number of at least 1 is needed, not 0"),
        ({"waits_for": [1]}, r"x: gemms.1: waits_for: numbers of products before it, not \[1\]"),
        ({"phase": "forwards"}, r"x: gemms.1: phase: one of forward, .*, not 'forwards'"),
        ({"mm": 3}, r"x: gemms.1: mm: no such field"),
        ({"a_transposed": 1}, r"x: gemms.1: a_transposed: true or false, not 1"),
    ],
)
def test_wrong_files(change, message):
    value = json.loads(like_llama(1).to_json())
    value["gemms"][1] |= change
    with pytest.raises(WorkloadError, match=message):
        traced_from_json(value, "x")
    with pytest.raises(WorkloadError, match="no file of traced products"):
        traced_from_json({"gemms": []}, "x")


def test_a_script_is_traced_up_to_its_first_step(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nw = torch.ones(6, 5, requires_grad=True)\no = torch.optim.SGD([w], 0.1)\n"
        "for _ in range(3):\n    try:\n        (torch.ones(4, 6) @ w).sum().backward()\n        o.step()\n"
        "    except Exception:\n        pass\nraise ValueError('never reached')\n"
    )
    traced = trace(script, out=tmp_path / "out.json")
    assert [(g.phase, g.m, g.k, g.n) for g in traced.gemms] == [
        (Phase.FORWARD, 4, 6, 5),
        (Phase.BACKWARD_INPUT, 6, 4, 5),
    ]
    assert json.loads((tmp_path / "out.json").read_text())["name"] == "train"
    with pytest.raises(InputError, match=r"out\.json: is there already"):
        trace(script, out=tmp_path / "out.json")


def test_wrong_input(tmp_path):
    out = tmp_path / "out.json"
    with pytest.raises(InputError, match="write module:Class"):
        trace(None, model="LlamaForCausalLM", out=out)
    with pytest.raises(InputError, match="torch has no NoSuchModel"):
        trace(None, model="torch:NoSuchModel", out=out)
    with pytest.raises(InputError, match="no_such_module cannot be imported"):
        trace(None, model="no_such_module:Model", out=out)
    with pytest.raises(InputError, match=r"cannot be made: TypeError"):
        trace(None, model="torch.nn:Linear", out=out)
    with pytest.raises(InputError, match="a script or --model is needed"):
        trace(None, out=out)
    script = tmp_path / "none.py"
    script.write_text("print()\n")
    with pytest.raises(RunError, match="no matrix product was seen"):
        trace(script, out=out)
    assert not out.exists()


def scenario(path, **strategy):
    return {
        "name": "traced",
        "workload": {"gemms": str(path), "dtype": "float32"},
        "fleet": [
            {
                "profile": {"compute": "1 TFLOP/s", "memory": "1 GB"},
                "count": 4,
                "link": {"downlink": "8 Mbit/s", "uplink": "8 Mbit/s"},
            }
        ],
        "strategy": {"name": "cleave", **strategy},
    }


def test_a_scenario_runs_a_file_of_products(tmp_path):
    from morphling.run.build import build
    from morphling.run.run import replay, run
    from morphling.scenario import load_scenario

    path = tmp_path / "like.gemms.json"
    traced = like_llama(1)
    path.write_text(traced.to_json())
    built = build(load_scenario(scenario(path)))
    recording = replay(built)
    rows = sum(float(d.tasks.flops.sum()) for d in recording.dispatches)
    assert rows == traced.flops
    # what the devices computed is what has no batch
    size = built.fleet.size
    devices = sum(float(d.tasks.flops[d.tasks.device < size].sum()) for d in recording.dispatches)
    assert devices == sum(g.flops for g in traced.gemms if g.batch == 1)
    results = run(scenario(path), out=tmp_path / "run", figures=False)
    assert str(path) in results.manifest["inputs_sha256"]
    again = run(tmp_path / "run" / "scenario.yaml", out=tmp_path / "again", figures=False)
    assert again.metrics["events_sha256"] == results.metrics["events_sha256"]


def test_a_scenario_with_a_wrong_file_or_strategy(tmp_path):
    from morphling.run.build import build
    from morphling.scenario import load_scenario

    path = tmp_path / "like.gemms.json"
    with pytest.raises(InputError, match=r"workload\.gemms: no such file"):
        load_scenario(scenario(path))
    path.write_text("{}")
    with pytest.raises(InputError, match=r"workload\.gemms: .*like\.gemms\.json: is no file of traced products"):
        load_scenario(scenario(path))
    path.write_text(like_llama(1).to_json())
    with pytest.raises(Infeasible, match=r"workload\.gemms: cleave plans by a model's layers"):
        build(load_scenario(scenario(path, model="paper")))
    value = scenario(path)
    value["workload"]["model"] = "opt-125m"
    with pytest.raises(InputError, match=r"workload\.model"):
        load_scenario(value)
