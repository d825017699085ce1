"""The steps of an iteration: levels of the GEMM DAG as dispatches, in groups that read the same operand.

What is dispatched together, and which shards more than one step reads; who gets what is decided by the plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from morphling.types import Kind, Phase
from morphling.workload import GemmDag, Place

__all__ = ["SUFFIX", "Shard", "Step", "make_step", "one_by_one", "read_again", "shards_of", "steps_of"]

SUFFIX = {Phase.FORWARD: "", Phase.BACKWARD_INPUT: " dX", Phase.BACKWARD_WEIGHT: " dW", Phase.RECOMPUTE: " again"}

Shard: TypeAlias = tuple[int, int, tuple[int, ...]]
"""(tensor, axis, placement)."""


@dataclass(frozen=True, eq=False)
class Step:
    """One dispatch of an iteration: DAG nodes for the devices (in groups that share A) and for the coordinator."""

    label: str
    groups: tuple[tuple[int, ...], ...]
    central: tuple[int, ...]
    key: tuple[Any, ...]


def steps_of(dag: GemmDag) -> Iterator[Step]:
    """Levels as dispatches; runs of levels that only the coordinator works on become one."""
    waiting: list[int] = []
    for level in dag.levels():
        mine = [i for i in level.tolist() if dag.kind[i] == Kind.GEMM and dag.place[i] == Place.DEVICES]
        central = [i for i in level.tolist() if not (dag.kind[i] == Kind.GEMM and dag.place[i] == Place.DEVICES)]
        if not mine:
            waiting += central
            continue
        if waiting:
            yield make_step(dag, [], waiting)
            waiting = []
        yield make_step(dag, mine, central)
    if waiting:
        yield make_step(dag, [], waiting)


def make_step(dag: GemmDag, mine: list[int], central: list[int]) -> Step:
    """Group the GEMMs of a level that read the same A: they are planned as one, with their columns side by side."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for i in mine:
        groups.setdefault((int(dag.a[i]), int(dag.a_transposed[i]), int(dag.m[i]), int(dag.k[i])), []).append(i)
    nodes = mine or central
    phases = {int(dag.phase[i]) for i in nodes}
    word = (
        "forward" if phases == {int(Phase.FORWARD)} else "recompute" if phases == {int(Phase.RECOMPUTE)} else "backward"
    )
    if not mine:
        word = "optimizer" if any(dag.kind[i] == Kind.OPTIMIZER for i in central) else "coordinator"
    layers = sorted({int(dag.layer[i]) for i in nodes})
    where = (
        f"layer {layers[0]}" if len(layers) == 1 and layers[0] >= 0 else "between layers" if layers[0] >= 0 else "ends"
    )
    listed = [dag.op_names[dag.op[i]] + (SUFFIX[Phase(int(dag.phase[i]))] if mine else "") for i in nodes]
    what = "+".join(dict.fromkeys(listed))
    facts = (dag.op, dag.kind, dag.phase, dag.m, dag.n, dag.k, dag.count, dag.flops, dag.memory_bytes)
    key = tuple(
        (len(group), *(tuple(x[i].item() for x in facts) for i in group))
        for group in (*groups.values(), central)
        if group
    )
    return Step(f"{word}/{where}/{what}", tuple(tuple(g) for g in groups.values()), tuple(central), key)


def one_by_one(dag: GemmDag, step: Step) -> Iterator[Step]:
    """A step's groups as steps of their own; the coordinator's nodes go with the last."""
    for group in step.groups:
        yield make_step(dag, list(group), list(step.central) if group is step.groups[-1] else [])


def shards_of(dag: GemmDag, group: tuple[int, ...], share: int) -> Iterator[tuple[Shard, Shard]]:
    """What each GEMM of a group reads: a tensor, cut along an axis, as one tiling places it."""
    gemm = (int(dag.m[group[0]]), int(dag.n[list(group)].sum()), int(dag.k[group[0]]), share)
    for j, i in enumerate(group):
        a = (int(dag.a[i]), int(dag.a_transposed[i]), gemm)
        yield a, (int(dag.b[i]), 1 - int(dag.b_transposed[i]), (*gemm, j))


def read_again(dag: GemmDag, steps: list[Step]) -> set[Shard]:
    """Shards that more than one step reads as they are: only those are worth keeping on a device."""
    seen: Counter[Shard] = Counter()
    for step in steps:
        seen.update({shard for g in step.groups for pair in shards_of(dag, g, len(step.groups)) for shard in pair})
    return {shard for shard, times in seen.items() if times > 1}
