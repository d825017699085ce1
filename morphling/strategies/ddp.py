"""Data parallel: every device holds the whole model and trains on its share of the batch; gradients are all-reduced.

A layer's gradients go around the ring as soon as its backward pass is done, while the layers before it are still
computed (PyTorch's DistributedDataParallel, Li et al. 2020, with one bucket a layer).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from morphling.errors import Infeasible
from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import View
from morphling.planning.collective_times import MemberLinks, ring_all_reduce_s
from morphling.planning.collectives import append
from morphling.planning.joined import ring
from morphling.planning.layer_costs import layer_costs
from morphling.planning.moves import copied
from morphling.planning.planned import Placement, PlannedConfig, PlannedStrategy, Recovery
from morphling.planning.replicas import optimizer_rows, replica_memory, shares_of
from morphling.types import IntArray, Phase, item_bytes
from morphling.workload import parameters
from morphling.workload.counts import Optimizer
from morphling.workload.models import layer_parameters

__all__ = ["Ddp", "DdpConfig"]


@dataclass(frozen=True)
class DdpConfig(PlannedConfig):
    """Configuration of data parallelism.

    shares : samples of a device: ``proportional`` to its compute rate, or ``even``
    micro_batch : sequences that a device computes at once; gradients accumulate over its share
    optimizer : which states a device holds: ``adam-mixed`` (16 bytes a parameter), ``sgd``, …
    """

    shares: Literal["proportional", "even"] = "proportional"
    micro_batch: int = 1
    optimizer: Optimizer = "adam-mixed"
    detection_s: float | list[float] = 10.0
    setup_s: float = 10.0

    def __post_init__(self) -> None:
        """Refuse micro-batches of nothing."""
        super().__post_init__()
        if self.micro_batch < 1:
            raise ValueError(f"micro_batch: at least 1 sequence, not {self.micro_batch}")


class Ddp(PlannedStrategy):
    """Data parallel replicas with a ring all-reduce of gradients; see the module."""

    Config: ClassVar[type] = DdpConfig
    name: ClassVar[str] = "ddp"
    grows: ClassVar[bool] = True
    config: DdpConfig

    def plan(self, view: View, here: IntArray) -> Placement:
        """Shares of the batch for the devices whose memory holds the model; the others are left out."""
        work = view.workload
        rate = view.fleet.compute_flops(work.dtype)[here]
        samples = np.zeros(len(here), np.int64)
        need = replica_memory(work, self.config.optimizer, self.config.micro_batch)
        fits = ~np.isnan(rate) & (view.fleet.memory_bytes[here] >= need.total)
        if not fits.any():
            fits = ~np.isnan(rate)  # the error names what is missing
        if not fits.any():
            raise Infeasible(f"no device has a {work.dtype.label} rate")
        samples[fits] = shares_of(rate[fits], work.batch_size, even=self.config.shares == "even")
        used = here[samples > 0]
        states = np.full(len(used), need.states)
        return Placement(
            devices=used,
            memory=(need,) * len(used),
            saved_bytes=np.where(np.arange(len(used)) == 0, states, 0),
            restored_bytes=states,
            facts={"replicas": len(used), "samples": samples[samples > 0].tolist()},
            own=samples[samples > 0],
        )

    def tasks(self, placement: Placement, view: View) -> TaskTable:
        """Forward; backward layer by layer, each with its gradients' stream; tokens; optimizer."""
        work, samples, members = view.workload, placement.own, placement.devices
        costs = layer_costs(work, min(self.config.micro_batch, int(samples.max())))
        share = samples / costs.batch_size
        layers, n = costs.layers, len(members)
        width = item_bytes(work.dtype)
        forward = costs.span(0, layers, Phase.FORWARD)
        tables = [
            TaskTable.build(
                device=members,
                flops=share * forward.flops,
                memory_bytes=share * forward.memory_bytes,
                dtype=work.dtype,
                resident_bytes=0,
            )
        ]
        outside = parameters(work.model) - layers * layer_parameters(work.model)
        for layer in reversed(range(layers)):
            back = costs.span(layer, layer + 1, Phase.BACKWARD_INPUT) + costs.span(
                layer, layer + 1, Phase.BACKWARD_WEIGHT
            )
            weights = layer_parameters(work.model) + (outside if layer == 0 else 0)
            r = ring(members, weights * width, tokens=layer == 0)
            tables.append(
                TaskTable.build(
                    device=members,
                    peer=np.where(r.stream > 0, r.successors, -1),
                    flops=share * back.flops,
                    memory_bytes=share * back.memory_bytes,
                    bytes_out=r.stream,
                    dtype=work.dtype,
                    resident_bytes=0,
                )
            )
        streams = np.arange(n, (1 + layers) * n)
        table = r.behind(TaskTable.concat(tables), streams)
        last = np.arange(len(table) - 1, len(table)) if len(table) > (1 + layers) * n else streams
        optimizer = costs.optimizer
        return append(table, optimizer_rows(members, optimizer.flops, optimizer.memory_bytes, work.dtype), after=last)

    def estimate(self, placement: Placement, view: View) -> float | None:
        """The slowest share, or, if it is longer, the all-reduce behind the forward pass and the last layer."""
        work, samples = view.workload, placement.own
        costs = layer_costs(work, min(self.config.micro_batch, int(samples.max())))
        rate = view.fleet.compute_flops(work.dtype)[placement.devices]
        seconds = samples / costs.batch_size / rate
        links = MemberLinks.of(
            view.uplink_bps[placement.devices],
            view.downlink_bps[placement.devices],
            view.fleet.links.latency_ns[placement.devices] / 1e9,
        )
        reduce = ring_all_reduce_s(links, parameters(work.model) * item_bytes(work.dtype))
        first = costs.span(0, costs.layers, Phase.FORWARD)
        last = costs.span(costs.layers - 1, costs.layers, Phase.BACKWARD_INPUT) + costs.span(
            costs.layers - 1, costs.layers, Phase.BACKWARD_WEIGHT
        )
        begins = float((seconds * (first.flops + last.flops)).max())
        computed = float((seconds * costs.total_flops).max())
        return max(computed, begins + reduce)

    def recover(self, view: View, old: Placement, new: Placement, gone: IntArray) -> Recovery:
        """Any survivor has all states: only newcomers fetch them, from the survivors in turn."""
        have = old.devices[~np.isin(old.devices, gone)]
        lack = new.devices[~np.isin(new.devices, have)]
        if not len(have):
            return super().recover(view, old, new, gone)
        size = new.memory[0].states
        return Recovery(copied(have[np.arange(len(lack)) % len(have)], lack, size), from_checkpoint=False)

    def shares(self) -> tuple[IntArray, IntArray] | None:
        """The devices of the placement in use, and their samples."""
        if self.placement is None:
            return None
        return self.placement.devices.astype(np.int64), np.asarray(self.placement.own, np.int64)

    def assumptions(self) -> list[str]:
        """What is taken for granted."""
        return [
            "gradients go around a ring of all replicas in device order, in the workload's dtype; sums are free",
            "each replica reads its part of the batch locally",
        ]
