"""Standing orders: the same rows, draws and notices as a strategy that answers every notice itself, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from morphling.engine import Engine
from morphling.engine.orders import OrderByDispatch
from morphling.engine.orders_kernel import OrderInKernel
from morphling.errors import EngineError
from morphling.fleet import Availability, Links, LinkTrace, PastEnd
from morphling.interfaces.strategy import Dispatch, Done
from tests.oracle.standing import ByHand, Ordered, started
from tests.oracle.worlds import SECOND, FlopsAreNanoseconds, World, bare_fleet, rows
from tests.unit.test_battery import fleet_of
from tests.unit.test_heat import warm

WORLDS = 150


class Wide(World):
    """A world of more devices."""

    def links(self):
        self.size = self.random.randint(1, 12)
        return super().links()


def world(seed, **more):
    """A fleet, and the arguments of a strategy on it."""
    w = Wide(seed, **more)
    r = w.random
    devices = sorted(r.sample(range(w.size), r.randint(1, w.size)))
    overlap = [r.choice(w.overlaps) for _ in devices]
    work = [(w.time(0, 3), w.payload(), w.payload() + 1) for _ in devices]
    tasks = rows(devices, *zip(*work, strict=True), overlap=overlap)
    until = r.choice([1 << 62, w.time(1, 60)])
    return w.fleet, (tasks, r.randint(1, w.size + 1), r.randint(1, 4), r.randint(1, 30), until)


def replayed(make, fleet, given, seed, **more):
    """What a strategy heard, the rows, the joins and leaves, and why it could not go on."""
    more = {"compiled": False, **more}
    strategy = make(*given)
    engine = Engine(fleet, None, strategy, FlopsAreNanoseconds(), seed=seed, horizon_s=1e5, **more)
    try:
        recording = engine.run()
    except EngineError as error:
        where = str(error).split(": ")[-1].replace(type(strategy).__name__, "S")
        return strategy.heard, where, None
    return strategy.heard, started(recording), ([x.tolist() for x in recording.churn], recording.end_ns)


@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("cancel", [False, True])
def test_the_kernel_does_what_a_strategy_would_do_by_hand(part, cancel):
    refused = 0
    for seed in range(part * WORLDS // 10, (part + 1) * WORLDS // 10):
        fleet, given = world(seed)
        given = (*given, cancel)
        by_hand = replayed(ByHand, fleet, (*given[:-1], False), seed)
        got = replayed(Ordered, fleet, given, seed)
        refused += by_hand[2] is None
        if cancel and got[2] is not None:  # the dispatch after it takes longer
            assert got[:2] == by_hand[:2], seed
        else:
            assert got[:1] == by_hand[:1], seed
            if by_hand[2] is not None:
                assert got == by_hand, seed
        assert replayed(Ordered, fleet, given, seed, lane="events") == got, seed
    assert refused < WORLDS // 20


@pytest.mark.parametrize("more", [{"half_duplex": True}, {"shared": True}, {"cells": True}])
def test_where_links_are_shared_each_row_is_a_dispatch(more):
    for seed in range(60):
        fleet, given = world(seed, **more)
        assert replayed(Ordered, fleet, given, seed)[:1] == replayed(ByHand, fleet, given, seed)[:1]
        assert replayed(Ordered, fleet, given, seed)[2] == replayed(ByHand, fleet, given, seed)[2]


def test_compiled_and_interpreted_are_the_same():
    for seed in range(100):
        fleet, given = world(seed)
        assert replayed(Ordered, fleet, given, seed, compiled=True) == replayed(Ordered, fleet, given, seed), seed


def test_lists_that_are_full_grow(monkeypatch):
    monkeypatch.setattr("morphling.engine.orders_kernel.ROOM", 1)
    monkeypatch.setattr("morphling.engine.orders_kernel.BLOCK", 4)
    monkeypatch.setattr("morphling.planning.idle.BLOCK", 4)
    for seed in range(60):
        fleet, given = world(seed)
        by_hand = replayed(ByHand, fleet, given, seed)
        got = replayed(Ordered, fleet, given, seed)
        assert got[0] == by_hand[0]
        assert got[1] == by_hand[1] or by_hand[2] is None


def always(n=2):
    """Devices that move 1,000 bytes/s each way."""
    return bare_fleet(Links.constant([8000.0] * n, [8000.0] * n))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Ordered(rows([0, 0]), 1, 1, 1), "each on a device of its own"),
        (Ordered(rows([0, 2]), 1, 1, 1), "none on the coordinator"),
        (Ordered(rows([]), 1, 1, 1), "it needs rows"),
        (Ordered(rows([0]), 0, 1, 1), "at_once and every are at least 1, not 0 and 1"),
        (Ordered(rows([0]), 1, 0, 1), "at_once and every are at least 1, not 1 and 0"),
        (Ordered(rows([0, 1], dependencies=[[], [0]]), 1, 1, 1), "its rows wait for nothing"),
        (Ordered(rows([0], release_ns=1), 1, 1, 1), "its rows wait for nothing"),
    ],
)
def test_orders_that_mean_nothing_are_refused(given, words):
    with pytest.raises(EngineError, match=words):
        Engine(always(), None, given, FlopsAreNanoseconds(), compiled=False).run()


@pytest.mark.parametrize("lane", ["closed", "events"])
def test_it_stands_alone(lane):
    class Both(Ordered):
        def begin(self, view):
            one = Dispatch(self.tasks)
            return [one, *super().begin(view)] if self.at_once == 2 else [*super().begin(view), one]

    for at_once, words in ((1, "a standing order is in force, which stands alone"), (2, "rows are under way")):
        strategy = Both(rows([0], up=1), at_once, 1, 1)
        engine = Engine(always(), None, strategy, FlopsAreNanoseconds(), compiled=False, lane=lane)
        with pytest.raises(EngineError, match=words):
            engine.run()


@pytest.mark.parametrize("compiled", [False, True])
def test_a_link_that_never_delivers_and_a_run_that_is_too_long_are_named(compiled):
    dead = LinkTrace("dead", np.array([0, SECOND]), np.array([8e3, 0]), np.array([8e3, 0]), 2 * SECOND, PastEnd.HOLD)
    fleet = bare_fleet(Links.of([dead], np.zeros(1, np.int32), np.zeros(1), np.zeros(1), np.zeros(1, bool)))
    with pytest.raises(EngineError, match=r"dispatch 0 \(row\), row 0 on device 0 .* can never finish: .*link dead"):
        Engine(fleet, None, Ordered(rows([0], down=600), 1, 1, 9), FlopsAreNanoseconds(), compiled=compiled).run()
    strategy = Ordered(rows([0, 1], down=1000), 2, 1, 9)
    with pytest.raises(EngineError, match=r"limit of 2\.5 s .*pending: standing order 'row': 2 rows, such as one on"):
        Engine(always(), None, strategy, FlopsAreNanoseconds(), horizon_s=2.5, compiled=compiled).run()


def test_everybody_has_left_is_said_as_of_the_last_departure():
    fleet = replace(always(), availability=Availability.of([[(0, SECOND)], [(0, 3 * SECOND)]]))
    words = "at 3 s and Ordered has not said Done: the last device online left at 3 s and none ever returns"
    for lane in ("closed", "events"):
        strategy = Ordered(rows([0, 1], down=1000), 2, 1, 9)
        engine = Engine(fleet, None, strategy, FlopsAreNanoseconds(), compiled=False, lane=lane)
        with pytest.raises(EngineError, match=words):
            engine.run()


def test_the_kernel_serves_where_it_can():
    class Look(Ordered):
        def on_progress(self, order, news, view):
            kinds.append(type(view._engine.order))
            return Done()

    kinds = []
    slow = FlopsAreNanoseconds()
    slow.stationary = False
    for executor, lane, fleet in (
        (FlopsAreNanoseconds(), None, always()),
        (FlopsAreNanoseconds(), None, warm(always())),
        (FlopsAreNanoseconds(), "events", always()),
        (slow, None, always()),
    ):
        Engine(fleet, None, Look(rows([0], up=1), 1, 1, 1), executor, compiled=False, lane=lane).run()
    assert kinds == [OrderInKernel, OrderInKernel, OrderByDispatch, OrderByDispatch]


WARM = {"trip_c": 25.1, "hysteresis_k": 0.05, "case_s": 2.0, "junction_s": 0.5}


def heat_of(make, fleet, given, seed, **more):
    """What heat did to each device, and the curve of each that is followed."""
    strategy, more = make(*given), {"compiled": False, **more}
    try:
        heat = Engine(fleet, None, strategy, FlopsAreNanoseconds(), seed=seed, horizon_s=1e5, **more).run().heat
    except EngineError:
        return "", {}
    curves = {d: heat.curve[heat.curve[:, 0] == d].tolist() for d in heat.watched}
    return str([getattr(heat, x) for x in heat.__dataclass_fields__ if x not in ("curve", "watched")]), curves


@pytest.mark.parametrize("lane", ["closed", "events"])
def test_devices_that_warm(lane):
    slower = followed = 0
    for seed in range(60):
        fleet, given = world(seed)
        plain = replayed(Ordered, fleet, given, seed)
        warmed = warm(fleet, **WARM)
        got, by_hand = (replayed(make, warmed, given, seed, lane=lane) for make in (Ordered, ByHand))
        assert got[0] == by_hand[0], seed
        assert got == by_hand or by_hand[2] is None, seed
        slower += got[1] != plain[1]
        (there, curves), (here, others) = (heat_of(make, warmed, given, seed, lane=lane) for make in (Ordered, ByHand))
        assert there == here, seed
        followed += curves == others
    assert (slower > 30, followed > 30) == (True, True)


def test_devices_that_warm_are_served_by_the_kernel_compiled_too():
    for seed in range(40):
        fleet, given = world(seed)
        warmed = warm(fleet, **WARM)
        assert replayed(Ordered, warmed, given, seed, compiled=True) == replayed(Ordered, warmed, given, seed), seed
        compiled, interpreted = (heat_of(Ordered, warmed, given, seed, compiled=x) for x in (True, False))
        assert compiled == interpreted, seed


def test_what_is_withdrawn_has_warmed_its_device_until_then():
    """Another table follows on the same devices: it starts from the warmth that they really have."""
    differ = 0
    for seed in range(60):
        fleet, given = world(seed)
        warmed = warm(fleet, **WARM)
        closed, events = (replayed(Ordered, warmed, (*given, True), seed, lane=lane) for lane in ("closed", "events"))
        assert closed == events, seed
        heat = [heat_of(Ordered, warmed, (*given, True), seed, lane=lane)[0] for lane in ("closed", "events")]
        assert heat[0] == heat[1], seed
        differ += closed[2] is not None and given[-1] < 1 << 62
    assert differ > 10


def test_devices_whose_batteries_run_out_are_served_by_dispatches():
    departures = 0
    for seed in range(10):
        fleet = fleet_of(4, capacity=30.0 + seed, reserve=10.0, charger=4.0, resume=20.0)
        given = (rows([0, 1, 2, 3], [SECOND, 2 * SECOND, SECOND, 3 * SECOND], up=1000), 2, 2, 20)
        got, by_hand = (replayed(make, fleet, given, seed) for make in (Ordered, ByHand))
        assert got == by_hand
        departures += len(got[2][0][0])
    assert departures > 20
