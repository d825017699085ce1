"""A pipeline schedule as rows of a task table, with one or several devices in a stage.

Which device gets which layers and samples is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from morphling.interfaces.tasks import TaskTable
from morphling.planning.layer_products import NO_PRODUCTS, LayerProducts, ListColumns, list_columns
from morphling.planning.pipeline_times import per_chunk, simulate
from morphling.planning.schedules import Schedule
from morphling.types import BoolArray, DType, FloatArray, Int32Array, IntArray, Kind, Phase

__all__ = ["PipelineRows", "rows"]

F, B, W = Phase.FORWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT


@dataclass(frozen=True, eq=False)
class PipelineRows:
    """The table, and what each of its n rows is.

    phase : int8[n];  stage, micro_batch, chunk : int32[n];  computes : bool[n], False for a row that only sends
    """

    tasks: TaskTable
    phase: NDArray[np.int8]
    stage: Int32Array
    micro_batch: Int32Array
    chunk: Int32Array
    computes: BoolArray

    def last_rows(self, stage: int) -> dict[int, int]:
        """Device of ``stage`` → its last row that computes, for ``after`` of a synchronisation of the stage."""
        mine = np.flatnonzero(self.computes & (self.stage == stage))
        return dict(zip(self.tasks.device[mine].tolist(), mine.tolist(), strict=True))


@dataclass
class _Template:
    """The rows of one phase of one virtual stage, the same for every micro-batch; edges by local row."""

    device: list[int] = field(default_factory=list)
    peer: list[int] = field(default_factory=list)
    bytes_out: list[int] = field(default_factory=list)
    share: list[float] = field(default_factory=list)
    computes: list[bool] = field(default_factory=list)
    row_of: dict[int, int] = field(default_factory=dict)
    arrivals: list[tuple[int, int]] = field(default_factory=list)
    """(receiving device, local row that brings it something)."""


def rows(
    schedule: Schedule,
    devices: Sequence[Sequence[int]],
    *,
    forward_flops: ArrayLike,
    backward_flops: ArrayLike,
    weight_flops: ArrayLike = 0.0,
    boundary_bytes: ArrayLike,
    gradient_bytes: ArrayLike | None = None,
    samples: Sequence[Sequence[int]] | None = None,
    memory_bytes: Sequence[ArrayLike] = (0.0, 0.0, 0.0),
    resident_bytes: Sequence[Sequence[int]] | None = None,
    dtype: DType = DType.FLOAT16,
    kind: Kind = Kind.GEMM,
    products: Sequence[Sequence[Sequence[LayerProducts]]] = (),
) -> PipelineRows:
    """Rows of all passes: compute, then send what the next pass needs to the device that runs it.

    schedule : which order; `simulate` must accept it
    devices : for each of P stages its devices; a device serves one stage
    samples : for each stage the samples of a micro-batch that each device takes, with the same sum Y in every stage;
        None: equal shares.  A device without samples gets no rows
    forward_flops, backward_flops, weight_flops : FLOPs of a whole micro-batch on a stage, as `per_chunk` reads them;
        devices have them in proportion to their samples.  ``weight_flops`` only where the schedule splits
    boundary_bytes : activations of a whole micro-batch from a virtual stage to the next, scalar or int[P·v-1];
        ``gradient_bytes`` the same for gradients on the way back (None: as many)
    memory_bytes : the same as the FLOPs, for the three phases: traffic between a device's memory and its cores
    resident_bytes : for each stage the bytes that each device holds; they stand in the device's first row
    kind : of the rows that compute; they are sums of many products and have no matrix shape of their own
    products : for each phase, stage and chunk the products of a whole micro-batch (none: rows do not say theirs)

    Samples are cut in order, so neighbours exchange what overlaps, in whole bytes that sum to the boundary's; a row has
    one receiver, so further receivers get rows that only send, right behind.  A pass depends on the rows that bring its
    input (and a last stage's backward on its own forward); all else follows from the order on the device.  The table
    has one order for all devices, in which each has its rows in the order of the schedule.  So a gradient of weights
    does not wait until the gradient before it has arrived at the other end.  All that a device sends goes out through
    its one uplink: ``duplex="uplink"`` of `simulate`.
    """
    shares = _shares(schedule, devices, samples)
    flops = [
        per_chunk(n, x, schedule)
        for n, x in (
            ("forward_flops", forward_flops),
            ("backward_flops", backward_flops),
            ("weight_flops", weight_flops),
        )
    ]
    if flops[W].any() and not schedule.split:
        raise ValueError(f"weight_flops: {schedule.name} does not split the backward pass; add it to backward_flops")
    traffic = [per_chunk("memory_bytes", x, schedule) for x in memory_bytes]
    there = _boundaries("boundary_bytes", boundary_bytes, schedule)
    back = there if gradient_bytes is None else _boundaries("gradient_bytes", gradient_bytes, schedule)
    layout = _Layout(schedule, shares, there, back)
    share = layout.column("share", np.float64)
    p, c, x = layout.stage, layout.chunk, layout.phase
    device = layout.column("device", np.int32)
    ptr, idx = layout.dependencies()
    tasks = TaskTable.build(
        device=device,
        kind=np.where(layout.column("computes", np.bool_), kind, Kind.TRANSFER),
        peer=layout.column("peer", np.int32),
        dtype=dtype,
        flops=share * np.stack(flops)[x, p, c],
        memory_bytes=share * np.stack(traffic)[x, p, c],
        bytes_out=layout.column("bytes_out", np.int64),
        resident_bytes=_resident(device, devices, resident_bytes),
        dep_ptr=ptr,
        dep_idx=idx,
        **_lists(schedule, products, (x, p, c), share),
    )
    return PipelineRows(tasks, x, p, layout.micro_batch, c, layout.column("computes", np.bool_))


def _lists(
    schedule: Schedule,
    products: Sequence[Sequence[Sequence[LayerProducts]]],
    where: tuple[IntArray | NDArray[np.int8] | Int32Array, ...],
    share: FloatArray,
) -> ListColumns:
    """The products of rows at (phase, stage, chunk)."""
    flat = [work for of_phase in products for of_stage in of_phase for work in of_stage]
    if len(flat) != len(products) * schedule.stages * schedule.chunks:
        raise ValueError(f"products: {schedule.stages} stages of {schedule.chunks} chunks need as many lists a phase")
    x, p, c = (np.asarray(i, np.int64) for i in where)
    which = (x * schedule.stages + p) * schedule.chunks + c
    return list_columns([*flat, NO_PRODUCTS], np.minimum(which, len(flat)), share)


Shares = list[list[tuple[int, int, int]]]
"""For each stage (device, first sample, last sample + 1), in order; all stages count the same samples."""


def _shares(schedule: Schedule, devices: Sequence[Sequence[int]], samples: Sequence[Sequence[int]] | None) -> Shares:
    """Who has which samples."""
    P = schedule.stages
    if len(devices) != P or not all(len(d) for d in devices):
        raise ValueError(f"devices: {P} stages need at least one device each, found {[list(d) for d in devices]}")
    flat = [int(d) for of in devices for d in of]
    twice = {d for d in flat if flat.count(d) > 1}
    if twice or min(flat) < 0:
        raise ValueError(f"devices: {min(twice or flat)} is no device, or stands there more than once")
    if samples is None:
        whole = lcm(*(len(d) for d in devices))
        samples = [[whole // len(d)] * len(d) for d in devices]
    out: Shares = []
    for p, (of, counts) in enumerate(zip(devices, samples, strict=True)):
        ends = np.cumsum([0, *counts])
        if len(counts) != len(of) or min(counts) < 0 or int(ends[-1]) != sum(samples[0]) or ends[-1] < 1:
            raise ValueError(
                f"samples: stage {p} has {list(counts)} for {len(of)} devices; a number from 0 on is needed for each,"
                f" and the same sum of at least 1 in every stage (stage 0: {sum(samples[0])})"
            )
        spans = zip(of, ends.tolist(), ends[1:].tolist(), strict=False)
        out.append([(int(d), a, b) for d, a, b in spans if b > a])
    return out


def _boundaries(name: str, value: ArrayLike, schedule: Schedule) -> list[int]:
    count = schedule.stages * schedule.chunks - 1
    found = np.asarray(value)
    if found.shape not in {(), (count,)} or found.dtype.kind not in "iu" or (found < 0).any():
        raise ValueError(f"{name}: whole bytes from 0 on, one number or {count}, are needed, found {value!r}")
    listed: list[int] = np.broadcast_to(found, (count,)).tolist()
    return listed


def _resident(
    device: Int32Array, devices: Sequence[Sequence[int]], resident: Sequence[Sequence[int]] | None
) -> IntArray:
    """Each device's bytes in its first row."""
    out = np.zeros(len(device), np.int64)
    if resident is not None:
        held = {int(d): int(x) for of, xs in zip(devices, resident, strict=True) for d, x in zip(of, xs, strict=True)}
        for d, first in zip(*np.unique(device, return_index=True), strict=True):
            out[first] = held[int(d)]
    return out


class _Layout:
    """Where the rows of each pass stand."""

    def __init__(self, schedule: Schedule, shares: Shares, there: list[int], back: list[int]) -> None:
        self.schedule = schedule
        self.V = schedule.stages * schedule.chunks
        phases = (F, B, W) if schedule.split else (F, B)
        self.templates = {(int(x), q): self.template(x, q, shares, there, back) for x in phases for q in range(self.V)}
        # Starts under unit times respect what depends on what, and each stage's order: one order for all.
        start = simulate(schedule, *(np.ones((schedule.stages, schedule.chunks), int) * on for on in self.unit())).start
        order = np.lexsort((schedule.stage, start))
        phase, micro = schedule.phase[order], schedule.micro_batch[order]
        q = schedule.chunk[order] * schedule.stages + schedule.stage[order]
        self.kind = phase.astype(np.int64) * self.V + q
        lengths = np.array([len(self.templates[divmod(k, self.V)].device) for k in range(len(phases) * self.V)])
        self.length = lengths[self.kind]
        self.base = np.cumsum(np.concatenate([[0], self.length]))
        self.first = np.zeros((len(phases) * self.V, schedule.micro_batches), np.int64)
        self.first[self.kind, micro] = self.base[:-1]
        self.phase = np.repeat(phase, self.length)
        self.stage = np.repeat(schedule.stage[order], self.length)
        self.chunk = np.repeat(schedule.chunk[order], self.length)
        self.micro_batch = np.repeat(micro, self.length)

    def unit(self) -> tuple[int, int, int]:
        """Which phases there are."""
        return 1, 1, int(self.schedule.split)

    def template(self, x: int, q: int, shares: Shares, there: list[int], back: list[int]) -> _Template:
        """The rows of one pass: each device computes and sends the first piece, further pieces follow."""
        P = self.schedule.stages
        mine, total = shares[q % P], shares[0][-1][2]
        sends = (x == F and q < self.V - 1) or (x == B and q > 0)
        whole = (there[q] if x == F else back[q - 1]) if sends else 0
        receivers = shares[(q + (1 if x == F else -1)) % P] if sends else []
        t = _Template()
        for device, a, b in mine:
            t.row_of[device] = len(t.device)
            pieces = [(e, max(a, lo), min(b, hi)) for e, lo, hi in receivers if e != device and lo < b and a < hi]
            for i, (e, lo, hi) in enumerate(pieces or [(-1, 0, 0)]):
                if e >= 0:
                    t.arrivals.append((e, len(t.device)))
                t.device.append(device)
                t.peer.append(e)
                t.bytes_out.append(whole * hi // total - whole * lo // total)
                t.share.append((b - a) / total if i == 0 else 0.0)
                t.computes.append(i == 0)
        return t

    def column(self, name: str, dtype: Any) -> NDArray[Any]:
        """One column of all rows."""
        flat = [np.array(getattr(t, name), dtype) for t in self.templates.values()]
        start = np.cumsum([0, *(len(x) for x in flat)])[self.kind]
        within = np.arange(self.base[-1]) - np.repeat(self.base[:-1], self.length)
        found: NDArray[Any] = np.concatenate(flat)[np.repeat(start, self.length) + within]
        return found

    def dependencies(self) -> tuple[IntArray, IntArray]:
        """Pointers and indices."""
        rows, deps = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for (x, q), t in self.templates.items():
            if x == W or (x == F and q == 0):
                continue
            if x == B and q == self.V - 1:
                source = int(F), q
                pairs = [(row, self.templates[source].row_of[d]) for d, row in t.row_of.items()]
            else:
                source = x, q + (-1 if x == F else 1)
                pairs = [(t.row_of[e], row) for e, row in self.templates[source].arrivals]
            edges = np.array(pairs, np.int64).reshape(-1, 2)
            for out, key, end in ((rows, (x, q), 0), (deps, source, 1)):
                out.append((self.first[key[0] * self.V + key[1]][:, None] + edges[:, end]).ravel())
        row, dep = np.concatenate(rows), np.concatenate(deps)
        ptr = np.zeros(int(self.base[-1]) + 1, np.int64)
        np.cumsum(np.bincount(row, minlength=int(self.base[-1])), out=ptr[1:])
        return ptr, dep[np.argsort(row, kind="stable")]
