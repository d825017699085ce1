"""Collective operations as rows of a task table; their closed forms are in `morphling.planning.collective_times`.

A row is one send: its device is the sender, ``bytes_out`` the chunk, ``peer`` the receiver.  Only what the coordinator
sends is a download of the receiver, because the coordinator has no link of its own in a table.  Adding up what
arrives is not charged.  Rows that would carry nothing are left out, so the chunks of a collective sum to its bytes.

Within one device rows run in table order, so that a send need not name the one before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, log2
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from morphling.interfaces.tasks import TaskTable
from morphling.types import IntArray, Kind

__all__ = [
    "After",
    "all_gather",
    "all_to_all",
    "append",
    "arrivals",
    "broadcast",
    "central_broadcast",
    "central_server",
    "join",
    "reduce_scatter",
    "ring_all_reduce",
    "sharded_server",
    "tree_all_reduce",
    "tree_rounds",
]

After: TypeAlias = ArrayLike | Mapping[int, ArrayLike]
"""Rows to wait for: for every device the same, or those of each device."""

_NONE = -1


def ring_all_reduce(members: ArrayLike, size: ArrayLike) -> TaskTable:
    """A reduce-scatter and an all-gather around the ring of ``members``: 2(n-1) steps of n sends.

    members : int[n]   devices in the order of the ring, each once
    size : bytes of the vector that every member holds, cut into n chunks of whole bytes; or int[n], the chunks

    In step t member i sends chunk (i - t) mod n to member i + 1, once that chunk has arrived from member i - 1.  Raises
    ``ValueError`` on repeated or negative members and on sizes that are not whole bytes.
    Source: Patarasuk and Yuan 2009 ("Bandwidth optimal all-reduce algorithms").
    """
    ring = _members(members)
    return _ring(ring, _chunks(size, len(ring)), 2 * (len(ring) - 1), 0)


def reduce_scatter(members: ArrayLike, size: ArrayLike) -> TaskTable:
    """The first half of `ring_all_reduce`: member i ends with the sum of chunk i.  Arguments as there."""
    ring = _members(members)
    return _ring(ring, _chunks(size, len(ring)), len(ring) - 1, -1)


def all_gather(members: ArrayLike, size: ArrayLike) -> TaskTable:
    """Member i starts with chunk i, and all end with all ``size`` bytes: n-1 steps around the ring.

    Arguments as for `ring_all_reduce`.
    """
    ring = _members(members)
    return _ring(ring, _chunks(size, len(ring)), len(ring) - 1, 0)


def tree_all_reduce(members: ArrayLike, size: int) -> TaskTable:
    """A binomial tree rooted at ``members[0]``, up with the sums and down with the result; whole vectors travel.

    2⌈log2 n⌉ rounds; a send waits until what both its ends did in earlier rounds has arrived, so that a member deals
    with one partner at a time.  ``size``: bytes of the vector.
    """
    tree = _members(members)
    up = tree_rounds(len(tree))
    return _rounds(tree, [*up, *((parent, child) for child, parent in reversed(up))], _bytes(size))


def broadcast(members: ArrayLike, size: int) -> TaskTable:
    """``members[0]`` sends ``size`` bytes to all others along a binomial tree, in ⌈log2 n⌉ rounds."""
    tree = _members(members)
    return _rounds(tree, [(parent, child) for child, parent in reversed(tree_rounds(len(tree)))], _bytes(size))


def central_broadcast(members: ArrayLike, size: int) -> TaskTable:
    """Every member downloads ``size`` bytes from the coordinator: one row a member."""
    devices, each = _members(members), _bytes(size)
    return _table(devices[: len(devices) if each else 0], bytes_in=each)


def central_server(members: ArrayLike, size: int, coordinator: int, *, flops: float = 0.0) -> TaskTable:
    """A parameter server at the coordinator: all push ``size`` bytes, then all pull ``size`` bytes.

    coordinator : the number of the coordinator in a table, which is the size of the fleet
    flops : what adding up costs the coordinator, FLOPs (a row of its own, between the pushes and the pulls)

    Unlike the collectives between devices this one is not empty for one member.
    """
    devices, each = _members(members), _bytes(size)
    n = len(devices)
    if np.any(devices >= coordinator):
        raise ValueError(f"coordinator: {coordinator} is the number of a device or below one; give the fleet's size")
    if each == 0:
        return _table(devices[:0])
    push, pull, middle = np.arange(n), np.arange(n + 1, 2 * n + 1), np.full(n, n)
    return _table(
        np.r_[devices, coordinator, devices],
        bytes_in=np.r_[np.zeros(n + 1, np.int64), np.full(n, each)],
        bytes_out=np.r_[np.full(n, each), np.zeros(n + 1, np.int64)],
        flops=np.where(np.arange(2 * n + 1) == n, flops, 0.0),
        kind=np.where(np.arange(2 * n + 1) == n, Kind.ELEMENTWISE, Kind.TRANSFER),
        edges=(np.r_[middle, pull], np.r_[push, middle]),
    )


def sharded_server(members: ArrayLike, size: ArrayLike, *, blocking: bool = False) -> TaskTable:
    """Every member is the server of one chunk: all send chunk j to member j, which sends the sum back to all.

    Arguments as for `ring_all_reduce`.  ``blocking``: a send waits until the one before it of the same member has
    arrived, so that each pays the latency in turn, as the closed form has it.
    Source: Yuan et al. 2022 (DT-FM, "Decentralized Training of Foundation Models"), its synchronisation of replicas.
    """
    devices = _members(members)
    n = len(devices)
    chunk = _chunks(size, n)
    sender, receiver = _rotation(n)
    m = len(sender)
    # The first send of a server waits for all that it is sent; those behind it stand in the same queue.
    sums = np.flatnonzero(np.r_[np.zeros(m, bool), sender == (receiver - 1) % n]) if n > 1 else np.zeros(0, np.int64)
    pushes = np.argsort(receiver, kind="stable")
    waiting = np.repeat(sums[np.argsort(sender[sums - m], kind="stable")], n - 1) if n > 1 else sums
    return _sends(
        devices,
        np.r_[sender, sender],
        np.r_[receiver, receiver],
        chunk[np.r_[receiver, sender]],
        (waiting, pushes),
        blocking=blocking,
    )


def all_to_all(members: ArrayLike, size: ArrayLike, *, blocking: bool = False) -> TaskTable:
    """Every member holds ``size`` bytes, of which chunk j goes to member j; in step k member i sends to i + k.

    Arguments as for `ring_all_reduce`, ``blocking`` as for `sharded_server`.
    """
    devices = _members(members)
    sender, receiver = _rotation(len(devices))
    chunk = _chunks(size, len(devices))
    none = np.zeros(0, np.int64)
    return _sends(devices, sender, receiver, chunk[receiver], (none, none), blocking=blocking)


def append(tasks: TaskTable, more: TaskTable, *, after: After | None = None) -> TaskTable:
    """``more`` behind ``tasks``; ``after``: rows of ``tasks`` that the devices of ``more`` wait for, as `join` says."""
    return join([(tasks, None), (more, after)])


def join(parts: Sequence[tuple[TaskTable, After | None]]) -> TaskTable:
    """Tables one behind another, with dependencies from one to those before it.

    parts : each a table and what its devices wait for before they take part: rows of the joint table, or a mapping from
        device to such rows; None: nothing

    The first row of each device in that table waits, and what the device does later stands behind it.  A device that
    only receives has no row, and waits for nothing.  Raises ``ValueError`` for a row that does not come before.
    """
    joint = TaskTable.concat([t for t, _ in parts])
    rows = [np.repeat(np.arange(len(joint)), np.diff(joint.dep_ptr))]
    deps = [joint.dep_idx]
    start = 0
    for tasks, after in parts:
        if after is not None and len(tasks):
            row, dep = _entries(tasks, after)
            bad = np.flatnonzero((dep < 0) | (dep >= start))
            if len(bad):
                raise ValueError(f"after: row {dep[bad[0]]} is not among the {start} rows before this table")
            rows.append(row + start)
            deps.append(dep)
        start += len(tasks)
    ptr, idx = _csr(len(joint), np.concatenate(rows), np.concatenate(deps))
    return replace(joint, dep_ptr=ptr, dep_idx=idx)


def arrivals(tasks: TaskTable, *, first_row: int = 0) -> dict[int, IntArray]:
    """Device → the rows that bring it something, numbered from ``first_row``; for ``after`` of what follows.

    What a collective leaves on a device is there once these rows are done.
    """
    sent = np.flatnonzero((tasks.bytes_out > 0) & (tasks.peer >= 0))
    fetched = np.flatnonzero(tasks.bytes_in > 0)
    row = np.concatenate([sent, fetched])
    device = np.concatenate([tasks.peer[sent], tasks.device[fetched]])
    order = np.argsort(device, kind="stable")
    names, start = np.unique(device[order], return_index=True)
    groups = np.split(row[order] + first_row, start)[1:]
    return dict(zip(names.tolist(), groups, strict=True))


def _entries(tasks: TaskTable, after: After) -> tuple[IntArray, IntArray]:
    """Pairs of the first row of a device and a row that it waits for."""
    device, first = np.unique(tasks.device, return_index=True)
    if not isinstance(after, Mapping):
        wanted = np.atleast_1d(np.asarray(after, np.int64))
        return np.repeat(first, len(wanted)), np.tile(wanted, len(first))
    lists = [np.atleast_1d(np.asarray(after.get(int(d), ()), np.int64)) for d in device]
    return np.repeat(first, [len(x) for x in lists]), np.concatenate(lists)


def _csr(n: int, rows: IntArray, deps: IntArray) -> tuple[IntArray, IntArray]:
    """Edges (row, dependency) as pointers and indices."""
    ptr = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=n), out=ptr[1:])
    return ptr, deps[np.argsort(rows, kind="stable")]


def _members(members: ArrayLike) -> IntArray:
    found = np.atleast_1d(np.asarray(members))
    if found.ndim != 1 or not len(found) or found.dtype.kind not in "iu":
        raise ValueError("members: a list of at least one device number is needed")
    if found.min() < 0:
        raise ValueError(f"members: {found.min()} is no device")
    value, count = np.unique(found, return_counts=True)
    if count.max() > 1:
        raise ValueError(f"members: device {value[count.argmax()]} stands there {count.max()} times")
    return found.astype(np.int64)


def _bytes(size: ArrayLike) -> int:
    found = np.asarray(size)
    if found.ndim or found.dtype.kind not in "iu" or found < 0:
        raise ValueError(f"size: a whole number of bytes from 0 on is needed, not {size!r}")
    return int(found)


def _chunks(size: ArrayLike, n: int) -> IntArray:
    """Bytes of the n chunks, which differ by at most one where only their sum is given."""
    found = np.asarray(size)
    if found.ndim == 0:
        whole = _bytes(size)
        cuts = np.array([whole * j // n for j in range(n + 1)], np.int64)
        return cuts[1:] - cuts[:-1]
    if found.shape != (n,) or found.dtype.kind not in "iu" or found.min() < 0:
        raise ValueError(f"size: bytes from 0 on of each of {n} chunks are needed, found {size!r}")
    return found.astype(np.int64)


def _table(
    device: IntArray,
    *,
    peer: ArrayLike = _NONE,
    bytes_in: ArrayLike = 0,
    bytes_out: ArrayLike = 0,
    flops: ArrayLike = 0.0,
    kind: ArrayLike = Kind.TRANSFER,
    edges: tuple[IntArray, IntArray] | None = None,
) -> TaskTable:
    none = np.zeros(0, np.int64)
    ptr, idx = _csr(len(device), *(edges or (none, none)))
    return TaskTable.build(
        device=device,
        kind=kind,
        peer=peer,
        flops=flops,
        bytes_in=bytes_in,
        bytes_out=bytes_out,
        memory_bytes=0.0,
        resident_bytes=0,
        dep_ptr=ptr,
        dep_idx=idx,
    )


def _ring(ring: IntArray, chunk: IntArray, steps: int, shift: int) -> TaskTable:
    """In step t member i sends chunk (i - t + shift) mod n; a chunk's own way is its only dependency."""
    n = len(ring)
    step, i = np.divmod(np.arange(steps * n), n)
    size = chunk[(i - step + shift) % n]
    dep = np.where(step > 0, (step - 1) * n + (i - 1) % n, _NONE)
    row = np.flatnonzero(dep >= 0)
    return _sends(ring, i, (i + 1) % n, size, (row, dep[row]))


