"""Shared links from the scenario to the results: cells, TCP, transfers between devices, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

import morphling
from morphling.engine import Engine
from morphling.engine.network import LONGEST_TCP_LATENCY_NS
from morphling.errors import EngineError, PlanError, ScenarioError
from morphling.fleet import Links, Tcp
from morphling.results.accounting import account
from morphling.run.build import build
from morphling.scenario import load_scenario
from tests.oracle.worlds import FlopsAreNanoseconds, Once, bare_fleet, rows

S = 10**9
MEGABIT = 10**6

SCENARIO = """\
name: cells
seed: 3
workload: {model: opt-125m, batch_size: 1, sequence_length: 16}
cells:
  - {name: lte, count: 3, link: {downlink: 40 Mbit/s, uplink: {uniform: [5 Mbit/s, 9 Mbit/s]}}}
  - {name: home, count: 2, link: {trace: mobiperf-wifi}}
fleet:
  - profile: snapdragon-8-gen-3
    count: 7
    link: {downlink: 30 Mbit/s, uplink: 8 Mbit/s, latency: 20 ms, tcp: {loss: 0.01, segment: 1 kB}}
    cell: lte
  - {profile: snapdragon-8-gen-3, count: 4, link: {downlink: 9 Mbit/s, uplink: 2 Mbit/s}, cell: {name: lte}}
  - profile: snapdragon-8-gen-3
    count: 5
    link: {downlink: 9 Mbit/s, uplink: 2 Mbit/s}
    cell: {name: home, assign: blocks}
  - {profile: snapdragon-8-gen-3, link: {downlink: 9 Mbit/s, uplink: 2 Mbit/s}}
