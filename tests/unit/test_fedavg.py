"""FedAvg's rounds, worked by hand: who is selected, when a round ends, and what becomes of whoever dies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from morphling.errors import Infeasible, PlanError, ScenarioError
from morphling.fleet import Availability
from morphling.planning.local_training import draw_samples, fedscale_client_seconds, training_memory
from morphling.planning.rounds import RoundStrategy
from morphling.results import metrics
from morphling.run import build
from morphling.scenario import load_scenario
from morphling.strategies.fedavg import FedAvg, FedAvgConfig
from morphling.testing import coming_and_going, tiny_fleet, tiny_workload
from tests.federated_worlds import SAMPLE, WORK, S, W, clients, ends, run
from tests.oracle.worlds import coordinator

FIVE = [(1, 1, 2), (1, 2, 2), (1, 3, 2), (1, 4, 2), (1, 5, 2)]
"""Turns of 4, 5, 6, 7 and 8 s."""


def fedavg(**config):
    return FedAvg(FedAvgConfig(**{"clients_per_round": 5, "over_commitment": 1.0, **config}))


def counts(strategy, *names):
    said = strategy.report()
    return tuple(said[name] for name in names)


def test_a_round_lasts_as_long_as_its_slowest_client():
    strategy = fedavg()
    recording = run(strategy, clients(*FIVE, latency=0.25), iterations=2)
    # latency twice: 0.25 + 1 + 5 + 0.25 + 2 = 8.5 s
    assert ends(recording) == [8.5, 17.0]
    first = recording.dispatches[0]
    assert first.column("bytes_in").tolist() == first.column("bytes_out").tolist() == [W] * 5
    assert first.column("flops").tolist() == [20.0 * SAMPLE] * 5
    assert (first.column("settled_ns") / S).tolist() == [4.5, 5.5, 6.5, 7.5, 8.5]
    assert strategy.report()["estimate_s"] == pytest.approx(8.5)
    assert counts(strategy, "selected", "reported", "late", "dropped", "abandoned_rounds") == (10, 10, 0, 0, 0)


@pytest.mark.parametrize("lane", ["closed", "events"])
def test_with_over_commitment_the_kth_report_ends_the_round_and_stragglers_are_withdrawn(lane):
    strategy = fedavg(clients_per_round=3, over_commitment=5 / 3)
    fleet = clients(*FIVE)
    recording = run(strategy, fleet, lane=lane)
    assert ends(recording) == [6.0]
    assert counts(strategy, "selected", "reported", "late") == (5, 3, 2)
    got = metrics(recording, fleet, 1.0, strategy.report())
    assert (got["bytes_down"], got["bytes_up"]) == (5 * W, 3 * W)  # the late ones had the model, their updates were cut
    assert got["lost_rows"] == 2
    assert (got["recovery_time_s"], got["unrecovered_losses"]) == (0.0, 0)
    assert strategy.report()["estimate_s"] == pytest.approx(6.0)


def test_what_over_commitment_rounds_up_to():
    assert FedAvgConfig(clients_per_round=10, over_commitment=1.1).wanted == 11  # 1.1 * 10 is 11.000000000000002
    assert FedAvgConfig(clients_per_round=4).wanted == 6  # 5.2
    assert FedAvgConfig().wanted == 130


@pytest.mark.parametrize("lane", ["closed", "events"])
def test_two_of_five_die_and_the_deadline_ends_the_round(lane):
    strategy = fedavg(deadline_s=10.0, minimum_reports=1)
    fleet = clients(*FIVE, sessions={0: [(0, 3)], 4: [(0, 6)]})
    recording = run(strategy, fleet, lane=lane)
    assert ends(recording) == [10.0]  # the server does not know that they died
    assert counts(strategy, "selected", "reported", "late", "dropped") == (5, 3, 0, 2)
    got = metrics(recording, fleet, 1.0, strategy.report())
    assert got["recovery_time_s"] == got["recovery_detection_s"] == (10 - 3) + (10 - 6)
    assert got["unrecovered_losses"] == 0


def test_without_a_deadline_the_round_ends_when_nobody_is_left_to_report():
    strategy = fedavg()
    assert ends(run(strategy, clients(*FIVE, sessions={0: [(0, 3)], 4: [(0, 7.5)]}))) == [7.5]
    assert counts(strategy, "reported", "dropped") == (3, 2)


def test_a_report_at_the_deadline_counts():
    strategy = fedavg(deadline_s=6.0)
    assert ends(run(strategy, clients(*FIVE))) == [6.0]
    assert counts(strategy, "reported", "late") == (3, 2)


def test_too_few_reports_abandon_the_round_and_it_is_tried_again():
    strategy = fedavg(deadline_s=10.0, minimum_reports=4)
    fleet = clients(*FIVE, sessions={0: [(0, 3), (9, None)], 4: [(0, 6), (9.5, None)]})
    recording = run(strategy, fleet)
    assert ends(recording) == [18.0]  # three reports by 10 s, then all five within 8 s
    assert counts(strategy, "rounds", "abandoned_rounds", "selected", "reported", "dropped") == (1, 1, 10, 8, 2)
    assert [d.label for d in recording.dispatches] == ["round 0", "recovery/round 0"]
    got = metrics(recording, fleet, 1.0, strategy.report())
    # both losses are noticed at 10 s, and the next attempt is over at 18 s
    assert got["recovery_time_s"] == (18 - 3) + (18 - 6)
    assert got["recovery_detection_s"] == (10 - 3) + (10 - 6)
    assert got["recovery_planning_s"] == 0.0
    assert got["unrecovered_losses"] == 0


@pytest.mark.parametrize(("deadline", "first"), [(None, 3), (10.0, 10)])
def test_everybody_dies_for_a_while_and_the_strategy_waits(deadline, first):
    strategy = fedavg(deadline_s=deadline)
    fleet = clients(*FIVE, sessions={i: [(0, 3), (20 + i, None)] for i in range(5)})
    recording = run(strategy, fleet)
    # whoever comes first is a round of its own: one report is enough here
    assert ends(recording) == [24.0]
    assert counts(strategy, "selected", "reported", "dropped", "abandoned_rounds") == (6, 1, 5, 1)
    got = metrics(recording, fleet, 1.0, strategy.report())
    assert got["recovery_detection_s"] == first - 3
    assert got["recovery_waiting_s"] == 20 - first


def test_a_round_waits_for_as_many_as_it_needs():
    strategy = fedavg(minimum_reports=3)
    fleet = clients(*FIVE, sessions={0: [(1, None)], 1: [(5, None)], 2: [(9, None)], 3: [(60, None)], 4: [(60, None)]})
    assert ends(run(strategy, fleet)) == [9.0 + 6.0]
    assert counts(strategy, "selected", "reported") == (3, 3)


def test_more_clients_a_round_than_the_fleet_has():
    strategy = fedavg(clients_per_round=100, over_commitment=1.3)
    assert ends(run(strategy, clients(*FIVE))) == [8.0]
    assert counts(strategy, "selected", "reported") == (5, 5)


def test_a_deadline_that_no_client_meets_stops_the_run_and_says_why():
    with pytest.raises(PlanError, match=r"abandoned 3 times in a row.*0 of 5.*deadline_s is 2\.5.*about 4 s"):
        run(fedavg(deadline_s=2.5, retries=2), clients(*FIVE))


def test_the_deadline_of_a_round_that_is_over_means_nothing_to_the_next():
    strategy = fedavg(deadline_s=10.0)
    assert ends(run(strategy, clients(*FIVE), iterations=2)) == [8.0, 16.0]  # and not at 10 s
    assert counts(strategy, "reported", "abandoned_rounds") == (10, 0)


def test_only_attempts_in_a_row_count_as_retries():
    strategy = fedavg(retries=1)
    fleet = clients(*[(1, 1, 1)] * 5, sessions={i: [(0, 1), (5, 9), (12, None)] for i in range(5)})
    # abandoned at 1 s, committed at 5 + 3 s; abandoned at 9 s, committed at 12 + 3 s
    assert ends(run(strategy, fleet, iterations=2)) == [8.0, 15.0]
    assert counts(strategy, "rounds", "abandoned_rounds") == (2, 2)


def test_identical_clients_that_report_at_one_instant_are_counted_up_to_k():
    strategy = fedavg(clients_per_round=2, over_commitment=2.0)
    assert ends(run(strategy, clients(*[(1, 1, 1)] * 4))) == [3.0]
    assert counts(strategy, "selected", "reported", "late") == (4, 2, 2)


def test_the_fastest_are_selected_where_that_is_asked():
    strategy = fedavg(clients_per_round=2, selection="fastest")
    recording = run(strategy, clients(*reversed(FIVE)))
    assert ends(recording) == [5.0]
    assert recording.dispatches[0].tasks.device.tolist() == [3, 4]


def test_uniform_selection_takes_everybody_equally_often_and_only_who_is_here():
    strategy = fedavg(clients_per_round=2)
    fleet = clients(*[(1, 1, 1)] * 6, sessions={5: [(10_000, None)]})
    recording = run(strategy, fleet, iterations=1000)
    seen = np.bincount(np.concatenate([d.tasks.device for d in recording.dispatches]), minlength=6)
    assert seen[5] == 0
    assert np.all(np.abs(seen[:5] - 400) < 5 * np.sqrt(1000 * 0.4 * 0.6))


def test_clients_share_the_servers_link():
    # five models of W bytes leave through a link that carries one in a second, alike: all arrive after 5 s
    fleet = clients(*[(0.5, 1, 1)] * 5, coordinator=coordinator(uplink_bps=8 * W))
    strategy = fedavg()
    assert ends(run(strategy, fleet)) == [7.0]
    assert strategy.report()["estimate_s"] == pytest.approx(7.0)


def test_devices_that_cannot_hold_the_training_are_left_out():
    # 8 bytes a parameter for SGD, the activations of 12 layers, and the ends of the model
    need = training_memory(WORK, 1, "sgd").total
    assert training_memory(WORK, 1, "sgd").states == 8 * 125_239_296
    strategy = fedavg(clients_per_round=5)
    fleet = clients(*FIVE, memory=[need, need - 1, need, need, need - 1])
    recording = run(strategy, fleet)
    assert recording.dispatches[0].tasks.device.tolist() == [0, 2, 3]
    assert counts(strategy, "eligible", "devices_left_out") == (3, {"too little memory to train the model": 2})
    with pytest.raises(Infeasible, match=f"{need - 1} bytes.*{need} bytes"):
        run(fedavg(), clients(*FIVE, memory=need - 1))
    with pytest.raises(Infeasible, match="minimum_reports is 4, and 3 of 5 devices"):
        run(fedavg(minimum_reports=4), fleet)


def test_epochs_over_samples_of_its_own():
    # 10 samples, 4 epochs: 40 samples, twice the 20 of the hand-worked fleet
    strategy = fedavg(local_epochs=4, samples_per_client=10)
    assert ends(run(strategy, clients(*FIVE))) == [1 + 2 * 5 + 2]
    drawn = fedavg(local_epochs=1, samples_per_client={"uniform": [10, 40]})
    first = run(drawn, clients(*FIVE)).dispatches[0].column("flops") / SAMPLE
    assert np.all((first >= 10) & (first <= 40) & (first == np.rint(first)))
    assert len(set(first.tolist())) > 1


def test_draws_of_samples():
    rng = np.random.default_rng(1)
    even = draw_samples({"uniform": [3, 5]}, 3000, rng)
    assert set(even.tolist()) == {3, 4, 5}
    skewed = draw_samples({"lognormal": [100, 1.0]}, 20_001, rng)
    assert np.median(skewed) == pytest.approx(100, rel=0.05)
    assert skewed.mean() == pytest.approx(100 * np.exp(0.5), rel=0.1)
    assert draw_samples({"lognormal": [1, 3.0]}, 100, rng).min() == 1


def test_bytes_of_the_update():
    strategy = fedavg(upload_bytes_per_parameter=2, compression=4)
    recording = run(strategy, clients(*FIVE))
    assert recording.dispatches[0].column("bytes_out").tolist() == [W // 8] * 5
    assert ends(recording) == [1 + 5 + 2 / 8]


def test_a_client_as_fedscale_counts_it():
    # 3 · 30 samples · 20 steps · 10 ms = 18 s; 8000 kbit each way at 1000 kbit/s: 16 s
    said = fedscale_client_seconds(batch_size=30, local_steps=20, inference_ms=10, model_kbit=8000, bandwidth_kbps=1000)
    assert said == {"compute_s": 18.0, "communication_s": 16.0}
    # The engine says the same of a link with one rate and no latency: here 20 samples of 3 · 50 ms, and W at W/2 a s.
    fleet = clients((2, 3, 2))
    same = fedscale_client_seconds(
        batch_size=1, local_steps=20, inference_ms=50, model_kbit=8 * W / 1000, bandwidth_kbps=4 * W / 1000
    )
    assert ends(run(fedavg(), fleet)) == [sum(same.values())] == [7.0]


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        ({"clients_per_round": 0}, "clients_per_round"),
        ({"over_commitment": 0.9}, "over_commitment"),
        ({"deadline_s": 0.0}, "deadline_s"),
        ({"minimum_reports": 0}, "minimum_reports"),
        ({"minimum_reports": 6}, "minimum_reports"),
        ({"retries": -1}, "retries"),
        ({"local_steps": 0}, "local_steps"),
        ({"local_steps": 1, "local_epochs": 1, "samples_per_client": 5}, "local_epochs"),
        ({"local_epochs": 1}, "local_epochs"),
        ({"samples_per_client": 5}, "samples_per_client"),
        ({"local_epochs": 1, "samples_per_client": 0}, "samples_per_client"),
        ({"local_epochs": 1, "samples_per_client": {"uniform": [5, 2]}}, "samples_per_client"),
        ({"local_epochs": 1, "samples_per_client": {"zipf": [5, 2]}}, "samples_per_client"),
        ({"local_epochs": 1, "samples_per_client": {"lognormal": [5]}}, "samples_per_client"),
        ({"compression": 0.5}, "compression"),
        ({"upload_bytes_per_parameter": 0.0}, "upload_bytes_per_parameter"),
        ({"selection": "best"}, "selection"),
        ({"optimizer": "adamw"}, "optimizer"),
        ({"deadline": 10}, "deadline"),
    ],
)
def test_settings_that_mean_nothing_are_refused_by_name(keys, field):
    link = {"downlink": "8 Mbit/s", "uplink": "8 Mbit/s"}
    scenario = {
        "name": "bad",
        "workload": {"model": "opt-125m", "batch_size": 1, "sequence_length": 8},
        "fleet": [{"profile": {"compute": "1 TFLOP/s", "memory": "4 GB"}, "count": 1, "link": link}],
        "strategy": {"plugin": FedAvg, "clients_per_round": 5, **keys},
    }
    with pytest.raises(ScenarioError, match=rf"strategy\.{field}"):
        build(load_scenario(scenario))


def test_a_run_says_how_its_rounds_went(tmp_path):
    import morphling

    link = {"downlink": "80 Mbit/s", "uplink": "80 Mbit/s", "latency": "10 ms"}
    scenario = {
        "name": "rounds",
        "workload": {"model": "opt-125m", "batch_size": 1, "sequence_length": 8},
        "fleet": [{"profile": {"compute": "1 TFLOP/s", "memory": "4 GB"}, "count": 6, "link": link}],
        "strategy": {"plugin": FedAvg, "clients_per_round": 4, "local_steps": 3},
        "run": {"iterations": 2},
    }
    results = morphling.run(scenario, out=tmp_path / "run", figures=False)
    assert (
        "rounds: 2 committed, 0 abandoned; devices: 12 selected, 8 reported, 4 late, 0 dropped out" in results.notes()
    )
    assert results.notes()[0].startswith("plan: estimated ")
    assert ";" not in results.notes()[0]  # there are neither bounds nor a balance to tell


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"lost_ns": 6 * S, "detected_ns": 5 * S}, "do not rise"),
        ({"lost_ns": 6 * S}, "lacks lost_ns"),
    ],
)
def test_an_absorbed_loss_that_makes_no_sense_is_not_believed(entry, why):
    strategy = fedavg(clients_per_round=3, over_commitment=5 / 3)
    fleet = clients(*FIVE)
    recording = run(strategy, fleet)
    got = metrics(recording, fleet, 1.0, {"recoveries": [{**entry, "absorbed": True}]})
    assert got["recovery_detection_s"] is None
    assert why in got["not_available"]["recovery_detection_s"]
    elsewhere = metrics(recording, fleet, 1.0, {"recoveries": [{"lost_ns": 1, "detected_ns": 2, "absorbed": True}]})
    assert elsewhere["unrecovered_losses"] == 1


class Pairs(RoundStrategy):
    """A strategy of rounds of somebody's own: the two first who are here, and only odd devices count."""

    Config = FedAvgConfig

    def tasks(self, devices, view):
        from morphling.interfaces.tasks import TaskTable

        return TaskTable.build(device=devices, flops=1e9, bytes_in=1000, bytes_out=1000)

    def select(self, available, view):
        return available[:2] if len(available) > 1 else available[:0]

    def accept(self, current, devices, view):
        return devices[devices % 2 == 1]

    def close(self, current, view):
        if current.reported:
            return "commit"
        return None if current.waiting else "abandon"


def test_a_round_strategy_of_ones_own():
    import morphling
    from morphling.testing import replay

    assert morphling.RoundStrategy is RoundStrategy
    fleet, workload = tiny_fleet(), tiny_workload()
    strategy = Pairs(FedAvgConfig())
    assert len(replay(strategy, fleet, workload, iterations=3).recording.iteration_ends_ns) == 3
    said = strategy.round_report()
    assert (said["rounds"], said["selected"], said["reported"]) == (3, 6, 3)
    strategy = Pairs(FedAvgConfig())
    unquiet = replace(fleet, availability=coming_and_going(fleet.size, 10**9))
    replay(strategy, unquiet, workload, iterations=3)
    assert strategy.round_report()["rounds"] == 3
    stuck = Pairs(FedAvgConfig())
    only_even = replace(fleet, availability=Availability.of([[(0, 10**18)], [(10**17, 10**18)], [(0, 10**18)], []]))
    with pytest.raises(PlanError, match="abandoned 11 times in a row"):
        replay(stuck, only_even, workload)
