"""Data parallel: every device holds the whole model and trains on its share of the batch; gradients are all-reduced.

A layer's gradients go around the ring as soon as its backward pass is done in the last micro-batch, while the layers
before it are still computed (PyTorch's DistributedDataParallel, Li et al. 2020, with one bucket a layer).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import View
from morphling.planning.collectives import append
from morphling.planning.data_parallel import gradient_rows, gradients_s, layer_sizes, rounds_at_end
from morphling.planning.lacking import too_little_memory, with_rate
from morphling.planning.layer_costs import LayerCosts, layer_costs
from morphling.planning.moves import copied
from morphling.planning.planned import Placement, PlannedConfig, PlannedStrategy, Recovery
from morphling.planning.replicas import optimizer_rows, replica_memory, shares_of
from morphling.planning.row_times import Speeds, links_of
from morphling.types import FloatArray, IntArray, item_bytes
from morphling.workload import Workload
from morphling.workload.counts import Optimizer

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
        """Shares of the batch for the devices whose memory holds the model; the others are left out.

        After a departure those who have the states go on at once; newcomers are taken in between iterations.
        """
        work = view.workload
        if self.placement is not None and any(x.ready_ns is None for x in self.interruptions):
            have = here[np.isin(here, self.placement.devices) & ~np.isin(here, list(self.stateless))]
            here = have if len(have) else here
        able = with_rate(view, here)
        need = replica_memory(work, self.config.optimizer, min(self.config.micro_batch, work.batch_size))
        memory = view.fleet.memory_bytes[able]
        fits = able[memory >= need.total]
        if not len(fits):
            names, what = view.fleet.names(), f"the training of {work.model.name}"
            raise too_little_memory(what, need, memory, [names[d] for d in able], also="zero3 divides the states")
        rate = view.fleet.compute_flops(work.dtype)[fits]
        samples = shares_of(rate, work.batch_size, even=self.config.shares == "even")
        used = fits[samples > 0]
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
        """All micro-batches but the last; then forward, backward layer by layer with gradients; the optimizer."""
        work, samples, members = view.workload, placement.own, placement.devices
        costs, sizes = self._costs(work, samples)
        table = gradient_rows(
            members,
            rounds_at_end(samples, costs.batch_size),
            costs,
            sizes,
            passes=2,
            dtype=work.dtype,
            tokens=bool(view.fleet.links.latency_ns[members].any()),
        )
        step = optimizer_rows(members, costs.optimizer.flops, costs.optimizer.memory_bytes, work.dtype)
        return append(table, step, after=[len(table) - 1])

    def estimate(self, placement: Placement, view: View) -> float | None:
        """The slowest share, or, if it is longer, what is sent behind the slowest gradients; and the optimizer."""
        return self.beside(placement, np.zeros(view.fleet.size), view)

    def beside(self, placement: Placement, busy_s: FloatArray, view: View) -> float:
        """The same; gradients leave when the uplink is free."""
        work, samples, members = view.workload, placement.own, placement.devices
        costs, sizes = self._costs(work, samples)
        speeds, links = Speeds.of(view, members), links_of(view, members)
        rounds = rounds_at_end(samples, costs.batch_size)
        reduced = gradients_s(rounds, costs, sizes, links, speeds, passes=2, busy_s=busy_s[members])
        return reduced + float(speeds.seconds(costs.optimizer.flops, costs.optimizer.memory_bytes).max())

    def _costs(self, work: Workload, samples: IntArray) -> tuple[LayerCosts, IntArray]:
        """Costs of a micro-batch, and bytes of each layer's gradients."""
        costs = layer_costs(work, min(self.config.micro_batch, int(samples.max())))
        return costs, layer_sizes(work.model) * item_bytes(work.dtype)

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
