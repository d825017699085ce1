"""Collectives: what every member ends with, exact bytes, and the engine's replay beside the closed forms."""

from __future__ import annotations

import random

import numpy as np
import pytest

from morphling.engine import Engine
from morphling.fleet import Links
from morphling.planning import collective_times as T  # noqa: N812
from morphling.planning import collectives as C  # noqa: N812
from morphling.types import Kind
from tests.oracle.worlds import FlopsAreNanoseconds, Once, bare_fleet, coordinator, rows

S = 10**9
SIZES = [1, 2, 3, 4, 5, 7, 8, 12]


def replay(table, up, down, latency_ns=0, *, centre=None):
    """Seconds until the last row is settled, and the settled times of all rows, ns; rates in bit/s."""
    strategy = Once(table)
    strategy.uses_peers = True
    fleet = bare_fleet(Links.constant(np.array(down), np.array(up), latency_ns), centre=centre)
    (done,) = Engine(fleet, None, strategy, FlopsAreNanoseconds()).run().dispatches
    assert not done.lost.any()
    return done.settled_ns / S, done.times[6]


def any_order(table, seed):
    """Rows in a random order that keeps dependencies and the order on each device, and nothing else."""
    r = random.Random(seed)
    before = [set(table.dep_idx[a:b].tolist()) for a, b in zip(table.dep_ptr, table.dep_ptr[1:], strict=False)]
    last = {}
    for i, d in enumerate(table.device.tolist()):
        before[i] |= {last[d]} if d in last else set()
        last[d] = i
    left, done = list(range(len(table))), set()
    while left:
        ready = [i for i in left if before[i] <= done]
        i = r.choice(ready)
        left.remove(i)
        done.add(i)
        yield i


def contributions(table, members, chunks, seed, start):
    """Whose sums each member holds of each chunk at the end; a chunk is known by its size."""
    held = {m: {c: set(start(place, j)) for j, c in enumerate(chunks)} for place, m in enumerate(members)}
    for i in any_order(table, seed):
        source, target, chunk = int(table.device[i]), int(table.peer[i]), int(table.bytes_out[i])
        sent, have = held[source][chunk], held[target][chunk]
        assert not sent & have or sent >= have, "a contribution would be added twice"
        have |= sent
    return held


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("what", ["ring_all_reduce", "sharded_server", "tree_all_reduce"])
def test_every_member_ends_with_the_sum_of_all(what, n):
    members = random.Random(n).sample(range(100), n)
    chunks = [7] if what == "tree_all_reduce" else [1 << j for j in range(n)]
    table = getattr(C, what)(members, 7 if what == "tree_all_reduce" else chunks)
    for seed in range(5):
        held = contributions(table, members, chunks, seed, lambda place, _: {place})
        assert all(x == set(range(n)) for of in held.values() for x in of.values())


@pytest.mark.parametrize("n", SIZES)
def test_the_halves_of_the_ring(n):
    members, chunks = list(range(n)), [1 << j for j in range(n)]
    for seed in range(5):
        held = contributions(C.reduce_scatter(members, chunks), members, chunks, seed, lambda place, _: {place})
        assert all(held[i][chunks[i]] == set(range(n)) for i in members)
        held = contributions(
            C.all_gather(members, chunks), members, chunks, seed, lambda place, j: {j} if place == j else ()
        )
        assert all(held[i][c] == {j} for i in members for j, c in enumerate(chunks))


@pytest.mark.parametrize("n", SIZES)
def test_broadcast_and_all_to_all_reach_everybody(n):
    members = list(range(50, 50 + n))
    table = C.broadcast(members, 9)
    for seed in range(5):
        held = contributions(table, members, [9], seed, lambda place, _: {0} if place == 0 else ())
        assert all(x == {9: {0}} for x in held.values())
    table = C.all_to_all(members, [1 << j for j in range(n)])
    pairs = sorted(zip(table.device.tolist(), table.peer.tolist(), table.bytes_out.tolist(), strict=True))
    assert pairs == sorted((i, j, 1 << (j - 50)) for i in members for j in members if i != j)


