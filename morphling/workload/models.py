"""What a decoder-only transformer is made of, and how many parameters that is.

Only the model's own sizes belong here; how it is trained lives in `morphling.workload.build` and
`morphling.workload.counts`, and reading a Hugging Face ``config.json`` in `morphling.workload.config`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches

from morphling.errors import WorkloadError

__all__ = [
    "ACTIVATIONS",
    "MODELS",
    "Model",
    "layer_linears",
    "layer_parameters",
    "matmul_parameters",
    "model_named",
    "parameters",
]

ACTIVATIONS = ("relu", "gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "silu", "swish")
"""Activation functions by the names that ``config.json`` files use."""


@dataclass(frozen=True)
class Model:
    """Sizes of a decoder-only transformer; all in elements, none in bytes.

    hidden_size, layers, heads, kv_heads, head_dim, ffn_size, vocab_size : as in the model's ``config.json``.
        ``heads * head_dim`` may differ from ``hidden_size`` (Gemma, Qwen3).
    max_positions : longest sequence the model was made for
    position_rows : rows of the learned position table (OPT has two more than ``max_positions``); 0 = rotary embedding
    embedding_size : width of the word embedding; where it differs from ``hidden_size`` (OPT-350M), a projection
        without bias leads in and another leads out
    tied : the LM head is the embedding table;  gated_mlp : gate, up and down instead of two linears
    fused_qkv : the model itself stores q, k and v as one linear (GPT-2)
    qkv_bias, out_bias, mlp_bias : which linears have a bias;  norm_bias : layer norm (2h) instead of RMS norm (h)
    pre_norm : norms stand before attention and MLP (otherwise after the residual: OPT-350M)
    post_norms : two more norms a layer, on the outputs of attention and MLP (Gemma 2 and 3)
    qk_norm : an RMS norm of ``head_dim`` on queries and one on keys;  final_norm : a norm before the LM head
    dropout : trained with dropout, whose masks are kept for the backward pass
    note : what a reader of results must know (such as: only the text decoder is counted)

    Raises `WorkloadError` if a size is not a positive whole number, or the heads cannot share the KV heads evenly.
    """

    name: str
    family: str
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    max_positions: int
    position_rows: int
    embedding_size: int
    tied: bool
    gated_mlp: bool
    activation: str
    fused_qkv: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False
    pre_norm: bool = True
    post_norms: bool = False
    qk_norm: bool = False
    final_norm: bool = True
    dropout: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        for key in (
            "hidden_size", "layers", "heads", "kv_heads", "head_dim", "ffn_size", "vocab_size", "max_positions",
            "embedding_size",
        ):  # fmt: skip
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise WorkloadError(f"model {self.name}: {key}: a positive whole number is needed, not {value!r}")
        if self.heads % self.kv_heads:
            raise WorkloadError(
                f"model {self.name}: kv_heads: {self.heads} heads cannot share {self.kv_heads} KV heads evenly"
            )
        if self.position_rows and self.position_rows < self.max_positions:
            raise WorkloadError(
                f"model {self.name}: position_rows: {self.position_rows} rows for {self.max_positions} positions"
            )
        if self.activation not in ACTIVATIONS:
            raise WorkloadError(
                f"model {self.name}: activation: unknown function {self.activation!r}; known: {', '.join(ACTIVATIONS)}"
            )

    @property
    def attention_size(self) -> int:
        """Width of the queries and of the attention's output: heads x head_dim."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of the keys, and of the values: kv_heads x head_dim."""
        return self.kv_heads * self.head_dim

    @property
    def projects_embedding(self) -> bool:
        """Whether linears lead from the word embedding to the hidden size and back."""
        return self.embedding_size != self.hidden_size


def layer_linears(model: Model, *, fused: bool = False) -> tuple[tuple[str, int, int], ...]:
    """(op, input width, output width) of each linear of one layer, in the order of use.

    ``fused`` joins q, k and v into ``qkv_proj``, and gate and up into ``gate_up``; a model that is stored fused
    (GPT-2) always has ``qkv_proj``.
    """
    h, f, wide, kv = model.hidden_size, model.ffn_size, model.attention_size, model.kv_size
    if fused or model.fused_qkv:
        qkv: tuple[tuple[str, int, int], ...] = (("qkv_proj", h, wide + 2 * kv),)
    else:
        qkv = (("q_proj", h, wide), ("k_proj", h, kv), ("v_proj", h, kv))
    out = ("o_proj", wide, h)
    if not model.gated_mlp:
        return (*qkv, out, ("fc1", h, f), ("fc2", f, h))
    if fused:
        return (*qkv, out, ("gate_up", h, 2 * f), ("down", f, h))
    return (*qkv, out, ("gate", h, f), ("up", h, f), ("down", f, h))


