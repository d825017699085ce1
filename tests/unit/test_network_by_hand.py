"""Shared links by hand, for the engine and for its slow twin: every value is worked out on paper."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from morphling.engine import Engine
from morphling.errors import EngineError
from morphling.fleet import Availability, Links, LinkTrace, PastEnd, Tcp
from morphling.types import FAR_NS
from tests.oracle.exact_link import StuckError
from tests.oracle.network import progressive_filling
from tests.oracle.stages import SETTLED
from tests.oracle.twin import Twin
from tests.oracle.worlds import FlopsAreNanoseconds, Once, bare_fleet, coordinator, rows

S = 10**9
MEGABIT = 10**6
DOWN_END, UP_END = 1, 5


@pytest.fixture(autouse=True, params=["twin", "interpreted", "compiled"])
def replay(request, monkeypatch):
    """Every test runs three times."""
    monkeypatch.setitem(globals(), "WAY", request.param)
    return request.param


WAY = "twin"


def run(links, *tables, availability=None, centre=None):
    """What became of each table; transfers between devices are allowed."""
    strategy = Once(*tables)
    strategy.uses_peers = True
    fleet = bare_fleet(links, availability, centre)
    if WAY == "twin":
        return Twin(fleet, strategy, FlopsAreNanoseconds()).run().dispatches
    return Engine(fleet, None, strategy, FlopsAreNanoseconds(), compiled=WAY == "compiled").run().dispatches


def ends(column, links, *tables, **more):
    """One time column of each row, nanoseconds."""
    return [int(t) for dispatch in run(links, *tables, **more) for t in dispatch.times[column]]


def constant(down, up, latency=0):
    """Constant links, Mbit/s."""
    return Links.constant(np.array(down) * MEGABIT, np.array(up) * MEGABIT, latency)


def behind_one_cell(links, down, up):
    """All devices behind one constant cell, Mbit/s."""
    return links.behind(constant([down], [up]), np.zeros(links.size, np.int32))


# ------------------------------------------------------------------------------------------------- progressive filling


def test_max_min_over_three_links():
    """Link a (12) has flows 0 and 1, b (6) has 1, 2 and 3, c (9) has 3 and 4: b fills at 2, then c, then a."""
    paths = [["a"], ["a", "b"], ["b"], ["b", "c"], ["c"]]
    capacity = {"a": 12, "b": 6, "c": 9}
    assert progressive_filling(paths, [None] * 5, capacity) == [10, 2, 2, 2, 7]
    # Flow 2 takes no more than 1: flows 1 and 3 have 5/2 each of what b has left.
    half = Fraction(5, 2)
    assert progressive_filling(paths, [4, None, 1, None, None], capacity) == [4, half, 1, half, 9 - half]


def test_nothing_flows_through_a_link_at_zero():
    paths = [["a", "b"], ["a"], ["b"]]
    assert progressive_filling(paths, [None] * 3, {"a": 0, "b": 7}) == [0, 0, 7]


# --------------------------------------------------------------------------------------------------------------- cells


def test_two_uploads_through_a_cell_of_half_their_sum_take_twice_as_long():
    links = constant([8, 8], [8, 8])
    table = rows([0, 1], up=1_000_000)
    assert ends(UP_END, links, table) == [S, S]
    assert ends(UP_END, behind_one_cell(links, 8, 8), table) == [2 * S, 2 * S]
    assert ends(UP_END, links, table, centre=coordinator(downlink_bps=8 * MEGABIT)) == [2 * S, 2 * S]


def test_a_third_upload_changes_both_from_the_instant_it_comes():
    """12 Mbit/s for 8 Mbit each.  Two share until 0.5 s (3 Mbit done), then three at 4 Mbit/s.

    The first two need 5 Mbit more, 1.25 s, to 1.75 s; the third has then sent 5 Mbit and sends 3 Mbit at 8 Mbit/s.
    """
    links = behind_one_cell(constant([8] * 3, [8] * 3), 99, 12)
    table = rows([0, 1, 2], up=1_000_000, release_ns=[0, 0, S // 2])
    assert ends(UP_END, links, table) == [S * 7 // 4, S * 7 // 4, S * 17 // 8]


def test_a_device_behind_no_cell_has_its_link_for_itself():
    links = constant([8] * 3, [8] * 3).behind(constant([8], [8]), np.array([0, -1, 0]))
    assert ends(DOWN_END, links, rows([0, 1, 2], down=1_000_000)) == [2 * S, S, 2 * S]


@pytest.mark.parametrize("cell", [True, False])
def test_a_rate_that_changes_under_way_is_the_new_rate(cell):
    """10 MB from 0.5 s: 1.5 MB until 2 s at 1 MB/s, and 8.5 MB at 2 MB/s until 6.25 s."""
    trace = LinkTrace("t", np.array([0, 2 * S]), *[np.array([8, 16]) * MEGABIT] * 2, 3 * S, PastEnd.HOLD)
    changing = Links.of([trace], np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1))
    links = constant([100], [100]).behind(changing, np.zeros(1)) if cell else changing
    assert ends(UP_END, links, rows(0, up=10_000_000, release_ns=S // 2)) == [S * 25 // 4]


def test_a_cell_at_zero_pauses_its_flows():
    """8 Mbit at 8 Mbit/s, with nothing between 0.25 s and 2 s."""
    up = np.array([8, 0, 8]) * MEGABIT
    trace = LinkTrace("t", np.array([0, S // 4, 2 * S]), up, up, 3 * S, PastEnd.HOLD)
    cells = Links.of([trace], np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1))
    links = constant([9, 9], [9, 9]).behind(cells, np.array([0, -1]))
    assert ends(UP_END, links, rows(0, up=1_000_000)) == [S * 11 // 4]


@pytest.mark.parametrize("past_end", [PastEnd.HOLD, PastEnd.REPEAT])
def test_a_cell_that_stays_at_zero_is_found_out(past_end):
    trace = LinkTrace("t", np.array([0]), np.array([0]), np.array([0]), S, past_end)
    cells = Links.of([trace], np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1))
    with pytest.raises((StuckError, EngineError), match="nothing is left to happen"):
        run(constant([8], [8]).behind(cells, np.zeros(1)), rows(0, up=1))


def test_a_half_duplex_device_behind_a_cell_still_has_one_channel():
    links = Links.constant(np.full(2, 8 * MEGABIT), np.full(2, 8 * MEGABIT), 0, np.array([True, False]))
    links = links.behind(constant([99], [99]), np.zeros(2))
    table = rows([0, 0, 1, 1], down=[0, 1_000_000] * 2, up=[1_000_000, 0] * 2)
    assert ends(SETTLED, links, table) == [S, 2 * S, S, S]


# ---------------------------------------------------------------------------------------------- between devices


def test_a_transfer_between_devices_has_the_lower_of_both_links():
    """Device 1 sends 8 Mbit to device 0: at 4 (its uplink), not 16 (the other's downlink); 2 + 3 ms of latency."""
    links = constant([16, 99], [99, 4], np.array([2, 3]) * MEGABIT)
    down = rows(0, down=1_000_000, peer=1)
    up = rows(1, up=1_000_000, peer=0)
    assert ends(DOWN_END, links, down) == ends(UP_END, links, up) == [2 * S + 5 * MEGABIT]


def test_a_transfer_between_devices_does_not_pass_the_coordinator():
    links = constant([8, 8], [8, 8])
    narrow = coordinator(uplink_bps=MEGABIT, downlink_bps=MEGABIT)
    assert ends(UP_END, links, rows(0, up=1_000_000, peer=1), centre=narrow) == [S]
    assert ends(UP_END, links, rows(0, up=1_000_000), centre=narrow) == [8 * S]


def test_two_senders_to_one_receiver_have_half_each():
    links = constant([99, 99, 8], [8, 8, 99])
    assert ends(UP_END, links, rows([0, 1], up=1_000_000, peer=2)) == [2 * S, 2 * S]
    assert ends(UP_END, links, rows([0, 1], up=1_000_000, peer=[2, -1])) == [S, S]


def test_a_peer_shares_its_link_with_its_own_rows_but_not_its_queue():
    """Device 0 downloads for itself (8 Mbit), and twice more gets 8 Mbit from others at the same time: 24 at 8."""
    links = constant([8, 99, 99], [99, 99, 99])
    table = rows([0, 1, 2], down=[1_000_000, 0, 0], up=[0, 1_000_000, 1_000_000], peer=[-1, 0, 0])
    assert ends(SETTLED, links, table) == [3 * S] * 3


def test_a_flow_that_is_limited_elsewhere_leaves_its_share():
    """Device 0 sends 10 Mbit/s: 2 to device 1, whose downlink has no more, and 8 to device 2."""
    links = constant([99, 2, 99], [10, 99, 99])
    table = rows([1, 2], down=[1_000_000, 1_000_000], peer=0)
    assert ends(DOWN_END, links, table) == [4 * S, S]


def test_a_transfer_inside_a_cell_uses_both_of_its_directions():
    """Cell: 4 Mbit/s down, 8 up.  Alone: 4.  With an upload of 0 to the coordinator: that one has the other 4."""
    links = behind_one_cell(constant([99] * 3, [99] * 3), 4, 8)
    assert ends(UP_END, links, rows(0, up=1_000_000, peer=1)) == [2 * S]
    assert ends(UP_END, links, rows([0, 2], up=1_000_000, peer=[1, -1])) == [2 * S, 2 * S]
    assert ends(UP_END, links, rows([0, 2], up=[1_000_000, 250_000], peer=[1, -1])) == [2 * S, S // 2]


def leaving(*spans):
    """Availability with one session for each device, seconds."""
    return Availability.of([[(int(a * S), FAR_NS if b is None else int(b * S))] for a, b in spans])


@pytest.mark.parametrize(
    ("leaves", "down", "up", "lost_at"),
    [
        (0.5, 1, 1, 0.5),  # while bits come from the peer
        (1.5, 1, 1, 1.5),  # while computing: the result has nowhere to go
        (1.5, 1, 0, None),  # all bits have come, none go back
        (2.5, 0, 1, None),  # no bits come; computes until 1 s, uploads until 2 s
        (0.5, 0, 0, None),  # a row without bits between them does not care
        (1.0, 1, 0, None),  # at one instant rows go before devices
        (3.0, 1, 1, None),
    ],
)
def test_a_row_needs_its_peer_until_the_last_bit(leaves, down, up, lost_at):
    links = constant([8, 8], [8, 8])
    table = rows(0, S, 1_000_000 * down, 1_000_000 * up, peer=1)
    dispatch = run(links, table, availability=leaving((0, None), (0, leaves)))[0]
    assert dispatch.lost.tolist() == [lost_at is not None]
    settled = lost_at if lost_at is not None else 1 + down + up
    assert dispatch.times[SETTLED].tolist() == [settled * S]


def test_the_last_bit_must_have_arrived_not_only_left():
    links = constant([8, 8], [8, 8], S // 10)  # 1 s to send and 0.2 s on the way
    table = rows(0, 0, 1_000_000, peer=1)
    for leaves, lost in ((1.1, True), (1.2, False)):
        assert run(links, table, availability=leaving((0, None), (0, leaves)))[0].lost.tolist() == [lost]


def test_a_row_is_lost_at_dispatch_if_its_peer_is_away():
    links = constant([8, 8], [8, 8])
    table = rows([0, 0, 0], 0, [1000, 0, 0], [0, 1000, 0], peer=1)
    dispatch = run(links, table, availability=leaving((0, None), (1, None)))[0]
    assert dispatch.lost.tolist() == [True, True, False]
    assert dispatch.times[SETTLED].tolist() == [0, 0, 0]


def test_a_lost_peer_frees_the_queue_and_the_links():
    """Rows 0 and 1 stand in one download queue; row 2 shares device 0's downlink.  At 0.5 s the peer of row 0 leaves.

    Until then rows 0 and 2 have sent 2 Mbit each; then rows 1 and 2 have 4 Mbit/s each, row 2 until 2 s; row 1 has
    2 Mbit left there, at 8 Mbit/s.
    """
    links = constant([8, 99, 99], [99, 99, 99])
    table = rows([0, 0, 2], 0, [1_000_000, 1_000_000, 0], [0, 0, 1_000_000], peer=[1, -1, 0])
    dispatch = run(links, table, availability=leaving((0, None), (0, 0.5), (0, None)))[0]
    assert dispatch.lost.tolist() == [True, False, False]
    assert dispatch.times[SETTLED].tolist() == [S // 2, S * 9 // 4, 2 * S]


# ----------------------------------------------------------------------------------------------------------------- TCP

SLOW_START = 608_583_048
"""1 MB at 100 Mbit/s, RTT 100 ms, 10 segments of 1,460 bytes: after six round trips 63 x 14,600 = 919,800 bytes.

The other 80,200 go at 64 x 14,600 bytes a round trip, 74.752 Mbit/s, in 8.583048 ms.
"""


def connected(links, loss=0.0, segment=1460, window=10):
    """The links with TCP, the same for all devices."""
    n = links.size
    tcp = Tcp(np.full(n, segment, np.int64), np.full(n, window, np.int64), np.full(n, loss))
    return replace(links, tcp=tcp)


HALF_RTT = 50 * MEGABIT


def test_slow_start_by_hand():
    links = connected(constant([100], [100], HALF_RTT))
    assert ends(UP_END, links, rows(0, up=1_000_000)) == [SLOW_START + HALF_RTT]
    assert ends(DOWN_END, links, rows(0, down=1_000_000)) == [SLOW_START + HALF_RTT]


@pytest.mark.parametrize(("silence", "again"), [(S, 105_248_000), (S + 1, SLOW_START)])
def test_a_window_is_kept_for_one_second_of_silence(silence, again):
    """Kept: 934,400 bytes in the first round trip at 74.752 Mbit/s, 65,600 at the link's 100 Mbit/s in 5.248 ms."""
    links = connected(constant([100], [100], HALF_RTT))
    start = SLOW_START + silence
    table = rows([0, 0], up=1_000_000, release_ns=[0, start])
    assert ends(UP_END, links, table) == [SLOW_START + HALF_RTT, start + again + HALF_RTT]


def test_a_window_stops_at_the_link():
    """At 2 Mbit/s: 116,800 bits in the first 100 ms, then the window (2.336 Mbit/s) is more than the link carries.

    883,200 bits at 2 Mbit/s are 441.6 ms.  The second flow starts with that window, so it takes 500 ms.
    """
    links = connected(constant([2], [2], HALF_RTT))
    table = rows([0, 0], up=125_000)
    assert ends(UP_END, links, table) == [541_600_000 + HALF_RTT, 1_041_600_000 + HALF_RTT]


def test_mathis_by_hand():
    """1460 x 8 bits / 0.1 s x sqrt(1.5 / 0.01) = 1.430502009 Mbit/s; the first 100 ms go at 1.168 Mbit/s."""
    links = connected(constant([100], [100], HALF_RTT), loss=0.01)
    rest = -(-(8_000_000 - 116_800) * 1000 * S // 1_430_502_009)
    assert ends(UP_END, links, rows(0, up=1_000_000)) == [S // 10 + rest + HALF_RTT]


def test_between_devices_round_trips_and_losses_add_up():
    """RTT 2 x (20 + 30) ms; 1 - 0.99 x 0.99 = 0.0199: 1460 x 8 / 0.1 x sqrt(1.5 / 0.0199) = 1.014053… Mbit/s.

    That is less than the first window (1.168 Mbit/s), so it holds from the start.
    """
    links = connected(constant([100, 100], [100, 100], np.array([20, 30]) * MEGABIT), loss=0.01)
    [end] = ends(UP_END, links, rows(0, up=1_000_000, peer=1))
    assert 8_000_000 / ((end - HALF_RTT) / S) == pytest.approx(116_800 * (1.5 / 0.0199) ** 0.5, rel=1e-9)


@pytest.mark.parametrize(("latency", "segment"), [(0, 1460), (HALF_RTT, 0)])
def test_without_latency_or_segment_tcp_limits_nothing(latency, segment):
    links = connected(constant([8], [8], latency), loss=0.5, segment=segment)
    assert ends(UP_END, links, rows(0, up=1_000_000)) == [S + latency]


def test_a_window_is_new_after_an_absence():
    """The device is away from 0.7 to 0.8 s: less than a second of silence, and still a new connection."""
    links = connected(constant([100, 8], [100, 8], HALF_RTT), window=10)
    here = Availability.of([[(0, 700 * MEGABIT), (800 * MEGABIT, FAR_NS)], [(0, FAR_NS)]])
    wait = rows(1, 850 * MEGABIT - SLOW_START - HALF_RTT)
    found = ends(UP_END, links, rows(0, up=1_000_000), wait, rows(0, up=1_000_000), availability=here)
    assert found[2] == 850 * MEGABIT + SLOW_START + HALF_RTT


def test_a_window_and_a_cell_together():
    """Two connections of 1.168 Mbit/s in the first round trip; the cell's 2 Mbit/s leave 1 to each from the start."""
    links = connected(behind_one_cell(constant([100, 100], [100, 100], HALF_RTT), 2, 2))
    assert ends(UP_END, links, rows([0, 1], up=125_000)) == [S + HALF_RTT] * 2
    assert ends(UP_END, links, rows(0, up=125_000)) == [541_600_000 + HALF_RTT]
