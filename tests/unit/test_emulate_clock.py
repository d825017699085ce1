"""Virtual time of products: repeated ones take what the engine says, and lost rows are computed elsewhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from morphling.emulate.clock import FleetClock
from morphling.emulate.emulated_run import EmulatedRun
from morphling.emulate.tiles import ProductShape
from morphling.errors import PlanError
from morphling.executors.analytic import Analytic
from morphling.fleet import Availability, Links
from morphling.interfaces.strategy import Dispatch, Done, IterationDone, StandingOrder, Strategy
from morphling.interfaces.tasks import TaskTable
from morphling.strategies.cleave import Cleave, CleaveConfig
from morphling.strategies.uniform_tp import UniformTp
from morphling.testing import tiny_fleet, tiny_workload
from morphling.types import FAR_NS, DType, Phase

FORWARD, BACKWARD = Phase.FORWARD, Phase.BACKWARD_INPUT
PRODUCTS = [
    ("addmm", ProductShape(1, 48, 64, 32), FORWARD),
    ("bmm", ProductShape(3, 24, 16, 24), FORWARD),
    ("mm", ProductShape(1, 64, 32, 48), BACKWARD),
    ("addmm", ProductShape(1, 48, 64, 32), FORWARD),
    ("mm", ProductShape(1, 64, 32, 48), BACKWARD),
    ("bmm", ProductShape(3, 24, 16, 24), FORWARD),
    ("addmm", ProductShape(1, 48, 64, 32), FORWARD),
] * 3


def clock(fleet, *, repeats=True, config=None, strategy=Cleave, **keys):
    made = (lambda: strategy(config or CleaveConfig())) if strategy is Cleave else strategy
    return FleetClock(EmulatedRun(fleet, tiny_workload(), made, Analytic(fleet=fleet), **keys), repeats=repeats)


def ran(fleet, products=PRODUCTS, **keys):
    c = clock(fleet, **keys)
    ends = []
    for name, shape, phase in products:
        c.product(name, shape, DType.FLOAT32, phase)
        ends.append(c.now_ns)
    c.step()
    return c, ends, c.finish()


def sharing(fleet):
    """The coordinator's links are narrower than those of the devices together: everything is shared."""
    return replace(fleet, coordinator=replace(fleet.coordinator, uplink_bps=7_000_000, downlink_bps=3_000_000))


def behind_a_cell(fleet):
    """Devices 0 to 2 share an access point, the others another; the coordinator's links bind as well."""
    cells = Links.constant(np.array([5_000_000, 9_000_000]), np.array([2_000_000, 3_000_000]))
    links = fleet.links.behind(cells, np.arange(fleet.size, dtype=np.int32) // 3)
    return sharing(replace(fleet, links=links))


FLEETS = [tiny_fleet(6), sharing(tiny_fleet(6)), behind_a_cell(tiny_fleet(6))]


@pytest.mark.parametrize("fleet", FLEETS, ids=["own links", "shared card", "cells"])
def test_repeated_products_are_the_engines_to_the_nanosecond(fleet):
    fast, ends, recorded = ran(fleet)
    slow, slow_ends, again = ran(fleet, repeats=False)
    assert (fast.replayed, fast.repeated) == (3, 18)
    assert (slow.replayed, slow.repeated) == (21, 0)
    assert ends == slow_ends
    assert recorded.events_sha256 == again.events_sha256
    assert recorded.iteration_ends_ns == [ends[-1]] == again.iteration_ends_ns


@pytest.mark.parametrize("seed", range(18))
def test_repeats_are_exact_in_random_worlds(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 9))
    fleet = tiny_fleet(size, seed)
    if seed % 3:
        down, up = int(rng.integers(10**6, 10**7)), int(rng.integers(10**6, 3 * 10**7))
        fleet = replace(fleet, coordinator=replace(fleet.coordinator, uplink_bps=up, downlink_bps=down))
    if seed % 3 == 2:
        cells = Links.constant(rng.integers(10**6, 10**7, 2), rng.integers(10**6, 10**7, 2))
        fleet = replace(fleet, links=fleet.links.behind(cells, rng.integers(-1, 2, size).astype(np.int32)))
    shapes = [ProductShape(1, *(int(x) for x in rng.integers(1, 90, 3))) for _ in range(3)]
    products = [("mm", shapes[i], FORWARD) for i in rng.integers(0, 3, 9)]
    if seed % 2:
        leaves = int(ran(fleet, products)[1][4] * rng.random()) + 1
        fleet = replace(fleet, availability=Availability.of([[(0, leaves)], *[[(0, FAR_NS)]] * (size - 1)]))
    _, ends, fast = ran(fleet, products)
    _, slow_ends, slow = ran(fleet, products, repeats=False)
    assert ends == slow_ends
    assert fast.events_sha256 == slow.events_sha256


def test_one_product_takes_what_a_run_of_it_takes():
    from morphling.engine import Engine
    from morphling.workload import products_workload

    fleet, shape = tiny_fleet(6), ProductShape(1, 48, 64, 32)
    work = products_workload("addmm", *shape, DType.FLOAT32, FORWARD)
    alone = Engine(fleet, work, Cleave(), Analytic(fleet=fleet)).run()
    assert ran(fleet, PRODUCTS[:1])[1] == [alone.end_ns]


def churning(fleet, ends):
    """Device 0 leaves during the second product and comes back during the last but one; 1 is away between."""
    middle = (3 * ends[0] + ends[1]) // 4  # equal parts are done early on a fast device
    back = (ends[-3] + ends[-2]) // 2
    stays = [[(0, middle), (back, FAR_NS)], [(0, ends[4] + 7), (ends[9] - 7, FAR_NS)]]
    return replace(fleet, availability=Availability.of(stays + [[(0, FAR_NS)]] * (fleet.size - 2)))


