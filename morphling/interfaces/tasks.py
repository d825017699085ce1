"""The task table: a sub-task is a row, not an object."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from morphling.interfaces.products import Products
from morphling.types import DType, FloatArray, Int32Array, IntArray, Kind, Overlap, item_bytes

__all__ = ["TaskTable"]

NO_PEER = -1
NO_LIST = -1
FLOPS_ROUNDING = 1e-9
"""Share by which products may be more than the FLOPs of their row, which are summed in another order."""


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
    m, n, k : int64    C[m x n] = A[m x k] B[k x n]; 0 for kinds without a shape, and for whole layers
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
    products : int32   which of ``product_lists`` a row of whole layers consists of, in the row's dtype; -1 = none
    product_lists : the lists (not a column).  Executors that time products one by one read them, all others do not
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
    products: Int32Array
    product_lists: tuple[Products, ...]

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
        products: ArrayLike = NO_LIST,
        product_lists: Sequence[Products] = (),
    ) -> TaskTable:
        """Make a table; scalars are repeated to the length of ``device``.

        Left out, ``flops`` is 2·m·n·k, ``memory_bytes`` the three operands once, and ``resident_bytes`` the same.
        Raises ``ValueError`` on unequal lengths, negative sizes, a dependency that does not point backwards, or a list
        of products of more FLOPs than its row.
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
        table = cls(
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
            products=_listed(products, size) if product_lists else _no_lists(size),
            product_lists=tuple(product_lists),
        )
        if product_lists or np.any(np.asarray(products) != NO_LIST):
            _check_lists(table, np.asarray(products))
        return table

    def take(self, rows: ArrayLike) -> TaskTable:
        """The chosen rows as a new table without dependencies (used to dispatch lost rows again)."""
        pick = np.asarray(rows)
        columns = {name: getattr(self, name)[pick] for name in _OWN}
        size = len(columns["device"])
        return TaskTable(
            **columns,
            dep_ptr=np.zeros(size + 1, np.int64),
            dep_idx=np.zeros(0, np.int64),
            products=self.products[pick] if self.product_lists else _no_lists(size),
            product_lists=self.product_lists,
        )

    @classmethod
    def concat(cls, tables: Sequence[TaskTable]) -> TaskTable:
        """Several tables one after another; dependencies stay inside their own table."""
        starts = np.cumsum([0, *(len(t) for t in tables)])
        columns = {name: np.concatenate([getattr(t, name) for t in tables]) for name in _OWN}
        shift = np.cumsum([0, *(len(t.dep_idx) for t in tables)])
        ptr = np.concatenate([np.zeros(1, np.int64), *(t.dep_ptr[1:] + s for t, s in zip(tables, shift, strict=False))])
        idx = np.concatenate([t.dep_idx + s for t, s in zip(tables, starts, strict=False)])
        products, lists = _joined_lists(tables)
        return cls(**columns, dep_ptr=ptr, dep_idx=idx, products=products, product_lists=lists)

    def digest(self) -> str:
        """SHA-256 of all columns, little-endian, in field order; lists of products only where a row has one."""
        sha = hashlib.sha256()
        named = np.unique(self.products[self.products >= 0]).tolist() if self.product_lists else []
        for name in (*_OWN, "dep_ptr", "dep_idx", *(["products"] if named else [])):
            column = getattr(self, name)
            sha.update(name.encode())
            sha.update(column.astype(column.dtype.newbyteorder("<"), copy=False).tobytes())
        for number in named:
            sha.update(repr(self.product_lists[number]).encode())
        return sha.hexdigest()


_OWN = tuple(f.name for f in fields(TaskTable) if not f.name.startswith(("dep_", "product")))
"""The columns that say something of a row alone, but for what products it consists of."""


def _no_lists(size: int) -> Int32Array:
    """A column that takes no memory: most tables have millions of rows and no lists."""
    return np.broadcast_to(np.array(NO_LIST, np.int32), size)


def _listed(products: ArrayLike, size: int) -> Int32Array:
    out = np.empty(size, np.int32)
    out[...] = products
    return out


def _check_lists(table: TaskTable, given: NDArray[Any]) -> None:
    """``ValueError`` for a list that does not exist, or that a row cannot consist of."""
    lists, named = table.product_lists, table.products >= 0
    if given.dtype.kind not in "iu" or (given.size and (given.min() < NO_LIST or given.max() >= len(lists))):
        wrong = given.ravel()[int(np.argmax((given < NO_LIST) | (given >= len(lists))))]
        raise ValueError(f"column products: {wrong} is none of {len(lists)} lists (-1: no list)")
    own = np.array([*(x.flops for x in lists), 0.0])[table.products]
    over = own > table.flops * (1 + FLOPS_ROUNDING)
    if over.any():
        i = int(np.argmax(over))
        raise ValueError(
            f"column products: the products of row {i} are {own[i]:.12g} FLOPs, the row has {table.flops[i]:.12g}"
        )
    other = named & ((table.kind != Kind.GEMM) | (table.m > 0))
    if other.any():
        raise ValueError(
            f"column products: row {int(np.argmax(other))} has a shape of its own, or is no GEMM row; lists are for "
            "rows that are sums of products"
        )


def _joined_lists(tables: Sequence[TaskTable]) -> tuple[Int32Array, tuple[Products, ...]]:
    """The column of tables laid one after another, and their lists, each once."""
    place: dict[Products, int] = {}
    parts: list[Int32Array] = []
    for t in tables:
        if not t.product_lists:
            parts.append(t.products)
            continue
        moved = [place.setdefault(x, len(place)) for x in t.product_lists]
        same = moved == list(range(len(moved)))
        parts.append(t.products if same else np.array([*moved, NO_LIST], np.int32)[t.products])
    if not place:
        return _no_lists(sum(len(t) for t in tables)), ()
    return np.concatenate(parts), tuple(place)


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
