"""A pipeline whose stages are g x t devices each, g replicas of t-way tensor parallelism, as rows and as seconds.

In a pass of a micro-batch every replica computes its sequences, and the all-reduces of its layers follow as one stream,
because they are not overlapped and only their sum matters.  What crosses to the next stage is sent once, in equal parts
by the t devices of each replica, and gathered inside the replica that needs it.  Which devices are where is decided
elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import View
from morphling.planning.blocks import Block, block_rows, blocks_s
from morphling.planning.collective_times import boundary_bytes, reduce_scatter_s
from morphling.planning.collectives import After, join
from morphling.planning.layer_costs import layer_costs
from morphling.planning.layer_products import NO_PRODUCTS
from morphling.planning.pipeline_times import simulate
from morphling.planning.row_times import Speeds, links_of
from morphling.planning.schedules import Schedule, one_f_one_b
from morphling.planning.tensor_parallel import backward_blocks, forward_blocks, shard_parameters
from morphling.planning.training_memory import Sharding
from morphling.types import FloatArray, IntArray, Kind, Phase, item_bytes
from morphling.workload import Workload, parameters
from morphling.workload.build import Recompute

__all__ = ["StagedPipeline", "StagedStage"]

F, B = int(Phase.FORWARD), int(Phase.BACKWARD_INPUT)


@dataclass(frozen=True, eq=False)
class StagedStage:
    """devices : int64[g, t], replicas and their members in the order of their rings;  layers : of the model
    sharding : what the replicas divide: nothing (``none``), optimizer states (zero-1), or weights too (zero-3).
    """

    devices: IntArray
    layers: range
    sharding: Sharding


@dataclass(frozen=True, eq=False)
class _Send:
    """Rows of a boundary: senders, receivers, bytes, and the replica of each at its own end."""

    sender: IntArray
    receiver: IntArray
    size: IntArray
    source: IntArray
    target: IntArray


@dataclass(eq=False)
class _State:
    """The table so far: parts, rows, what each device waits for next, what has arrived for (phase, stage, batch)."""

    parts: list[tuple[TaskTable, After | None]]
    rows: int
    ends: dict[int, IntArray]
    arrived: dict[tuple[int, int, int], list[IntArray]]


class StagedPipeline:
    """Rows and closed form of one iteration with 1F1B over the stages.

    batch : sequences of a micro-batch, a multiple of each stage's replicas
    tokens : whether the latency of the steps of collectives is charged
    """

    def __init__(
        self,
        workload: Workload,
        stages: Sequence[StagedStage],
        micro_batches: int,
        *,
        recompute: Recompute,
        tokens: bool,
    ) -> None:
        self.workload, self.stages, self.count = workload, list(stages), micro_batches
        self.recompute, self.tokens = recompute, tokens
        self.batch = workload.batch_size // micro_batches
        self.width = item_bytes(workload.dtype)
        self.blocks = {(x, p): self._blocks(x, p) for x in (F, B) for p in range(len(self.stages))}
        self.sends = {(x, p): self._send(x, p) for x in (F, B) for p in range(len(self.stages))}

    # ------------------------------------------------------------------------------------------------------------ rows

    def tasks(self) -> TaskTable:
        """All passes in the order of 1F1B, the synchronisation of each stage's replicas, and the optimizer."""
        schedule = self._schedule()
        one = np.ones((len(self.stages), 1), np.int64)
        start = simulate(schedule, one, 2 * one).start
        stage = schedule.stage
        state = _State([], 0, {}, {})
        made = {key: self._pass(*key) for key in self.blocks}
        for i in np.lexsort((stage, start)).tolist():
            self._add(state, made, int(schedule.phase[i]), int(stage[i]), int(schedule.micro_batch[i]))
        for p in range(len(self.stages)):
            self._synchronise(state, p)
        return join(state.parts)

    def _schedule(self) -> Schedule:
        return one_f_one_b(len(self.stages), self.count)

    def _add(self, state: _State, made: dict[tuple[int, int], list[TaskTable]], phase: int, p: int, batch: int) -> None:
        """One pass: gather weights, compute each replica, send on."""
        stage, send = self.stages[p], self.sends[phase, p]
        tables = made[phase, p]
        arrived = state.arrived.pop((phase, p, batch), None)
        if stage.sharding == "zero-3":
            self._exchange(state, p)
        for r, members in enumerate(stage.devices):
            waits = [] if arrived is None else [arrived[r]]
            after = {d: np.concatenate([state.ends.get(d, _none()), *waits]) for d in members.tolist()}
            self._append(state, tables[r], after, members)
        if stage.sharding == "zero-3" and phase == B:
            self._exchange(state, p)
        if not len(send.sender):
            return
        table = TaskTable.build(
            device=send.sender,
            kind=Kind.TRANSFER,
            peer=send.receiver,
            bytes_out=send.size,
            memory_bytes=0.0,
            resident_bytes=0,
        )
        state.parts.append((table, {d: state.ends[d] for d in send.sender.tolist()}))
        to = p + 1 if phase == F else p - 1
        replicas = len(self.stages[to].devices)
        rows = np.arange(state.rows, state.rows + len(table))
        state.arrived[phase, to, batch] = [rows[send.target == r] for r in range(replicas)]
        state.rows += len(table)

    def _append(self, state: _State, table: TaskTable, after: dict[int, IntArray], members: IntArray) -> None:
        state.parts.append((table, after))
        state.rows += len(table)
        state.ends |= dict.fromkeys(members.tolist(), np.array([state.rows - 1]))

    def _exchange(self, state: _State, p: int) -> None:
        """Weights of a stage are gathered from its replicas, or their gradients reduced: the same sends."""
        block = Block(0.0, 0.0, self._weights(p), 1)
        for members in self.stages[p].devices.T:
            table = block_rows(members, [block], self.workload.dtype, tokens=self.tokens)
            self._append(state, table, {d: state.ends.get(d, _none()) for d in members.tolist()}, members)

    def _synchronise(self, state: _State, p: int) -> None:
        """Gradients are reduce-scattered to where their states are, and the weights that change are gathered."""
        for members in self.stages[p].devices.T:
            table = block_rows(members, self._update(p), self.workload.dtype, tokens=self.tokens)
            self._append(state, table, {d: state.ends[d] for d in members.tolist()}, members)

    def _pass(self, phase: int, p: int) -> list[TaskTable]:
        """The rows of each replica of a stage in one pass."""
        blocks = self.blocks[phase, p]
        return [
            block_rows(members, blocks, self.workload.dtype, tokens=self.tokens) for members in self.stages[p].devices
        ]

    # ---------------------------------------------------------------------------------------------------------- blocks

    def _blocks(self, phase: int, p: int) -> list[Block]:
        """What a member does in a pass: gather the input, compute, and all collectives of its layers as one."""
        stage, w = self.stages[p], self.workload
        replicas, ways = stage.devices.shape
        costs = layer_costs(w, self.batch // replicas, recompute=self.recompute)
        if phase == F:
            listed = forward_blocks(costs, w, stage.layers, ways)
        else:
            listed = backward_blocks(costs, w, stage.layers, ways, recompute=self.recompute)
        activation = self._activation() // replicas
        passes = sum(b.passes for b in listed if b.size == activation)
        work = Block(
            sum(b.flops for b in listed),
            sum(b.memory_bytes for b in listed),
            activation if ways > 1 and passes else 0,
            passes or 2,
            products=sum((b.products for b in listed), NO_PRODUCTS),
        )
        rest = [Block(0.0, 0.0, b.size, b.passes) for b in listed if b.size not in {0, activation}]
        fed = p > 0 if phase == F else p < len(self.stages) - 1
        return [
            *([Block(0.0, 0.0, activation, 1)] if fed and ways > 1 else []),
            work,
            *(rest if ways > 1 else []),
        ]

    def _update(self, p: int) -> list[Block]:
        """The synchronisation of replicas and the optimizer on the part of a member."""
        stage, w = self.stages[p], self.workload
        replicas = len(stage.devices)
        costs = layer_costs(w, self.batch // replicas, recompute=self.recompute).optimizer
        part = self._weights(p) / self.width / parameters(w.model) / replicas
        size = self._weights(p) if stage.sharding == "zero-1" else 0
        reduce = [Block(0.0, 0.0, size, 1)] if size else []
        return [*reduce, Block(costs.flops * part, costs.memory_bytes * part, size, 1, kind=Kind.OPTIMIZER)]

    def _weights(self, p: int) -> int:
        """Bytes of a member's weights, whole."""
        stage, last = self.stages[p], len(self.stages) - 1
        ways = stage.devices.shape[1]
        count = shard_parameters(self.workload.model, len(stage.layers), ways, first=p == 0, last=p == last)
        return count * self.width

    def _activation(self) -> int:
        w = self.workload
        return boundary_bytes(self.batch, w.sequence_length, w.model.hidden_size, item_bytes=self.width)

    def _send(self, phase: int, p: int) -> _Send:
        """Who sends what to the next stage (forward) or to the one before it (backward)."""
        to = p + 1 if phase == F else p - 1
        if not 0 <= to < len(self.stages):
            return _Send(*(_none() for _ in range(5)))
        here, there = self.stages[p].devices, self.stages[to].devices
        (g, t), (h, u) = here.shape, there.shape
        per_sequence = self._activation() // self.batch
        sender, receiver, size, source, target = [], [], [], [], []
        for r in range(g):
            for q in range(r * h // g, -(-(r + 1) * h // g)):
                low = max(r * self.batch // g, q * self.batch // h)
                high = min((r + 1) * self.batch // g, (q + 1) * self.batch // h)
                whole = (high - low) * per_sequence
                cuts = [whole * i // t for i in range(t + 1)]
                sender += here[r].tolist()
                receiver += [int(there[q, i * u // t]) for i in range(t)]
                size += [b - a for a, b in pairwise(cuts)]
                source += [r] * t
                target += [q] * t
        keep = np.array(size, np.int64) > 0
        columns = (np.array(x, np.int64)[keep] for x in (sender, receiver, size, source, target))
        return _Send(*columns)

    # --------------------------------------------------------------------------------------------------------- seconds

    def estimate(self, view: View, busy_s: FloatArray | None = None) -> float:
        """Seconds of 1F1B over stages and boundaries by the replay of the schedule; synchronisation behind it.

        busy_s : float64[D], until when uplinks are taken; None: they are free
        """
        P = len(self.stages)
        passes = np.array([[self._pass_s(view, x, p) for p in range(P)] for x in (F, B)])
        hops = np.array([[self._hop_s(view, x, p) for p in range(P)] for x in (F, B)])
        taken = np.zeros(view.fleet.size) if busy_s is None else busy_s
        busy = np.array([taken[s.devices].max() for s in self.stages])
        lead = np.array([self._lead_s(view, p) for p in range(P)])
        timing = simulate(
            self._schedule(),
            passes[0],
            passes[1],
            transfer=hops[0, : P - 1, 0] if P > 1 else 0,
            transfer_back=hops[1, 1:, 0] if P > 1 else 0,
            latency=hops[0, : P - 1, 1] if P > 1 else 0,
            free=np.maximum(0.0, busy - lead),
            uplink_free=busy,
        )
        ends = [timing.end[timing_of].max() for timing_of in (self._schedule().stage == p for p in range(P))]
        return max(float(end) + self._update_s(view, p, taken - end) for p, end in enumerate(ends))

    def _lead_s(self, view: View, p: int) -> float:
        """How long a stage computes in its first pass before a collective of its own; endless if it has none."""
        stage = self.stages[p]
        if stage.sharding == "zero-3" and len(stage.devices) > 1:
            return 0.0
        speeds, lead = Speeds.of(view, stage.devices.ravel()), 0.0
        for block in self.blocks[F, p]:
            lead += float(speeds.seconds(block.flops, block.memory_bytes).max())
            if block.size and stage.devices.shape[1] > 1:
                return lead
        return np.inf

    def _pass_s(self, view: View, phase: int, p: int) -> float:
        stage = self.stages[p]
        slowest = max(
            blocks_s(self.blocks[phase, p], links_of(view, members), Speeds.of(view, members))
            for members in stage.devices
        )
        if stage.sharding != "zero-3":
            return slowest
        gather = max(reduce_scatter_s(links_of(view, m), self._weights(p)) for m in stage.devices.T)
        return slowest + gather * (1 if phase == F else 2)

    def _hop_s(self, view: View, phase: int, p: int) -> tuple[float, float]:
        """Seconds that a boundary occupies its slowest link, and its latency."""
        send = self.sends[phase, p]
        if not len(send.sender):
            return 0.0, 0.0
        up = np.bincount(
            send.sender, send.size * 8.0 / np.minimum(view.uplink_bps[send.sender], view.downlink_bps[send.receiver])
        )
        late = view.fleet.links.latency_ns / 1e9
        return float(up.max()), float((late[send.sender] + late[send.receiver]).max())

    def _update_s(self, view: View, p: int, busy_s: FloatArray) -> float:
        return max(
            blocks_s(self._update(p), links_of(view, members), Speeds.of(view, members), busy_s=busy_s[members])
            for members in self.stages[p].devices.T
        )


def _none() -> IntArray:
    return np.zeros(0, np.int64)
