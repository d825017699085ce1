"""From a plan to the rows of a task table.

Only the translation belongs here; who gets what is decided by the plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from morphling.interfaces.strategy import Placement
from morphling.interfaces.tasks import TaskTable
from morphling.planning.areas import AreaPlan
from morphling.planning.gemms import ListedGemm
from morphling.planning.rectangles import Tiling, split_columns
from morphling.types import DType, IntArray, Overlap, item_bytes
from morphling.workload import GemmDag

__all__ = [
    "central_rows",
    "joined_places",
    "paper_orphans",
    "paper_rows",
    "placed_blocks",
    "renumbered",
    "tiling_places",
    "tiling_rows",
]


def renumbered(tiling: Tiling, here: IntArray) -> Tiling:
    """The tiling with device numbers of the whole fleet; ``here`` int64[N], which devices were planned for."""
    columns = {name: getattr(tiling, name) for name in tiling.__dataclass_fields__}
    return Tiling(**{**columns, "device": here[tiling.device].astype(np.int32)})


def tiling_rows(tiling: Tiling, ends: IntArray, dtype: DType, pieces: int) -> TaskTable:
    """Sub-tasks of a tiling, cut where one GEMM of the group ends; the first part brings the rows of A."""
    parts = split_columns(tiling, ends)
    k, width = tiling.gemm.k, item_bytes(dtype)
    alpha, beta = parts.row1 - parts.row0, parts.col1 - parts.col0
    own = np.where(parts.first, alpha * k * width, 0)
    return TaskTable.build(
        device=parts.device,
        m=alpha,
        n=beta,
        k=k,
        dtype=dtype,
        bytes_in=own + beta * k * width,
        bytes_out=alpha * beta * width,
        resident_bytes=own + (beta * k + alpha * beta) * width,
        overlap=pieces,
    )


def tiling_places(tiling: Tiling, ends: IntArray, nodes: Sequence[int], *, row: int = 0, column: int = 0) -> Placement:
    """Where the rows of `tiling_rows` lie: in ``nodes``, from their corner or from ``row`` and ``column`` of it."""
    parts = split_columns(tiling, ends)
    return Placement(np.asarray(nodes, np.int64)[parts.gemm], parts.row0 + row, parts.col0 + column)


def joined_places(places: Sequence[Placement]) -> Placement:
    """Of tables laid one after another."""
    node, row, column = (np.concatenate(x) for x in zip(*(p[:3] for p in places), strict=True))
    return Placement(node, row, column)


def placed_blocks(tasks: TaskTable, places: Placement, rows: IntArray) -> list[tuple[int, ...]]:
    """The blocks of C behind ``rows``: m, n, k, node, first row, first column."""
    columns = (tasks.m, tasks.n, tasks.k, *places[:3])
    return list(zip(*(column[rows].tolist() for column in columns), strict=True))


def central_rows(dag: GemmDag, nodes: list[int], coordinator: int, dtype: DType) -> TaskTable:
    """Rows of the coordinator itself, one after another."""
    shape = dag.count[nodes] == 1
    return TaskTable.build(
        device=np.full(len(nodes), coordinator),
        kind=dag.kind[nodes],
        m=np.where(shape, dag.m[nodes], 0),
        n=np.where(shape, dag.n[nodes], 0),
        k=np.where(shape, dag.k[nodes], 0),
        dtype=dtype,
        flops=dag.flops[nodes],
        memory_bytes=dag.memory_bytes[nodes],
        resident_bytes=0,
    )


def paper_rows(g: ListedGemm, plan: AreaPlan, here: IntArray, dtype: DType, width: int) -> TaskTable:
    """One row a device for all ``count`` products: a multiple of the row takes the same multiple of its time."""
    alpha, beta, area = plan.rows, plan.cols, plan.area
    travels = (0.0 if g.cached else alpha) + beta
    return TaskTable.build(
        device=here,
        m=np.rint(alpha),
        n=np.rint(beta),
        k=g.k,
        dtype=dtype,
        flops=2.0 * area * g.k * g.count,
        bytes_in=np.ceil(width * g.k * travels * g.count),
        bytes_out=np.ceil(width * area * g.count),
        memory_bytes=0,
        resident_bytes=np.ceil(width * (alpha * g.k + beta * g.k + area)),
        overlap=Overlap.PERFECT,
    )


def paper_orphans(parts: list[tuple[ListedGemm, AreaPlan]], rows: IntArray) -> list[ListedGemm | None]:
    """The blocks of C behind ``rows`` of `paper_rows` tables laid one after another; None for a row without area.

    A block keeps its continuous sides, so that its area, and all ``count`` products, are planned again exactly.  What
    the published rule takes to be on the devices it takes to be on the survivors too.
    """
    found: list[ListedGemm | None] = []
    for row in rows.tolist():
        part, i = divmod(row, len(parts[0][1].area))
        g, plan = parts[part]
        sides: dict[str, Any] = {"m": float(plan.rows[i]), "n": float(plan.cols[i])}  # continuous here
        found.append(replace(g, **sides) if plan.area[i] > 0 else None)
    return found
