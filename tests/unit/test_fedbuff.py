"""FedBuff worked by hand: who replaces whom and when, the buffer, staleness; and that nobody trains twice at once."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from morphling.errors import EngineError, Infeasible
from morphling.fleet import Availability
from morphling.planning.idle import IdlePool
from morphling.planning.local_training import reports_s
from morphling.results import metrics
from morphling.strategies.fedbuff import FedBuff, FedBuffConfig
from tests.federated_worlds import S, W, clients, ends, run, turns
from tests.oracle.standing import started


def fedbuff(**config):
    return FedBuff(FedBuffConfig(**{"concurrency": 2, "buffer_size": 2, **config}))


def staleness(strategy):
    return {int(k): v for k, v in strategy.report()["staleness"].items()}


@pytest.mark.parametrize("lane", ["closed", "events"])
def test_two_clients_of_2_and_3_s_and_a_buffer_of_two(lane):
    # Reports: client 0 at 2, 4, 6 s, client 1 at 3, 6 s, each replaced by itself.  The second report, at 3 s, is an
    # update; so is the one of client 1 at 6 s, which was dispatched before client 0's third turn.
    strategy = fedbuff()
    fleet = clients((0.5, 1, 0.5), (0.5, 2, 0.5))
    recording = run(strategy, fleet, iterations=2, lane=lane)
    assert ends(recording) == [3.0, 6.0]
    # at 4 s client 0 reports what it began at 2 s, before the update: one update behind
    assert staleness(strategy) == {0: 3, 1: 1}
    said = strategy.report()
    assert said["mean_staleness"] == 0.25
    assert said["mean_weight"] == pytest.approx((3 + 1 / np.sqrt(2)) / 4)
    assert said["estimate_s"] == pytest.approx(3.0)
    assert (said["server_updates"], said["reported"], said["dropped"]) == (2, 4, 0)
    # client 0 is at the end of its third turn as well, but its report is not in the buffer any more
    assert [(d, a / S, b / S) for d, a, b, _ in sorted(turns(recording), key=lambda x: (x[1], x[0]))] == [
        (0, 0, 2), (1, 0, 3), (0, 2, 4), (1, 3, 6), (0, 4, 6)
    ]  # fmt: skip


def test_the_estimate_is_the_mean_update_of_the_run():
    # four equal clients of 2 s, all at once: four reports every 2 s, which are two updates
    strategy = fedbuff(concurrency=4)
    recording = run(strategy, clients(*[(0.5, 1, 0.5)] * 4), iterations=6)
    assert ends(recording) == [2, 2, 4, 4, 6, 6]
    assert strategy.report()["estimate_s"] == pytest.approx(1.0)


def test_reports_of_a_pool_by_hand():
    numbers = np.random.default_rng(0)
    # 2, 3, 4, 6, 6 s; one place of three clients of 1 s; ten thousand are counted, and the mean of more is theirs
    assert [reports_s(np.array([2.0, 3.0]), 2, n, numbers) for n in range(1, 6)] == [2, 3, 4, 6, 6]
    assert reports_s(np.ones(3), 1, 7, numbers) == 7
    assert reports_s(np.ones(3), 1, 50_000, numbers) == pytest.approx(50_000)


def test_reports_that_are_too_stale_are_thrown_away():
    # client 0 reports every 2 s, each an update; client 1 at 10 s, four updates behind: the report of client 0 at that
    # instant comes after it, because client 1 was dispatched earlier
    strategy = fedbuff(buffer_size=1, max_staleness=3)
    recording = run(strategy, clients((0.5, 1, 0.5), (0.5, 9, 0.5)), iterations=6)
    assert ends(recording) == [2, 4, 6, 8, 10, 12]
    said = strategy.report()
    assert (said["reported"], said["too_stale"]) == (7, 1)
    assert staleness(strategy) == {0: 6, 4: 1}
    assert said["mean_weight"] == 1.0
    kept = fedbuff(buffer_size=1)
    # both at 10 s; client 1 was dispatched first, and its report is the fifth update
    assert ends(run(kept, clients((0.5, 1, 0.5), (0.5, 9, 0.5)), iterations=6)) == [2, 4, 6, 8, 10, 10]
    assert staleness(kept) == {0: 4, 4: 1, 1: 1}


def test_a_client_that_dies_is_replaced_at_once():
    # client 0 dies at 1 s; of 0, 1, 2 one place only: whoever begins is replaced at 1 s or when it reports
    fleet = clients((1, 1, 1), (1, 1, 1), sessions={0: [(0, 1.5), (100, None)]})
    strategy = fedbuff(concurrency=2, buffer_size=3)
    recording = run(strategy, fleet)
    # 1 reports at 3, 6 and 9 s; 0 was lost, and there is nobody to replace it
    assert ends(recording) == [9.0]
    assert strategy.report()["dropped"] == 1
    got = metrics(recording, fleet, 1.0, strategy.report())
    assert (got["recovery_time_s"], got["unrecovered_losses"], got["lost_rows"]) == (0.0, 0, 1)
    third = fedbuff(concurrency=2, buffer_size=2)
    three = clients((1, 1, 1), (1, 1, 1), (1, 1, 1), sessions={i: [(0, 1.5)] for i in (0, 1)})
    recording = run(third, three, iterations=1)
    assert ends(recording) == [6.0] if third.report()["dropped"] == 1 else [7.5]


def test_everybody_is_away_for_a_while():
    fleet = clients(*[(1, 1, 1)] * 3, sessions={i: [(0, 2), (50, None)] for i in range(3)})
    strategy = fedbuff()
    assert ends(run(strategy, fleet)) == [53.0]
    said = strategy.report()
    assert (said["dropped"], said["reported"]) == (2, 2)


def test_nobody_ever_returns_is_an_error_and_no_hang():
    fleet = clients(*[(1, 1, 1)] * 3, sessions={i: [(0, 2)] for i in range(3)})
    with pytest.raises(EngineError):
        run(fedbuff(), fleet)


def test_a_fleet_smaller_than_the_concurrency():
    strategy = fedbuff(concurrency=10, buffer_size=4)
    fleet = clients((1, 1, 1), (1, 1, 1), sessions={1: [(1, None)]})
    # 0 reports at 3 and 6 s, 1 at 4 and 7 s
    assert ends(run(strategy, fleet)) == [7.0]


def test_nobody_can_hold_the_training():
    with pytest.raises(Infeasible, match="no device can hold the training of opt-125m"):
        run(fedbuff(), clients((1, 1, 1), memory=1 << 29))


def test_drawn_ahead_each_waits_for_the_one_before():
    # One place, four clients, all drawn at once: in whatever order, they take 3 + 4 + 5 + 6 s.
    strategy = fedbuff(concurrency=1, buffer_size=4, draw_ahead=4)
    recording = run(strategy, clients((1, 1, 1), (1, 2, 1), (1, 3, 1), (1, 4, 1)), iterations=2)
    assert ends(recording) == [18.0, 36.0]
    assert len(recording.dispatches) == 2
    assert staleness(strategy) == {0: 8}
    assert sum(recording.dispatches[0].column("bytes_in")) == 4 * W
    assert any("drawn for a place at once" in line for line in strategy.report()["assumptions"])


def test_drawn_ahead_each_starts_from_the_model_of_its_own_start():
    strategy = fedbuff(concurrency=1, buffer_size=1, draw_ahead=4)
    run(strategy, clients(*[(1, 1, 1)] * 4), iterations=8)
    assert staleness(strategy) == {0: 8}


def test_who_is_drawn_ahead_and_leaves_before_its_turn_is_no_drop_out():
    for seed in range(6):
        strategy = fedbuff(concurrency=1, buffer_size=2, draw_ahead=3)
        fleet = clients(*[(1, 1, 1)] * 3, sessions={2: [(0, 1)]})
        recording = run(strategy, fleet, seed=seed)
        first = turns(recording)[0][0]
        # whoever trains goes on, and the place is filled again at 3 s; only if 2 itself trains it dies, at 1 s
        assert ends(recording) == [7.0 if first == 2 else 6.0]
        assert strategy.report()["dropped"] == (first == 2)


def test_the_last_report_leaves_others_unfinished_which_is_no_loss():
    strategy = fedbuff(concurrency=2, buffer_size=1)
    fleet = clients((1, 1, 1), (1, 5, 1))
    recording = run(strategy, fleet)
    assert strategy.report()["unfinished"] == 1
    got = metrics(recording, fleet, 1.0, strategy.report())
    assert (got["lost_rows"], got["unrecovered_losses"], got["recovery_time_s"]) == (1, 0, 0.0)


def random_world(seed):
    """Clients that come and go."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 12))
    each = [tuple(rng.choice([0.5, 1.0, 2.0, 4.0], 3)) for _ in range(n)]
    sessions = []
    for _ in range(n):
        cuts = np.unique(rng.integers(0, 60, 2 * int(rng.integers(0, 4)))) * S // 2
        spans = [(int(a), int(b)) for a, b in zip(cuts[::2], cuts[1::2], strict=False)]
        sessions.append([*spans, (100 * S, 1 << 62)] if rng.random() < 0.7 else [(0, 1 << 62)])
    return replace(clients(*each), availability=Availability.of(sessions)), rng


