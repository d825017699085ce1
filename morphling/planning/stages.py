"""What the stages of a pipeline compute, hold and send: sums over their layers, the ends of the model included.

Which layers a stage has, and on which devices, is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from morphling.interfaces.view import View
from morphling.planning.collective_times import boundary_bytes
from morphling.planning.layer_costs import Work, layer_costs
from morphling.planning.layer_products import NO_PRODUCTS, LayerProducts
from morphling.planning.training_memory import (
    DeviceMemory,
    head_activation_bytes,
    input_activation_bytes,
    sharded_state_bytes,
    stage_activation_bytes,
)
from morphling.types import FloatArray, IntArray, Phase, item_bytes
from morphling.workload import Workload, parameters
from morphling.workload.build import Recompute
from morphling.workload.counts import Optimizer
from morphling.workload.models import layer_parameters

__all__ = [
    "BACKWARD",
    "FORWARD",
    "LayerSizes",
    "SharedTable",
    "Stages",
    "embedding_parameters",
    "layer_seconds",
    "layer_sizes",
    "stage_seconds",
]

SharedTable: TypeAlias = Literal["summed", "separate"]

FORWARD, BACKWARD = (Phase.FORWARD,), (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)


@dataclass(frozen=True, eq=False)
class Stages:
    """P stages of v chunks each, for micro-batches of ``micro_batch`` sequences.

    bounds : int64[P·v + 1], virtual stage q = chunk·P + stage has the layers bounds[q] to bounds[q + 1] - 1
    recompute : which activations are computed twice;  optimizer : which states are held

    table : of a table that the model uses for both embedding and LM head, whether its two copies are summed, or are
        separate parameters

    The first stage has the embedding, the last one the final norm and the LM head.  A table that the model uses for
    both stands on both if they are not the same stage.
    """

    workload: Workload
    bounds: IntArray
    micro_batch: int
    recompute: Recompute
    optimizer: Optimizer = "adam-mixed"
    chunks: int = 1
    table: SharedTable = "summed"

    @property
    def count(self) -> int:
        """P."""
        return (len(self.bounds) - 1) // self.chunks

    @property
    def boundary(self) -> int:
        """Bytes of a micro-batch from one stage to the next; gradients are as many."""
        w = self.workload
        return boundary_bytes(self.micro_batch, w.sequence_length, w.model.hidden_size, item_bytes=item_bytes(w.dtype))

    def work(self, *phases: Phase) -> tuple[FloatArray, FloatArray]:
        """FLOPs and bytes between memory and cores of a micro-batch, float64[P, v] each."""
        costs = layer_costs(self.workload, self.micro_batch, recompute=self.recompute)
        out = np.zeros((2, self.count, self.chunks))
        for q, (a, b) in enumerate(zip(self.bounds.tolist(), self.bounds[1:].tolist(), strict=False)):
            for phase in phases:
                part = costs.span(a, b, phase)
                out[:, q % self.count, q // self.count] += part.flops, part.memory_bytes
        return out[0], out[1]

    def forward(self) -> tuple[FloatArray, FloatArray]:
        """`work` of the forward pass."""
        return self.work(*FORWARD)

    def backward(self) -> tuple[FloatArray, FloatArray]:
        """`work` of the backward pass: what is recomputed, gradients of inputs and of weights."""
        return self.work(*BACKWARD)

    def products(self, *phases: Phase) -> list[list[LayerProducts]]:
        """The products behind the FLOPs of `work`, for each stage and chunk."""
        costs = layer_costs(self.workload, self.micro_batch, recompute=self.recompute)
        spans = list(zip(self.bounds.tolist(), self.bounds[1:].tolist(), strict=False))
        works = [sum((costs.span(a, b, x).products for x in phases), NO_PRODUCTS) for a, b in spans]
        return [works[p :: self.count] for p in range(self.count)]

    def layers(self) -> IntArray:
        """int64[P], layers of each stage."""
        found: IntArray = np.diff(self.bounds).reshape(self.chunks, self.count).sum(axis=0)
        return found

    def own_parameters(self) -> IntArray:
        """int64[P], parameters that only this stage has; see `shared_parameters`."""
        model = self.workload.model
        first, last = embedding_parameters(self.workload)
        found: IntArray = self.layers() * layer_parameters(model)
        found[0] += first - self.shared_parameters()
        found[-1] += last
        if self.table == "separate" and self.count > 1 and model.tied:
            found[-1] += model.vocab_size * model.embedding_size
        return found

    def shared_parameters(self) -> int:
        """Parameters of a table that the first and the last stage both have; 0 if there is none, or one stage."""
        model = self.workload.model
        shared = model.tied and self.count > 1 and self.table == "summed"
        return model.vocab_size * model.embedding_size if shared else 0

    def held_parameters(self) -> IntArray:
        """int64[P], parameters that stand on each stage."""
        found = self.own_parameters()
        if self.count > 1:
            found[[0, -1]] += self.shared_parameters()
        return found

    def memory(self, stage: int, in_flight: int, samples: int | None = None, *, versions: int = 1) -> DeviceMemory:
        """Of a device that takes ``samples`` of each micro-batch (None: all) on ``stage``.

        in_flight : activations held at one time, in (micro-batch, chunk) units;  versions : of the weights.  Chunks of
        unlike sizes count as the largest of them.
        """
        w, p = self.workload, int(self.held_parameters()[stage])
        y = self.micro_batch if samples is None else samples
        states = sharded_state_bytes(p, self.optimizer)
        kept = 0
        if y:
            widest = int(np.diff(self.bounds)[stage :: self.count].max())
            kept = stage_activation_bytes(
                w.model, y, w.sequence_length, layers=widest * self.chunks, in_flight=in_flight, chunks=self.chunks,
                scheme=self.recompute, dtype=w.dtype,
            )  # fmt: skip
            if stage == 0:
                kept += input_activation_bytes(w.model, y, w.sequence_length, in_flight=in_flight)
            if stage == self.count - 1:
                kept += head_activation_bytes(w.model, y, w.sequence_length)
        return DeviceMemory(states, kept, (versions - 1) * p * item_bytes(w.dtype))

    def optimizer_work(self) -> list[Work]:
        """Of each stage: the optimizer's share by parameters."""
        whole = layer_costs(self.workload, self.micro_batch, recompute=self.recompute).optimizer
        share = (self.held_parameters() / parameters(self.workload.model)).tolist()
        return [Work(whole.flops * x, whole.memory_bytes * x) for x in share]


