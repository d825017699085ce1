"""The GEMM lists on which Cleave's published model is evaluated, and its rule of what is cached.

Tables only; what a model really computes is in `morphling.workload`.
"""

from __future__ import annotations

from dataclasses import dataclass

from morphling.types import Phase

__all__ = ["ListedGemm", "artifact_gemms", "cached_operand", "linear_gemms"]

_CACHED_INPUTS = frozenset({"q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "fc1", "gate_proj", "up_proj"})
_SENT_INPUTS = frozenset({"fc2", "down_proj", "lm_head", "attention_scores", "attention_context", "attention_output"})


@dataclass(frozen=True)
class ListedGemm:
    """``count`` products C[m x n] = A[m x k] B[k x n] of one layer; ``cached``: rows of A count as on the devices."""

    name: str
    m: int
    n: int
    k: int
    count: int
    cached: bool


def cached_operand(op_name: str, phase: Phase | int) -> bool:
    """Whether Cleave's published model takes the rows of A to be on the devices already.

    The artifact's rule is by name: all weight gradients, and forward and input gradient of the Q, K, V, O projections
    and of the MLP's first linear layers (gate, up, fc1); not the MLP's second (down, fc2), attention or lm_head.
    Raises ``ValueError`` for an op it does not know.
    """
    if op_name not in _CACHED_INPUTS | _SENT_INPUTS:
        known = ", ".join(sorted(_CACHED_INPUTS | _SENT_INPUTS))
        raise ValueError(f"no caching rule for op {op_name!r}; known are {known}")
    return Phase(phase) is Phase.BACKWARD_WEIGHT or op_name in _CACHED_INPUTS


def linear_gemms(d: int, f: int, tokens: int, *, gated: bool = False) -> tuple[ListedGemm, ...]:
    """The linear layers' GEMMs of one transformer layer, the batch merged into ``tokens`` rows.

    ``d`` hidden size, ``f`` MLP size; ``gated`` adds the gate projection of Llama.  Attention's products and all
    that is not a GEMM stay on the coordinator.
    """
    ups = ("gate_proj", "up_proj") if gated else ("fc1",)
    down = "down_proj" if gated else "fc2"
    listed = [("q_proj", d, d, 4), *((up, d, f, 1) for up in ups), (down, f, d, 1)]
    out = []
    for op, fan_in, fan_out, count in listed:
        shapes = (
            ("fw", Phase.FORWARD, tokens, fan_out, fan_in),
            ("bi", Phase.BACKWARD_INPUT, tokens, fan_in, fan_out),
            ("bw", Phase.BACKWARD_WEIGHT, fan_in, fan_out, tokens),
        )
        out += [ListedGemm(f"{tag}_{op}", m, n, k, count, cached_operand(op, phase)) for tag, phase, m, n, k in shapes]
    return tuple(out)


def artifact_gemms(
    d: int, f: int, heads: int, batch_size: int, sequence_length: int, *, gated: bool = False
) -> tuple[ListedGemm, ...]:
    """The GEMM list of one layer in the artifact's solver (netsys-edinburgh/wasp, ``wasp/placement``), as it stands.

    Kept quirks: attention scores have shape (S, d/h, d/h) where (S, d/h, S) is meant; each sample's QKVO weight
    gradient is a product of its own; ``gated`` (Llama) also splits the MLP by sample; grouped heads, embedding and
    lm_head are not counted.
    """
    s, b, e = sequence_length, batch_size, d // heads
    t, c = (s, b) if gated else (s * b, 1)
    rows: list[tuple[str, int, int, int, int, bool]] = [  # name, M, n (inner), q, count, cached
        ("qkvo", s, d, d, 4 * b, True),
        ("attn", s, e, e, heads * b, False),
        ("attn_proj", s, s, e, heads * b, False),
        ("bk_input_qkvo", s, d, d, 4 * b, True),
        ("bk_weight_qkvo", d, s, d, 4 * b, True),
        ("bk_input_attn", s, s, e, heads * b, False),
        ("bk_weight_attn", s, s, e, heads * b, True),
        ("bk_input_attn_proj", s, e, s, heads * b, False),
        ("bk_weight_attn_proj", e, s, s, heads * b, True),
        ("mlp-proj", t, f, d, c, False),
        ("bk_input_mlp-proj", t, d, f, c, False),
        ("bk_weight_mlp-proj", d, t, f, c, True),
    ]
    for gate in ("mlp-gate", "mlp-gate1") if gated else ("mlp-gate",):
        rows += [
            (gate, t, d, f, c, True),
            (f"bk_input_{gate}", t, f, d, c, True),
            (f"bk_weight_{gate}", f, t, d, c, True),
        ]
    return tuple(ListedGemm(name, m, q, inner, count, cached) for name, m, inner, q, count, cached in rows)