strategy: {name: cleave}
"""


class Between(Once):
    """Rows may name peers."""

    uses_peers = True


def links_of(text=SCENARIO):
    return build(load_scenario(text)).fleet.links


def test_cells_of_a_scenario_are_links_of_their_own():
    links = links_of()
    assert links.cells.size == 5
    down, up = links.cells.peak_bps()
    assert down[:3].tolist() == [40 * MEGABIT] * 3
    assert len(set(up[:3])) == 3
    assert np.all((up[:3] >= 5 * MEGABIT) & (up[:3] <= 9 * MEGABIT))
    # in turn, the second group where the first ended; five over two cells in blocks; none
    assert links.cell.tolist() == [0, 1, 2, 0, 1, 2, 0, *(1, 2, 0, 1), *(3, 3, 3, 4, 4), -1]


def test_cells_can_be_drawn():
    text = SCENARIO.replace("cell: lte", "cell: {name: lte, assign: draw}")
    drawn = links_of(text).cell[:7].tolist()
    assert drawn == links_of(text).cell[:7].tolist()
    assert set(drawn) <= {0, 1, 2}
    assert drawn != links_of(text.replace("seed: 3", "seed: 4")).cell[:7].tolist()


def test_tcp_of_a_group_is_of_its_devices():
    tcp = links_of().tcp
    assert tcp.segment_bytes.tolist() == [1000] * 7 + [0] * 10
    assert tcp.initial_window.tolist()[:7] == [10] * 7
    assert tcp.loss.tolist() == [0.01] * 7 + [0.0] * 10
    assert links_of(SCENARIO.replace(", tcp: {loss: 0.01, segment: 1 kB}", "")).tcp is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("cell: lte", "cell: lt", "fleet.0.cell: there are no cells called 'lt'; did you mean 'lte'?"),
        ("name: home, count: 2", "name: lte, count: 2", "cells: two entries are called 'lte'"),
        ("cell: {name: home, assign: blocks}", "cell: lte", "cells: no device is behind 'home'"),
        ("link: {trace: mobiperf-wifi}", "link: {trace: mobiperf-wify}", "did you mean 'mobiperf-wifi'?"),
        ("downlink: 40 Mbit/s", "downlink: 40 mbps", "cells.0.link.downlink"),
        ("downlink: 40 Mbit/s", "downlink: 0 Mbit/s", "cells.0.link.downlink"),
        ("{downlink: 40 Mbit/s,", "{latency: 1 ms, downlink: 40 Mbit/s,", "cells.0.link"),
        ("loss: 0.01", "loss: 1", "fleet.0.link.tcp.loss"),
        ("loss: 0.01", "loss: .nan", "fleet.0.link.tcp.loss"),
        ("segment: 1 kB", "segment: 70 kB", "at most 65535 bytes"),
        ("segment: 1 kB", "segment: 1000", "fleet.0.link.tcp.segment"),
        ("segment: 1 kB", "initial_window: 0", "fleet.0.link.tcp.initial_window"),
        ("latency: 20 ms, tcp", "latency: 3 s, tcp", "with tcp at most 2.3 s"),
        ("assign: blocks", "assign: block", "fleet.2.cell"),
    ],
)
def test_a_wrong_network_is_refused_with_its_place(old, new, said):
    assert old in SCENARIO
    with pytest.raises(ScenarioError) as caught:
        build(load_scenario(SCENARIO.replace(old, new)))
    assert said in str(caught.value)
    assert str(caught.value).startswith("scenario:")


def test_a_run_says_that_links_are_shared_and_that_tcp_was_used(tmp_path):
    results = morphling.run(SCENARIO, out=tmp_path / "out", figures=False)
    notes = "\n".join(results.notes())
    assert "16 of 17 devices are behind 5 cells, whose links they share max-min fairly" in notes
    assert "TCP on 7 of 17 devices: slow start, and the limit of Mathis et al. (1997) for loss on 7" in notes
    again = morphling.run(tmp_path / "out" / "scenario.yaml", out=tmp_path / "again", figures=False)
    assert again.metrics["events_sha256"] == results.metrics["events_sha256"]
    resolved = (tmp_path / "out" / "scenario.yaml").read_text()
    assert "segment: 1000 B" in resolved
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["notes"]


def test_bytes_between_devices_count_for_both_ends():
    links = Links.constant(np.full(3, 8 * MEGABIT), np.full(3, 8 * MEGABIT))
    table = rows([0, 1, 2], down=[1000, 0, 50], up=[0, 700, 0], peer=[1, 2, -1])
    recording = Engine(bare_fleet(links), None, Between(table), FlopsAreNanoseconds()).run()
    sums = account(recording.dispatches, 3)
    assert sums.device["bytes_down"].tolist() == [1000, 0, 750, 0]
    assert sums.device["bytes_up"].tolist() == [0, 1700, 0, 0]
    assert sums.dispatch["bytes_down"].tolist() == [1750]
    assert sums.dispatch["bytes_up"].tolist() == [1700]


@pytest.mark.parametrize(
    ("strategy", "more", "said"),
    [
        (Once, {"peer": 1}, "row 0 names device 1 as its peer, but Once.uses_peers is False"),
        (Between, {"peer": 0}, "a row's peer is another device"),
        (Between, {"peer": 3}, "names peer 3 of a fleet of 3"),
        (Between, {"peer": 2}, "half-duplex links serve the coordinator only"),
    ],
)
def test_impossible_peers_are_refused(strategy, more, said):
    half = np.array([False, False, True])
    links = Links.constant(np.full(3, MEGABIT), np.full(3, MEGABIT), 0, half)
    with pytest.raises(PlanError if "half" in said else EngineError) as caught:  # such a fleet can be: n/a, not failed
        Engine(bare_fleet(links), None, strategy(rows([0], up=5, **more)), FlopsAreNanoseconds()).run()
    assert said in str(caught.value)


def test_settings_that_are_not_exact_are_refused():
    links = Links.constant(np.full(1, MEGABIT), np.full(1, MEGABIT), LONGEST_TCP_LATENCY_NS + 1)
    one = np.ones(1, np.int64)
    for tcp, said in (
        (Tcp(one * 1460, one, one * 0.0), "windows are exact up to 2.3 s"),
        (Tcp(one * 70_000, one, one * 0.0), "tcp.segment_bytes of device 0 is 70000"),
        (Tcp(one, one * 0, one * 0.0), "tcp.initial_window of device 0 is 0"),
        (Tcp(one, one, one * 1.0), "tcp.loss is a share in [0, 1)"),
    ):
        with pytest.raises(EngineError) as caught:
            Engine(bare_fleet(links.over(tcp)), None, Once(rows(0, up=1)), FlopsAreNanoseconds())
        assert said in str(caught.value)
    cells = Links.constant(np.full(2, MEGABIT), np.full(2, MEGABIT))
    with pytest.raises(ValueError, match="one of -1"):
        links.behind(cells, np.array([2]))
    with pytest.raises(ValueError, match="latency and half duplex belong to the devices"):
        links.behind(links, np.array([0]))


def test_fedscale_kilobits_are_a_thousand_bits():
    """A capacity of 5,000 kbit/s moves 5,000,000 bits in exactly one second."""
    links = Links.constant(np.array([5_000_000]), np.array([5_000_000]))
    for strategy in (Once, Between):
        recording = Engine(bare_fleet(links), None, strategy(rows(0, up=625_000)), FlopsAreNanoseconds()).run()
        assert recording.end_ns == S


def test_a_limit_that_passes_while_rows_are_on_shared_links_is_named():
    links = Links.constant(np.full(1, 8 * MEGABIT), np.full(1, 8 * MEGABIT), 0)
    links = links.behind(Links.constant(np.full(1, MEGABIT), np.full(1, MEGABIT), 0), np.zeros(1, np.int32))
    fleet = bare_fleet(links)
    with pytest.raises(EngineError, match=r"virtual time would pass the limit of 2 s \(run.max_time\)"):
        Engine(fleet, None, Once(rows(0, up=1_000_000)), FlopsAreNanoseconds(), horizon_s=2.0).run()


def test_more_cells_than_fit_are_refused():
    with pytest.raises(ScenarioError, match=r":5:3: cells: 20,000,002 cells are more than the 10,000,000"):
        load_scenario(SCENARIO.replace("name: lte, count: 3", "name: lte, count: 20000000"))


def test_a_foreign_csv_is_imported_where_its_columns_are_named(tmp_path):
    (tmp_path / "t.csv").write_text("zeit;ab;auf\n0;8000;2000\n1;-;1000\n2;16000;4000\n")
    text = """\