@pytest.mark.parametrize("size", [0, 1, 2, 6, 7, 1000, 10**9 + 7])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_bytes_are_whole_and_sum_exactly(n, size):
    m = list(range(n))
    for table, total in (
        (C.ring_all_reduce(m, size), 2 * (n - 1) * size),
        (C.reduce_scatter(m, size), (n - 1) * size),
        (C.all_gather(m, size), (n - 1) * size),
        (C.sharded_server(m, size), 2 * (n - 1) * size),
        (C.all_to_all(m, size), (n - 1) * size),
        (C.tree_all_reduce(m, size), 2 * (n - 1) * size),
        (C.broadcast(m, size), (n - 1) * size),
    ):
        assert int(table.bytes_out.sum()) == total
        assert (table.bytes_out > 0).all()
        assert (table.kind == Kind.TRANSFER).all()
        assert len(table) == 0 or total > 0
    central = C.central_server(m, size, coordinator=20)
    assert (int(central.bytes_out.sum()), int(central.bytes_in.sum())) == (n * size, n * size)
    assert int(C.central_broadcast(m, size).bytes_in.sum()) == n * size


def test_a_ring_of_three_by_hand():
    table = C.ring_all_reduce([4, 9, 2], 10)  # chunks of 3, 3 and 4 bytes
    assert table.device.tolist() == [4, 9, 2] * 4
    assert table.peer.tolist() == [9, 2, 4] * 4
    assert table.bytes_out.tolist() == [3, 3, 4, 4, 3, 3, 3, 4, 3, 3, 3, 4]
    deps = [table.dep_idx[a:b].tolist() for a, b in zip(table.dep_ptr, table.dep_ptr[1:], strict=False)]
    assert deps == [[], [], [], [2], [0], [1], [5], [3], [4], [8], [6], [7]]
    assert C.ring_all_reduce([4, 9, 2], 1).bytes_out.tolist() == [1] * 4  # one chunk of one byte goes round


# --------------------------------------------------------------------------------------------------- closed forms

EQUAL = [
    ("ring_all_reduce", "ring_all_reduce_s", {}),
    ("reduce_scatter", "reduce_scatter_s", {}),
    ("all_gather", "all_gather_s", {}),
    ("tree_all_reduce", "tree_all_reduce_s", {}),
    ("broadcast", "broadcast_s", {}),
    ("sharded_server", "sharded_server_s", {"blocking": True}),
    ("all_to_all", "all_to_all_s", {"blocking": True}),
]


@pytest.mark.parametrize(("table", "seconds", "more"), EQUAL, ids=[x[0] for x in EQUAL])
@pytest.mark.parametrize("n", [2, 3, 5, 8])
@pytest.mark.parametrize("latency_ns", [0, 35_000_000])
def test_equal_links_take_the_closed_form(table, seconds, more, n, latency_ns):
    size = 3_000_000
    rates = np.full(n, 40e6), np.full(n, 90e6)
    took, _ = replay(getattr(C, table)(range(n), size, **more), *rates, latency_ns)
    expected = getattr(T, seconds)(T.MemberLinks.of(*rates, latency_ns / S), size)
    assert took == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_sends_that_do_not_block_overlap_their_latencies(n):
    size, latency = 3_000_000, 35_000_000
    rates = np.full(n, 40e6), np.full(n, 40e6)
    sending, alpha = (n - 1) * size * 8 / n / 40e6, 2 * latency / S
    assert replay(C.all_to_all(range(n), size), *rates, latency)[0] == pytest.approx(sending + alpha, rel=1e-6)
    took, _ = replay(C.sharded_server(range(n), size), *rates, latency)
    assert took == pytest.approx(2 * (sending + alpha), rel=1e-6)


