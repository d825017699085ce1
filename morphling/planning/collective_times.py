"""Closed forms of collective operations: seconds and bytes; their rows are in `morphling.planning.collectives`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from morphling.planning.collectives import tree_rounds
from morphling.types import FloatArray

__all__ = [
    "MemberLinks",
    "all_gather_s",
    "all_to_all_s",
    "boundary_bytes",
    "broadcast_s",
    "central_broadcast_s",
    "central_server_s",
    "reduce_scatter_s",
    "ring_all_reduce_s",
    "ring_behind_s",
    "sent_bytes",
    "sharded_server_s",
    "tensor_parallel_bytes",
    "tree_all_reduce_s",
]


@dataclass(frozen=True, eq=False)
class MemberLinks:
    """The links of the n members of a collective, in its order.

    uplink_bps, downlink_bps : float64[n], bit/s, > 0;  latency_s : float64[n], one way to the backbone, seconds

    Between members i and j a transfer may take min(U_i, D_j) bit/s and arrives l_i + l_j after its last bit.
    """

    uplink_bps: FloatArray
    downlink_bps: FloatArray
    latency_s: FloatArray

    @classmethod
    def of(cls, uplink_bps: ArrayLike, downlink_bps: ArrayLike, latency_s: ArrayLike = 0.0) -> MemberLinks:
        """Scalars are repeated.  Raises ``ValueError`` on rates that are not positive and negative latencies."""
        up, down, latency = np.broadcast_arrays(*(np.atleast_1d(x) for x in (uplink_bps, downlink_bps, latency_s)))
        if not (np.all(up > 0) and np.all(down > 0) and np.all(latency >= 0)):
            raise ValueError("links: rates above 0 and latencies from 0 on are needed")
        return cls(*(x.astype(np.float64) for x in (up, down, latency)))

    def __len__(self) -> int:
        return len(self.uplink_bps)

    @property
    def edges_bps(self) -> FloatArray:
        """From each member to the next one of the ring, float64[n]."""
        out: FloatArray = np.minimum(self.uplink_bps, np.roll(self.downlink_bps, -1))
        return out

    def seconds(self, sender: ArrayLike, receiver: ArrayLike, size: ArrayLike) -> FloatArray:
        """α + size / bw of single transfers; members by their place, ``size`` in bytes; all broadcast."""
        i, j = np.asarray(sender), np.asarray(receiver)
        rate = np.minimum(self.uplink_bps[i], self.downlink_bps[j])
        out: FloatArray = self.latency_s[i] + self.latency_s[j] + 8.0 * np.asarray(size) / rate
        return out


def ring_all_reduce_s(links: MemberLinks, size: float) -> float:
    """2(n-1)(α + X / (n·bw)) of the slowest edge of the ring, seconds; ``size`` X in bytes.

    Exact for equal links.  With unequal ones the rows may be faster: they do not wait for each other at every step.
    Source: Patarasuk and Yuan 2009; the bottleneck is the least min(U_i, D_i+1).
    """
    return 2.0 * reduce_scatter_s(links, size)


def reduce_scatter_s(links: MemberLinks, size: float) -> float:
    """(n-1)(α + X / (n·bw)) of the slowest edge of the ring, seconds; as `ring_all_reduce_s`."""
    n = len(links)
    if n == 1 or size == 0:
        return 0.0
    i = np.arange(n)
    return (n - 1) * float(links.seconds(i, (i + 1) % n, size / n).max())


def all_gather_s(links: MemberLinks, size: float) -> float:
    """The same as `reduce_scatter_s`: the same sends around the ring."""
    return reduce_scatter_s(links, size)


def ring_behind_s(links: MemberLinks, size: float, begins_s: ArrayLike, busy_s: ArrayLike, *, passes: int = 2) -> float:
    """When a ring collective is over; ``size`` X in bytes, ``passes`` as of `sent_bytes`.

    begins_s, busy_s : float64[n], when each member has something to send, and until when its uplink is taken, seconds

    A member's sends follow each other from then on, as one stream, and the latency of the steps comes behind the last
    of all (`joined.ring`).  If all begin at one time, with free uplinks, it takes `ring_all_reduce_s`.
    """
    n = len(links)
    if n == 1 or size == 0:
        return float(np.max(begins_s))
    sends = 8.0 * sent_bytes(size, n, passes=passes) / links.edges_bps
    steps = passes * reduce_scatter_s(links, size) - float(sends.max())
    return float((np.maximum(begins_s, busy_s) + sends).max()) + steps


def tree_all_reduce_s(links: MemberLinks, size: float) -> float:
    """2⌈log2 n⌉(α + X / bw), each round as slow as its slowest transfer; seconds, X in bytes."""
    up = tree_rounds(len(links)) if size else []
    towards = sum(float(links.seconds(child, parent, size).max()) for child, parent in up)
    return towards + broadcast_s(links, size)


def broadcast_s(links: MemberLinks, size: float) -> float:
    """⌈log2 n⌉(α + X / bw) from member 0, each round as slow as its slowest transfer; seconds, X in bytes."""
    rounds = tree_rounds(len(links)) if size else []
    return sum((float(links.seconds(parent, child, size).max()) for child, parent in rounds), 0.0)


def central_broadcast_s(links: MemberLinks, size: float, *, out_bps: float = np.inf) -> float:
    """max(n·X / bw_out, max X / D_i) + α, seconds; ``out_bps`` the coordinator's uplink, bit/s.

    A lower bound where the coordinator's card binds for a part of the time only.
    """
    if size == 0:
        return 0.0
    slowest = max(len(links) / out_bps, float((1 / links.downlink_bps).max()))
    return 8.0 * size * slowest + float(links.latency_s.max())


def central_server_s(links: MemberLinks, size: float, *, in_bps: float = np.inf, out_bps: float = np.inf) -> float:
    """Push and pull: max(n·X / bw_in, max X / U_i) + max(n·X / bw_out, max X / D_i) + 2α, seconds.

    ``in_bps``, ``out_bps``: the coordinator's downlink and uplink, bit/s.  As `central_broadcast_s`.
    """
    push = MemberLinks(links.downlink_bps, links.uplink_bps, links.latency_s)
    return central_broadcast_s(push, size, out_bps=in_bps) + central_broadcast_s(links, size, out_bps=out_bps)


def sharded_server_s(links: MemberLinks, size: float) -> float:
    """max_i Σ_{j≠i} 2(α_ij + X / (n·bw_ij)), seconds: a member's sends one after another, each to its end.

    Source: the scheduler of DT-FM (DS3Lab/DT-FM).  Rows that are not ``blocking`` overlap the latencies of successive
    sends: with equal links they take 2(α + (n-1)·X / (n·bw)).
    """
    return 2.0 * all_to_all_s(links, size)


def all_to_all_s(links: MemberLinks, size: float) -> float:
    """max_i Σ_{j≠i} (α_ij + X / (n·bw_ij)), seconds; for equal links (n-1)α + (n-1)/n · X / bw."""
    n = len(links)
    if n == 1 or size == 0:
        return 0.0
    i = np.arange(n)
    times = links.seconds(i[:, None], i[None, :], size / n)
    return float((times.sum(axis=1) - times.diagonal()).max())


def sent_bytes(size: float, members: int, *, passes: int = 2) -> float:
    """passes·(n-1)/n·X: bytes that each member sends around a ring; an all-reduce is two passes, a gather one."""
    return passes * (members - 1) / members * size


def tensor_parallel_bytes(
    batch_size: int, sequence_length: int, hidden_size: int, ways: int, *, item_bytes: int = 2
) -> float:
    """8·b·s·h·β(t-1)/t: bytes that each of t devices sends in one layer, forward and backward.

    Two all-reduces of b·s·h elements forward and two backward, around a ring; with sequence parallelism each is a
    reduce-scatter and an all-gather of the same volume.  Source: Shoeybi et al. 2019, Korthikanti et al. 2022.
    """
    return 4 * sent_bytes(boundary_bytes(batch_size, sequence_length, hidden_size, item_bytes=item_bytes), ways)


def boundary_bytes(batch_size: int, sequence_length: int, hidden_size: int, *, item_bytes: int = 2) -> int:
    """b·s·h·β: activations of ``batch_size`` sequences between two pipeline stages; gradients are as many bytes."""
    return batch_size * sequence_length * hidden_size * item_bytes
