"""Closed-form counts of a training step: FLOPs, activation bytes, state bytes.

They say without a DAG what a layer costs, for planners and for checks of the DAG.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from morphling.errors import WorkloadError
from morphling.types import DType, item_bytes
from morphling.workload.build import Recompute
from morphling.workload.models import Model, layer_linears, layer_parameters, matmul_parameters, parameters

__all__ = [
    "STATE_BYTES",
    "Optimizer",
    "activation_bytes",
    "attention_flops",
    "layer_parameter_bytes",
    "layer_training_flops",
    "state_bytes",
    "training_flops",
]

Optimizer: TypeAlias = Literal["adam-mixed", "adam-mixed-fp32-gradients", "adam", "sgd-momentum", "sgd"]

STATE_BYTES: dict[Optimizer, int] = {
    "adam-mixed": 16,  # 2 weight + 2 gradient + 4 float32 weight + 4 + 4 moments
    "adam-mixed-fp32-gradients": 18,  # the same with 4 for a gradient that is accumulated in float32
    "adam": 16,  # all float32: weight, gradient, two moments
    "sgd-momentum": 12,
    "sgd": 8,
}
"""Bytes of weight, gradient and optimizer states for each parameter."""


def state_bytes(model: Model, optimizer: Optimizer = "adam-mixed") -> int:
    """Bytes of weights, gradients and optimizer states of the whole model; `WorkloadError` for an unknown optimizer."""
    if optimizer not in STATE_BYTES:
        raise WorkloadError(f"optimizer: unknown scheme {optimizer!r}; known: {', '.join(STATE_BYTES)}")
    return STATE_BYTES[optimizer] * parameters(model)


def layer_parameter_bytes(model: Model, dtype: DType) -> int:
    """Bytes of one layer's parameters as the forward pass uses them."""
    return layer_parameters(model) * item_bytes(dtype)


def attention_flops(model: Model, batch_size: int, sequence_length: int) -> int:
    """FLOPs of scores and context of one layer, forward, every score computed (no causal halving)."""
    return 4 * batch_size * sequence_length**2 * model.attention_size


def layer_training_flops(model: Model, batch_size: int, sequence_length: int, *, recompute: Recompute = "none") -> int:
    """FLOPs of all matrix products of one layer, forward and backward."""
    weights = sum(rows * columns for _, rows, columns in layer_linears(model))
    linears = 2 * batch_size * sequence_length * weights
    core = attention_flops(model, batch_size, sequence_length)
    return (4 if recompute == "full" else 3) * linears + (3 if recompute == "none" else 4) * core


def training_flops(model: Model, batch_size: int, sequence_length: int, *, recompute: Recompute = "none") -> int:
    """FLOPs of all matrix products of a training step, LM head included.

    Without recomputation this is (6 N + 12 L s a d) per token, N = `matmul_parameters` (the form of Narayanan et al.
    2021, non-causal).  The LM head and the embedding's projections are never recomputed.
    """
    layer_weights = sum(rows * columns for _, rows, columns in layer_linears(model))
    outside = matmul_parameters(model) - model.layers * layer_weights
    layers = model.layers * layer_training_flops(model, batch_size, sequence_length, recompute=recompute)
    return layers + 6 * batch_size * sequence_length * outside


def activation_bytes(
    model: Model,
    batch_size: int,
    sequence_length: int,
    scheme: Recompute = "none",
    *,
    dtype: DType = DType.FLOAT16,
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
) -> int:
    """Bytes that one layer keeps for its backward pass, for one micro-batch, on one of ``tensor_parallel`` devices.

    Korthikanti et al. 2022 ("Reducing Activation Recomputation in Large Transformer Models", table 2), written out
    tensor by tensor so that it also holds for other FFN widths, grouped queries and gated MLPs.  For a plain
    transformer with dropout (f = 4h) it is theirs: s·b·h·(34 + 5as/h) without recomputation and s·b·h·(10 + 24/t +
    5as/(ht)) under tensor parallelism t, the whole /t with sequence parallelism, without the 5as/h when ``scheme`` is
    "selective" (also the footprint of flash attention), 2·s·b·h when it is "full" (besides one layer's working set).

    Raises `WorkloadError` if heads, KV heads, FFN width or (with ``sequence_parallel``) the sequence cannot be cut
    into equal parts, or ``scheme`` is unknown.
    """
    t, item = tensor_parallel, item_bytes(dtype)
    _check_parts(model, sequence_length, t, sequence_parallel=sequence_parallel)
    if scheme not in get_args(Recompute):
        raise WorkloadError(f"scheme: unknown scheme {scheme!r}; known: {', '.join(get_args(Recompute))}")
    tokens, h = batch_size * sequence_length, model.hidden_size
    whole_share = t if sequence_parallel else 1
    if scheme == "full":
        return tokens * h * item // whole_share
    # Not cut by tensor parallelism: two norms' inputs, the inputs of attention and MLP, two dropout masks of a byte.
    whole = tokens * h * (4 * item + (2 if model.dropout else 0))
    if model.post_norms:
        whole += tokens * h * 2 * item
    # Cut by heads and by FFN columns: q, k, v, the context; what the activation reads and what it writes.
    cut = (
        tokens * item * (2 * model.attention_size + 2 * model.kv_size + (3 if model.gated_mlp else 2) * model.ffn_size)
    )
    if model.gated_mlp:
        cut += tokens * item * model.ffn_size  # the activated gate, beside gate, up and their product
    if scheme == "none":
        # The softmax's output; with dropout also its mask (a byte) and what it leaves.
        scores = batch_size * model.heads * sequence_length**2
        cut += scores * ((2 * item + 1) if model.dropout else item)
    return whole // whole_share + cut // t


def _check_parts(model: Model, sequence_length: int, t: int, *, sequence_parallel: bool) -> None:
    if t < 1:
        raise WorkloadError(f"tensor_parallel: a positive whole number is needed, not {t!r}")
    parts = {"heads": model.heads, "KV heads": model.kv_heads, "FFN columns": model.ffn_size}
    if sequence_parallel:
        parts["tokens of a sequence"] = sequence_length
    for what, size in parts.items():
        if size % t:
            raise WorkloadError(f"tensor_parallel: {size} {what} of {model.name} cannot be cut into {t} equal parts")