@pytest.mark.parametrize("strategy", [Cleave, UniformTp])
def test_churn_in_the_middle_of_a_product(strategy):
    fleet = tiny_fleet(6)
    quiet = ran(fleet, strategy=strategy)[1]
    unquiet = churning(fleet, quiet)
    fast, ends, recorded = ran(unquiet, strategy=strategy)
    slow, slow_ends, again = ran(unquiet, strategy=strategy, repeats=False)
    assert ends == slow_ends
    assert recorded.events_sha256 == again.events_sha256
    assert fast.lost_rows == slow.lost_rows > 0
    assert fast.repeated > 0
    assert ends[1] > quiet[1]  # what was lost was computed again
    assert len(fast.recoveries) >= 1
    assert sum(r["rows"] for r in fast.recoveries) == fast.lost_rows
    assert recorded.churn[1].tolist().count(0) == 2


def test_a_device_away_has_no_tile_and_one_lost_has_none_of_its_rows():
    fleet = tiny_fleet(4)
    end = ran(fleet, PRODUCTS[:1])[1][0]
    away = replace(
        fleet, availability=Availability.of([[(end // 2, FAR_NS)], [(0, end // 2)], [(0, FAR_NS)], [(0, FAR_NS)]])
    )
    c = clock(away, config=CleaveConfig(detection_s=0.0))
    tiles = c.product(*PRODUCTS[0][:2], DType.FLOAT32, FORWARD).tiles
    assert 1 not in tiles.device
    area = (tiles.row1 - tiles.row0) * (tiles.col1 - tiles.col0)
    assert area.sum() == 48 * 64


def test_on_traces_every_product_is_replayed():
    fleet = tiny_fleet(4)
    links = fleet.links
    ptr = np.arange(0, 2 * 4 + 1, 2)
    start = np.tile([0, 3_000_000], 4)
    down = np.repeat(links.down_bps, 2) * np.tile([1, 2], 4)
    up = np.repeat(links.up_bps, 2)
    traced = replace(
        links, trace_ptr=ptr, start_ns=start, down_bps=down, up_bps=up, period_ns=np.full(4, 7_000_000),
        past_end=np.zeros(4, np.int64),
    )  # fmt: skip
    c, _, _ = ran(replace(fleet, links=traced), PRODUCTS[:4])
    assert (c.replayed, c.repeated) == (4, 0)
    assert c.varying == "links vary in time"
    assert clock(fleet).varying == ""


class Halves(Strategy):
    """Two devices, each an upper or lower half; ``miss`` leaves a row out, ``silent`` does not say where."""

    Config = object
    miss = silent = False

    def __init__(self):
        super().__init__(None)

    def start(self, view):
        dag = view.workload.dag
        self.m, n, k = (int(x[0]) for x in (dag.m, dag.n, dag.k))
        rows = [self.m // 2, self.m - self.m // 2 - self.miss]
        return Dispatch(TaskTable.build(device=[0, 1], m=rows, n=n, k=k, dtype=DType.FLOAT32, resident_bytes=0))

    def places(self, dispatch):
        from morphling.interfaces.strategy import Placement

        zero = np.zeros(2, np.int64)
        return None if self.silent else Placement(zero, np.array([0, self.m // 2]), zero)

    def on_done(self, dispatch, rows, view):
        return [IterationDone(), Done()]


class Misses(Halves):
    miss = True


class Silent(Halves):
    silent = True


def test_a_plug_in_that_says_where_its_rows_lie():
    _, _, recorded = ran(tiny_fleet(2), PRODUCTS[:1], strategy=Halves)
    assert [len(d) for d in recorded.dispatches] == [2]
    assert len(recorded.iteration_ends_ns) == 1  # a step of the script, not the plug-in's


def test_a_standing_order_is_refused_since_it_splits_no_product():
    class Stands(Halves):
        def start(self, view):
            return StandingOrder(TaskTable.build(device=[0, 1], flops=1.0), 1)

    with pytest.raises(PlanError, match="Stands gives standing orders, which split no product"):
        ran(tiny_fleet(2), PRODUCTS[:1], strategy=Stands)


def test_a_plan_with_a_hole_and_one_that_says_nothing_are_refused():
    with pytest.raises(PlanError, match="the plan of Misses: product 0 of 48 x 32 x 64 misses rows 47 to 48"):
        ran(tiny_fleet(2), PRODUCTS[:1], strategy=Misses)
    with pytest.raises(PlanError, match="Silent does not say where its rows lie"):
        ran(tiny_fleet(2), PRODUCTS[:1], strategy=Silent)


def test_the_coordinators_work_takes_time():
    c = clock(tiny_fleet(2))
    rate = 1e12
    coordinator = replace(c.fleet.coordinator, peak_flops=np.full(len(DType), rate), efficiency=np.ones(len(DType)))
    c = clock(replace(c.fleet, coordinator=coordinator))
    c.central("convolution", 3e9, DType.FLOAT32)
    assert c.now_ns == 3_000_000
    c.central("convolution", 3e9, DType.FLOAT32)
    assert (c.now_ns, c.replayed, c.repeated) == (6_000_000, 1, 1)
    assert [d.label for d in c.finish().dispatches] == ["coordinator/convolution"] * 2


def test_without_torch_it_says_what_to_install(monkeypatch):
    import sys

    from morphling.emulate import need_torch
    from morphling.errors import InputError

    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"needs PyTorch, .*pip install 'morphling\[live\]'"):
        need_torch()
