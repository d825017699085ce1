"""What the rows of a recording add up to, beside what a workload asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from morphling.interfaces.recording import Recording
from morphling.interfaces.strategy import Placement
from morphling.interfaces.tasks import FLOPS_ROUNDING, TaskTable
from morphling.types import FloatArray, IntArray, Kind, item_bytes
from morphling.workload import GemmDag, Place, Workload

__all__ = ["GemmRows", "layer_gemm_flops", "require", "require_lists"]


def require(kept: object, broken: str) -> None:
    """``AssertionError`` with the words ``broken`` unless ``kept``."""
    if not kept:
        raise AssertionError(broken)


class GemmRows:
    """The GEMM rows of a run that got done; ``devices_only`` leaves out the coordinator's.

    serial, row : int64[R], where each row is;  m, n, k, bytes_in, bytes_out : int64[R];  flops : float64[R]
    """

    def __init__(self, recording: Recording, size: int, *, devices_only: bool) -> None:
        columns: dict[str, list[Any]] = {name: [] for name in ("serial", "row", *_COLUMNS)}
        for d in recording.dispatches:
            kept = (d.tasks.kind == Kind.GEMM) & ~d.lost
            if devices_only:
                kept &= d.tasks.device < size
            rows = np.flatnonzero(kept)
            columns["serial"].append(np.full(len(rows), d.serial))
            columns["row"].append(rows)
            for name in _COLUMNS:
                columns[name].append(d.column(name)[rows])
        joined: dict[str, Any] = {
            n: np.concatenate(parts) if parts else np.zeros(0, np.int64) for n, parts in columns.items()
        }
        self.serial: IntArray = joined["serial"]
        self.row: IntArray = joined["row"]
        self.m: IntArray = joined["m"]
        self.n: IntArray = joined["n"]
        self.k: IntArray = joined["k"]
        self.bytes_in: IntArray = joined["bytes_in"]
        self.bytes_out: IntArray = joined["bytes_out"]
        self.flops: FloatArray = joined["flops"]

    def require_outputs(self, workload: Workload, iterations: int) -> None:
        """Each inner dimension's share of the devices' GEMMs has as many output elements as the workload, no more."""
        wanted = _elements(workload.dag, iterations)
        found: dict[int, int] = {}
        for k in np.unique(self.k).tolist():
            mine = self.k == k
            found[k] = int((self.m[mine] * self.n[mine]).sum())
        for k in sorted(wanted | found):
            have, want = found.get(k, 0), wanted.get(k, 0)
            which = f"GEMMs with inner dimension {k}"
            require(want or not have, f"{which}: the workload has none, yet {have:,} output elements were computed")
            require(have >= want, f"{which}: {have:,} of {want:,} output elements were computed; some are missed")
            require(have <= want, f"{which}: {have:,} output elements were computed, for {want:,}; some twice")

    def require_places(self, workload: Workload, iterations: int, places: Mapping[int, Placement]) -> None:
        """Each element of each output is computed once an iteration, by where ``places`` (serial → placement of the
        rows of the dispatch) puts the rows; where they are partial sums, the inner dimension is shared out whole.
        """
        dag = workload.dag
        sums = {int(i): np.zeros((int(dag.m[i]), int(dag.n[i])), np.int64) for i in _nodes(dag)}
        columns = (x.tolist() for x in (self.serial, self.row, self.m, self.n, self.k))
        for serial, row, m, n, k in zip(*columns, strict=True):
            require(serial in places, f"dispatch {serial} has rows of GEMMs, and no places were given for them")
            node, top, left = (int(column[row]) for column in places[serial][:3])
            where = f"dispatch {serial}, row {row}"
            require(node in sums, f"{where}: {node} is no GEMM of the devices")
            high, wide = sums[node].shape
            inside = min(top, left) >= 0 and top + m <= high and left + n <= wide
            require(inside, f"{where}: the block lies outside {dag.label(node)} ({high} x {wide})")
            sums[node][top : top + m, left : left + n] += k
        for node, terms in sums.items():
            inner = int(dag.k[node])
            wrong = terms != iterations * inner
            if wrong.any():
                i, j = np.argwhere(wrong)[0]
                times, rest = divmod(int(terms[i, j]), inner)
                more = f" and {rest} terms of {inner}" if rest else ""
                raise AssertionError(
                    f"{dag.label(node)}: element ({i}, {j}) is computed {times} times{more} in {iterations} iterations"
                    f" ({int(wrong.sum()):,} elements are wrong)"
                )

    def require_flops(self, wanted: float, rounding: float, what: str) -> None:
        """The rows' FLOPs are ``wanted``, within a share of ``rounding``."""
        have = float(self.flops.sum())
        require(abs(have - wanted) <= rounding * wanted, f"{what}: rows have {have:.12g} FLOPs, not {wanted:.12g}")

    def require_bytes(self, workload: Workload, *, returned: bool) -> None:
        """No row moves more than its operands and its result; and if ``returned``, every result is uploaded, once."""
        width = item_bytes(workload.dtype)
        result = width * self.m * self.n
        over = np.flatnonzero(self.bytes_in > width * self.k * (self.m + self.n))
        require(not len(over), f"{len(over)} rows download more bytes than their operands have")
        over = np.flatnonzero(self.bytes_out > result)
        require(not len(over), f"{len(over)} rows upload more bytes than their results have")
        have, want = int(self.bytes_out.sum()), int(result.sum())
        require(not returned or have == want, f"{have:,} of {want:,} bytes of results are uploaded")


def require_lists(label: str, tasks: TaskTable) -> None:
    """A row that names its products has no shape of its own, and no fewer FLOPs than they have."""
    listed = np.flatnonzero(tasks.products >= 0)
    if not len(listed):
        return
    own = np.array([x.flops for x in tasks.product_lists])[tasks.products[listed]]
    short = np.flatnonzero(own > tasks.flops[listed] * (1 + FLOPS_ROUNDING))
    which = f"dispatch {label!r}, row {listed[short[0]] if len(short) else 0}"
    require(not len(short), f"{which}: its list of products has more FLOPs than the row")
    require(not tasks.m[listed].any(), f"dispatch {label!r}: rows have a shape and a list of products; a row has one")


_COLUMNS: Sequence[str] = ("m", "n", "k", "bytes_in", "bytes_out", "flops")


def _nodes(dag: GemmDag) -> IntArray:
    return dag.select(kind=Kind.GEMM, place=Place.DEVICES)


def _elements(dag: GemmDag, iterations: int) -> dict[int, int]:
    """Output elements of the devices' GEMMs by inner dimension."""
    out: dict[int, int] = {}
    for i in _nodes(dag).tolist():
        k = int(dag.k[i])
        out[k] = out.get(k, 0) + iterations * int(dag.m[i]) * int(dag.n[i]) * int(dag.count[i])
    return out


def layer_gemm_flops(workload: Workload) -> int:
    """FLOPs of all GEMMs of one layer of an iteration (attention products included), exact."""
    return workload.dag.gemm_flops(layer=0)
