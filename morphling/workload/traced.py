"""Matrix products that were traced rather than written down: a file of them, and the GEMM DAG they make."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from morphling.errors import WorkloadError
from morphling.types import DType, Kind, Phase, item_bytes
from morphling.workload.dag import GemmDag, Place
from morphling.workload.models import Model
from morphling.workload.training import Workload

__all__ = ["TracedGemm", "TracedGemms", "traced_from_json"]

FORMAT = "morphling-gemms-1"
TRACED = "traced"
"""Family of the stand-in for a model."""


class TracedGemm(NamedTuple):
    """``batch`` products C[m x n] = A[m x k] B[k x n], and the products (by number) that have to come before.

    a, b : numbers of the operands: the same content has the same number, transposed or not
    """

    op: str
    phase: Phase
    batch: int
    m: int
    n: int
    k: int
    a: int
    b: int
    a_transposed: bool
    b_transposed: bool
    waits_for: tuple[int, ...]

    @property
    def flops(self) -> int:
        """Floating-point operations (a multiply-add is two)."""
        return 2 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True, eq=False)
class TracedGemms:
    """The products of one training step, in an order in which each comes after those it waits for.

    traced : how the products were traced, as plain values: ``way``, versions, operations that are left out
    """

    name: str
    dtype: str
    gemms: tuple[TracedGemm, ...]
    traced: Mapping[str, Any] = field(default_factory=dict)

    @property
    def flops(self) -> int:
        """Of all of them."""
        return sum(g.flops for g in self.gemms)

    def to_json(self) -> str:
        """One product a line."""
        head = {"format": FORMAT, "name": self.name, "dtype": self.dtype, "traced": dict(self.traced), "gemms": []}
        text = json.dumps(head, indent=1)
        lines = ",\n".join("  " + json.dumps(_line(g)) for g in self.gemms)
        return text.replace('"gemms": []', f'"gemms": [\n{lines}\n ]') + "\n"

    def workload(self, dtype: DType) -> Workload:
        """As what is trained.  The model is a stand-in of no sizes: only the DAG means anything."""
        model = Model(
            name=self.name, family=TRACED, hidden_size=1, layers=1, heads=1, kv_heads=1, head_dim=1, ffn_size=1,
            vocab_size=1, max_positions=1, position_rows=0, embedding_size=1, tied=True, gated_mlp=False,
            activation="relu", note="traced matrix products alone: what lies between them takes no time",
        )  # fmt: skip
        return Workload(model, 1, 1, dtype, self.dag(dtype))

    def dag(self, dtype: DType) -> GemmDag:
        """The GEMM DAG; products with a batch run on the coordinator, the others on the devices."""
        size = len(self.gemms)
        width = item_bytes(dtype)
        names = tuple(dict.fromkeys(g.op for g in self.gemms))
        columns = {
            name: np.array([getattr(g, name) for g in self.gemms], np.int64) for name in ("m", "n", "k", "a", "b")
        }
        count = np.array([g.batch for g in self.gemms], np.int64)
        level: list[int] = []
        for g in self.gemms:
            level.append(1 + max((level[w] for w in g.waits_for), default=-1))
        elements = columns["m"] * columns["k"] + columns["k"] * columns["n"] + columns["m"] * columns["n"]
        outputs = 1 + int(max(columns["a"].max(), columns["b"].max()))
        return GemmDag(
            op_names=names,
            op=np.array([names.index(g.op) for g in self.gemms], np.int32),
            kind=np.full(size, Kind.GEMM, np.int8),
            phase=np.array([g.phase for g in self.gemms], np.int8),
            layer=np.full(size, -1, np.int32),
            **columns,
            count=count,
            c=outputs + np.arange(size, dtype=np.int64),
            a_transposed=np.array([g.a_transposed for g in self.gemms], np.bool_),
            b_transposed=np.array([g.b_transposed for g in self.gemms], np.bool_),
            flops=np.array([g.flops for g in self.gemms], np.float64),
            memory_bytes=(width * count * elements).astype(np.float64),
            place=np.where(count > 1, Place.COORDINATOR, Place.DEVICES).astype(np.int8),
            level=np.array(level, np.int32),
            dep_ptr=np.cumsum([0, *(len(g.waits_for) for g in self.gemms)]).astype(np.int64),
            dep_idx=np.array([w for g in self.gemms for w in g.waits_for], np.int64),
        )


def _line(g: TracedGemm) -> dict[str, Any]:
    line = g._asdict() | {"phase": g.phase.name.lower(), "waits_for": list(g.waits_for)}
    plain = {"batch": 1, "a_transposed": False, "b_transposed": False}
    return {name: value for name, value in line.items() if name not in plain or value != plain[name]}


def traced_from_json(value: object, where: str) -> TracedGemms:
    """Read what `TracedGemms.to_json` wrote; `WorkloadError` as ``where: gemms.3: field: reason``."""
    if not isinstance(value, Mapping) or value.get("format") != FORMAT:
        raise WorkloadError(f"{where}: is no file of traced products (format: {FORMAT})")
    listed = value.get("gemms")
    if not isinstance(listed, list) or not listed:
        raise WorkloadError(f"{where}: gemms: a list of at least one product is needed")
    gemms = tuple(_read(line, number, f"{where}: gemms.{number}") for number, line in enumerate(listed))
    how = value.get("traced", {})
    if not isinstance(how, Mapping):
        raise WorkloadError(f"{where}: traced: a mapping is needed, not {how!r}")
    return TracedGemms(str(value.get("name", "traced")), str(value.get("dtype", "float32")), gemms, dict(how))


def _read(line: object, number: int, where: str) -> TracedGemm:
    if not isinstance(line, Mapping):
        raise WorkloadError(f"{where}: a mapping is needed")
    if unknown := sorted(set(line) - set(TracedGemm._fields)):
        raise WorkloadError(f"{where}: {unknown[0]}: no such field; there are {', '.join(TracedGemm._fields)}")
    full = {"batch": 1, "a_transposed": False, "b_transposed": False, **line}
    for name in ("batch", "m", "n", "k", "a", "b"):
        got, least = full.get(name), 0 if name in {"a", "b"} else 1
        if isinstance(got, bool) or not isinstance(got, int) or got < least:
            raise WorkloadError(f"{where}: {name}: a whole number of at least {least} is needed, not {got!r}")
    for name in ("a_transposed", "b_transposed"):
        if not isinstance(full[name], bool):
            raise WorkloadError(f"{where}: {name}: true or false, not {full[name]!r}")
    words = [p.name.lower() for p in Phase]
    if full.get("phase") not in words:
        raise WorkloadError(f"{where}: phase: one of {', '.join(words)}, not {full.get('phase')!r}")
    waits = full.get("waits_for")
    if not isinstance(waits, list) or not all(isinstance(w, int) and 0 <= w < number for w in waits):
        raise WorkloadError(f"{where}: waits_for: numbers of products before it, not {waits!r}")
    if not isinstance(full.get("op"), str):
        raise WorkloadError(f"{where}: op: a name is needed, not {full.get('op')!r}")
    return TracedGemm(**{**full, "phase": Phase[full["phase"].upper()], "waits_for": tuple(waits)})
