"""The GEMM DAG of one training step of a decoder-only transformer: forward, backward, optimizer.

Conventions, which every count in this package follows:

* Weights are stored [in x out].  A linear is Y[T x out] = X[T x in] W; its gradients are dX = dY W^T and
  dW[in x out] = X^T dY, with T = batch x sequence tokens.  dW nodes are leaves: only the optimizer waits for them.
* Attention is computed for all s x s scores of all batch x heads products: masks (causal, sliding window) discard
  scores but do not spare their FLOPs, as with eager attention.  Its four gradients are all BACKWARD_INPUT.
* With grouped queries the products stay one per query head; ``kv_sum`` then adds the heads of a group.
* Everything that is no matrix product is memory-bound: its traffic is each activation that it reads or writes, once.
  Biases, their gradients, dropout masks and norm weights are taken along without traffic of their own.
* The optimizer is Adam on float32 weights: 18 FLOPs a parameter (2 moments 7, bias corrections 2, root, quotient and
  update 5, decay 2, unscaling and cast 2); it reads and writes weight and moments (24 bytes), reads the gradient and,
  unless the weights are float32 themselves, writes the copy that the next forward pass uses.

FLOPs of memory-bound operations are estimates of ours by counting operations of a direct implementation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from morphling.types import DType, Phase, item_bytes
from morphling.workload.dag import GemmDag, Place
from morphling.workload.models import Model, layer_linears, parameters
from morphling.workload.tape import At, Shape, Tape

__all__ = ["OPTIMIZER_FLOPS", "Recompute", "optimizer_bytes", "training_dag"]

Recompute: TypeAlias = Literal["none", "selective", "full"]

OPTIMIZER_FLOPS = 18
"""Floating-point operations of Adam for each parameter (see the module's docstring for the count)."""

F, DX, DW, AGAIN = Phase.FORWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT, Phase.RECOMPUTE

_FLOPS = {
    "residual": (1, 1), "norm": (5, 11), "softmax": (5, 4), "rope": (3, 3), "table": (1, 1), "sum": (1, 1),
    "relu": (1, 1), "smooth": (8, 12), "loss": (5, 2),
}  # fmt: skip
"""FLOPs per written element of memory-bound operations, forward and backward."""

Saved: TypeAlias = dict[str, tuple[int, ...]]


def optimizer_bytes(dtype: DType) -> int:
    """Bytes that Adam reads and writes for each parameter: 24 of states, the gradient, the copy of the weight."""
    width = item_bytes(dtype)
    return 24 + (width if width == 4 else 2 * width)


def training_dag(
    model: Model,
    batch_size: int,
    sequence_length: int,
    dtype: DType,
    *,
    lm_head: Place,
    attention: Place,
    fused_projections: bool,
    recompute: Recompute,
) -> GemmDag:
    """The DAG of one training step; see the module's docstring for its conventions.

    ``lm_head`` and ``attention`` place those matrix products.  ``recompute`` "full" keeps only each layer's input and
    runs the layer forward again before its backward pass; "selective" does so for scores, softmax and context alone
    (Korthikanti et al. 2022).
    """
    step = _Step(model, batch_size, sequence_length, Tape(item_bytes(dtype)), lm_head, attention, fused_projections)
    return step.write(recompute, dtype)


@dataclass
class _Step:
    model: Model
    batch: int
    sequence: int
    tape: Tape
    head_place: Place
    attention_place: Place
    fused: bool
    gradients: list[int] = field(default_factory=list)
    weights: dict[tuple[str, int], int] = field(default_factory=dict)
    looked_up: int = -1

    def __post_init__(self) -> None:
        self.tokens = self.batch * self.sequence
        self.widths = {op: (rows, columns) for op, rows, columns in layer_linears(self.model, fused=self.fused)}
        e, h = self.model.embedding_size, self.model.hidden_size
        self.widths |= {"project_in": (e, h), "project_out": (h, e), "lm_head": (e, self.model.vocab_size)}

    def write(self, recompute: Recompute, dtype: DType) -> GemmDag:
        """All nodes, in topological order."""
        saved: list[Saved] = []
        x = self.embed()
        for layer in range(self.model.layers):
            x, kept = self.layer(layer, x, F)
            saved.append(kept)
        d = self.head(x)
        for layer in reversed(range(self.model.layers)):
            kept = saved[layer]
            if recompute == "full":
                self.tape.gate = self.tape.makers((d,))[-1]
                _, kept = self.layer(layer, kept["attention.x"][0], AGAIN)
                self.tape.gate = self.tape.last
            d = self.layer_backward(layer, kept, d, again=recompute == "selective")
            self.tape.gate = None
        self.embed_backward(d)
        count = parameters(self.model)
        total = float(OPTIMIZER_FLOPS * count), float(optimizer_bytes(dtype) * count)
        self.tape.optimizer(At("optimizer", DW), self.gradients, *total)
        return self.tape.dag()

    # --- one linear, one memory-bound operation -------------------------------------------------------------------

    def linear(self, op: str, layer: int, x: int, phase: Phase) -> int:
        rows, columns = self.widths[op]
        if (op, layer) not in self.weights:
            self.weights[op, layer] = self.tape.tensor(rows * columns)
        at, shape = At(op, phase, layer), Shape(self.tokens, columns, rows)
        return self.tape.gemm(at, shape, x, self.weights[op, layer], place=self.place(op))

    def linear_backward(self, op: str, layer: int, x: int, dy: int) -> int:
        """Write dX and dW; returns dX."""
        rows, columns = self.widths[op]
        weight, place, t = self.weights[op, layer], self.place(op), self.tokens
        dx = self.tape.gemm(At(op, DX, layer), Shape(t, rows, columns), dy, weight, b_transposed=True, place=place)
        shape = Shape(rows, columns, t)
        self.gradients.append(self.tape.gemm(At(op, DW, layer), shape, x, dy, a_transposed=True, place=place))
        return dx

    def place(self, op: str) -> Place:
        return self.head_place if op == "lm_head" else Place.DEVICES

    def pointwise(self, op: str, kind: str, layer: int, phase: Phase, reads: tuple[int, ...], *widths: int) -> int:
        """A memory-bound operation with one output, [T x h] unless ``widths`` say otherwise."""
        flops = _FLOPS[kind][phase in {DX, DW}]
        writes = [self.tokens * w for w in widths or (self.model.hidden_size,)]
        return self.tape.elementwise(At(op, phase, layer), reads, writes, flops)[0]

    def pair(
        self, op: str, kind: str, layer: int, phase: Phase, reads: tuple[int, ...], *widths: int
    ) -> tuple[int, int]:
        """A memory-bound operation with two outputs of ``widths`` columns."""
        flops = _FLOPS[kind][phase in {DX, DW}]
        first, second = self.tape.elementwise(At(op, phase, layer), reads, [self.tokens * w for w in widths], flops)
        return first, second

    # --- before the first layer and after the last ----------------------------------------------------------------

    def embed(self) -> int:
        m, t = self.model, self.tokens
        size = t * m.embedding_size
        self.weights["embedding", -1] = self.tape.tensor(m.vocab_size * m.embedding_size)
        if m.tied:
            self.weights["lm_head", -1] = self.weights["embedding", -1]
        (x,) = self.tape.elementwise(At("embedding", F), (), [size], 0, gathered=size)
        if m.projects_embedding:
            self.looked_up = x  # its dW needs the input of the projection again
            x = self.linear("project_in", -1, x, F)
        if m.position_rows:
            size = t * m.hidden_size
            (x,) = self.tape.elementwise(At("position_embedding", F), (x,), [size], 1, gathered=size)
        return x

    def embed_backward(self, d: int) -> None:
        m, t = self.model, self.tokens
        if m.position_rows:
            size = t * m.hidden_size
            self.gradients += self.tape.elementwise(At("position_embedding", DW), (d,), [size], 1, gathered=size)
        if m.projects_embedding:
            d = self.linear_backward("project_in", -1, self.looked_up, d)
        size = t * m.embedding_size
        self.gradients += self.tape.elementwise(At("embedding", DW), (d,), [size], 1, gathered=size)

    def head(self, x: int) -> int:
        """Final norm, LM head, loss, and back to the gradient of the last layer's output."""
        m = self.model
        y = self.pointwise("final_norm", "norm", -1, F, (x,)) if m.final_norm else x
        z = self.linear("project_out", -1, y, F) if m.projects_embedding else y
        logits = self.linear("lm_head", -1, z, F)
        loss = self.pointwise("loss", "loss", -1, F, (logits,), 1)
        d = self.linear_backward("lm_head", -1, z, self.pointwise("loss", "loss", -1, DX, (logits, loss), m.vocab_size))
        if m.projects_embedding:
            d = self.linear_backward("project_out", -1, y, d)
        return self.pointwise("final_norm", "norm", -1, DX, (d, x)) if m.final_norm else d

    # --- a layer is two blocks, attention and MLP, of one form ----------------------------------------------------

    def layer(self, layer: int, x: int, phase: Phase) -> tuple[int, Saved]:
        kept: Saved = {}
        for block, inner in (("attention", self.attend), ("mlp", self.mlp)):
            kept[f"{block}.x"] = (x,)
            h = self.pointwise(f"{block}_norm", "norm", layer, phase, (x,)) if self.model.pre_norm else x
            out = inner(layer, h, phase, kept)
            if self.model.post_norms:
                kept[f"{block}.out"] = (out,)
                out = self.pointwise(f"{block}_post_norm", "norm", layer, phase, (out,))
            x = self.pointwise(f"{block}_residual", "residual", layer, phase, (x, out))
            if not self.model.pre_norm:
                kept[f"{block}.sum"] = (x,)
                x = self.pointwise(f"{block}_norm", "norm", layer, phase, (x,))
        return x, kept

    def layer_backward(self, layer: int, kept: Saved, d: int, *, again: bool) -> int:
        d = self.block_backward("mlp", layer, kept, d, again=False)
        return self.block_backward("attention", layer, kept, d, again=again)

    def block_backward(self, block: str, layer: int, kept: Saved, d: int, *, again: bool) -> int:
        if not self.model.pre_norm:
            d = self.pointwise(f"{block}_norm", "norm", layer, DX, (d, *kept[f"{block}.sum"]))
        branch = d
        if self.model.post_norms:
            branch = self.pointwise(f"{block}_post_norm", "norm", layer, DX, (d, *kept[f"{block}.out"]))
        if block == "mlp":
            parts = self.mlp_backward(layer, kept, branch)
        else:
            parts = self.attend_backward(layer, kept, branch, again=again)
        # One pass over memory adds the gradients of the linears that share the input, and that of the skip path.
        if self.model.pre_norm:
            return self.pointwise(f"{block}_norm", "norm", layer, DX, (*parts, *kept[f"{block}.x"], d))
        return self.pointwise(f"{block}_residual", "residual", layer, DX, (*parts, d))

    # --- MLP ------------------------------------------------------------------------------------------------------

    @property
    def curve(self) -> str:
        return "relu" if self.model.activation == "relu" else "smooth"

    def mlp(self, layer: int, h: int, phase: Phase, kept: Saved) -> int:
        f = self.model.ffn_size
        ups = [op for op in ("fc1", "gate_up", "gate", "up") if op in self.widths]
        raised = tuple(self.linear(op, layer, h, phase) for op in ups)
        active = self.pointwise("activation", self.curve, layer, phase, raised, f)
        kept |= {"mlp.in": (h,), "mlp.raised": raised, "mlp.active": (active,)}
        return self.linear("down" if self.model.gated_mlp else "fc2", layer, active, phase)

    def mlp_backward(self, layer: int, kept: Saved, d: int) -> tuple[int, ...]:
        f, (h,), (active,), raised = self.model.ffn_size, kept["mlp.in"], kept["mlp.active"], kept["mlp.raised"]
        d = self.linear_backward("down" if self.model.gated_mlp else "fc2", layer, active, d)
        if not self.model.gated_mlp:
            d = self.pointwise("activation", self.curve, layer, DX, (d, *raised), f)
            return (self.linear_backward("fc1", layer, h, d),)
        if "gate_up" in self.widths:
            d = self.pointwise("activation", self.curve, layer, DX, (d, *raised), 2 * f)
            return (self.linear_backward("gate_up", layer, h, d),)
        d_gate, d_up = self.pair("activation", self.curve, layer, DX, (d, *raised), f, f)
        return self.linear_backward("gate", layer, h, d_gate), self.linear_backward("up", layer, h, d_up)

    # --- attention ------------------------------------------------------------------------------------------------

    def attend(self, layer: int, h: int, phase: Phase, kept: Saved) -> int:
        m, t, wide, kv = self.model, self.tokens, self.model.attention_size, self.model.kv_size
        if "qkv_proj" in self.widths:
            q, k, v = self.tape.split(self.linear("qkv_proj", layer, h, phase), (t * wide, t * kv, t * kv))
        else:
            q, k, v = (self.linear(op, layer, h, phase) for op in ("q_proj", "k_proj", "v_proj"))
        if m.qk_norm:
            kept["attention.raw"] = (q, k)
            q, k = self.pair("qk_norm", "norm", layer, phase, (q, k), wide, kv)
        if not m.position_rows:
            q, k = self.pair("rope", "rope", layer, phase, (q, k), wide, kv)
        kept |= {"attention.in": (h,), "attention.qkv": (q, k, v)}
        context = self.core(layer, (q, k, v), phase, kept)
        kept["attention.context"] = (context,)
        return self.linear("o_proj", layer, context, phase)

    def core(self, layer: int, qkv: tuple[int, ...], phase: Phase, kept: Saved) -> int:
        q, k, v = qkv
        s, d, count = self.sequence, self.model.head_dim, self.batch * self.model.heads
        at, place = At("attention_scores", phase, layer), self.attention_place
        scores = self.tape.gemm(at, Shape(s, s, d, count), q, k, b_transposed=True, place=place)
        (p,) = self.tape.elementwise(At("softmax", phase, layer), (scores,), [count * s * s], _FLOPS["softmax"][0])
        kept["attention.p"] = (p,)
        return self.tape.gemm(At("attention_context", phase, layer), Shape(s, d, s, count), p, v, place=place)

    def attend_backward(self, layer: int, kept: Saved, d: int, *, again: bool) -> tuple[int, ...]:
        m, (h,) = self.model, kept["attention.in"]
        d = self.linear_backward("o_proj", layer, kept["attention.context"][0], d)
        if again:
            self.tape.gate = self.tape.makers((d,))[-1]
            self.core(layer, kept["attention.qkv"], AGAIN, kept)
            self.tape.gate = self.tape.last
        dq, dk, dv = self.core_backward(layer, kept["attention.qkv"], kept["attention.p"][0], d)
        if m.kv_heads < m.heads:
            dk, dv = self.pair("kv_sum", "sum", layer, DX, (dk, dv), m.kv_size, m.kv_size)
        if not m.position_rows:
            dq, dk = self.pair("rope", "rope", layer, DX, (dq, dk), m.attention_size, m.kv_size)
        if m.qk_norm:
            reads = (dq, dk, *kept["attention.raw"])
            dq, dk = self.pair("qk_norm", "norm", layer, DX, reads, m.attention_size, m.kv_size)
        if "qkv_proj" in self.widths:
            return (self.linear_backward("qkv_proj", layer, h, self.tape.join((dq, dk, dv))),)
        ops = (("q_proj", dq), ("k_proj", dk), ("v_proj", dv))
        return tuple(self.linear_backward(op, layer, h, dy) for op, dy in ops)

    def core_backward(self, layer: int, qkv: tuple[int, ...], p: int, d: int) -> tuple[int, int, int]:
        """Gradients of queries, keys and values; ``d`` is the gradient of the context, ``p`` the softmax's output."""
        q, k, v = qkv
        s, width, count, place = self.sequence, self.model.head_dim, self.batch * self.model.heads, self.attention_place
        square, slim = Shape(s, s, width, count), Shape(s, width, s, count)
        gemm = self.tape.gemm
        dv = gemm(At("attention_dv", DX, layer), slim, p, d, a_transposed=True, place=place)
        dp = gemm(At("attention_dp", DX, layer), square, d, v, b_transposed=True, place=place)
        (ds,) = self.tape.elementwise(At("softmax", DX, layer), (dp, p), [count * s * s], _FLOPS["softmax"][1])
        dq = gemm(At("attention_dq", DX, layer), slim, ds, k, place=place)
        dk = gemm(At("attention_dk", DX, layer), slim, ds, q, a_transposed=True, place=place)
        return dq, dk, dv