def layer_parameters(model: Model) -> int:
    """Exact number of parameters of one layer."""
    h, f = model.hidden_size, model.ffn_size
    weights = sum(rows * columns for _, rows, columns in layer_linears(model))
    biases = model.qkv_bias * (model.attention_size + 2 * model.kv_size) + model.out_bias * h
    biases += model.mlp_bias * ((2 if model.gated_mlp else 1) * f + h)
    norms = (4 if model.post_norms else 2) * _norm_parameters(model) + model.qk_norm * 2 * model.head_dim
    return weights + biases + norms


def parameters(model: Model) -> int:
    """Exact number of trained parameters, a tied embedding counted once."""
    h, table = model.hidden_size, model.vocab_size * model.embedding_size
    outside = table * (1 if model.tied else 2) + model.position_rows * h
    outside += model.projects_embedding * 2 * model.embedding_size * h + model.final_norm * _norm_parameters(model)
    return model.layers * layer_parameters(model) + outside


def matmul_parameters(model: Model) -> int:
    """Weights that take part in a matrix product: all linears and the LM head, not the embedding look-up.

    A training step takes 6 FLOPs per token for each, besides attention.
    """
    layer = sum(rows * columns for _, rows, columns in layer_linears(model))
    projections = model.projects_embedding * 2 * model.embedding_size * model.hidden_size
    return model.layers * layer + projections + model.vocab_size * model.embedding_size


def _norm_parameters(model: Model) -> int:
    return model.hidden_size * (2 if model.norm_bias else 1)


def _opt(name: str, layers: int, h: int, heads: int) -> Model:
    # Zhang et al. 2022, "OPT", table 1; vocabulary and position rows as in the released checkpoints.
    return Model(
        name=name, family="opt", hidden_size=h, layers=layers, heads=heads, kv_heads=heads, head_dim=h // heads,
        ffn_size=4 * h, vocab_size=50272, max_positions=2048, position_rows=2050, embedding_size=h, tied=True,
        gated_mlp=False, activation="relu", qkv_bias=True, out_bias=True, mlp_bias=True, norm_bias=True, dropout=True,
    )  # fmt: skip


def _gpt2(name: str, layers: int, h: int, heads: int) -> Model:
    # Radford et al. 2019, table 2; sizes as in the released checkpoints.
    return Model(
        name=name, family="gpt2", hidden_size=h, layers=layers, heads=heads, kv_heads=heads, head_dim=h // heads,
        ffn_size=4 * h, vocab_size=50257, max_positions=1024, position_rows=1024, embedding_size=h, tied=True,
        gated_mlp=False, activation="gelu_new", fused_qkv=True, qkv_bias=True, out_bias=True, mlp_bias=True,
        norm_bias=True, dropout=True,
    )  # fmt: skip


def _llama2(name: str, layers: int, h: int, heads: int, *, kv_heads: int, ffn_size: int) -> Model:
    # Touvron et al. 2023, "Llama 2"; sizes as in the released checkpoints.
    return Model(
        name=name, family="llama", hidden_size=h, layers=layers, heads=heads, kv_heads=kv_heads, head_dim=h // heads,
        ffn_size=ffn_size, vocab_size=32000, max_positions=4096, position_rows=0, embedding_size=h, tied=False,
        gated_mlp=True, activation="silu",
    )  # fmt: skip


_KNOWN = (
    _opt("opt-125m", 12, 768, 12),
    replace(_opt("opt-350m", 24, 1024, 16), embedding_size=512, pre_norm=False, final_norm=False),
    _opt("opt-1.3b", 24, 2048, 32),
    _opt("opt-2.7b", 32, 2560, 32),
    _opt("opt-6.7b", 32, 4096, 32),
    _opt("opt-13b", 40, 5120, 40),
    _opt("opt-30b", 48, 7168, 56),
    _opt("opt-66b", 64, 9216, 72),
    _opt("opt-175b", 96, 12288, 96),
    _llama2("llama-2-7b", 32, 4096, 32, kv_heads=32, ffn_size=11008),
    _llama2("llama-2-13b", 40, 5120, 40, kv_heads=40, ffn_size=13824),
    _llama2("llama-2-70b", 80, 8192, 64, kv_heads=8, ffn_size=28672),
    _gpt2("gpt2", 12, 768, 12),
    _gpt2("gpt2-medium", 24, 1024, 16),
    _gpt2("gpt2-large", 36, 1280, 20),
    _gpt2("gpt2-xl", 48, 1600, 25),
)

MODELS: dict[str, Model] = {model.name: model for model in _KNOWN}
"""The models known by name; any other comes from its ``config.json``."""


def model_named(name: str) -> Model:
    """The model called ``name``; `WorkloadError` with the nearest known names if there is none."""
    if name in MODELS:
        return MODELS[name]
    near = get_close_matches(name.lower().replace("_", "-").rpartition("/")[2], MODELS, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise WorkloadError(
        f"model: unknown model {name!r}; {hint}known: {', '.join(MODELS)}; or give the path of a config.json"
    )
