"""Sums over rows: bytes, stage times and lost rows, by device and by dispatch.

Only exact integer sums belong here; `morphling.results.metrics` turns them into seconds and shares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from morphling.errors import InputError
from morphling.interfaces.recording import DispatchRecord
from morphling.types import IntArray

__all__ = ["DEVICE_SUMS", "DISPATCH_SUMS", "Account", "account", "blocks", "gather"]

BLOCK_ROWS = 65_536
DEVICE_SUMS = ("rows", "lost_rows", "bytes_down", "bytes_up", "download_ns", "compute_ns", "upload_ns")
"""What is added up for each device."""
DISPATCH_SUMS = (*DEVICE_SUMS, "coordinator_ns")
"""What is added up for each dispatch; here ``compute_ns`` is of devices alone, and the coordinator's is apart."""


@dataclass(frozen=True, eq=False)
class Account:
    """``device[name]`` int64[N + 1] (the coordinator is the last), ``dispatch[name]`` int64[number of dispatches]."""

    device: dict[str, IntArray]
    dispatch: dict[str, IntArray]


def blocks(dispatches: Sequence[DispatchRecord], *, quiet: bool = False) -> Iterator[list[DispatchRecord]]:
    """Runs of dispatches with some 65,536 rows or more, so that numpy's overhead is paid per block.

    With ``quiet`` a block ends only where no row is under way, so that nothing on a device spans two blocks.
    """
    block: list[DispatchRecord] = []
    rows, busy_until = 0, 0
    for dispatch in dispatches:
        if rows >= BLOCK_ROWS and (not quiet or dispatch.time_ns >= busy_until):
            yield block
            block, rows = [], 0
        block.append(dispatch)
        rows += len(dispatch)
        busy_until = max(busy_until, dispatch.settled_ns)
    if rows:
        yield block


def gather(block: Sequence[DispatchRecord], name: str) -> NDArray[Any]:
    """One column of all rows of a block; no copy if it is a single dispatch."""
    if len(block) == 1:
        return block[0].column(name)
    return np.concatenate([dispatch.column(name) for dispatch in block])


def _stage(block: Sequence[DispatchRecord], stage: str, settled: IntArray) -> tuple[IntArray, NDArray[np.bool_] | None]:
    """Nanoseconds that each row spent in a stage, and which rows ended it (None: all)."""
    start, end = gather(block, f"{stage}_start_ns"), gather(block, f"{stage}_end_ns")
    # `min` first: masks cost more than the sums, and most blocks lose nothing.
    if end.min() >= 0 and start.min() >= 0:
        return end - start, None
    ended = end >= 0
    spent: IntArray = np.where(start >= 0, np.where(ended, end, settled) - start, 0)
    return spent, ended


def _row_sums(block: Sequence[DispatchRecord]) -> dict[str, IntArray]:
    settled = gather(block, "settled_ns")
    sums: dict[str, IntArray] = {"lost_rows": gather(block, "lost").astype(np.int64)}
    for stage, sizes, total in (("download", "bytes_in", "bytes_down"), ("upload", "bytes_out", "bytes_up")):
        spent, ended = _stage(block, stage, settled)
        size = gather(block, sizes)
        sums[total] = size if ended is None else np.where(ended, size, 0)
        sums[f"{stage}_ns"] = spent
    spent, ended = _stage(block, "compute", settled)
    work = gather(block, "compute_ns")
    # tiles of a pipelined row wait for data in between; a cut row worked at most until it was cut
    sums["compute_ns"] = work if ended is None else np.minimum(work, spent)
    return sums


def account(dispatches: Sequence[DispatchRecord], size: int) -> Account:
    """Add up all rows of a run on a fleet of ``size`` devices; ``InputError`` if a row names a device beyond it."""
    device = {name: np.zeros(size + 1, np.int64) for name in DEVICE_SUMS}
    dispatch = {name: np.zeros(len(dispatches), np.int64) for name in DISPATCH_SUMS}
    at = 0
    for block in blocks(dispatches):
        where = gather(block, "device")
        if int(where.max()) > size or int(where.min()) < 0:
            raise InputError(f"dispatch {block[0].serial} or one after it names a device outside the fleet of {size}")
        sums = _row_sums(block)
        lengths = np.array([len(d) for d in block])
        of = np.repeat(np.arange(at, at + len(block), dtype=np.int32), lengths) if len(block) > 1 else None
        central = where == size
        central = central if central.any() else None
        np.add.at(device["rows"], where, 1)
        dispatch["rows"][at : at + len(block)] = lengths
        for name, values in sums.items():
            np.add.at(device[name], where, values)
            mine = values
            if name == "compute_ns" and central is not None:
                _add(dispatch["coordinator_ns"], of, at, np.where(central, values, 0))
                mine = np.where(central, 0, values)
            _add(dispatch[name], of, at, mine)
        peers = gather(block, "peer")
        if peers.max() >= 0:
            _add_peers(device, dispatch, of, at, peers, sums)
        at += len(block)
    return Account(device, dispatch)


def _add_peers(
    device: dict[str, IntArray],
    dispatch: dict[str, IntArray],
    of: NDArray[np.int32] | None,
    at: int,
    peers: NDArray[Any],
    sums: dict[str, IntArray],
) -> None:
    """What a row receives from its peer the peer has sent, and the other way round."""
    rows = np.flatnonzero(peers >= 0)
    for mine, theirs in (("bytes_down", "bytes_up"), ("bytes_up", "bytes_down")):
        moved = sums[mine][rows]
        np.add.at(device[theirs], peers[rows], moved)
        _add(dispatch[theirs], None if of is None else of[rows], at, moved)


def _add(total: IntArray, of: NDArray[np.int32] | None, at: int, values: IntArray) -> None:
    if of is None:
        total[at] += values.sum()
    else:
        np.add.at(total, of, values)
