"""Megatron-LM's tensor parallelism, with data-parallel replicas of the groups where there are more devices.

Every layer is cut over the t devices of a group; activations are all-reduced twice a layer in each direction and not
overlapped (Shoeybi et al. 2019; Korthikanti et al. 2022).  The replicas all-reduce their gradients at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from morphling.errors import Infeasible
from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import View
from morphling.planning.blocks import Block, block_rows, blocks_s, repeated
from morphling.planning.collective_times import ring_behind_s
from morphling.planning.collectives import After, join
from morphling.planning.joined import ring
from morphling.planning.lacking import too_little_memory, with_rate
from morphling.planning.layer_costs import layer_costs
from morphling.planning.planned import Placement, PlannedConfig, PlannedStrategy
from morphling.planning.replicas import optimizer_rows, shares_of
from morphling.planning.row_times import Speeds, links_of
from morphling.planning.tensor_parallel import (
    allowed_ways,
    backward_blocks,
    check_ways,
    forward_blocks,
    shard_memory,
    shard_parameters,
)
from morphling.planning.training_memory import DeviceMemory
from morphling.types import FloatArray, IntArray, item_bytes
from morphling.workload import Workload, parameters
from morphling.workload.build import Recompute
from morphling.workload.counts import Optimizer

__all__ = ["MegatronTp", "MegatronTpConfig"]


@dataclass(frozen=True)
class MegatronTpConfig(PlannedConfig):
    """Configuration of tensor parallelism.

    tensor_parallel : devices of a group; ``auto``: the number from 2 on with the shortest iteration in closed form, of
        those into which heads, KV heads and FFN columns can be cut and that memory allows; ``most``: the largest
    data_parallel : groups, each of which trains on a part of the batch, in proportion to its slowest member; ``auto``:
        as many as there are devices and sequences for
    sequence_parallel : cut norms and dropout along the sequence too: the same traffic, less memory
    micro_batch : sequences that a group computes at once; ``auto``: as many of its part as memory holds
    recompute : activations that are computed twice; ``workload``: what the workload says
    optimizer : which states a device holds: ``adam-mixed`` (16 bytes a parameter), ``sgd``, …
    """

    tensor_parallel: int | Literal["auto", "most"] = "auto"
    data_parallel: int | Literal["auto"] = "auto"
    sequence_parallel: bool = False
    micro_batch: int | Literal["auto"] = "auto"
    recompute: Literal["workload", "none", "selective", "full"] = "workload"
    optimizer: Optimizer = "adam-mixed"

    def __post_init__(self) -> None:
        """Refuse counts of nothing."""
        super().__post_init__()
        for name in ("tensor_parallel", "data_parallel", "micro_batch"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise ValueError(f"{name}: a whole number from 1 on, or auto, not {value}")


@dataclass(frozen=True, eq=False)
class _Plan:
    """groups : int64[g, t], members in the order of their ring;  samples : int64[g];  micro_batch : sequences."""

    groups: IntArray
    samples: IntArray
    micro_batch: int


class MegatronTp(PlannedStrategy):
    """Megatron-LM tensor parallelism: each layer cut over a group of devices; replicas of groups; see the module."""

    Config: ClassVar[type] = MegatronTpConfig
    name: ClassVar[str] = "megatron-tp"
    config: MegatronTpConfig

    # -------------------------------------------------------------------------------------------------------- planning

    def plan(self, view: View, here: IntArray) -> Placement:
        """Groups of devices with links as equal as possible: the best linked t, then the next t, …"""
        able = with_rate(view, here)
        placed: list[Placement] = []
        why: Infeasible | None = None
        for ways, usable in self._ways(view, able):
            try:
                placed.append(self._placed(view, ways, usable))
            except Infeasible as reason:
                why = why or reason
        if why is not None and not placed:
            raise why
        times = [self.estimate(p, view) for p in placed] if len(placed) > 1 else [0.0]
        return placed[int(np.argmin(times))]

    def _placed(self, view: View, ways: int, usable: IntArray) -> Placement:
        work = view.workload
        link = np.minimum(view.uplink_bps[usable], view.downlink_bps[usable])
        ranked = usable[np.argsort(-link, kind="stable")]
        count = self._replicas(work, len(ranked), ways)
        groups = ranked[: count * ways].reshape(count, ways)
        slowest = view.fleet.compute_flops(work.dtype)[groups].min(axis=1)
        samples = shares_of(slowest, work.batch_size)
        if self.config.data_parallel != "auto" and not samples.all():
            samples = 1 + shares_of(slowest, work.batch_size - count)  # as many groups as asked for, however slow
        groups, samples = groups[samples > 0], samples[samples > 0]
        micro_batch = self._micro_batch(view, groups, samples, ways)
        need = self._need(work, micro_batch, ways)
        devices = groups.ravel()
        states = np.full(len(devices), need.states)
        return Placement(
            devices=devices,
            memory=(need,) * len(devices),
            saved_bytes=np.where(np.arange(len(devices)) < ways, states, 0),
            restored_bytes=states,
            facts={
                "tensor_parallel": ways,
                "data_parallel": len(groups),
                "samples": samples.tolist(),
                "micro_batch": micro_batch,
            },
            own=_Plan(groups, samples, micro_batch),
        )

    def _recompute(self, work: Workload) -> Recompute:
        return work.recompute if self.config.recompute == "workload" else self.config.recompute

    def _need(self, work: Workload, micro_batch: int, ways: int) -> DeviceMemory:
        return shard_memory(
            work,
            self.config.optimizer,
            micro_batch,
            ways,
            sequence_parallel=self.config.sequence_parallel,
            recompute=self._recompute(work),
        )

    def _least_micro_batch(self, work: Workload) -> int:
        return 1 if self.config.micro_batch == "auto" else min(self.config.micro_batch, work.batch_size)

    def _ways(self, view: View, able: IntArray) -> list[tuple[int, IntArray]]:
        """Into how many parts, the largest first, and the devices whose memory holds one."""
        work, sp, asked = view.workload, self.config.sequence_parallel, self.config.tensor_parallel
        model, s = work.model, work.sequence_length
        if isinstance(asked, str):
            tried = allowed_ways(model, s, len(able), sequence_parallel=sp)[::-1]
        else:
            check_ways(model, s, asked, sequence_parallel=sp)
            tried = [asked]
            if asked > len(able):
                raise Infeasible(f"tensor_parallel: {asked} devices are needed for a group, {len(able)} are here")
        memory = view.fleet.memory_bytes[able]
        found: list[tuple[int, IntArray]] = []
        for ways in tried:
            usable = able[memory >= self._need(work, self._least_micro_batch(work), ways).total]
            if len(usable) >= ways and (ways > 1 or not found):  # one part is no tensor parallelism
                found.append((ways, usable))
        if found:
            return found[:1] if asked == "most" else found
        need = self._need(work, self._least_micro_batch(work), tried[0])
        names, what = view.fleet.names(), f"one of {tried[0]} parts of {model.name}"
        raise too_little_memory(what, need, memory, [names[d] for d in able], wanted=tried[0])

    def _replicas(self, work: Workload, devices: int, ways: int) -> int:
        most = min(devices // ways, work.batch_size)
        asked = self.config.data_parallel
        if asked == "auto":
            return most
        if asked > most:
            raise Infeasible(
                f"data_parallel: {asked} groups of {ways} devices need {asked * ways} devices with enough memory and a"
                f" sequence each; there are {devices} devices and {work.batch_size} sequences, enough for {most}"
            )
        return asked

    def _micro_batch(self, view: View, groups: IntArray, samples: IntArray, ways: int) -> int:
        """Halved from the largest part of the batch until all members hold it."""
        if self.config.micro_batch != "auto":
            return min(self.config.micro_batch, int(samples.max()))
        size, least = int(samples.max()), int(view.fleet.memory_bytes[groups].min())
        while size > 1 and self._need(view.workload, size, ways).total > least:
            size = -(-size // 2)
        return size

    # ------------------------------------------------------------------------------------------------------------ rows

    def _blocks(self, work: Workload, micro_batch: int, ways: int) -> list[Block]:
        """One micro-batch, forward and backward."""
        kept = self._recompute(work)
        costs = layer_costs(work, micro_batch, recompute=kept)
        layers = range(costs.layers)
        there = forward_blocks(costs, work, layers, ways)
        return [*there, *backward_blocks(costs, work, layers, ways, recompute=kept)]

    def tasks(self, placement: Placement, view: View) -> TaskTable:
        """Each group its micro-batches, block by block; then gradients between groups, and the optimizer."""
        plan: _Plan = placement.own
        work, (count, ways) = view.workload, plan.groups.shape
        tokens = bool(view.fleet.links.latency_ns[placement.devices].any())
        tables: list[TaskTable] = []
        ends: dict[int, IntArray] = {}
        rows = 0
        for members, samples in zip(plan.groups, plan.samples.tolist(), strict=True):
            parts = [
                (block_rows(members, self._blocks(work, size, ways), work.dtype, tokens=tokens), times)
                for size, times in _micro_batches(samples, plan.micro_batch)
            ]
            tables.append(repeated(parts))
            rows += len(tables[-1])
            ends |= dict.fromkeys(members.tolist(), np.array([rows - 1]))
        joint: list[tuple[TaskTable, After | None]] = [(TaskTable.concat(tables), None)]
        held = shard_parameters(work.model, work.model.layers, ways)
        for rank in range(ways if count > 1 else 0):
            members = plan.groups[:, rank]
            r = ring(members, held * item_bytes(work.dtype), tokens=tokens)
            gradients = r.rows()
            joint.append((gradients, {d: ends[d] for d in members.tolist()}))
            arrived = np.arange(len(gradients) - (1 if len(r.tokens) else len(gradients)), len(gradients)) + rows
            ends |= dict.fromkeys(members.tolist(), arrived)
            rows += len(gradients)
        share = layer_costs(work, plan.micro_batch, recompute=self._recompute(work)).optimizer
        part = held / parameters(work.model)
        step = optimizer_rows(placement.devices, share.flops * part, share.memory_bytes * part, work.dtype)
        return join([*joint, (step, ends)])

    def estimate(self, placement: Placement, view: View) -> float:
        """The slowest group's micro-batches, the slowest ring of gradients behind them, and the optimizer."""
        return self.beside(placement, np.zeros(view.fleet.size), view)

    def beside(self, placement: Placement, busy_s: FloatArray, view: View) -> float:
        """The same; the first all-reduce of a group waits until its uplinks are free."""
        plan: _Plan = placement.own
        work, (count, ways) = view.workload, plan.groups.shape
        computed = []
        for members, samples in zip(plan.groups, plan.samples.tolist(), strict=True):
            links, speeds = links_of(view, members), Speeds.of(view, members)
            one = {b: self._blocks(work, b, ways) for b, _ in _micro_batches(samples, plan.micro_batch)}
            passes = [blocks_s(one[b], links, speeds) * n for b, n in _micro_batches(samples, plan.micro_batch)]
            first = one[min(samples, plan.micro_batch)]
            behind = blocks_s(first, links, speeds, busy_s=busy_s[members]) - blocks_s(first, links, speeds)
            computed.append(sum(passes) + behind)
        held = shard_parameters(work.model, work.model.layers, ways)
        size = held * item_bytes(work.dtype)
        rings = plan.groups.T[: ways if count > 1 else 0]
        ends = [ring_behind_s(links_of(view, of), size, computed, busy_s[of]) for of in rings]
        share = layer_costs(work, plan.micro_batch, recompute=self._recompute(work)).optimizer
        part = held / parameters(work.model)
        step = Speeds.of(view, placement.devices).seconds(share.flops * part, share.memory_bytes * part).max()
        return max([*computed, *ends]) + float(step)

    def assumptions(self) -> list[str]:
        """What is taken for granted."""
        out = [
            "all-reduces of activations go around a ring and are not overlapped; sums are free",
            "the devices of a group have equal parts, however fast they are, and all wait for the slowest",
            "gradients of replicas are all-reduced at the end, in the workload's dtype, and not overlapped",
            "every member of a group reads its micro-batches locally",
        ]
        if self.config.sequence_parallel:
            out.append("inputs that sequence parallelism gathers again for gradients of weights are not charged")
        return out


def _micro_batches(samples: int, size: int) -> list[tuple[int, int]]:
    """(sequences, how many such micro-batches); what does not divide comes last."""
    whole, rest = divmod(samples, size)
    return [(b, n) for b, n in ((size, whole), (rest, 1)) if b and n]
