"""Ring collectives with few rows: what each member sends as one stream, and the latency of the steps behind it.

The n-1 steps of a ring, of n sends each, are too many rows where hundreds of devices meet at every layer.  Here each
member sends all its chunks to its successor as one stream, which may leave with the row that computes them, and then a
token goes around, so that the latencies of the steps add up.  On equal, constant links the time is that of the rows of
`morphling.planning.collectives`; on unequal ones it is the closed form: all wait for the slowest edge.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from morphling.interfaces.tasks import TaskTable
from morphling.types import IntArray, Kind

__all__ = ["Ring", "ring"]


@dataclass(frozen=True, eq=False)
class Ring:
    """A collective on n members.

    members, successors : int64[n], in the order of the ring
    stream : int64[n], bytes that each sends to its successor; 0 everywhere for one member
    tokens : rows of one byte, each of which waits for the one before it; empty without them
    """

    members: IntArray
    successors: IntArray
    stream: IntArray
    tokens: TaskTable

    def rows(self) -> TaskTable:
        """The streams as rows of their own, and the tokens behind them; the first token waits for all streams."""
        n = len(self.members) if self.stream.any() else 0
        streams = TaskTable.build(
            device=self.members[:n],
            kind=Kind.TRANSFER,
            peer=self.successors[:n],
            bytes_out=self.stream[:n],
            memory_bytes=0.0,
            resident_bytes=0,
        )
        return self.behind(streams, np.arange(n))

    def behind(self, tasks: TaskTable, streams: ArrayLike) -> TaskTable:
        """``tasks`` and the tokens behind it; the first token waits for the rows ``streams`` of ``tasks``."""
        if not len(self.tokens):
            return tasks
        waits = np.asarray(streams, np.int64)
        joint = TaskTable.concat([tasks, self.tokens])
        at = len(tasks)
        ptr = joint.dep_ptr.copy()
        ptr[at + 1 :] += len(waits)
        idx = np.concatenate([joint.dep_idx[: ptr[at]], waits, joint.dep_idx[ptr[at] :]])
        columns = {name: getattr(joint, name) for name in joint.__dataclass_fields__}
        return TaskTable(**{**columns, "dep_ptr": ptr, "dep_idx": idx})


def ring(members: ArrayLike, size: int, *, passes: int = 2, tokens: bool = True) -> Ring:
    """A ring collective of ``size`` bytes; ``passes`` 2 is an all-reduce, 1 a reduce-scatter or an all-gather.

    members : int[n], in the order of the ring
    tokens : whether the latency of the steps is charged; passes·(n-1)-1 tokens, whose bytes come off the streams.  With
        less than a byte for each they are left out.  Of collectives that follow each other on the same links, only the
        last needs them: the steps of one hide the latency of another

    In all, passes·(n-1)·size bytes are sent, in whole bytes.
    Source: the closed form 2(n-1)(α + X/(n·bw)) of Patarasuk and Yuan 2009.
    """
    around = np.asarray(members, np.int64)
    n = len(around)
    cuts = np.array([passes * (n - 1) * size * j // n for j in range(n + 1)], np.int64)
    stream: IntArray = np.diff(cuts)
    count = passes * (n - 1) - 1 if n > 1 and tokens else 0
    hop = np.arange(max(count, 0)) % n
    spent = np.bincount(hop, minlength=n)
    if count <= 0 or (stream <= spent).any():
        hop, spent = hop[:0], np.zeros(n, np.int64)
    after = np.roll(around, -1)
    ptr = np.maximum(np.arange(len(hop) + 1) - 1, 0)
    table = TaskTable.build(
        device=around[hop],
        kind=Kind.TRANSFER,
        peer=after[hop],
        bytes_out=np.ones(len(hop), np.int64),
        memory_bytes=0.0,
        resident_bytes=0,
        dep_ptr=ptr,
        dep_idx=np.arange(max(len(hop) - 1, 0)),
    )
    return Ring(around, after, stream - spent, table)
