"""Pipeline schedules: published times and memory, exposed links, and the engine's replay, equal to the nanosecond."""

from __future__ import annotations

import numpy as np
import pytest

from morphling.engine import Engine
from morphling.fleet import Links
from morphling.planning import schedules as S  # noqa: N812 - many short calls
from morphling.planning.collectives import append, ring_all_reduce
from morphling.planning.pipeline_rows import rows
from morphling.planning.pipeline_times import dominant_step_s, simulate
from morphling.types import Kind, Phase
from tests.oracle.worlds import FlopsAreNanoseconds, Once, bare_fleet

F, B, W = Phase.FORWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT
SECOND = 10**9

SCHEDULES = {
    "naive": S.naive,
    "gpipe": S.gpipe,
    "1f1b": S.one_f_one_b,
    "early": lambda P, M: S.one_f_one_b(P, M, S.early_warm_up(P)),
    "interleaved": lambda P, M: S.interleaved(P, M, 2),
    "interleaved-3": lambda P, M: S.interleaved(P, M, 3),
    "zb-h1": S.zero_bubble_h1,
    "pipedream": S.pipedream,
}


# ------------------------------------------------------------------------------------------------ without a network


@pytest.mark.parametrize(
    ("P", "M", "flush", "halves", "split"),
    [(4, 4, 21, 16.5, None), (4, 8, 33, 28.5, 27), (8, 16, 69, 58.5, 55), (8, 32, 117, 106.5, 103)],
)
def test_published_makespans(P, M, flush, halves, split):
    for name in ("gpipe", "1f1b", "early", "pipedream"):
        timing = simulate(SCHEDULES[name](P, M), 1, 2)
        assert timing.makespan == flush == (M + P - 1) * 3
        assert timing.bubble.tolist() == [(P - 1) * 3] * P
        assert timing.bubble_ratio == pytest.approx((P - 1) / (M + P - 1))
    assert simulate(S.naive(P, M), 1, 2).makespan == M * P * 3
    assert simulate(S.interleaved(P, M, 2), 1, 2).makespan == halves == M * 3 + (P - 1) * 3 / 2
    if split is not None:
        assert simulate(S.zero_bubble_h1(P, M), 1, 1, 1).makespan == split == M * 3 + (P - 1)


@pytest.mark.parametrize(("P", "M"), [(1, 1), (1, 5), (4, 8), (4, 16), (8, 3), (8, 16)])
def test_activations_in_flight(P, M):
    p = np.arange(P)
    assert S.in_flight(S.naive(P, M)).tolist() == [1] * P
    assert S.in_flight(S.gpipe(P, M)).tolist() == [M] * P
    assert S.in_flight(S.one_f_one_b(P, M)).tolist() == np.minimum(M, P - p).tolist()
    assert S.in_flight(S.pipedream(P, M)).tolist() == np.minimum(M, P - p).tolist()
    early = S.one_f_one_b(P, M, S.early_warm_up(P))
    assert S.in_flight(early).tolist() == np.minimum(M, 2 * (P - p) - 1).tolist()
    assert S.in_flight(S.zero_bubble_h1(P, M)).tolist() == [min(P, M)] * P


@pytest.mark.parametrize(("P", "M", "v"), [(2, 8, 2), (4, 8, 2), (4, 12, 3), (8, 32, 4)])
def test_interleaving_holds_more_on_the_first_stage(P, M, v):
    # L layers and the factor 1 + (P-1)/(Pv): in chunks of L/(Pv) layers that is Pv + P - 1.
    assert S.in_flight(S.interleaved(P, M, v))[0] == pytest.approx(P * v * (1 + (P - 1) / (P * v)))