@pytest.mark.parametrize("seed", range(40))
def test_nobody_trains_twice_at_once_nor_while_away_and_places_are_filled(seed):
    fleet, rng = random_world(seed)
    limit, ahead = int(rng.integers(1, 6)), int(rng.choice([1, 1, 3]))
    strategy = fedbuff(concurrency=limit, buffer_size=int(rng.integers(1, 5)), draw_ahead=ahead)
    recordings = [run(strategy, fleet, iterations=30, seed=seed)]
    again = fedbuff(**{k: getattr(strategy.config, k) for k in ("concurrency", "buffer_size", "draw_ahead")})
    recordings.append(run(again, fleet, iterations=30, seed=seed, lane="events"))
    assert recordings[0].events_sha256 == recordings[1].events_sha256
    recording = recordings[0]
    spans = turns(recording)
    for device in range(fleet.size):
        mine = sorted((a, b) for d, a, b, _ in spans if d == device)
        assert all(b <= c for (_, b), (c, _) in pairwise(mine))
        here = fleet.availability
        sessions = slice(here.ptr[device], here.ptr[device + 1])
        for a, b in mine:
            inside = (here.start_ns[sessions] <= a) & (b <= here.end_ns[sessions])
            assert inside.any()
    # a place is never empty while somebody is idle and here: between events, train min(limit, here) clients
    joins = here.start_ns[here.start_ns < recording.end_ns]
    moments = np.unique([*(x for _, a, b, _ in spans for x in (a, b)), *joins])
    for a, b in pairwise(moments.tolist()):
        middle = (a + b) // 2
        training = sum(x <= middle < y for _, x, y, _ in spans)
        online = sum(bool(np.any((here.start_ns[s] <= middle) & (middle < here.end_ns[s])))
                     for s in (slice(here.ptr[i], here.ptr[i + 1]) for i in range(fleet.size)))  # fmt: skip
        assert training <= limit
        if ahead == 1 and not np.any((here.end_ns > a) & (here.end_ns < b)):
            assert training == min(limit, online)
    dropped = sum(lost for _, _, b, lost in spans if b < recording.end_ns)
    assert strategy.report()["dropped"] == dropped


