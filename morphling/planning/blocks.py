"""Blocks: pieces of work of a group of devices, each with a collective that all wait for before the next one.

A collective comes behind the work of its block (tensor parallelism), or goes on beside it (weights of the next layer
that are gathered meanwhile).  What blocks carry is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from morphling.interfaces.tasks import TaskTable
from morphling.planning.collective_times import MemberLinks, ring_all_reduce_s, ring_behind_s
from morphling.planning.collectives import join
from morphling.planning.joined import ring
from morphling.planning.layer_products import NO_PRODUCTS, LayerProducts, list_columns
from morphling.planning.row_times import Speeds
from morphling.types import DType, FloatArray, IntArray, Kind

__all__ = ["Block", "barrier", "block_rows", "blocks_s", "repeated"]


@dataclass(frozen=True)
class Block:
    """A piece of work, and its collective.

    flops, memory_bytes : of each member, before it is multiplied by the member's share
    size : bytes of the collective's vector;  passes : as of `joined.ring`
    beside : whether the collective begins with the work, instead of behind it
    kind : of the rows that compute
    products : what the FLOPs are, before the member's share
    """

    flops: float
    memory_bytes: float
    size: int
    passes: int = 2
    beside: bool = False
    kind: Kind = Kind.GEMM
    products: LayerProducts = NO_PRODUCTS


def block_rows(
    members: IntArray, blocks: Sequence[Block], dtype: DType, *, tokens: bool, share: ArrayLike = 1.0
) -> TaskTable:
    """Rows of blocks one behind another: all members compute and send, and all wait before the next block.

    members : int64[n], in the order of the ring
    tokens : whether the latency of a collective's steps is charged; beside work it is charged behind the longer of both
    share : float64[n], what the work of each member is multiplied by

    The last row of the table is done when all collectives are.
    """
    part = np.broadcast_to(np.asarray(share, np.float64), len(members))
    made: dict[Block, TaskTable] = {}
    for block in blocks:
        if block not in made:
            made[block] = _one(members, block, part, dtype, tokens=tokens)
    return _in_turn([made[block] for block in blocks])


def repeated(parts: Sequence[tuple[TaskTable, int]]) -> TaskTable:
    """Tables of `block_rows` so many times each, one behind another, each after the last row before it."""
    return _in_turn([table for table, times in parts for _ in range(times)])


def blocks_s(
    blocks: Sequence[Block], links: MemberLinks, speeds: Speeds, share: ArrayLike = 1.0, *, busy_s: ArrayLike = 0.0
) -> float:
    """Seconds of blocks one behind another: the slowest member computes, and the ring; the check of `block_rows`.

    links, speeds : of the members, in the order of the ring
    busy_s : float64[n], until when each member's uplink is taken; the first collective waits for it
    """
    total, known = 0.0, dict[Block, float]()
    busy = np.asarray(busy_s, np.float64)
    for block in blocks:
        if block in known:
            total += known[block]
            continue
        computed = speeds.seconds(np.multiply(block.flops, share), np.multiply(block.memory_bytes, share))
        sent = block.passes / 2 * ring_all_reduce_s(links, block.size)
        slowest = float(computed.max())
        known[block] = max(slowest, sent) if block.beside else slowest + sent
        if sent and busy.any():
            begins = 0.0 if block.beside else computed
            total += max(slowest, ring_behind_s(links, block.size, begins, busy - total, passes=block.passes))
            busy = np.zeros(1)
        else:
            total += known[block]
    return total


def barrier(device: int) -> TaskTable:
    """A row of nothing that others wait for, instead of all for all."""
    return TaskTable.build(device=[device], kind=Kind.TRANSFER, memory_bytes=0.0, resident_bytes=0)


def _one(members: IntArray, block: Block, share: FloatArray, dtype: DType, *, tokens: bool) -> TaskTable:
    r = ring(members, block.size, passes=block.passes, tokens=tokens)
    n = len(r.members)
    sends = block.size > 0 and n > 1
    works = block.flops > 0 or block.memory_bytes > 0
    peer = np.where(r.stream > 0, r.successors, -1)
    beside = sends and works and block.beside
    listed = list_columns([block.products], 0, share)
    none = list_columns([NO_PRODUCTS], 0, share)
    tasks = TaskTable.build(
        device=r.members,
        kind=block.kind if works and not beside else Kind.TRANSFER,
        peer=peer,
        flops=0.0 if beside else share * block.flops,
        memory_bytes=0.0 if beside else share * block.memory_bytes,
        bytes_out=r.stream,
        dtype=dtype,
        resident_bytes=0,
        **(none if beside else listed),
    )
    if beside:
        computing = TaskTable.build(
            device=r.members,
            kind=block.kind,
            flops=share * block.flops,
            memory_bytes=share * block.memory_bytes,
            dtype=dtype,
            resident_bytes=0,
            **listed,
        )
        tasks = TaskTable.concat([tasks, computing])
    if n == 1:
        return tasks
    if len(r.tokens):
        return r.behind(tasks, np.arange(n))
    return join([(tasks, None), (barrier(int(members[0])), np.arange(n))])


def _in_turn(tables: Sequence[TaskTable]) -> TaskTable:
    ends = np.cumsum([len(t) for t in tables])
    return join([(t, None if i == 0 else ends[i - 1 : i] - 1) for i, t in enumerate(tables)])