def test_orders_by_hand():
    def order(schedule, p):
        a, b = schedule.ptr[p : p + 2]
        return " ".join(f"{'FBW'[x]}{m}" for x, m in zip(schedule.phase[a:b], schedule.micro_batch[a:b], strict=True))

    assert order(S.one_f_one_b(3, 4), 0) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert order(S.one_f_one_b(3, 4), 2) == "F0 B0 F1 B1 F2 B2 F3 B3"
    assert order(S.one_f_one_b(3, 4, lambda p: 4 - p), 0) == "F0 F1 F2 F3 B0 B1 B2 B3"
    assert order(S.zero_bubble_h1(3, 4), 1) == "F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3"
    assert order(S.zero_bubble_h1(3, 4), 2) == "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"
    wide = S.interleaved(2, 4, 2)
    assert order(wide, 1) == "F0 F1 F0 B0 F1 B1 F2 B0 F3 B1 F2 B2 F3 B3 B2 B3"
    assert wide.chunk[wide.ptr[1] :].tolist() == [0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0]


# ------------------------------------------------------------------------------------------------- exposed links

EXPOSED = {  # P = 4, M = 8, f = 1, b = 2; link time a hop: 0, .5, 1, 2, 3
    "gpipe": [33, 36, 39, 52, 72],
    "1f1b": [33, 41, 49, 65, 81],
    "early": [33, 36, 39, 48, 60],
}
HALF_DUPLEX = [33, 36, 39, 52, 69]
STEPS = [33, 36, 39, 49, 69]
LATENCY = {  # P = 8, M = 32, links without limit of capacity
    "gpipe": [117, 124, 131, 145, 159],
    "1f1b": [117, 151, 185, 253, 321],
    "early": [117, 124, 131, 159, 201],
}
HOPS = [0, 0.5, 1, 2, 3]


@pytest.mark.parametrize(("i", "c"), list(enumerate(HOPS)))
def test_exposed_link_time(i, c):
    for name, expected in EXPOSED.items():
        assert simulate(SCHEDULES[name](4, 8), 1, 2, transfer=c).makespan == expected[i]
    half = simulate(SCHEDULES["early"](4, 8), 1, 2, transfer=c, duplex="half").makespan
    assert half == pytest.approx(HALF_DUPLEX[i], abs=1 if c == 2 else 0)  # at 2 it depends on ties: 51 to 52
    assert dominant_step_s([1, c, 1, c, 1, c, 1], [2, c, 2, c, 2, c, 2], 8) == STEPS[i]
    for name, expected in LATENCY.items():
        assert simulate(SCHEDULES[name](8, 32), 1, 2, latency=c).makespan == expected[i]


def test_the_step_model_with_synchronisation_and_unequal_steps():
    # Steps: stage 0 (1+2), link (1+1), stage 1 (2+4).  Dominant: the last, 3·6 + 5 before it.
    assert dominant_step_s([1, 1, 2], [2, 1, 4], 3) == 23
    # Stage 0 starts at once and synchronises for 4; stage 1 waits for 2 and takes 18.
    assert dominant_step_s([1, 1, 2], [2, 1, 4], 3, [4, 0, 9]) == max(23 + 4, 1 + 20, 2 + 18 + 9)


def test_links_of_their_own_each_way():
    schedule = S.gpipe(3, 1)
    timing = simulate(schedule, [1, 2, 3], [10, 20, 30], transfer=[100, 200], transfer_back=[1000, 2000])
    assert timing.makespan == 1 + 100 + 2 + 200 + 3 + 30 + 2000 + 20 + 1000 + 10
    assert timing.start.tolist() == [0, 3356, 101, 2336, 303, 306]
    assert timing.busy.tolist() == [11, 22, 33]
    assert timing.end.dtype == np.int64


def test_of_two_sends_at_one_instant_the_pass_that_began_first_goes():
    """Half-duplex link of 2.  At 8 end stage 0's second forward pass (from 4) and stage 1's first backward (from 7)."""
    timing = simulate(S.one_f_one_b(2, 2), [4, 1], [2, 1], transfer=2, duplex="half")
    assert timing.start.tolist() == [0, 4, 12, 14, 6, 7, 10, 11]
    assert timing.makespan == 16


