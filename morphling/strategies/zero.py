"""ZeRO: data parallel replicas that divide what they hold: optimizer states, gradients too, weights too.

Source: Rajbhandari et al. 2020 (ZeRO: Memory Optimizations Toward Training Trillion Parameter Models); the third stage
is also PyTorch's fully sharded data parallel (Zhao et al. 2023), which gathers one layer ahead.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import View
from morphling.planning.blocks import Block, block_rows, blocks_s
from morphling.planning.collective_times import all_gather_s
from morphling.planning.collectives import append
from morphling.planning.data_parallel import (
    Round,
    gradient_rows,
    gradients_s,
    layer_sizes,
    rounds_at_end,
    rounds_in_step,
)
from morphling.planning.joined import ring
from morphling.planning.lacking import too_little_memory, with_rate
from morphling.planning.layer_costs import LayerCosts, Work, layer_costs
from morphling.planning.planned import Placement, PlannedConfig, PlannedStrategy
from morphling.planning.replicas import optimizer_rows, replica_memory, shares_of
from morphling.planning.row_times import Speeds, links_of
from morphling.planning.training_memory import STATE_PARTS, DeviceMemory, Sharding, sharded_state_bytes
from morphling.types import FloatArray, IntArray, Kind, Phase, item_bytes
from morphling.workload import Workload, parameters
from morphling.workload.counts import Optimizer
from morphling.workload.models import layer_parameters

__all__ = ["Zero1", "Zero2", "Zero3", "ZeroConfig"]


@dataclass(frozen=True)
class ZeroConfig(PlannedConfig):
    """Configuration of ZeRO.

    shares : samples of a device: ``proportional`` to its compute rate, or ``even``
    micro_batch : sequences that a device computes at once; ``auto``: 1 of zero1; of zero2 and zero3, which send in
        every micro-batch, as many of the largest share as the memory of all holds
    optimizer : which states are held: ``adam-mixed`` (16 bytes a parameter), ``sgd``, …
    """

    shares: Literal["proportional", "even"] = "proportional"
    micro_batch: int | Literal["auto"] = "auto"
    optimizer: Optimizer = "adam-mixed"

    def __post_init__(self) -> None:
        """Refuse micro-batches of nothing."""
        super().__post_init__()
        if self.micro_batch != "auto" and self.micro_batch < 1:
            raise ValueError(f"micro_batch: at least 1 sequence, not {self.micro_batch}")


class _Zero(PlannedStrategy):
    """What the three stages share: who takes part, with what share."""

    Config: ClassVar[type] = ZeroConfig
    sharding: ClassVar[Sharding]
    sends_always: ClassVar[bool] = True
    """Whether every micro-batch sends, so that few large ones send less."""
    config: ZeroConfig

    def plan(self, view: View, here: IntArray) -> Placement:
        """Shares for the devices whose memory holds their part; fewer devices hold larger parts, so it is iterated."""
        work = view.workload
        rate = view.fleet.compute_flops(work.dtype)
        able = with_rate(view, here)
        used, samples = able, np.zeros(0, np.int64)
        while True:
            samples = shares_of(rate[used], work.batch_size, even=self.config.shares == "even")
            used, samples = used[samples > 0], samples[samples > 0]
            need = self.memory(work, len(used), self._least(work))
            fits = view.fleet.memory_bytes[used] >= need.total
            if fits.all():
                break
            if not fits.any():
                names, what = view.fleet.names(), f"one of {len(used)} parts of {work.model.name}"
                raise too_little_memory(what, need, view.fleet.memory_bytes[used], [names[d] for d in used])
            able = np.setdiff1d(able, used[~fits])
            used = able
        share = -(-parameters(work.model) // len(used))
        size = self._micro_batch(work, samples, int(view.fleet.memory_bytes[used].min()))
        need = self.memory(work, len(used), size)
        return Placement(
            devices=used,
            memory=(need,) * len(used),
            saved_bytes=np.full(len(used), share * sum(STATE_PARTS[self.config.optimizer])),
            restored_bytes=np.full(len(used), self.states(work, len(used))),
            facts={"replicas": len(used), "samples": samples.tolist(), "micro_batch": size},
            own=samples,
        )

    def states(self, work: Workload, ways: int) -> int:
        """Bytes of states that a device holds between iterations."""
        return sharded_state_bytes(parameters(work.model), self.config.optimizer, sharding=self.sharding, ways=ways)

    def memory(self, work: Workload, ways: int, micro_batch: int) -> DeviceMemory:
        """Of a device."""
        return DeviceMemory(self.states(work, ways), self._activations(work, micro_batch))

    def _activations(self, work: Workload, micro_batch: int) -> int:
        return replica_memory(work, self.config.optimizer, micro_batch).activations

    def _least(self, work: Workload) -> int:
        """The smallest micro-batch that may be chosen."""
        return 1 if self.config.micro_batch == "auto" else min(self.config.micro_batch, work.batch_size)

    def _micro_batch(self, work: Workload, samples: IntArray, memory_bytes: int) -> int:
        """As asked for; else halved from the largest share until the device with the least memory holds it."""
        if self.config.micro_batch != "auto" or not self.sends_always:
            return min(self._least(work), int(samples.max()))
        size = int(samples.max())
        while size > 1 and self.memory(work, len(samples), size).total > memory_bytes:
            size = -(-size // 2)
        return size

    def _costs(self, work: Workload, placement: Placement) -> LayerCosts:
        return layer_costs(work, placement.facts["micro_batch"])

    @abstractmethod
    def tasks(self, placement: Placement, view: View) -> TaskTable:
        """As `PlannedStrategy.tasks`."""

    def assumptions(self) -> list[str]:
        """What is taken for granted."""
        return [
            "weights and gradients go around a ring of all replicas in device order, in the workload's dtype",
            "sums are free",
            "states are divided evenly, however much memory and speed a device has",
            "each replica reads its part of the batch locally",
            *self.schedule(),
        ]

    def schedule(self) -> list[str]:
        """What is taken for granted of the order of things."""
        return ["a layer's gradients are reduced as soon as its backward pass is done"]


class Zero1(_Zero):
    """ZeRO stage 1: replicas that divide the optimizer states; gradients are reduced where their states are.

    Gradients are reduce-scattered in the last micro-batch, each device updates its part of the parameters, and the
    weights are gathered.
    """

    name: ClassVar[str] = "zero1"
    sharding: ClassVar[Sharding] = "zero-1"
    sends_always: ClassVar[bool] = False

    def rounds(self, samples: IntArray, micro_batch: int) -> list[Round]:
        """Passes over the replicas' shares."""
        return rounds_at_end(samples, micro_batch)

    def tasks(self, placement: Placement, view: View) -> TaskTable:
        """Micro-batches with the reduction of gradients; the optimizer on a part, which leaves with its weights."""
        work, samples, members = view.workload, placement.own, placement.devices
        costs, n = self._costs(work, placement), len(members)
        width = item_bytes(work.dtype)
        tokens = bool(view.fleet.links.latency_ns[members].any())
        table = gradient_rows(
            members,
            self.rounds(samples, costs.batch_size),
            costs,
            layer_sizes(work.model) * width,
            passes=1,
            dtype=work.dtype,
            tokens=tokens,
        )
        weights = ring(members, parameters(work.model) * width, passes=1, tokens=tokens)
        step = TaskTable.build(
            device=members,
            kind=Kind.OPTIMIZER,
            peer=np.where(weights.stream > 0, weights.successors, -1),
            flops=costs.optimizer.flops / n,
            memory_bytes=costs.optimizer.memory_bytes / n,
            bytes_out=weights.stream,
            dtype=work.dtype,
            resident_bytes=0,
        )
        return append(table, weights.behind(step, np.arange(n)), after=[len(table) - 1])

    def estimate(self, placement: Placement, view: View) -> float | None:
        """The slowest share, or what is sent behind the slowest gradients; a part of the optimizer; the weights."""
        return self.beside(placement, np.zeros(view.fleet.size), view)

    def beside(self, placement: Placement, busy_s: FloatArray, view: View) -> float:
        """The same; gradients leave when the uplink is free."""
        work, samples, members = view.workload, placement.own, placement.devices
        costs, n = self._costs(work, placement), len(members)
        width = item_bytes(work.dtype)
        links, speeds = links_of(view, members), Speeds.of(view, members)
        rounds = self.rounds(samples, costs.batch_size)
        sizes = layer_sizes(work.model) * width
        reduced = gradients_s(rounds, costs, sizes, links, speeds, passes=1, busy_s=busy_s[members])
        step = speeds.seconds(costs.optimizer.flops / n, costs.optimizer.memory_bytes / n)
        return reduced + float(step.max()) + all_gather_s(links, parameters(work.model) * width)


