"""A few equal matrix products as a workload of their own, for whoever asks for them one after another."""

from __future__ import annotations

from morphling.types import DType, Phase, item_bytes
from morphling.workload.models import Model
from morphling.workload.tape import At, Shape, Tape
from morphling.workload.training import Workload

__all__ = ["products_workload"]


def products_workload(name: str, count: int, m: int, n: int, k: int, dtype: DType, phase: Phase) -> Workload:
    """``count`` independent products C[m x n] = A[m x k] B[k x n] for the devices, in one level: nodes 0 to count - 1.

    Its model is a stand-in that has these sizes and no layers to speak of.
    """
    tape = Tape(item_bytes(dtype))
    for _ in range(count):
        tape.gemm(At(name, phase), Shape(m, n, k), tape.tensor(m * k), tape.tensor(k * n))
    model = Model(
        name=name, family="product", hidden_size=k, layers=1, heads=1, kv_heads=1, head_dim=k, ffn_size=n,
        vocab_size=n, max_positions=m, position_rows=0, embedding_size=k, tied=True, gated_mlp=False,
        activation="relu",
    )  # fmt: skip
    return Workload(model, m, 1, dtype, tape.dag())
