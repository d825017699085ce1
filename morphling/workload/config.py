"""Reads a model's sizes from the mapping inside a Hugging Face ``config.json``.

Only architectures whose parameters are counted exactly belong here.  The file itself is read elsewhere; this module
sees a mapping and the name to blame in messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypedDict

from morphling.errors import WorkloadError
from morphling.workload.models import ACTIVATIONS, Model

__all__ = ["ARCHITECTURES", "model_from_config"]

_MOST = 2**31 - 1
_MOST_LAYERS = 10_000


@dataclass(frozen=True)
class _Config:
    """A config with typed look-ups that name file and key in every complaint."""

    values: Mapping[str, Any]
    origin: str
    outer: Mapping[str, Any]

    def fault(self, key: str, reason: str) -> WorkloadError:
        return WorkloadError(f"{self.origin}: {key}: {reason}")

    def found(self, key: str) -> Any:
        """The value, or None where it is absent or null (which these files use alike)."""
        return self.values.get(key)

    def layers(self) -> int:
        """``num_hidden_layers``; each has a node for each of its operations in the DAG, so the number is bounded."""
        value = self.count("num_hidden_layers")
        if value > _MOST_LAYERS:
            raise self.fault("num_hidden_layers", f"{value} is beyond any model (more than {_MOST_LAYERS})")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """A positive whole number; without a default it must be there."""
        value = self.found(key)
        if value is None:
            if default is None:
                near = get_close_matches(
                    key, [k for k in self.values if isinstance(k, str) and k != key], n=1, cutoff=0.8
                )
                raise self.fault(key, f"missing{f' (did you mean {near[0]}?)' if near else ''}")
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fault(key, f"a positive whole number is needed, not {value!r}")
        if value < 1:
            raise self.fault(key, f"must be at least 1, not {value}")
        if value > _MOST:
            raise self.fault(key, f"{value} is beyond any model (more than {_MOST})")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.found(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fault(key, f"true or false is needed, not {value!r}")
        return value

    def tied(self, *, default: bool) -> bool:
        """Multimodal files say this outside ``text_config``."""
        key = "tie_word_embeddings"
        if self.found(key) is None and self.outer.get(key) is not None:
            return _Config(self.outer, self.origin, self.outer).flag(key, default=default)
        return self.flag(key, default=default)

    def activation(self, *keys: str) -> str:
        """The first of ``keys`` that is there."""
        for key in keys:
            value = self.found(key)
            if value is not None:
                if value not in ACTIVATIONS:
                    raise self.fault(key, f"unknown activation {value!r}; known: {', '.join(ACTIVATIONS)}")
                return str(value)
        raise self.fault(keys[0], "missing")

    def dropout(self, *keys: str) -> bool:
        """Whether a dropout probability is above zero; the library's default for these models is 0.1."""
        for key in keys:
            value = self.found(key)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1
            ):
                raise self.fault(key, f"a probability is needed, not {value!r}")
        return any(0.1 if self.found(key) is None else self.found(key) for key in keys)

    def heads(self, heads_key: str, h: int, *, divide: bool) -> int:
        """The number of heads; where ``divide``, the hidden size must be a multiple of it."""
        heads = self.count(heads_key)
        if divide and h % heads:
            raise self.fault(heads_key, f"{heads} heads do not divide the hidden size {h} evenly")
        return heads

    def refuse(self, key: str, allowed: tuple[Any, ...], why: str) -> None:
        """Complain if the config asks for a variant whose parameters are not counted here."""
        if key in self.values and self.values[key] not in allowed:
            raise self.fault(key, f"{self.values[key]!r} is not supported: {why}")


class _Sizes(TypedDict):
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
    note: str


def model_from_config(config: Mapping[str, Any], name: str, origin: str) -> Model:
    """The model that a Hugging Face ``config.json`` describes.

    ``config`` is the parsed file, ``name`` what to call the model, ``origin`` the file as errors shall name it.  Of a
    multimodal model only the text decoder (``text_config``) is read, and the model's ``note`` says so.  A missing
    size is an error; defaults are taken only where the architecture itself defines them (KV heads of Llama equal its
    heads, GPT-2's FFN is four times its width, ``head_dim`` is the hidden size over the heads, whether embeddings are
    tied, biases).

    Raises `WorkloadError`, naming file and key, for an architecture that is not known, a missing, ill-typed or absurd
    value, and variants whose parameters would be counted wrongly (mixture of experts, cross-attention, a task head).
    """
    if not isinstance(config, Mapping):
        raise WorkloadError(f"{origin}: a mapping is needed, not {type(config).__name__}")
    inner, note = config, ""
    if config.get("text_config") is not None:
        inner = config["text_config"]
        if not isinstance(inner, Mapping):
            raise WorkloadError(f"{origin}: text_config: a mapping is needed, not {type(inner).__name__}")
        note = "only the text decoder (text_config) is counted"
    architecture = _architecture(config, inner, origin)
    reader = _Config(inner, origin, config)
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        reader.refuse(key, (None, 0, 1), "mixtures of experts are not counted")
    for key in ("add_cross_attention", "is_encoder_decoder"):
        for part in (reader, _Config(config, origin, config)):
            part.refuse(key, (None, False), "only decoders are counted")
    return ARCHITECTURES[architecture](reader, name, note)


