"""Pipelines side by side as one iteration: their rows, the sums of their gradients, the optimizer, and a closed form.

Which device stands where is decided by the strategies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import View
from morphling.planning.collective_times import MemberLinks, ring_behind_s, sharded_server_s
from morphling.planning.collectives import arrivals, join, sharded_server
from morphling.planning.joined import ring
from morphling.planning.pipeline_rows import rows
from morphling.planning.pipeline_times import round_s, simulate
from morphling.planning.replicas import optimizer_rows
from morphling.planning.schedules import Schedule, in_flight
from morphling.planning.stages import BACKWARD, FORWARD, Stages, stage_seconds
from morphling.types import FloatArray, IntArray, item_bytes

__all__ = ["Line", "Reduction", "iteration_rows", "iteration_s", "members", "summed", "summing_s"]

Reduction: TypeAlias = Literal["ring", "sharded"]
"""How gradients are summed: around a ring, or by a server for each share on each member."""


@dataclass(frozen=True, eq=False)
class Line:
    """One pipeline.

    groups : devices of each stage, int64[k];  samples : of each micro-batch on each of them, int64[k] > 0
    """

    schedule: Schedule
    groups: tuple[IntArray, ...]
    samples: tuple[IntArray, ...]

    @classmethod
    def single(cls, schedule: Schedule, devices: IntArray, micro_batch: int) -> Line:
        """One device, int64[P], on each stage."""
        return cls(schedule, tuple(devices.reshape(-1, 1)), (np.array([micro_batch]),) * len(devices))


def members(lines: Sequence[Line]) -> list[IntArray]:
    """Devices of each stage, over all pipelines."""
    return [np.concatenate([line.groups[p] for line in lines]) for p in range(len(lines[0].groups))]


def iteration_rows(lines: Sequence[Line], stages: Stages, reduction: Reduction = "ring") -> TaskTable:
    """All passes; then the gradients of each stage are summed over its devices, and the optimizer runs.

    A table that the first and the last stage share is summed over both of them (as in Megatron-LM), behind their own.
    A device sums its gradients when its own backward passes are done, whatever the others do.  An asynchronous schedule
    runs the optimizer beside every backward pass, and sums nothing: it has one device a stage.
    """
    w = stages.workload
    forward, backward = stages.forward(), _backward(lines, stages)
    products = [stages.products(*phases) for phases in (FORWARD, BACKWARD)]
    parts = []
    for line in lines:
        made = rows(
            line.schedule,
            [group.tolist() for group in line.groups],
            samples=[given.tolist() for given in line.samples],
            forward_flops=forward[0],
            backward_flops=backward[0],
            boundary_bytes=stages.boundary,
            memory_bytes=(forward[1], backward[1], 0.0),
            dtype=w.dtype,
            products=products,
        )
        parts.append(made.tasks)
    table = TaskTable.concat(parts)
    return summed(table, members(lines), stages, reduction) if lines[0].schedule.flush else table


def summed(table: TaskTable, of_stage: Sequence[IntArray], stages: Stages, reduction: Reduction = "ring") -> TaskTable:
    """``table``, and behind it the sums of the gradients of each stage over its devices, and the optimizer on each."""
    w = stages.workload
    width = item_bytes(w.dtype)
    sums = [(of, int(n) * width) for of, n in zip(of_stage, stages.own_parameters(), strict=True)]
    if stages.shared_parameters():
        sums.append((np.concatenate([of_stage[0], of_stage[-1]]), stages.shared_parameters() * width))
    waits: dict[int, list[int]] = {}
    for of, size in sums:
        table = _summed(table, of, size, reduction, waits)
    work = stages.optimizer_work()
    last = optimizer_rows(
        np.concatenate(of_stage),
        np.concatenate([np.full(len(of), x.flops) for of, x in zip(of_stage, work, strict=True)]),
        np.concatenate([np.full(len(of), x.memory_bytes) for of, x in zip(of_stage, work, strict=True)]),
        w.dtype,
    )
    return join([(table, None), (last, {device: np.array(of) for device, of in waits.items()})])


def _backward(lines: Sequence[Line], stages: Stages) -> tuple[FloatArray, FloatArray]:
    """`Stages.backward`; of an asynchronous schedule with the optimizer's traffic, of which the FLOPs are nothing."""
    flops, traffic = stages.backward()
    if not lines[0].schedule.flush:
        if max(len(of) for of in members(lines)) > 1 or stages.chunks > 1:
            raise ValueError(f"{lines[0].schedule.name}: a stage has one device and one chunk where nothing is flushed")
        traffic += np.array([[x.memory_bytes] for x in stages.optimizer_work()])
    return flops, traffic


def _summed(table: TaskTable, of: IntArray, size: int, reduction: Reduction, waits: dict[int, list[int]]) -> TaskTable:
    """``table`` and the sum of ``size`` bytes over the devices ``of``; what each then waits for goes into ``waits``."""
    if len(of) == 1:
        return table
    at = len(table)
    if reduction == "sharded":
        more = sharded_server(of, size)
        for device, found in arrivals(more, first_row=at).items():
            waits.setdefault(device, []).extend(found.tolist())
    else:
        r = ring(of, size)
        more = r.rows()
        # The last token has come round after all streams; without tokens each stream counts.
        ends = [at + len(more) - 1] if len(r.tokens) else list(range(at, at + len(more)))
        for device in of.tolist():
            waits.setdefault(device, []).extend(ends)
    return TaskTable.concat([table, more])