class Zero2(Zero1):
    """ZeRO stage 2: replicas that divide optimizer states and gradients.

    Nobody keeps all gradients, so they are reduce-scattered in every micro-batch; all replicas have as many.
    """

    name: ClassVar[str] = "zero2"
    sharding: ClassVar[Sharding] = "zero-2"
    sends_always: ClassVar[bool] = True

    def rounds(self, samples: IntArray, micro_batch: int) -> list[Round]:
        """Passes over the replicas' shares."""
        return rounds_in_step(samples, micro_batch)

    def schedule(self) -> list[str]:
        """What is taken for granted of the order of things."""
        return [*super().schedule(), "each replica's share is spread evenly over as many micro-batches as the largest"]


class Zero3(_Zero):
    """ZeRO stage 3 (fully sharded): replicas that divide weights, gradients and optimizer states.

    A layer's weights are gathered for its forward and again for its backward pass, one layer ahead of what is computed;
    its gradients are reduce-scattered in every micro-batch.
    """

    name: ClassVar[str] = "zero3"
    sharding: ClassVar[Sharding] = "zero-3"

    def memory(self, work: Workload, ways: int, micro_batch: int) -> DeviceMemory:
        """A part of all states, the weights of two layers and of what is outside the layers, and activations."""
        model = work.model
        outside = parameters(model) - model.layers * layer_parameters(model)
        gathered = sharded_state_bytes(
            parameters(model),
            self.config.optimizer,
            sharding=self.sharding,
            ways=ways,
            gathered_parameters=min(2, model.layers) * layer_parameters(model) + outside,
        )
        states = self.states(work, ways)
        return DeviceMemory(states, self._activations(work, micro_batch), gathered - states)

    def _blocks(self, work: Workload, placement: Placement) -> tuple[list[Block], FloatArray]:
        """Steps of all replicas, each with what is sent beside it, and the share of each replica in a step.

        Beside a layer's step the weights of the next are gathered, and the gradients of the one before are reduced.
        """
        costs = self._costs(work, placement)
        rounds = rounds_in_step(placement.own, costs.batch_size)
        layers, width = costs.layers, item_bytes(work.dtype)
        each = layer_parameters(work.model) * width
        outside = parameters(work.model) * width - layers * each
        steps: list[tuple[Work, int, int]] = []  # work, bytes to gather before it, bytes to reduce behind it
        for layer in range(layers):
            forward = costs.span(layer, layer + 1, Phase.FORWARD)
            steps.append((forward, each + (outside if layer == 0 else 0), 0))
        for layer in reversed(range(layers)):
            back = costs.span(layer, layer + 1, Phase.BACKWARD_INPUT)
            back += costs.span(layer, layer + 1, Phase.BACKWARD_WEIGHT)
            ends = outside if layer == layers - 1 else 0
            steps.append((back, each + ends, each + (outside if layer == 0 else 0)))
        steps *= len(rounds)
        blocks = [Block(0.0, 0.0, steps[0][1], 1)]
        for i, (step, _, _) in enumerate(steps):
            ahead = steps[i + 1][1] if i + 1 < len(steps) else 0
            behind = steps[i - 1][2] if i else 0
            blocks.append(Block(step.flops, step.memory_bytes, ahead + behind, 1, beside=True, products=step.products))
        blocks.append(Block(0.0, 0.0, steps[-1][2], 1))
        return blocks, rounds[0].samples / costs.batch_size

    def tasks(self, placement: Placement, view: View) -> TaskTable:
        """The steps, and the optimizer on each device's part."""
        work, members = view.workload, placement.devices
        blocks, share = self._blocks(work, placement)
        tokens = bool(view.fleet.links.latency_ns[members].any())
        table = block_rows(members, blocks, work.dtype, tokens=tokens, share=share)
        step, n = self._costs(work, placement).optimizer, len(members)
        rows = optimizer_rows(members, step.flops / n, step.memory_bytes / n, work.dtype)
        return append(table, rows, after=[len(table) - 1])

    def estimate(self, placement: Placement, view: View) -> float | None:
        """The longer of computing and sending in each step, and a part of the optimizer."""
        return self.beside(placement, np.zeros(view.fleet.size), view)

    def beside(self, placement: Placement, busy_s: FloatArray, view: View) -> float:
        """The same; the first weights are gathered when uplinks are free."""
        work, members = view.workload, placement.devices
        blocks, share = self._blocks(work, placement)
        speeds, n = Speeds.of(view, members), len(members)
        step = self._costs(work, placement).optimizer
        last = speeds.seconds(step.flops / n, step.memory_bytes / n).max()
        return blocks_s(blocks, links_of(view, members), speeds, share, busy_s=busy_s[members]) + float(last)

    def schedule(self) -> list[str]:
        """What is taken for granted of the order of things."""
        return [
            "weights of one layer are gathered ahead; a collective begins when the one before it is over",
            "parameters outside the layers travel with the first layer forward and with the last layer backward",
            "each replica's share is spread evenly over as many micro-batches as the largest",
        ]