def _architecture(config: Mapping[str, Any], inner: Mapping[str, Any], origin: str) -> str:
    kind = inner.get("model_type")
    if kind is None:
        raise WorkloadError(f"{origin}: model_type: missing; known: {', '.join(ARCHITECTURES)}")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise WorkloadError(f"{origin}: model_type: unknown architecture {kind!r}; known: {', '.join(ARCHITECTURES)}")
    classes = config.get("architectures") or []
    if not isinstance(classes, list | tuple):
        raise WorkloadError(f"{origin}: architectures: a list is needed, not {classes!r}")
    for known in classes if inner is config else []:
        if not str(known).endswith(("ForCausalLM", "LMHeadModel", "Model")):
            raise WorkloadError(
                f"{origin}: architectures: {known!r} has a task head; only causal language models are counted"
            )
    return kind


def _opt(c: _Config, name: str, note: str) -> Model:
    c.refuse("layer_norm_elementwise_affine", (None, True), "norms without parameters are not counted")
    c.refuse("_remove_final_layer_norm", (None, False), "this variant of OPT is not counted")
    h, positions = c.count("hidden_size"), c.count("max_position_embeddings")
    heads, pre, bias = (
        c.heads("num_attention_heads", h, divide=True),
        c.flag("do_layer_norm_before", default=True),
        c.flag("enable_bias", default=True),
    )
    return Model(
        name=name, family="opt", hidden_size=h, layers=c.layers(), heads=heads, kv_heads=heads,
        head_dim=h // heads, ffn_size=c.count("ffn_dim"), vocab_size=c.count("vocab_size"), max_positions=positions,
        # The checkpoints keep two unused rows before the first position.
        position_rows=positions + 2, embedding_size=c.count("word_embed_proj_dim", h), tied=c.tied(default=True),
        gated_mlp=False, activation=c.activation("activation_function"), qkv_bias=bias, out_bias=bias, mlp_bias=bias,
        norm_bias=True, pre_norm=pre, final_norm=pre, dropout=c.dropout("dropout"), note=note,
    )  # fmt: skip


def _gpt2(c: _Config, name: str, note: str) -> Model:
    h, positions = c.count("n_embd"), c.count("n_positions")
    heads = c.heads("n_head", h, divide=True)
    return Model(
        name=name, family="gpt2", hidden_size=h, layers=c.count("n_layer"), heads=heads, kv_heads=heads,
        head_dim=h // heads, ffn_size=c.count("n_inner", 4 * h), vocab_size=c.count("vocab_size"),
        max_positions=positions, position_rows=positions, embedding_size=h, tied=c.tied(default=True), gated_mlp=False,
        activation=c.activation("activation_function"), fused_qkv=True, qkv_bias=True, out_bias=True, mlp_bias=True,
        norm_bias=True, dropout=c.dropout("resid_pdrop"), note=note,
    )  # fmt: skip


def _gated(
    c: _Config, name: str, note: str, family: str, *, tied: bool, own_head_dim: bool = False, kv_as_heads: bool = False
) -> _Sizes:
    """What the rotary, gated families have in common.

    ``own_head_dim``: the width of a head is a size of its own and must be given.  ``kv_as_heads``: without
    ``num_key_value_heads`` there are as many KV heads as heads (in other families the library's default is a number
    that fits one model only, so it must be given).
    """
    h = c.count("hidden_size")
    given = c.found("head_dim") is not None
    heads = c.heads("num_attention_heads", h, divide=not (given or own_head_dim))
    kv_heads = c.count("num_key_value_heads", heads if kv_as_heads else None)
    if heads % kv_heads:
        raise c.fault("num_key_value_heads", f"{heads} heads cannot share {kv_heads} KV heads evenly")
    return _Sizes(
        name=name, family=family, hidden_size=h, layers=c.layers(), heads=heads, kv_heads=kv_heads,
        head_dim=c.count("head_dim", None if own_head_dim else h // heads), ffn_size=c.count("intermediate_size"),
        vocab_size=c.count("vocab_size"), max_positions=c.count("max_position_embeddings"), position_rows=0,
        embedding_size=h, tied=c.tied(default=tied), gated_mlp=True,
        activation=c.activation("hidden_activation", "hidden_act"), note=note,
    )  # fmt: skip


def _llama(c: _Config, name: str, note: str) -> Model:
    bias, mlp_bias = c.flag("attention_bias", default=False), c.flag("mlp_bias", default=False)
    sizes = _gated(c, name, note, "llama", tied=False, kv_as_heads=True)
    return Model(**sizes, qkv_bias=bias, out_bias=bias, mlp_bias=mlp_bias)


def _mistral(c: _Config, name: str, note: str) -> Model:
    return Model(**_gated(c, name, note, "mistral", tied=False))


def _qwen2(c: _Config, name: str, note: str) -> Model:
    return Model(**_gated(c, name, note, "qwen2", tied=False), qkv_bias=True)


def _qwen3(c: _Config, name: str, note: str) -> Model:
    bias = c.flag("attention_bias", default=False)
    sizes = _gated(c, name, note, "qwen3", tied=False, own_head_dim=True)
    return Model(**sizes, qkv_bias=bias, out_bias=bias, qk_norm=True)


def _gemma(c: _Config, name: str, note: str, *, family: str = "gemma", version: int = 1) -> Model:
    bias = c.flag("attention_bias", default=False)
    sizes = _gated(c, name, note, family, tied=True, own_head_dim=True)
    return Model(**sizes, qkv_bias=bias, out_bias=bias, post_norms=version >= 2, qk_norm=version >= 3)


def _gemma2(c: _Config, name: str, note: str) -> Model:
    return _gemma(c, name, note, family="gemma2", version=2)


def _gemma3(c: _Config, name: str, note: str) -> Model:
    return _gemma(c, name, note, family="gemma3", version=3)


ARCHITECTURES: dict[str, Callable[[_Config, str, str], Model]] = {
    "opt": _opt,
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
}
"""Readers by ``model_type``."""
