"""Replicas that exchange gradients layer by layer during the backward pass, as rows and as a closed form.

A layer's gradients leave as soon as its backward pass is done, while the layers before it are still computed (PyTorch's
DistributedDataParallel, Li et al. 2020, with one bucket a layer).  With several micro-batches they leave in the last
one only, in which the sums are complete; or in each, where nobody keeps them whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from morphling.interfaces.tasks import TaskTable
from morphling.planning.blocks import barrier
from morphling.planning.collective_times import MemberLinks
from morphling.planning.collectives import join
from morphling.planning.joined import ring
from morphling.planning.layer_costs import LayerCosts, Work
from morphling.planning.layer_products import NO_PRODUCTS, list_columns
from morphling.planning.row_times import Speeds
from morphling.types import DType, FloatArray, IntArray, Phase
from morphling.workload import Model, parameters
from morphling.workload.models import layer_parameters

__all__ = ["Round", "gradient_rows", "gradients_s", "layer_sizes", "rounds_at_end", "rounds_in_step"]


@dataclass(frozen=True, eq=False)
class Round:
    """A forward and a backward pass of all replicas.

    samples : float64[n], sequences of each;  exchange : whether gradients leave
    """

    samples: FloatArray
    exchange: bool


def layer_sizes(model: Model) -> IntArray:
    """int64[L], parameters of each layer; the first has those outside the layers too, whose gradients come last."""
    out = np.full(model.layers, layer_parameters(model), np.int64)
    out[0] += parameters(model) - int(out.sum())
    return out


def rounds_at_end(samples: IntArray, micro_batch: int) -> list[Round]:
    """All micro-batches but the last of each replica, which send nothing, in one; and the last ones.

    samples : int64[n], > 0, of each replica
    """
    last = np.minimum(samples, micro_batch)
    before = samples - last
    quiet = [Round(before.astype(np.float64), exchange=False)] if before.any() else []
    return [*quiet, Round(last.astype(np.float64), exchange=True)]


def rounds_in_step(samples: IntArray, micro_batch: int) -> list[Round]:
    """As many rounds as the largest share has micro-batches; each replica spreads its own evenly over them."""
    count = -(-int(samples.max()) // micro_batch)
    return [Round(samples / count, exchange=True)] * count


def gradient_rows(
    members: IntArray,
    rounds: Sequence[Round],
    costs: LayerCosts,
    sizes: IntArray,
    *,
    passes: int,
    dtype: DType,
    tokens: bool,
) -> TaskTable:
    """Rows of the rounds; the last row of the table is done when all gradients have arrived.

    members : int64[n], in the order of the ring
    sizes : int64[L], bytes of each layer's gradients;  passes : 2 all-reduces them, 1 reduce-scatters them
    tokens : whether the latency of the last collective's steps is charged (the steps of one hide that of another)
    """
    n = len(members)
    tables, streams, rows = [], [], 0
    for number, r in enumerate(rounds):
        share = r.samples / costs.batch_size
        forward, back = _passes(costs)
        if not r.exchange:
            tables.append(_computing(members, share, _total(forward, *back), dtype))
            rows += n
            continue
        tables.append(_computing(members, share, forward, dtype))
        rows += n
        for layer in reversed(range(costs.layers)):
            last = layer == 0 and number == len(rounds) - 1
            ends = ring(members, int(sizes[layer]), passes=passes, tokens=tokens and last)
            peer = np.where(ends.stream > 0, ends.successors, -1)
            tables.append(_computing(members, share, back[layer], dtype, peer=peer, bytes_out=ends.stream))
            streams.append(np.arange(rows, rows + n))
            rows += n
    table, waits = TaskTable.concat(tables), np.concatenate(streams)
    if len(ends.tokens):
        return ends.behind(table, waits)
    return join([(table, None), (barrier(int(members[0])), waits)])


def gradients_s(
    rounds: Sequence[Round],
    costs: LayerCosts,
    sizes: IntArray,
    links: MemberLinks,
    speeds: Speeds,
    *,
    passes: int,
    busy_s: ArrayLike = 0.0,
) -> float:
    """Seconds of `gradient_rows`: the longest time from a layer's gradients to the end of all that is sent after them.

    busy_s : float64[n], until when each member's uplink is taken

    What is sent in a round behind a layer takes passes·(n-1)/n of the bytes over the slowest edge, and passes·(n-1)
    steps of latency at the end.
    """
    n = len(links)
    edges = links.edges_bps
    rate = float(edges.min())
    hop = float((links.latency_s + np.roll(links.latency_s, -1)).max())
    clock = np.zeros(n)
    ready, sent = [], []
    forward, back = _passes(costs)
    for r in rounds:
        share = r.samples / costs.batch_size
        if not r.exchange:
            clock += _seconds(speeds, share, _total(forward, *back))
            continue
        clock += _seconds(speeds, share, forward)
        for layer in reversed(range(costs.layers)):
            clock += _seconds(speeds, share, back[layer])
            ready.append(float(clock.max()))
            sent.append(8.0 * passes * (n - 1) / n * float(sizes[layer]) / rate)
    behind = np.cumsum(np.array(sent)[::-1])[::-1]
    ends = float((np.array(ready) + behind).max())
    if n > 1:
        ends = max(ends, float((np.asarray(busy_s) + behind[0] * rate / edges).max()))
    return ends + passes * (n - 1) * hop


def _passes(costs: LayerCosts) -> tuple[Work, list[Work]]:
    """The whole forward pass, and the backward pass of each layer, with the ends of the model."""
    back = [
        costs.span(x, x + 1, Phase.BACKWARD_INPUT) + costs.span(x, x + 1, Phase.BACKWARD_WEIGHT)
        for x in range(costs.layers)
    ]
    return costs.span(0, costs.layers, Phase.FORWARD), back


def _total(*works: Work) -> Work:
    products = sum((w.products for w in works), NO_PRODUCTS)
    return Work(sum(w.flops for w in works), sum(w.memory_bytes for w in works), products)


def _seconds(speeds: Speeds, share: FloatArray, work: Work) -> FloatArray:
    return speeds.seconds(share * work.flops, share * work.memory_bytes)


def _computing(
    members: IntArray, share: FloatArray, work: Work, dtype: DType, *, peer: ArrayLike = -1, bytes_out: ArrayLike = 0
) -> TaskTable:
    return TaskTable.build(
        device=members,
        peer=peer,
        flops=share * work.flops,
        memory_bytes=share * work.memory_bytes,
        bytes_out=bytes_out,
        dtype=dtype,
        resident_bytes=0,
        **list_columns([work.products], 0, share),
    )
