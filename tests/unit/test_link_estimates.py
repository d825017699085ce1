"""What transfers say of a device's own link, with and without a coordinator whose link is full.  Worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from morphling.engine import Engine
from morphling.engine.link_estimates import Direction, Transfers, load
from morphling.fleet import Availability, Links, LinkTrace, PastEnd
from morphling.interfaces.strategy import Dispatch, Done, Each, Strategy
from tests.oracle.worlds import FlopsAreNanoseconds, bare_fleet, coordinator, rows

S = 10**9
MBIT = 10**6
BYTES = MBIT // 8


class Asked(Strategy):
    """Dispatches tables one after another, and writes down the estimates (Mbit/s) after each."""

    def __init__(self, *tables):
        super().__init__(None)
        self.tables, self.down, self.up = list(tables), [], []

    def start(self, view):
        return [Dispatch(self.tables.pop(0))]

    def on_done(self, dispatch, rows, view):
        self.down.append((view.downlink_bps / MBIT).tolist())
        self.up.append((view.uplink_bps / MBIT).tolist())
        return [Dispatch(self.tables.pop(0))] if self.tables else [Done("asked")]


def asked(links, *tables, **centre):
    strategy = Asked(*tables)
    Engine(bare_fleet(links, centre=coordinator(**centre)), None, strategy, FlopsAreNanoseconds(), compiled=False).run()
    return strategy


def constant(down, up=100, latency=0):
    return Links.constant(np.array(down) * MBIT, np.full(len(down), up * MBIT), latency, half_duplex=False)


def halved(down):
    """Links of a nominal rate that is never reached: nothing flows half of the time, in steps of 10 s."""
    traces = [
        LinkTrace(f"t{i}", np.array([0, 1000]) * S, np.array([d, 0]) * MBIT, np.array([100, 100]) * MBIT, 2000 * S,
                  PastEnd.REPEAT) for i, d in enumerate(down)
    ]  # fmt: skip
    n = len(down)
    return Links.of(traces, np.arange(n), np.zeros(n), np.zeros(n), np.zeros(n, bool))


def test_alone_a_transfer_measures_the_link():
    # nominal is the mean of a trace, 20 Mbit/s; while it flows it flows at 40
    found = asked(halved([40]), rows([0], down=400 * BYTES), rows([0], down=400 * BYTES))
    assert found.down == [[40], [40]]


def test_a_running_mean_weighs_the_newest_by_half():
    trace = LinkTrace("t", np.array([0, 10]) * S, np.array([40, 20]) * MBIT, np.array([8, 8]) * MBIT, 1000 * S,
                      PastEnd.HOLD)  # fmt: skip
    links = Links.of([trace], np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1, bool))
    found = asked(links, rows([0], down=400 * BYTES), rows([0], down=400 * BYTES), rows([0], down=400 * BYTES))
    assert found.down == [[40], [30], [25]]


def test_latency_is_no_part_of_the_rate():
    found = asked(constant([40], latency=S), rows([0], down=400 * BYTES), uplink_bps=30 * MBIT)
    assert found.down == [[40]]
    assert asked(constant([40], latency=S), rows([0], down=400 * BYTES)).down == [[40]]


def test_a_full_coordinator_does_not_make_links_slow():
    # 100 Mbit/s for 80 + 80: each gets 50, and both keep their nominal 80
    table = rows([0, 1], down=500 * BYTES)
    assert asked(constant([80, 80]), table, uplink_bps=100 * MBIT).down == [[80, 80]]
    # alone afterwards, the first is measured
    one = rows([0], down=80 * BYTES)
    assert asked(constant([80, 80]), table, one, uplink_bps=100 * MBIT).down == [[80, 80], [80, 80]]


def test_a_link_slower_than_an_even_share_is_measured_even_then():
    # traces: nominal 100 and 15, flowing at 200 and 30; the coordinator's 100 are shared 70 to 30, for 10 s
    found = asked(halved([200, 30]), rows([0, 1], down=np.array([700, 300]) * BYTES), uplink_bps=100 * MBIT)
    assert found.down == [[100, 30]]


def test_a_full_coordinator_may_raise_an_estimate():
    # nominal 20 each, 40 while it flows; the coordinator's 60 give 30 to each
    found = asked(halved([40, 40]), rows([0, 1], down=300 * BYTES), uplink_bps=60 * MBIT)
    assert found.down == [[30, 30]]


def test_uploads_are_held_up_by_the_coordinators_downlink():
    table = rows([0, 1], up=500 * BYTES)
    found = asked(constant([100, 100], up=80), table, downlink_bps=100 * MBIT)
    assert (found.up, found.down) == ([[80, 80]], [[100, 100]])
    assert asked(constant([100, 100], up=80), table, uplink_bps=100 * MBIT).up == [[80, 80]]


def test_latency_does_not_move_what_was_carried():
    # both flow from 0 to 10 s at 50 of 100 Mbit/s, though the second's bits arrive from 5 to 15 s
    links = Links.constant(np.full(2, 80 * MBIT), np.full(2, 80 * MBIT), np.array([0, 5 * S]), half_duplex=False)
    table = rows([0, 1], down=500 * BYTES, up=500 * BYTES)
    found = asked(links, table, uplink_bps=100 * MBIT, downlink_bps=100 * MBIT)
    assert found.down == [[80, 80]]
    uploads = asked(links, rows([0, 1], up=500 * BYTES), uplink_bps=100 * MBIT, downlink_bps=100 * MBIT)
    assert uploads.up == [[80, 80]]


@pytest.mark.parametrize("cut", [True, False])
def test_what_lost_rows_moved_filled_the_link_too(cut):
    """The coordinator's 120 Mbit/s are 40 for each of three; the third leaves, at the end of the others' transfers with
    its own cut off, or while it computes.
    """
    gone = Availability.of([[(0, 100 * S)], [(0, 100 * S)], [(0, (10 if cut else 20) * S)]])
    fleet = bare_fleet(constant([80, 80, 80]), gone, coordinator(uplink_bps=120 * MBIT))
    table = rows([0, 1, 2], down=np.array([400, 400, 900 if cut else 400]) * BYTES, ns=[0, 0, 90 * S])

    class Left(Asked):
        def on_lost(self, dispatch, rows, view):
            return self.on_done(dispatch, rows, view)

    strategy = Left(table)
    Engine(fleet, None, strategy, FlopsAreNanoseconds(), compiled=False).run()
    assert strategy.down == [[80, 80, 80]]


def transfers(*each):
    """(device, Mbit, start s, end s) each."""
    device, size, start, end = np.array(each).reshape(-1, 4).T
    ends = np.ones(len(device), bool)
    return Transfers(device, size * BYTES, start * S, end * S, ends)


def test_what_was_carried_while_a_transfer_lasted():
    # 10 Mbit/s over 0-10 s, 30 over 5-10, 5 over 8-28
    everything = transfers((0, 100, 0, 10), (1, 150, 5, 10), (2, 100, 8, 28))
    carried, count = load(everything, everything)
    assert carried / MBIT == pytest.approx([10 + 15 + 1, 10 + 30 + 2, (2 * 45 + 18 * 5) / 20])
    assert count == pytest.approx([1 + 0.5 + 0.2, 1 + 1 + 0.4, 1 + 0.1 + 0.1])
    assert [x.tolist() for x in load(everything, transfers())] == [[], []]


def test_dispatches_that_overlapped_are_known_together_whichever_ended_first():
    # two of 80 Mbit/s fill 100: 50 each until the first is over at 10 s, then the second has its 80
    first, second = transfers((0, 500, 0, 10)), transfers((1, 660, 0, 12))
    together = Direction(np.array([80.0, 80.0]) * MBIT, 100 * MBIT)
    together.learn([first, second], 12 * S)
    assert (together.rate_bps / MBIT).tolist() == [80, 80]
    assert len(together.recent[0].size) == 0
    # asked in between, only the first is known; it is kept for the second, which began at 0 s
    between = Direction(np.array([80.0, 80.0]) * MBIT, 100 * MBIT)
    between.learn([first], 0)
    assert (between.rate_bps / MBIT).tolist() == [50, 80]
    between.learn([second], 12 * S)
    assert (between.rate_bps / MBIT).tolist() == [50, 80]


class Chain(Strategy):
    """Asks after every row of one dispatch that fills the coordinator's link."""

    def __init__(self):
        super().__init__(None)
        self.seen = []

    def start(self, view):
        return [Dispatch(rows([d], down=500 * BYTES), notify=Each()) for d in (0, 1)]

    def on_done(self, dispatch, rows, view):
        self.seen.append((view.downlink_bps / MBIT).tolist())
        return [Done("asked")] if len(self.seen) == 2 else []


def test_dispatches_under_way_are_not_known_yet():
    chain = Chain()
    fleet = bare_fleet(constant([80, 80]), centre=coordinator(uplink_bps=100 * MBIT))
    Engine(fleet, None, chain, FlopsAreNanoseconds(), compiled=False).run()
    # both end at 10 s: when the first is told, the second is not over, and 50 of 100 Mbit/s look half empty
    assert chain.seen == [[50, 80], [50, 80]]