def _rotation(n: int) -> tuple[IntArray, IntArray]:
    """Senders and receivers of n(n-1) sends: in step k member i sends to i + k, so that nobody gets two at once."""
    step, sender = np.divmod(np.arange((n - 1) * n), n)
    return sender, (sender + step + 1) % n


def _sends(
    devices: IntArray,
    sender: IntArray,
    receiver: IntArray,
    size: IntArray,
    edges: tuple[IntArray, IntArray],
    *,
    blocking: bool = False,
) -> TaskTable:
    """Sends between members, by their places; those of nothing are left out.

    An edge joins sends of one chunk, so the two stay or go together.
    """
    row, dep = edges
    keep = size > 0
    number = np.cumsum(keep) - 1
    row, dep = number[row[keep[row]]], number[dep[keep[row]]]
    sender, receiver, size = sender[keep], receiver[keep], size[keep]
    if blocking:
        order = np.argsort(sender, kind="stable")
        same = sender[order[1:]] == sender[order[:-1]]
        row, dep = np.r_[row, order[1:][same]], np.r_[dep, order[:-1][same]]
    return _table(devices[sender], peer=devices[receiver], bytes_out=size, edges=(row, dep))


def tree_rounds(n: int) -> list[tuple[IntArray, IntArray]]:
    """Children and their parents in each round of a binomial tree towards member 0."""
    out = []
    for r in range(ceil(log2(n)) if n > 1 else 0):
        child = np.arange(1 << r, n, 2 << r)
        out.append((child, child - (1 << r)))
    return out


def _rounds(members: IntArray, rounds: list[tuple[IntArray, IntArray]], size: int) -> TaskTable:
    """Sends of whole vectors, round by round; each waits for what its two ends did last."""
    if not size or not rounds:
        return _table(members[:0])
    last = np.full(len(members), _NONE)
    row, dep, at = [], [], 0
    for sender, receiver in rounds:
        here = at + np.arange(len(sender))
        for end in (sender, receiver):
            waits = last[end] >= 0
            row.append(here[waits])
            dep.append(last[end][waits])
        last[sender] = last[receiver] = here
        at += len(sender)
    sender, receiver = (np.concatenate(x) for x in zip(*rounds, strict=True))
    return _sends(members, sender, receiver, np.full(at, size), (np.concatenate(row), np.concatenate(dep)))