name: foreign
workload: {model: opt-125m, batch_size: 1, sequence_length: 16}
fleet:
  - profile: snapdragon-8-gen-3
    link:
      trace: {path: t.csv, separator: semicolon, time_column: zeit, time_unit: s, down_column: ab, down_unit: kbit/s,
              up_column: auf, up_unit: kbit/s}
strategy: {name: cleave}
"""
    loaded = load_scenario(text, folder=tmp_path)
    trace = loaded.trace(loaded.scenario.fleet[0].link)
    assert trace.down_bps.tolist() == [8_000_000, 8_000_000, 16_000_000]
    assert trace.up_bps.tolist() == [2_000_000, 1_000_000, 4_000_000]
    assert "trace t.csv: repaired: 1 x missing reading of ab (first: t.csv:3)" in loaded.remarks
    again = load_scenario(loaded.resolved_yaml())
    assert again.trace(again.scenario.fleet[0].link).down_bps.tolist() == trace.down_bps.tolist()
    with pytest.raises(ScenarioError, match=r"t\.csv:3: missing reading of ab \(strict"):
        load_scenario(text, ["fleet.0.link.trace.strict=true"], folder=tmp_path)
    with pytest.raises(ScenarioError, match=r"fleet\.0\.link\.trace"):
        load_scenario(text.replace("down_column: ab", "down_column: nein"), folder=tmp_path)
