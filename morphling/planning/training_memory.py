"""Memory of training on one device: states and activations, whole or sharded, with micro-batches in flight.

Bytes per parameter and per layer are counted in `morphling.workload`; here they are shared out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from morphling.types import DType
from morphling.workload import Model, activation_bytes
from morphling.workload.build import Recompute
from morphling.workload.counts import STATE_BYTES, Optimizer

__all__ = [
    "STATE_PARTS",
    "DeviceMemory",
    "Sharding",
    "head_activation_bytes",
    "input_activation_bytes",
    "sharded_state_bytes",
    "stage_activation_bytes",
]

Sharding: TypeAlias = Literal["none", "zero-1", "zero-2", "zero-3"]
"""What is divided over the devices that train replicas: nothing, optimizer states, gradients too, weights too."""

STATE_PARTS: dict[Optimizer, tuple[int, int, int]] = {
    "adam-mixed": (2, 2, 12),
    "adam-mixed-fp32-gradients": (2, 4, 12),
    "adam": (4, 4, 8),
    "sgd-momentum": (4, 4, 4),
    "sgd": (4, 4, 0),
}
"""Bytes of weight, gradient and optimizer states (with the float32 copy of the weights) for each parameter."""


def sharded_state_bytes(
    parameters: int,
    optimizer: Optimizer = "adam-mixed",
    *,
    sharding: Sharding = "none",
    ways: int = 1,
    gathered_parameters: int = 0,
) -> int:
    """Bytes of weights, gradients and optimizer states on each of ``ways`` devices, the largest share.

    With Adam in mixed precision and Ψ parameters: 16Ψ; 4Ψ + 12Ψ/g (zero-1); 2Ψ + 14Ψ/g (zero-2); 16Ψ/g (zero-3, also
    FSDP).  Megatron's distributed optimizer is zero-1 with float32 gradients, 6Ψ + 12Ψ/g.  Under zero-3
    ``gathered_parameters`` are whole at one time: those of the layer that computes, and of one more with prefetch.
    Source: Rajbhandari et al. 2020 (ZeRO), section 5.  Raises ``ValueError`` on unknown names and counts below 1.
    """
    if optimizer not in STATE_BYTES or sharding not in get_args(Sharding):
        known = f"{', '.join(STATE_BYTES)}; {', '.join(get_args(Sharding))}"
        raise ValueError(f"{optimizer!r} with sharding {sharding!r} is unknown; known are {known}")
    if parameters < 0 or ways < 1 or gathered_parameters < 0:
        raise ValueError(f"parameters from 0 on and ways from 1 on are needed, not {parameters} and {ways}")
    if gathered_parameters and sharding != "zero-3":
        raise ValueError(f"gathered_parameters: under {sharding} the weights are whole already")
    weight, gradient, states = STATE_PARTS[optimizer]
    share = -(-parameters // ways)
    whole, cut = {
        "none": (weight + gradient + states, 0),
        "zero-1": (weight + gradient, states),
        "zero-2": (weight, gradient + states),
        "zero-3": (0, weight + gradient + states),
    }[sharding]
    return parameters * whole + share * cut + gathered_parameters * weight


def stage_activation_bytes(
    model: Model,
    batch_size: int,
    sequence_length: int,
    *,
    layers: int,
    in_flight: int = 1,
    chunks: int = 1,
    scheme: Recompute = "none",
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
    dtype: DType = DType.FLOAT16,
) -> int:
    """Bytes of activations on one device of a pipeline stage of ``layers`` layers, at the moment it holds most.

    batch_size : sequences of a micro-batch
    in_flight : activations held at one time in (micro-batch, chunk) units, as `schedules.in_flight` counts them; with
        ``chunks`` chunks each is layers/chunks layers.  The first stage of interleaved 1F1B then holds
        1 + (P-1)/(Pv) times the layers of the model

    Under full recomputation a layer keeps only its input, and one layer's working set comes on top.  Per layer:
    `morphling.workload.activation_bytes` (Korthikanti et al. 2022, table 2).
    """
    if min(layers, in_flight, chunks, batch_size) < 1 or layers % chunks:
        raise ValueError(
            f"layers, in_flight, chunks and batch_size from 1 on are needed, and whole layers in a chunk;"
            f" found {layers}, {in_flight}, {chunks}, {batch_size}"
        )

    def each(kept: Recompute) -> int:
        return activation_bytes(
            model,
            batch_size,
            sequence_length,
            kept,
            dtype=dtype,
            tensor_parallel=tensor_parallel,
            sequence_parallel=sequence_parallel,
        )

    return layers // chunks * in_flight * each(scheme) + (each("none") if scheme == "full" else 0)


def input_activation_bytes(
    model: Model, batch_size: int, sequence_length: int, *, in_flight: int = 1, tensor_parallel: int = 1
) -> int:
    """Bytes that the embedding keeps on the first stage: its dropout's mask, s·b·h of each micro-batch in flight, /t.

    Source: Korthikanti et al. 2022, section 4.3.
    """
    mask = batch_size * sequence_length * model.hidden_size * in_flight if model.dropout else 0
    return -(-mask // tensor_parallel)


def head_activation_bytes(model: Model, batch_size: int, sequence_length: int, *, tensor_parallel: int = 1) -> int:
    """Bytes that the last stage keeps beside its layers: 4·s·b·h(1 + V/h) / t.

    Inputs of the last norm and of the head in 16 bits, logits in 32.  Source: Korthikanti et al. 2022, section 4.3.
    """
    return -(-4 * batch_size * sequence_length * (model.hidden_size + model.vocab_size) // tensor_parallel)


@dataclass(frozen=True)
class DeviceMemory:
    """What one device of a plan holds, bytes."""

    states: int
    activations: int
    other: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.states + self.activations + self.other
