"""Tensor parallelism in the manner of Megatron-LM: what a group of t devices holds, computes and exchanges.

A layer's attention and its MLP are each cut into t parts, by heads and by FFN columns, and end in one all-reduce of the
activations forward, and of their gradients backward; these are not overlapped with computing.  With sequence
parallelism each is a reduce-scatter and an all-gather of the same volume, at the same places.  Which devices form
groups is decided elsewhere.

Source: Shoeybi et al. 2019 (Megatron-LM); Korthikanti et al. 2022 (sequence parallelism, vocabulary-parallel head).
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd

from morphling.errors import Infeasible
from morphling.planning.blocks import Block
from morphling.planning.collective_times import boundary_bytes
from morphling.planning.layer_costs import LayerCosts, Work
from morphling.planning.training_memory import (
    STATE_PARTS,
    DeviceMemory,
    Sharding,
    head_activation_bytes,
    input_activation_bytes,
    sharded_state_bytes,
    stage_activation_bytes,
)
from morphling.types import Phase, item_bytes
from morphling.workload import Model, Workload, parameters
from morphling.workload.build import Recompute
from morphling.workload.counts import Optimizer
from morphling.workload.models import layer_linears, layer_parameters

__all__ = [
    "allowed_ways",
    "backward_blocks",
    "check_ways",
    "forward_blocks",
    "shard_memory",
    "shard_parameters",
]

LOSS_VALUES = 3
"""Values of 4 bytes a token that the parts of the head exchange for the loss: maximum, target's logit, sum of exp."""


def allowed_ways(model: Model, sequence_length: int, most: int, *, sequence_parallel: bool = False) -> list[int]:
    """Into how many equal parts heads, KV heads and FFN columns can be cut, up to ``most``; ascending.

    With ``sequence_parallel`` the tokens of a sequence too.
    """
    whole = gcd(model.heads, model.kv_heads, model.ffn_size, *([sequence_length] if sequence_parallel else []))
    return [t for t in range(1, most + 1) if whole % t == 0]


def check_ways(model: Model, sequence_length: int, ways: int, *, sequence_parallel: bool = False) -> None:
    """Raise ``Infeasible`` if the model cannot be cut into ``ways`` equal parts."""
    parts = {"heads": model.heads, "KV heads": model.kv_heads, "FFN columns": model.ffn_size}
    if sequence_parallel:
        parts["tokens of a sequence"] = sequence_length
    for what, size in parts.items():
        if size % ways:
            known = allowed_ways(model, sequence_length, model.heads, sequence_parallel=sequence_parallel)
            raise Infeasible(
                f"tensor_parallel: {size} {what} of {model.name} cannot be cut into {ways} equal parts; possible are"
                f" {', '.join(map(str, known))}"
            )


