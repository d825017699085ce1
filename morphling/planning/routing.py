"""Stochastic wiring: which peer of a stage gets the next micro-batch, and what that costs it.

When something is sent is the strategy's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from morphling.interfaces.products import Products
from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import View
from morphling.planning.lines import summing_s
from morphling.planning.stages import BACKWARD, FORWARD, Stages, stage_seconds
from morphling.types import FloatArray, item_bytes

__all__ = ["Pass", "Passes", "Pool", "routed_s"]

BACKWARD_SIZE = 2.5
"""Size of a backward pass for routing, of a forward pass 1 (yandex-research/swarm)."""
TOKEN_BYTES = LOSS_BYTES = 4


@dataclass
class Pool:
    """The peers of one stage.

    Each has a priority, the time by which it would be done with all that it was given; the peer with the lowest gets
    the next task, and its priority grows by the task's size over its throughput.  The throughput is a running estimate
    of size over elapsed time, queueing included.  A new peer enters at the front.
    Source: yandex-research/swarm, the routing of Ryabinin et al. 2023 (SWARM, arXiv 2301.11913).

    smoothing : weight of a new observation;  start : throughput of a peer that was never observed, size/s
    """

    smoothing: float
    start: float
    priority: dict[int, float] = field(default_factory=dict)
    throughput: dict[int, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.priority)

    def add(self, peer: int) -> None:
        """A peer comes, to the front of the queue."""
        self.priority[peer] = min(self.priority.values(), default=0.0)
        self.throughput.setdefault(peer, self.start)

    def ban(self, peer: int) -> None:
        """A peer is gone, and what was observed of it with it."""
        self.priority.pop(peer, None)
        self.throughput.pop(peer, None)

    def choose(self, size: float) -> int:
        """The peer for a task of ``size``; of equals, the one that entered first."""
        peer = min(self.priority, key=self.priority.__getitem__)
        self.priority[peer] += size / self.throughput[peer]
        return peer

    def observe(self, peer: int, size: float, elapsed_s: float) -> None:
        """A task of ``size`` came back after ``elapsed_s``."""
        if peer in self.throughput and elapsed_s > 0:
            old = self.throughput[peer]
            self.throughput[peer] = (1.0 - self.smoothing) * old + self.smoothing * size / elapsed_s


@dataclass(frozen=True)
class Pass:
    """A micro-batch on a stage; ``backward`` or not."""

    micro_batch: int
    stage: int
    backward: bool

    @property
    def label(self) -> str:
        """For the recording."""
        return f"{'backward' if self.backward else 'forward'} {self.micro_batch + 1} stage {self.stage}"

    @property
    def size(self) -> float:
        """For routing."""
        return BACKWARD_SIZE if self.backward else 1.0


@dataclass(frozen=True, eq=False)
class Passes:
    """What passes cost.

    work : FLOPs and bytes between memory and cores of each stage, forward and backward, float64[2, 2, P]
    boundary : bytes of a micro-batch's activations, as they are sent
    lists : of the products behind the FLOPs, forward and backward, of each stage: one list or none
    """

    stages: Stages
    work: FloatArray
    boundary: int
    lists: Sequence[Sequence[tuple[Products, ...]]]

    @classmethod
    def of(cls, stages: Stages, *, compressed: bool) -> Passes:
        """``compressed`` : a byte for each element of activations and gradients."""
        work = np.array([stages.forward(), stages.backward()])[:, :, :, 0]
        width = item_bytes(stages.workload.dtype) if compressed else 1
        parts = ([work.part(1.0) for (work,) in stages.products(*phases)] for phases in (FORWARD, BACKWARD))
        lists = [[(x,) if x is not None else () for x in of_phase] for of_phase in parts]
        return cls(stages, work, stages.boundary // width, lists)

    def row(self, x: Pass, peer: int, held: int = 0) -> TaskTable:
        """Input from the trainer, the pass, output to the trainer; ``held`` bytes of memory.

        Forward: tokens or activations, and activations or the loss (4 bytes each).  Backward: the input again and, but
        for the last stage, the gradient of the output; the gradient of the input comes back, but for the first stage.
        """
        s, P = self.stages, self.stages.count
        given = TOKEN_BYTES * s.micro_batch * s.workload.sequence_length if x.stage == 0 else self.boundary
        made = self.boundary if x.stage < P - 1 else LOSS_BYTES * s.micro_batch
        if x.backward:
            given += self.boundary if x.stage < P - 1 else 0
            made = self.boundary if x.stage else 0
        flops, traffic = self.work[int(x.backward), :, x.stage].tolist()
        listed = self.lists[int(x.backward)][x.stage]
        return TaskTable.build(
            device=peer, flops=flops, memory_bytes=traffic, bytes_in=given, bytes_out=made, dtype=s.workload.dtype,
            resident_bytes=held, products=len(listed) - 1, product_lists=listed,
        )  # fmt: skip


def routed_s(
    passes: Passes,
    pools: Sequence[Pool],
    micro_batches: int,
    window: int,
    view: View,
    *,
    busy_s: FloatArray | None = None,
) -> float:
    """Seconds of an iteration in closed form.

    busy_s : float64[D], until when uplinks are taken; None: they are free

    One micro-batch goes there and back; the others follow at the pace of the slowest pool, whose peers work side by
    side, or as fast as ``window`` of them under way allow; then each pool sums its gradients.

    Passes of a peer whose uplink is taken wait there.  Routing goes on sending it its share, so that in the end all of
    ``window`` are there; what had been done by then (window·k of the 2M passes of a pool of k) need not be done after.
    """
    paces, path = [], 0.0
    of_stage = [np.array(sorted(pool.priority), np.int64) for pool in pools]
    for stage, peers in enumerate(of_stage):
        late = view.fleet.links.latency_ns[peers] / 1e9
        steps = np.zeros((3, len(peers)))
        for backward in (False, True):
            t = passes.row(Pass(0, stage, backward), 0)
            steps[0] += 8.0 * t.bytes_in[0] / view.downlink_bps[peers]
            steps[1] += stage_seconds(view, peers, t.flops.repeat(len(peers)), t.memory_bytes.repeat(len(peers)))
            steps[2] += 8.0 * t.bytes_out[0] / view.uplink_bps[peers]
        paces.append(1.0 / float((1.0 / steps.max(axis=0)).sum()))
        path += float((steps.sum(axis=0) + 4 * late).mean())
    done = path + (micro_batches - 1) * max(*paces, path / window)
    if busy_s is not None:
        stuck = [(float(busy_s[of].max()), window * len(of) / (2 * micro_batches)) for of in of_stage]
        done = max([done, *(until + max(path, (1.0 - before) * done) for until, before in stuck if until)])
    return summing_s([np.full(len(of), done) for of in of_stage], of_stage, passes.stages, view)