def iteration_s(
    lines: Sequence[Line],
    stages: Stages,
    view: View,
    reduction: Reduction = "ring",
    *,
    busy_s: FloatArray | None = None,
) -> float:
    """Seconds of an iteration: `round_s` of each pipeline, then the sums of gradients and the optimizer.

    busy_s : float64[D], until when uplinks are taken; None: they are free.  A pipeline then takes as much longer as its
        replay does

    A pipeline's stage p is done with its backward passes as much earlier as the last gradient needs from there to the
    first stage.  A closed form of the links as they are estimated: nothing is shared but a device's own link.
    """
    work = stages.forward(), _backward(lines, stages)
    done = [_line_s(line, stages, view, work, busy_s) for line in lines]
    if not lines[0].schedule.flush:
        return float(np.max(done))
    begins = [
        np.concatenate([np.full(len(line.groups[p]), ends[p]) for line, ends in zip(lines, done, strict=True)])
        for p in range(stages.count)
    ]
    return summing_s(begins, members(lines), stages, view, reduction, busy_s=busy_s)


def summing_s(
    done: Sequence[FloatArray],
    of_stage: Sequence[IntArray],
    stages: Stages,
    view: View,
    reduction: Reduction = "ring",
    *,
    busy_s: FloatArray | None = None,
) -> float:
    """When the last device has summed and updated.

    done : when the backward passes of the devices ``of_stage`` end, float64[k] of each stage
    busy_s : as of `iteration_s`
    """
    width, ends = item_bytes(stages.workload.dtype), np.zeros(stages.count)
    busy = np.zeros(view.fleet.size) if busy_s is None else busy_s
    for p, (of, n) in enumerate(zip(of_stage, stages.own_parameters().tolist(), strict=True)):
        ends[p] = _summed_s(view, of, n * width, reduction, done[p], busy)
    if stages.shared_parameters():
        both = np.concatenate([of_stage[0], of_stage[-1]])
        size = stages.shared_parameters() * width
        ends[[0, -1]] = _summed_s(view, both, size, reduction, ends[[0, -1]].max(keepdims=True), busy)
    for p, (of, x) in enumerate(zip(of_stage, stages.optimizer_work(), strict=True)):
        ends[p] += float(stage_seconds(view, of, np.full(len(of), x.flops), np.full(len(of), x.memory_bytes)).max())
    return float(ends.max())


def _summed_s(
    view: View, of: IntArray, size: int, reduction: Reduction, begins_s: FloatArray, busy_s: FloatArray
) -> float:
    if len(of) == 1:
        return float(begins_s.max())
    links = MemberLinks.of(view.uplink_bps[of], view.downlink_bps[of], view.fleet.links.latency_ns[of] / 1e9)
    if reduction == "sharded":
        return float(np.maximum(begins_s, busy_s[of]).max()) + sharded_server_s(links, size)
    return ring_behind_s(links, size, begins_s, busy_s[of])


def _line_s(
    line: Line,
    stages: Stages,
    view: View,
    work: tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]],
    busy_s: FloatArray | None,
) -> FloatArray:
    """When each stage of a pipeline is done with ``work`` forward and backward, float64[P]."""
    there, back = (_passes_s(line, x, view, stages.micro_batch) for x in work)
    P, bits = len(line.groups), 8.0 * stages.boundary
    up, down, late = np.zeros(P), np.zeros(P), np.zeros(P)
    for p, (of, samples) in enumerate(zip(line.groups, line.samples, strict=True)):
        share = samples / stages.micro_batch
        up[p] = (share * bits / view.uplink_bps[of]).max()
        down[p] = (share * bits / view.downlink_bps[of]).max()
        late[p] = view.fleet.links.latency_ns[of].max() / 1e9
    whole, tail = round_s(there, back, up, down, late, in_flight(line.schedule), line.schedule)
    done: FloatArray = whole - tail
    busy = np.zeros(P) if busy_s is None else np.array([busy_s[of].max() for of in line.groups])
    return done + _held_up_s(line.schedule, there, back, (up, down, late), busy) if busy.any() else done


def _held_up_s(
    schedule: Schedule,
    there: FloatArray,
    back: FloatArray,
    links: tuple[FloatArray, FloatArray, FloatArray],
    busy_s: FloatArray,
) -> FloatArray:
    """By how much later a replay ends on each stage if its uplink is taken until ``busy_s``, float64[P]."""
    up, down, late = links
    hops = schedule.stages if schedule.chunks > 1 else schedule.stages - 1

    def ends(free_s: FloatArray) -> FloatArray:
        timing = simulate(
            schedule,
            there,
            back,
            transfer=np.maximum(up, np.roll(down, -1))[:hops],
            transfer_back=np.maximum(np.roll(up, -1), down)[:hops],
            latency=(late + np.roll(late, -1))[:hops],
            duplex="uplink",
            uplink_free=free_s,
        )
        out: FloatArray = np.maximum.reduceat(timing.end, schedule.ptr[:-1])
        return out

    return ends(busy_s) - ends(np.zeros(schedule.stages))


def _passes_s(line: Line, work: tuple[FloatArray, FloatArray], view: View, micro_batch: int) -> FloatArray:
    """Seconds of a micro-batch on each chunk of each stage, the slowest of its devices, float64[P, v]."""
    out = np.zeros_like(work[0])
    for p, (of, samples) in enumerate(zip(line.groups, line.samples, strict=True)):
        share = (samples / micro_batch)[:, None]
        for c in range(out.shape[1]):
            spent = stage_seconds(view, of, share[:, 0] * work[0][p, c], share[:, 0] * work[1][p, c])
            out[p, c] = spent.max()
    return out