@lru_cache(maxsize=4096)
def shard_parameters(model: Model, layers: int, ways: int, *, first: bool = True, last: bool = True) -> int:
    """Parameters of one member, the largest share: a ``ways``-th of what is cut, and all of what is not.

    layers : of the stage;  first, last : whether it has the embedding, and the final norm and the head.  Norms, the
    biases behind row-parallel products and the position table are whole on every member.  A tied embedding counts in
    both ends if they are on different stages.
    """
    cut = sum(rows * columns for _, rows, columns in layer_linears(model))
    cut += model.qkv_bias * (model.attention_size + 2 * model.kv_size)
    cut += model.mlp_bias * (2 if model.gated_mlp else 1) * model.ffn_size
    whole = layer_parameters(model) - cut
    table = model.vocab_size * model.embedding_size
    ends = (1 if model.tied and first and last else first + last) * table
    outside = parameters(model) - model.layers * layer_parameters(model) - (1 if model.tied else 2) * table
    position = model.position_rows * model.hidden_size
    kept = (position if first else 0) + (outside - position if last else 0)
    return layers * (-(-cut // ways) + whole) + -(-ends // ways) + kept


def shard_memory(
    workload: Workload,
    optimizer: Optimizer,
    micro_batch: int,
    ways: int,
    *,
    layers: int | None = None,
    first: bool = True,
    last: bool = True,
    in_flight: int = 1,
    sequence_parallel: bool = False,
    recompute: Recompute | None = None,
    sharding: Sharding = "none",
    replicas: int = 1,
) -> DeviceMemory:
    """Bytes of one member of a group of ``ways`` that trains ``layers`` layers (None: all) on micro-batches.

    first, last : as of `shard_parameters`;  in_flight : micro-batches whose activations are kept at one time
    sharding, replicas : what that many replicas of the group divide; under zero-3 the weights are gathered all at once
    """
    model, s = workload.model, workload.sequence_length
    held = model.layers if layers is None else layers
    kept = stage_activation_bytes(
        model,
        micro_batch,
        s,
        layers=held,
        in_flight=in_flight,
        scheme=workload.recompute if recompute is None else recompute,
        tensor_parallel=ways,
        sequence_parallel=sequence_parallel,
        dtype=workload.dtype,
    )
    if first:
        kept += input_activation_bytes(
            model, micro_batch, s, in_flight=in_flight, tensor_parallel=ways if sequence_parallel else 1
        )
    if last:
        kept += head_activation_bytes(model, micro_batch, s, tensor_parallel=ways)
        ends = 4 * micro_batch * s * model.hidden_size  # inputs of the last norm and of the head, in 16 bits
        kept += 0 if sequence_parallel else ends - ends // ways
    count = shard_parameters(model, held, ways, first=first, last=last)
    states = sharded_state_bytes(count, optimizer, sharding=sharding, ways=replicas)
    return DeviceMemory(states, kept, count * STATE_PARTS[optimizer][0] if sharding == "zero-3" else 0)


def forward_blocks(costs: LayerCosts, workload: Workload, layers: range, ways: int) -> list[Block]:
    """The forward pass of a micro-batch through ``layers``, block by block, with the ends that they touch.

    The embedding ends in an all-reduce, each layer has two, and the head exchanges `LOSS_VALUES` for each token.
    """
    size = _activation(costs, workload)
    out = []
    if layers.start == 0:
        out.append(_block(costs.before(Phase.FORWARD), ways, size))
    for layer in layers:
        out += _halves(costs.inner(layer, layer + 1, Phase.FORWARD), ways, size, 2)
    if layers.stop == costs.layers:
        loss = costs.batch_size * workload.sequence_length * LOSS_VALUES * 4
        out.append(_block(costs.behind(Phase.FORWARD), ways, loss))
    return out


def backward_blocks(
    costs: LayerCosts, workload: Workload, layers: range, ways: int, *, recompute: Recompute
) -> list[Block]:
    """The backward pass through ``layers`` in their reverse order; under full recomputation with the forward's
    all-reduces again.
    """
    size = _activation(costs, workload)
    both = (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)
    out = []
    if layers.stop == costs.layers:
        out.append(_block(costs.behind(*both), ways, size))
    for layer in reversed(layers):
        out += _halves(costs.inner(layer, layer + 1, *both), ways, size, 4 if recompute == "full" else 2)
    if layers.start == 0:
        out.append(_block(costs.before(*both), ways, 0))
    return out


def _activation(costs: LayerCosts, workload: Workload) -> int:
    width = item_bytes(workload.dtype)
    return boundary_bytes(costs.batch_size, workload.sequence_length, workload.model.hidden_size, item_bytes=width)


def _block(work: Work, ways: int, size: int, passes: int = 2) -> Block:
    return Block(work.flops / ways, work.memory_bytes / ways, size, passes, products=work.products.cut(ways))


def _halves(layer: Work, ways: int, size: int, passes: int) -> list[Block]:
    """A layer as two equal blocks: since all wait for each other anyway, only their sum matters."""
    products = layer.products.cut(ways).times(0.5)
    half = Block(layer.flops / (2 * ways), layer.memory_bytes / (2 * ways), size, passes, products=products)
    return [half] * 2