@pytest.mark.parametrize(("in_bps", "out_bps"), [(None, None), (100e6, 150e6)])
def test_the_central_server_on_equal_links(in_bps, out_bps):
    n, size, latency = 5, 2_000_000, 20_000_000
    rates = np.full(n, 40e6), np.full(n, 80e6)
    links = T.MemberLinks.of(*rates, latency / S)
    centre = coordinator(out_bps and int(out_bps), in_bps and int(in_bps))
    expected = T.central_server_s(links, size, in_bps=in_bps or np.inf, out_bps=out_bps or np.inf)
    # By hand: 2 MB are 16 Mbit; 16/40 + 16/80 s, or 80/100 + 80/150 s, and two latencies.
    assert expected == pytest.approx(0.04 + (0.6 if in_bps is None else 0.8 + 80 / 150))
    took, _ = replay(C.central_server(range(n), size, n), *rates, latency, centre=centre)
    assert took == pytest.approx(expected, rel=1e-6)
    took, _ = replay(C.central_broadcast(range(n), size), *rates, latency, centre=centre)
    assert took == pytest.approx(T.central_broadcast_s(links, size, out_bps=out_bps or np.inf), rel=1e-6)


def test_the_server_adds_up_between_push_and_pull():
    table = C.central_server([0, 2], 1_000_000, 3, flops=7e9)  # 7 s here
    took, settled = replay(table, np.full(3, 8e6), np.full(3, 8e6))
    assert (settled.tolist(), took) == ([S, S, 8 * S, 9 * S, 9 * S], 9.0)


def test_unequal_rings_by_hand():
    """3 MB in a ring of three: chunks of 8 Mbit, four steps.  Edges 0→1, 1→2, 2→0 take 1, 1 and 2 s a chunk."""
    up, down = np.array([8e6, 8e6, 4e6]), np.array([16e6, 16e6, 8e6])
    took, _ = replay(C.ring_all_reduce(range(3), 3_000_000), up, down)
    assert took == pytest.approx(4 * 2.0)  # the slow edge is never idle
    assert T.ring_all_reduce_s(T.MemberLinks.of(up, down), 3_000_000) == pytest.approx(8.0)
    # The receiver's downlink may be the narrow one: min(U_0, D_1) = 2 Mbit/s.
    down[1] = 2e6
    assert T.ring_all_reduce_s(T.MemberLinks.of(up, down), 3_000_000) == pytest.approx(16.0)
    assert replay(C.ring_all_reduce(range(3), 3_000_000), up, down)[0] == pytest.approx(16.0)


def critical_path(table, up, down, latency_s):
    """Longest way through dependencies and uplink queues, where no two transfers share a link; seconds."""
    free, end = {}, []
    for i in range(len(table)):
        a, b = int(table.device[i]), int(table.peer[i])
        deps = table.dep_idx[table.dep_ptr[i] : table.dep_ptr[i + 1]]
        start = max([free.get(a, 0.0), *(end[j] for j in deps)])
        free[a] = start + 8 * int(table.bytes_out[i]) / min(up[a], down[b])
        end.append(free[a] + latency_s[a] + latency_s[b])
    return max(end)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("what", ["ring_all_reduce", "all_gather", "tree_all_reduce", "broadcast"])
def test_unequal_links_take_the_critical_path(what, seed):
    r = np.random.default_rng(seed)
    n = int(r.integers(2, 8))
    up = np.floor(r.uniform(5e6, 80e6, n))
    down = up.max() * np.ceil(r.uniform(1, 3, n))  # so wide that two transfers into one device do not bind
    latency = r.integers(0, 50, n) * 1_000_000
    members = r.permutation(n)
    table = getattr(C, what)(members, 2_000_003)
    took, _ = replay(table, up, n * down, latency)
    assert took == pytest.approx(critical_path(table, up, n * down, latency / S), rel=1e-6)
    ordered = T.MemberLinks.of(*(x[members] for x in (up, n * down, latency / S)))
    assert took <= getattr(T, what + "_s")(ordered, 2_000_003) * 1.001


# ----------------------------------------------------------------------------------------------------- composition