class ByPlaces(FedBuff):
    """Answers every notice itself: a dispatch for each client."""

    def start(self, view):
        super().start(view)
        self.idle = IdlePool(view.fleet.size)
        self.idle.add(np.flatnonzero(view.online & self.local.eligible).tolist())
        return self._fill(view)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("stale", [None, 1])
def test_a_standing_order_is_what_the_strategy_would_decide_notice_by_notice(seed, stale):
    fleet, rng = random_world(seed)
    config = {"concurrency": int(rng.integers(1, 6)), "buffer_size": int(rng.integers(1, 5)), "max_staleness": stale}
    ordered, by_places = fedbuff(**config), ByPlaces(FedBuffConfig(**config))
    first, second = (run(x, fleet, iterations=30, seed=seed) for x in (ordered, by_places))
    assert started(first, "client") == started(second, "client")
    assert (first.iteration_ends_ns, first.end_ns) == (second.iteration_ends_ns, second.end_ns)
    assert [x.tolist() for x in first.churn] == [x.tolist() for x in second.churn]
    assert ordered.report() == by_places.report()
    said = [metrics(x, fleet, 1.0, ordered.report()) for x in (first, second)]
    for name in ("recovery_time_s", "unrecovered_losses", "lost_rows", "compute_s", "bytes_up", "bytes_down"):
        assert said[0][name] == said[1][name]
    assert said[0]["peak_device_memory_bytes"] == said[1]["peak_device_memory_bytes"]


def test_draws_are_uniform_among_the_idle():
    fleet = clients(*[(1, 1, 1)] * 12)
    strategy = fedbuff(concurrency=3, buffer_size=1)
    recording = run(strategy, fleet, iterations=3000)
    seen = np.bincount([d for d, *_ in turns(recording)], minlength=12)
    mean = seen.sum() / 12
    assert np.all(np.abs(seen - mean) < 5 * np.sqrt(mean))


def test_the_pool_keeps_a_set():
    class View:
        online = np.array([True, True, False, True])

        def random(self, name):
            return np.random.default_rng(0)

    pool = IdlePool(4)
    pool.add([0, 1, 2, 3, 1])
    assert len(pool) == 4
    pool.remove([1, 1])
    assert 1 not in pool
    assert sorted(pool.draw(4, View())) == [0, 3]  # 2 has left at this instant
    assert len(pool) == 0
    assert pool.draw(1, View()) == []


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"buffer_size": 0}, "buffer_size"),
        ({"draw_ahead": 0}, "draw_ahead"),
        ({"max_staleness": -1}, "max_staleness"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_settings_that_mean_nothing_are_refused_by_name(keys, field):
    with pytest.raises(ValueError, match=f"^{field}: "):
        FedBuffConfig(**keys)
