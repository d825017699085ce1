"""The task table: a sub-task is a row, not an object."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from morphling.types import DType, FloatArray, Int32Array, IntArray, Kind, Overlap, item_bytes

__all__ = ["TaskTable"]

NO_PEER = -1


@dataclass(frozen=True, eq=False)
class TaskTable:
    """A batch of sub-tasks as columns of equal length ``n``; row ``i`` is one sub-task.

    A row is download → compute → upload on one device.  Rows of one device run in table order (and dispatches in
    the order they were made): each of the three stages is a first-in-first-out queue.

    Columns
    -------
    kind : int8        `Kind`
    device : int32     index into the fleet; ``fleet.size`` is the coordinator itself (no link: its payloads must be 0)
    peer : int32       the other end of both transfers: ``bytes_in`` come from it, ``bytes_out`` go to it; -1 = the
        coordinator.  A transfer between devices uses the uplink of one and the downlink of the other at once, without
        standing in the peer's queues.  The row is lost if the peer is away when it is dispatched, or leaves before the
        last bit between them has arrived.  Strategies that use peers say so (`Strategy.uses_peers`)
    m, n, k : int64    C[m x n] = A[m x k] B[k x n]; 0 for kinds without a shape
    dtype : int8       `DType`
    flops : float64    floating-point operations (a multiply-add is two)
    bytes_in : int64   downloaded before computing; 0 is instant (no latency either)
    bytes_out : int64  uploaded after computing; 0 is instant
    memory_bytes : float64   traffic between the device's memory and its cores
    resident_bytes : int64   memory held on the device while the row is there
    overlap : int32    `Overlap` (0 perfect, k >= 1 tiles)
    release_ns : int64 earliest start relative to the dispatch (0 = at once)
    dep_ptr, dep_idx : dependencies in CSR form (``dep_ptr`` int64[n+1]); row i waits until every row
        ``dep_idx[dep_ptr[i]:dep_ptr[i+1]]`` of the same table is done.  Each index must be smaller than i.
    """

    kind: NDArray[np.int8]
    device: Int32Array
    peer: Int32Array
    m: IntArray
    n: IntArray
    k: IntArray
    dtype: NDArray[np.int8]
    flops: FloatArray
    bytes_in: IntArray
    bytes_out: IntArray
    memory_bytes: FloatArray
    resident_bytes: IntArray
    overlap: Int32Array
    release_ns: IntArray
    dep_ptr: IntArray
    dep_idx: IntArray

    def __len__(self) -> int:
        return len(self.device)

    @classmethod
    def build(
        cls,
        *,
        device: ArrayLike,
        kind: Kind | ArrayLike = Kind.GEMM,
        peer: ArrayLike = NO_PEER,
        m: ArrayLike = 0,
        n: ArrayLike = 0,
        k: ArrayLike = 0,
        dtype: DType | ArrayLike = DType.FLOAT16,
        flops: ArrayLike | None = None,
        bytes_in: ArrayLike = 0,
        bytes_out: ArrayLike = 0,
        memory_bytes: ArrayLike | None = None,
        resident_bytes: ArrayLike | None = None,
        overlap: ArrayLike = Overlap.NONE,
        release_ns: ArrayLike = 0,
        dependencies: Sequence[Sequence[int]] | None = None,
        dep_ptr: ArrayLike | None = None,
        dep_idx: ArrayLike | None = None,
    ) -> TaskTable:
        """Make a table; scalars are repeated to the length of ``device``.

        Left out, ``flops`` is 2·m·n·k, ``memory_bytes`` the three operands once, and ``resident_bytes`` the same.
        Raises ``ValueError`` on unequal lengths, negative sizes, or a dependency that does not point backwards.
        """
        dev = np.atleast_1d(np.asarray(device, np.int32))
        size = len(dev)

        def column(name: str, value: ArrayLike, dtype_: Any) -> NDArray[Any]:
            raw = np.asarray(value)
            if raw.dtype.kind == "f" and np.dtype(dtype_).kind == "i" and np.any(raw != np.floor(raw)):
                raise ValueError(f"column {name}: whole numbers are needed, found {raw[raw != np.floor(raw)][0]}")
            out = np.empty(size, dtype_)
            out[...] = raw
            if name != "peer" and size and out.min() < 0:
                raise ValueError(f"column {name}: negative value {out.min()} in row {int(out.argmin())}")
            if np.dtype(dtype_).kind == "f" and not np.isfinite(out).all():
                raise ValueError(f"column {name}: a value is not finite")
            return out

        mm, nn, kk = (column(c, v, np.int64) for c, v in (("m", m), ("n", n), ("k", k)))
        types = column("dtype", dtype, np.int8)
        width = np.array([item_bytes(d) for d in DType], np.int64)[types]
        operands = width * (mm * kk + kk * nn + mm * nn)
        ptr, idx = _dependencies(size, dependencies, dep_ptr, dep_idx)
        return cls(
            kind=column("kind", kind, np.int8),
            device=dev,
            peer=column("peer", peer, np.int32),
            m=mm,
            n=nn,
            k=kk,
            dtype=types,
            flops=column("flops", 2.0 * mm * nn * kk if flops is None else flops, np.float64),
            bytes_in=column("bytes_in", bytes_in, np.int64),
            bytes_out=column("bytes_out", bytes_out, np.int64),
            memory_bytes=column("memory_bytes", operands if memory_bytes is None else memory_bytes, np.float64),
            resident_bytes=column("resident_bytes", operands if resident_bytes is None else resident_bytes, np.int64),
            overlap=column("overlap", overlap, np.int32),
            release_ns=column("release_ns", release_ns, np.int64),
            dep_ptr=ptr,
            dep_idx=idx,
        )

    def take(self, rows: ArrayLike) -> TaskTable:
        """The chosen rows as a new table without dependencies (used to dispatch lost rows again)."""
        pick = np.asarray(rows)
        columns = {name: getattr(self, name)[pick] for name in _OWN}
        return TaskTable(
            **columns, dep_ptr=np.zeros(len(columns["device"]) + 1, np.int64), dep_idx=np.zeros(0, np.int64)
        )

    @classmethod
    def concat(cls, tables: Sequence[TaskTable]) -> TaskTable:
        """Several tables one after another; dependencies stay inside their own table."""
        starts = np.cumsum([0, *(len(t) for t in tables)])
        columns = {
            f.name: np.concatenate([getattr(t, f.name) for t in tables])
            for f in fields(cls)
            if not f.name.startswith("dep_")
        }
        shift = np.cumsum([0, *(len(t.dep_idx) for t in tables)])
        ptr = np.concatenate([np.zeros(1, np.int64), *(t.dep_ptr[1:] + s for t, s in zip(tables, shift, strict=False))])
        idx = np.concatenate([t.dep_idx + s for t, s in zip(tables, starts, strict=False)])
        return cls(**columns, dep_ptr=ptr, dep_idx=idx)

    def digest(self) -> str:
        """SHA-256 of all columns, little-endian, in field order."""
        sha = hashlib.sha256()
        for f in fields(self):
            column = getattr(self, f.name)
            sha.update(f.name.encode())
            sha.update(column.astype(column.dtype.newbyteorder("<"), copy=False).tobytes())
        return sha.hexdigest()


_OWN = tuple(f.name for f in fields(TaskTable) if not f.name.startswith("dep_"))
"""The columns that say something of a row alone."""


def _dependencies(
    size: int, lists: Sequence[Sequence[int]] | None, ptr: ArrayLike | None, idx: ArrayLike | None
) -> tuple[IntArray, IntArray]:
    if lists is not None:
        if len(lists) != size:
            raise ValueError(f"dependencies: {len(lists)} lists for {size} rows")
        out_ptr = np.zeros(size + 1, np.int64)
        np.cumsum([len(x) for x in lists], out=out_ptr[1:])
        out_idx = np.array([j for x in lists for j in x], np.int64)
    elif ptr is not None and idx is not None:
        out_ptr, out_idx = np.asarray(ptr, np.int64), np.asarray(idx, np.int64)
        if len(out_ptr) != size + 1 or out_ptr[0] != 0 or out_ptr[-1] != len(out_idx) or np.any(np.diff(out_ptr) < 0):
            raise ValueError("dependencies: dep_ptr does not frame dep_idx")
    else:
        return np.zeros(size + 1, np.int64), np.zeros(0, np.int64)
    rows = np.repeat(np.arange(size), np.diff(out_ptr))
    bad = (out_idx >= rows) | (out_idx < 0)
    if bad.any():
        i = int(np.argmax(bad))
        raise ValueError(f"dependencies: row {rows[i]} waits for row {out_idx[i]}, which does not come before it")
    return out_ptr, out_idx