def test_one_uplink_serves_both_neighbours():
    """f = b = 1, links 4.  Stage 1 has its first gradient at 17 and its third activation at 18.

    With links of their own the activation is over at 22, with one uplink it waits until 21 and is over at 25.
    """
    schedule = S.one_f_one_b(3, 3)
    assert simulate(schedule, 1, 1, transfer=4).makespan == 34
    assert simulate(schedule, 1, 1, transfer=4, duplex="uplink").makespan == 37


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: S.gpipe(0, 1), "stages: at least 1"),
        (lambda: S.one_f_one_b(2, 0), "micro_batches: at least 1"),
        (lambda: S.one_f_one_b(3, 4, [1, 2, 1]), "stage 0 starts with 1 forward passes and stage 1 needs 2"),
        (lambda: S.one_f_one_b(3, 4, [2, 1]), "each of 3 stages"),
        (lambda: S.one_f_one_b(2, 4, [1.5, 1]), "whole number"),
        (lambda: S.interleaved(4, 6, 2), "nearest: 4 or 8"),
        (lambda: S.interleaved(4, 3, 2), "nearest: 4"),
        (lambda: S.interleaved(4, 8, 1), "at least 2 chunks"),
        (lambda: S.Schedule.of("own", [[(F, 0, 0)]], 1), r"stage 0: pass \(1, 0, 0\)"),
        (lambda: S.Schedule.of("own", [[(B, 0, 0), (F, 0, 0)]], 1), "comes before"),
        (lambda: S.Schedule.of("own", [[(F, 0, 0), (B, 0, 0), (B, 0, 0)]], 1), "not there once"),
        (lambda: simulate(S.gpipe(2, 2), 1, 2, 3), "does not split"),
        (lambda: simulate(S.gpipe(2, 2), [1, 2, 3], 2), "forward: a number, or one for each of 2 stages"),
        (lambda: simulate(S.gpipe(2, 2), -1, 2), "from 0 on"),
        (lambda: simulate(S.gpipe(2, 2), float("nan"), 2), "finite"),
        (lambda: simulate(S.gpipe(3, 2), 1, 2, transfer=[1]), "each of 2 links"),
        (lambda: simulate(S.gpipe(3, 2), 1, 2, duplex="simplex"), "full, half, uplink"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_orders_that_wait_for_each_other_are_refused():
    one, other = [(F, 0, 0), (B, 0, 0), (F, 1, 0), (B, 1, 0)], [(F, 0, 0), (F, 1, 0), (B, 0, 0), (B, 1, 0)]
    with pytest.raises(ValueError, match="stage 0 waits for ever"):
        simulate(S.Schedule.of("own", [one, other], 2), 1, 2)


# -------------------------------------------------------------------------------------------------- rows, replayed


def replay(table, up=1e12, down=1e12, latency_ns=0, size=None):
    """The record of one dispatch on constant links, bit/s."""
    n = size or int(table.device.max()) + 1
    strategy = Once(table)
    strategy.uses_peers = True
    fleet = bare_fleet(Links.constant(np.full(n, down), np.full(n, up), latency_ns))
    (done,) = Engine(fleet, None, strategy, FlopsAreNanoseconds()).run().dispatches
    assert not done.lost.any()
    return done


def by_stage(schedule, made, column):
    """A time column of the rows that compute, in the order of the schedule's columns."""
    order = np.argsort(made.stage[made.computes], kind="stable")
    assert made.phase[made.computes][order].tolist() == schedule.phase.tolist()
    assert made.micro_batch[made.computes][order].tolist() == schedule.micro_batch.tolist()
    assert made.chunk[made.computes][order].tolist() == schedule.chunk.tolist()
    return column[made.computes][order].tolist()


@pytest.mark.parametrize(("P", "M"), [(1, 3), (2, 4), (4, 4), (4, 8), (5, 10)])
@pytest.mark.parametrize("name", list(SCHEDULES))
def test_the_engine_replays_what_simulate_says(name, P, M):
    schedule = SCHEDULES[name](P, M)
    r = np.random.default_rng([P, M])
    times = [r.integers(1, 1000, (P, schedule.chunks)) for _ in range(3)]
    if not schedule.split:
        times[2] = np.zeros_like(times[2])
    flops = dict(zip(("forward_flops", "backward_flops", "weight_flops"), times, strict=True))
    devices = [[int(d)] for d in r.permutation(P)]
    made = rows(schedule, devices, **flops, boundary_bytes=0)
    done, timing = replay(made.tasks), simulate(schedule, *times)
    assert by_stage(schedule, made, done.times[2]) == timing.start.tolist()
    assert by_stage(schedule, made, done.times[3]) == timing.end.tolist()
    assert done.settled_ns == timing.makespan
    # With a network: 8 Mbit/s up takes 1000 ns a byte; downlinks so wide that two arrivals do not bind.
    size, back = r.integers(1, 5, (2, P * schedule.chunks - 1))
    if schedule.chunks > 1:
        size, back = np.array([2, 3])  # one time for each hop
    made = rows(schedule, devices, **flops, boundary_bytes=size, gradient_bytes=back)
    done = replay(made.tasks, up=8e6, down=64e6, latency_ns=1000)
    network = {"transfer": size * 1000, "transfer_back": back * 1000, "latency": 2000}
    timing = simulate(schedule, *times, **network, duplex="uplink")
    assert by_stage(schedule, made, done.times[3]) == timing.end.tolist()


def test_rows_of_two_devices_in_a_stage_by_hand():
    """Stage 0 is device 5 alone with 4 samples; stage 1 splits them 1 to 3; a boundary of 10 bytes is cut 2 to 8."""
    made = rows(
        S.gpipe(2, 1),
        [[5], [2, 0]],
        samples=[[4], [1, 3]],
        forward_flops=[100, 400],
        backward_flops=[200, 800],
        boundary_bytes=10,
        gradient_bytes=6,
        memory_bytes=([8.0, 16.0], 0.0, 0.0),
        resident_bytes=[[70], [20, 30]],
    )
    t = made.tasks
    assert t.device.tolist() == [5, 5, 2, 0, 2, 0, 5]
    assert t.peer.tolist() == [2, 0, -1, -1, 5, 5, -1]
    assert t.bytes_out.tolist() == [2, 8, 0, 0, 1, 5, 0]
    assert t.flops.tolist() == [100, 0, 100, 300, 200, 600, 200]
    assert t.memory_bytes.tolist() == [8, 0, 4, 12, 0, 0, 0]
    assert t.resident_bytes.tolist() == [70, 0, 20, 30, 0, 0, 0]
    assert (t.kind == Kind.TRANSFER).tolist() == [False, True, False, False, False, False, False]
    deps = [t.dep_idx[a:b].tolist() for a, b in zip(t.dep_ptr, t.dep_ptr[1:], strict=False)]
    assert deps == [[], [], [0], [1], [2], [3], [4, 5]]
    assert made.last_rows(1) == {2: 4, 0: 5}
    done = replay(t, up=8e6, down=64e6)  # 1000 ns a byte
    # Forward 100; 2 bytes to device 2 at 2100, 8 more to device 0 at 10100; 300 + 600; 5 bytes back; 200.
    assert done.times[3].tolist() == [100, 100, 2200, 10400, 2400, 11000, 16200]


@pytest.mark.parametrize("seed", range(4))
def test_split_stages_lose_no_byte_and_no_flop(seed):
    r = np.random.default_rng(seed)
    P, M, Y = int(r.integers(2, 5)), int(r.integers(1, 6)), 12
    schedule = S.one_f_one_b(P, M, S.early_warm_up(P))
    devices, samples, at = [], [], 0
    for _ in range(P):
        k = int(r.integers(1, 5))
        cuts = np.sort(r.integers(0, Y + 1, k - 1))
        samples.append(np.diff([0, *cuts, Y]).tolist())
        devices.append(list(range(at, at + k)))
        at += k
    made = rows(
        schedule, devices, samples=samples, forward_flops=120, backward_flops=240, boundary_bytes=1001, gradient_bytes=7
    )
    assert made.tasks.flops.sum() == pytest.approx(360 * P * M)
    assert int(made.tasks.bytes_out.sum()) == 1008 * (P - 1) * M
    done = replay(made.tasks, size=at)
    assert done.settled_ns > 0
    shown = {d for of, y in zip(devices, samples, strict=True) for d, n in zip(of, y, strict=True) if n}
    assert set(made.tasks.device.tolist()) == shown
    for p, of in enumerate(devices):  # each device computes its passes in the order of the schedule
        a, b = schedule.ptr[p : p + 2]
        for d in of:
            mine = made.computes & (made.tasks.device == d)
            if d in shown:
                assert made.phase[mine].tolist() == schedule.phase[a:b].tolist()
                assert made.micro_batch[mine].tolist() == schedule.micro_batch[a:b].tolist()


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_equal_shares_without_a_network_are_faster_stages(name):
    schedule, devices = SCHEDULES[name](3, 6), [[4], [0, 5], [1, 2, 3]]
    times = np.array([[60, 600, 6000], [120, 1200, 12000], [180, 1800, 18000]]) * schedule.chunks
    if not schedule.split:
        times[2] = 0
    flops = dict(zip(("forward_flops", "backward_flops", "weight_flops"), times, strict=True))
    made = rows(schedule, devices, **flops, boundary_bytes=0)
    timing = simulate(schedule, *(times // np.array([1, 2, 3])))
    assert replay(made.tasks).settled_ns == timing.makespan


def test_equal_shares_are_the_default():
    made = rows(S.gpipe(2, 1), [[0, 1], [2, 3, 4]], forward_flops=6, backward_flops=0, boundary_bytes=60)
    first = made.tasks.bytes_out[:4].tolist(), made.tasks.device[:4].tolist(), made.tasks.peer[:4].tolist()
    assert first == ([20, 10, 10, 20], [0, 0, 1, 1], [2, 3, 3, 4])


def test_a_stage_synchronises_after_its_last_gradient():
    made = rows(S.one_f_one_b(2, 3), [[0, 1], [2]], forward_flops=100, backward_flops=200, boundary_bytes=0)
    whole = append(made.tasks, ring_all_reduce([0, 1], 2000), after=made.last_rows(0))
    alone = replay(made.tasks).settled_ns
    # Two steps of 1000 bytes at 8 Mbit/s: 2 ms after the last backward pass of either device.
    assert replay(whole, up=8e6, down=8e6).settled_ns == alone + 2_000_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"devices": [[0]]}, "2 stages need at least one device"),
        ({"devices": [[0], []]}, "at least one device each"),
        ({"devices": [[0], [0]]}, "0 is no device, or stands there more than once"),
        ({"samples": [[4], [3]]}, "stage 1 has"),
        ({"samples": [[4], [2, 2]]}, "for 1 devices"),
        ({"boundary_bytes": 1.5}, "whole bytes"),
        ({"gradient_bytes": [1, 2]}, "gradient_bytes: whole bytes"),
        ({"weight_flops": 3.0}, "does not split"),
        ({"forward_flops": [1, 2, 3]}, "forward_flops: a number"),
    ],
)
def test_rows_refuse(change, message):
    plain = {"devices": [[0], [1]], "forward_flops": 1, "backward_flops": 2, "boundary_bytes": 1}
    with pytest.raises(ValueError, match=message):
        rows(S.gpipe(2, 2), **{**plain, **change})