def embedding_parameters(workload: Workload) -> tuple[int, int]:
    """Parameters before the first layer, and behind the last one without the table that it shares with the first."""
    model = workload.model
    table = model.vocab_size * model.embedding_size
    projection = model.embedding_size * model.hidden_size if model.projects_embedding else 0
    first = table + model.position_rows * model.hidden_size + projection
    return first, parameters(model) - model.layers * layer_parameters(model) - first


def stage_seconds(view: View, devices: IntArray, flops: FloatArray, memory_bytes: FloatArray) -> FloatArray:
    """Seconds of rows on devices, by their profiles: launch, and the longer of computing and memory; same shapes."""
    fleet = view.fleet
    rate = fleet.compute_flops(view.workload.dtype)[devices]
    out: FloatArray = fleet.launch_s[devices] + np.maximum(flops / rate, memory_bytes / fleet.memory_bandwidth[devices])
    return out


@dataclass(frozen=True, eq=False)
class LayerSizes:
    """Bytes of each of L layers as a planner adds them up, the model's ends on the first and the last; int64[L] each.

    states : weights, gradients and optimizer;  weights : in the workload's dtype
    kept : activations of each micro-batch in flight;  once : what the head keeps of one
    working : beside all layers of a stage, while it computes one again
    """

    states: IntArray
    weights: IntArray
    kept: IntArray
    once: IntArray
    working: int

    def needed(self, held: IntArray, versions: IntArray | None = None) -> IntArray:
        """int64[P, L], with ``held`` int[P] micro-batches in flight and so many versions of the weights (None: one)."""
        out: IntArray = self.states + held[:, None] * self.kept + self.once
        return out if versions is None else out + (versions[:, None] - 1) * self.weights


def layer_sizes(workload: Workload, samples: int, recompute: Recompute, optimizer: Optimizer) -> LayerSizes:
    """Of micro-batches of ``samples`` sequences, for a pipeline of several stages (a shared table stands on both ends).

    Exact sums of `Stages.memory`.
    """
    model, s = workload.model, workload.sequence_length
    first, last = embedding_parameters(workload)
    held = np.full(model.layers, layer_parameters(model))
    held[0] += first
    held[-1] += last + (model.vocab_size * model.embedding_size if model.tied else 0)

    def each(in_flight: int) -> int:
        return stage_activation_bytes(
            model, samples, s, layers=1, in_flight=in_flight, scheme=recompute, dtype=workload.dtype
        )

    one = each(2) - each(1)
    kept, once = np.full(model.layers, one), np.zeros(model.layers, np.int64)
    kept[0] += input_activation_bytes(model, samples, s)
    once[-1] += head_activation_bytes(model, samples, s)
    states = np.array([sharded_state_bytes(n, optimizer) for n in held.tolist()])
    return LayerSizes(states, held * item_bytes(workload.dtype), kept, once, each(1) - one)


def layer_seconds(view: View, devices: IntArray, samples: int, recompute: Recompute) -> tuple[FloatArray, FloatArray]:
    """Forward and backward seconds of each layer of ``samples`` sequences, float64[len(devices), L] each; no launches.

    The model's ends belong to the first and the last layer.
    """
    w = view.workload
    costs = layer_costs(w, samples, recompute=recompute)
    flops, traffic = costs.flops.copy(), costs.memory_bytes.copy()
    for table, x in ((flops, 0), (traffic, 1)):
        table[:, 0] += costs.first[:, x]
        table[:, -1] += costs.last[:, x]
    rate = view.fleet.compute_flops(w.dtype)[devices][:, None, None]
    seconds = np.maximum(flops / rate, traffic / view.fleet.memory_bandwidth[devices][:, None, None])
    return seconds[:, 0], seconds[:, 1] + seconds[:, 2]