def test_devices_wait_for_their_own_rows_or_for_all():
    computing = rows([0, 1, 2], [S, 3 * S, 2 * S])
    ring = C.ring_all_reduce([0, 1, 2], 3)
    own = C.append(computing, ring, after={0: 0, 1: [1], 2: [2]})
    deps = [own.dep_idx[a:b].tolist() for a, b in zip(own.dep_ptr, own.dep_ptr[1:], strict=False)]
    assert deps[:7] == [[], [], [], [0], [1], [2], [5]]
    fast = np.full(3, 8e9)
    assert replay(own, fast, fast)[0] == pytest.approx(3.0, abs=1e-6)
    barrier = C.append(computing, C.broadcast([0, 1, 2], 1_000_000_000), after=[0, 1, 2])
    assert replay(barrier, fast, fast)[0] == pytest.approx(5.0)  # 3 s for the slowest, then two sends of 1 s
    alone = C.append(computing, C.broadcast([0, 1, 2], 1_000_000_000), after={0: 0})
    assert replay(alone, fast, fast)[0] == pytest.approx(3.0)  # 1 s, then two sends of 1 s


def test_several_tables_in_a_row():
    ring = C.reduce_scatter([0, 1], 2_000_000)
    joint = C.join([(ring, None), (C.all_gather([0, 1], 2_000_000), [0, 1]), (rows([0]), {0: [3]})])
    assert replay(joint, np.full(2, 8e6), np.full(2, 8e6))[0] == pytest.approx(2.0)
    assert joint.dep_idx.tolist() == [0, 1, 0, 1, 3]
    with pytest.raises(ValueError, match="row 2 is not among the 2 rows"):
        C.append(ring, ring, after=[2])


def test_what_follows_on_a_device_waits_for_what_it_gets():
    assert {d: x.tolist() for d, x in C.arrivals(C.ring_all_reduce([4, 9, 2], 10), first_row=100).items()} == {
        2: [101, 104, 107, 110],
        4: [102, 105, 108, 111],
        9: [100, 103, 106, 109],
    }
    central = C.central_server([0, 2], 5, 3)
    assert {d: x.tolist() for d, x in C.arrivals(central).items()} == {0: [3], 2: [4]}
    assert C.arrivals(rows([0], S)) == {}
    # A reduce-scatter and an all-gather of the same devices are an all-reduce; then all compute for 1 s.
    n, size, rates = 5, 5_000_000, np.full(5, 8e6)
    scatter, gather = C.reduce_scatter(range(n), size), C.all_gather(range(n), size)
    parts = [(scatter, None), (gather, C.arrivals(scatter))]
    parts.append((rows(np.arange(n), S), C.arrivals(gather, first_row=len(scatter))))
    assert replay(C.join(parts), rates, rates)[0] == pytest.approx(8.0 + 1.0)
    both = C.join([(C.all_to_all(range(n), size), None), (rows([0], S), C.arrivals(C.all_to_all(range(n), size)))])
    assert replay(both, rates, rates)[0] == pytest.approx(4.0 + 1.0)


def test_a_table_of_many_members_has_every_row():
    for table in (C.ring_all_reduce(range(256), 10**9 + 7), C.sharded_server(range(256), 10**9 + 7)):
        assert len(table) == 2 * 256 * 255
        assert int(table.bytes_out.sum()) == 2 * 255 * (10**9 + 7)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: C.ring_all_reduce([], 1), "at least one"),
        (lambda: C.ring_all_reduce([1, 2, 1], 1), "device 1 stands there 2 times"),
        (lambda: C.ring_all_reduce([0, -1], 1), "-1 is no device"),
        (lambda: C.ring_all_reduce([0.0, 1.0], 1), "device number"),
        (lambda: C.ring_all_reduce([0, 1], 1.5), "whole number of bytes"),
        (lambda: C.broadcast([0, 1], -1), "whole number of bytes"),
        (lambda: C.all_to_all([0, 1], [1, 2, 3]), "each of 2 chunks"),
        (lambda: C.all_to_all([0, 1], [1, -2]), "each of 2 chunks"),
        (lambda: C.central_server([0, 5], 1, 5), "fleet's size"),
        (lambda: T.MemberLinks.of([1e6, 0], 1e6), "above 0"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_bytes_sent_around_a_ring():
    assert T.sent_bytes(8, 4) == 12
    assert T.sent_bytes(8, 4, passes=1) == 6
    assert T.sent_bytes(8, 1) == 0
    # OPT-13B's layers in float16 on 256 devices: 50.1 GB sent by each.
    assert T.sent_bytes(40 * 314_639_360 * 2, 256) == pytest.approx(50.1e9, rel=2e-3)
