"""Nobody online: a pause that is counted and told, and the error when nobody ever comes back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from morphling.engine import Engine
from morphling.engine import engine as engine_module
from morphling.errors import EngineError
from morphling.executors.analytic import Analytic
from morphling.fleet import Availability, Links, LinkTrace, PastEnd
from morphling.fleet.churn import Spans, laid_out
from morphling.fleet.published import fleet_from_arrays
from morphling.interfaces.strategy import Dispatch, Done, Each, IterationDone, Strategy, WakeAt
from morphling.results import Results, metrics, write_run
from morphling.strategies.cleave import Cleave, CleaveConfig
from morphling.types import FAR_NS, DType
from morphling.workload import model_from_config, training_step
from tests.oracle.worlds import FlopsAreNanoseconds, bare_fleet, rows

S = 10**9
YEAR = 31_557_600 * S
MEGABIT = 10**6
LANES = pytest.mark.parametrize("lane", ["closed", "events"])


class Again(Strategy):
    """One row on device 0, sent again whenever it was lost and somebody is there; then done."""

    def __init__(self, table: Any) -> None:
        super().__init__(None)
        self.table = table
        self.heard: list[tuple[str, int]] = []

    def send(self, view: Any, why: str) -> Any:
        self.heard.append((why, round(view.now_s * S)))
        return Dispatch(self.table, Each(), label="recovery/again" if why == "joined" else "first")

    def start(self, view: Any) -> Any:
        return self.send(view, "start") if view.online.any() else ()

    def on_joined(self, devices: Any, view: Any) -> Any:
        return self.send(view, "joined")

    def on_done(self, dispatch: Any, rows: Any, view: Any) -> Any:
        self.heard.append(("done", round(view.now_s * S)))
        return [IterationDone(), Done()]


def here(*sessions: Any, **more: Any) -> Availability:
    return replace(Availability.of([[(a, b or FAR_NS) for a, b in own] for own in sessions]), **more)


def replay(strategy: Strategy, availability: Availability, links: Links | None = None, **options: Any) -> Any:
    size = availability.size
    fleet = bare_fleet(links or Links.constant(np.full(size, MEGABIT), np.full(size, MEGABIT)), availability)
    return Engine(fleet, None, strategy, FlopsAreNanoseconds(), compiled=False, **options).run(), fleet


# ------------------------------------------------------------------------------------------------------------- a pause


def test_pauses_are_measured_and_told(tmp_path):
    # device 1 bridges the first absence of device 0 but for 3 s; then nobody is there from 20 s to 29 s
    sessions = here([(1 * S, 5 * S), (11 * S, 20 * S), (29 * S, None)], [(4 * S, 8 * S)])
    recording, fleet = replay(Again(rows([0], 10 * S)), sessions)
    got = metrics(recording, fleet)
    assert recording.end_ns == 39 * S
    assert (got["paused_s"], got["pauses"], got["first_pause_s"]) == (1 + 3 + 9, 3, 0.0)
    write_run(tmp_path / "r", recording, fleet, {"name": "r"}, "name: r\n")
    results = Results.open(tmp_path / "r")
    assert results.recompute() == results.metrics
    assert "paused: nobody was online for 13.00 s in 3 intervals (first at 0 s)" in results.notes()
    shown = [str(x) for x in results.table().columns[0].cells]
    assert "paused_s" in shown


def test_one_pause_and_none(tmp_path):
    recording, fleet = replay(Again(rows([0], 10 * S)), here([(0, 1204 * S)]))
    write_run(tmp_path / "none", recording, fleet, {"name": "r"}, "name: r\n")
    quiet = Results.open(tmp_path / "none")
    assert (quiet.metrics["paused_s"], quiet.metrics["pauses"], quiet.metrics["first_pause_s"]) == (0.0, 0, None)
    assert "a device was online all the time" in quiet.metrics["not_available"]["first_pause_s"]
    assert not [line for line in quiet.notes() if "paused" in line]
    assert "paused_s" not in [str(x) for x in quiet.table().columns[0].cells]
    recording, fleet = replay(Again(rows([0], 2000 * S)), here([(0, 1204 * S), (1516 * S, None)]))
    write_run(tmp_path / "one", recording, fleet, {"name": "r"}, "name: r\n")
    assert "paused: nobody was online for 312.0 s in 1 interval (at 1,204 s)" in Results.open(tmp_path / "one").notes()


def test_a_device_that_leaves_as_another_comes_leaves_no_pause():
    recording, fleet = replay(Again(rows([1], S)), here([(0, 5 * S)], [(5 * S, None)]))
    assert recording.end_ns == 6 * S
    assert metrics(recording, fleet)["pauses"] == 0


@LANES
def test_after_years_the_clock_and_the_link_go_on_exactly(lane):
    # 1 Mbit/s for 3 s, 3 Mbit/s for 4 s, again and again; the device is back after 100 years
    trace = LinkTrace("t", np.array([0, 3 * S]), np.array([MEGABIT, 3 * MEGABIT]), np.array([1, 1]), 7 * S)
    assert trace.past_end is PastEnd.REPEAT
    links = Links.of([trace], np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1, bool))
    back = 100 * YEAR
    assert back % (7 * S) == S  # 1 s into a turn: 2 Mbit in 2 s, then 6 Mbit in 2 s
    table = rows([0], 0, MEGABIT)
    strategy = Again(table)
    recording, fleet = replay(strategy, here([(0, S), (back, None)]), links, lane=lane)
    assert strategy.heard == [("start", 0), ("joined", back), ("done", back + 4 * S)]
    got = metrics(recording, fleet)
    assert (got["paused_s"], got["lost_rows"]) == ((back - S) / S, 1)
    assert got["bytes_down"] == MEGABIT  # what was cut delivered nothing


@LANES
def test_a_transfer_that_is_cut_ends_at_that_nanosecond(lane):
    # the download of 250,000 bytes takes 2 s; the device leaves 1 ns before its end, comes back and pays it all again
    table = rows([0], 0, 250_000)
    strategy = Again(table)
    recording, fleet = replay(strategy, here([(0, 2 * S - 1), (2 * S, None)]), lane=lane)
    first, second = recording.dispatches
    assert (first.lost.tolist(), first.settled_ns) == ([True], 2 * S - 1)
    assert np.stack(first.times[:7]).T.tolist() == [[0, -1, -1, -1, -1, -1, 2 * S - 1]]
    assert second.column("download_end_ns").tolist() == [4 * S]
    assert metrics(recording, fleet)["bytes_down"] == 250_000
    stays, _ = replay(Again(table), here([(0, 2 * S), (3 * S, None)]), lane=lane)
    assert stays.dispatches[0].lost.tolist() == [False]  # it is through at the instant of leaving


# --------------------------------------------------------------------------------------------------------- the very end


def spans(*own: tuple[int, int]) -> Spans:
    return Spans(np.zeros(len(own), np.int64), *(np.array(x, np.int64) for x in zip(*own, strict=True)))


def refusal(strategy: Strategy, availability: Availability, **options: Any) -> str:
    with pytest.raises(EngineError) as caught:
        replay(strategy, availability, **options)
    return str(caught.value)


@LANES
def test_nobody_returns(lane):
    said = refusal(Again(rows([0, 0], 10 * S)), here([(0, 5 * S + 1)], [(0, 4 * S)]), lane=lane)
    assert said == (
        "nothing is left to happen at 5.000000001 s and Again has not said Done: the last device online left at "
        "5.000000001 s and none ever returns; lost with it: 2 rows, the last of dispatch 0 (first); no rows are "
        "pending; 0 of 1 iterations have ended"
    )


@pytest.mark.parametrize(
    ("past", "until", "words"),
    [
        ("error", None, "left at 5 s and none returns by 20 s (availability.horizon)"),
        ("hold", None, "left at 5 s and none ever returns"),
    ],
)
def test_nobody_returns_within_the_horizon(past, until, words):
    found = laid_out(spans((0, 5 * S)), 1, "x", 20 * S, past, until)
    assert words in refusal(Again(rows([0], 10 * S)), found)


def test_a_repeated_recording_returns_until_its_limit():
    # there for 5 of every 20 s; a row of 10 s is lost at 5, 25, 45 s, and the repeats are laid out up to 60 s
    found = laid_out(spans((0, 5 * S)), 1, "x", 20 * S, "repeat", 60 * S)
    said = refusal(Again(rows([0], 10 * S)), found, horizon_s=60.0)
    assert "the last device online left at 45 s and none returns by 60 s (run.max_time)" in said
    recording, fleet = replay(
        Again(rows([0], 4 * S)), laid_out(spans((3 * S, 8 * S)), 1, "x", 20 * S, "repeat", 60 * S)
    )
    assert recording.end_ns == 7 * S
    assert metrics(recording, fleet)["paused_s"] == 3


def test_who_was_never_there_and_who_comes_too_late():
    nobody = Availability(np.array([0, 0]), np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert "no device has come online and none ever returns" in refusal(Again(rows([0], S)), nobody)
    late = here([(0, 5 * S), (100 * S, None)])
    said = refusal(Again(rows([0], 10 * S)), late, horizon_s=50.0)
    assert said.startswith(
        "virtual time would pass the limit of 50 s (run.max_time); the last device online left at 5 s and none returns "
        "by 50 s (run.max_time), the next only at 100 s; lost with it: 1 row,"
    )


class Waiting(Again):
    """Looks every second whether somebody is back."""

    def start(self, view: Any) -> Any:
        return [super().start(view), WakeAt(1.0)]

    def on_timer(self, tag: Any, view: Any) -> Any:
        return WakeAt(view.now_s + 1)


def test_waiting_by_timers_does_not_last_for_ever(monkeypatch):
    monkeypatch.setattr(engine_module, "STANDSTILL", 50)
    said = refusal(Waiting(rows([0], 10 * S)), here([(0, 5 * S)]))
    assert said.startswith("Waiting has waited for 51 timers with no device online, up to 55 s: the last device online")
    recording, _ = replay(Waiting(rows([0], 10 * S)), here([(0, 5 * S), (200 * S, None)]))
    assert recording.end_ns == 210 * S
    said = refusal(Waiting(rows([0], 10 * S)), here([(0, 5 * S)]), horizon_s=300.0)
    assert said.startswith("virtual time would pass the limit of 300 s")


# -------------------------------------------------------------------------------------------------------------- Cleave

MODEL = {
    "model_type": "opt", "architectures": ["OPTForCausalLM"], "hidden_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 2, "ffn_dim": 256, "vocab_size": 1000, "max_position_embeddings": 64,
    "word_embed_proj_dim": 64, "activation_function": "relu", "do_layer_norm_before": True,
}  # fmt: skip


def cleave(availability: Availability | None = None) -> tuple[Any, Any]:
    work = training_step(model_from_config(MODEL, "mini", "mini"), 1, 16, DType.FLOAT16, recompute="full")
    one = np.ones(1)
    fleet = fleet_from_arrays(
        flops=one * 1e12, down_bps=one * 8e6, up_bps=one * 8e6, memory_bytes=np.array([1 << 30]), latency_ns=one * 0
    )
    if availability is not None:
        fleet = replace(fleet, availability=availability)
    strategy = Cleave(CleaveConfig(detection_s=0.0))  # the departure is known at once
    return Engine(fleet, work, strategy, Analytic(fleet=fleet)).run(), strategy


def test_a_device_that_returns_to_cleave_has_lost_its_shards():
    quiet, strategy = cleave()
    assert strategy.report()["shard_cache"]["hits"] == 6
    sent = sum(int(d.tasks.bytes_in.sum()) for d in quiet.dispatches)
    forward = max(d.settled_ns for d in quiet.dispatches if d.label.startswith("forward"))
    away, strategy = cleave(here([(0, forward), (forward + 100 * S, None)]))
    # The first level of the recomputed pass goes out at the very instant at which the device leaves: it counts on
    # shards that are there, and is lost.
    assert strategy.report()["shard_cache"]["hits"] == 3
    assert sum(int(d.lost.sum()) for d in away.dispatches) == 3
    # All weights of the layer come again with the recomputed forward pass, 2 bytes each: q, k, v and o are 64 x 64,
    # fc1 and fc2 are 64 x 256.  The activations of the lost level, 16 x 64, were sent in vain, and then to each of its
    # three blocks instead of once.
    again, activations = 2 * (4 * 64 * 64 + 2 * 64 * 256), 2 * 16 * 64
    assert again == 98_304
    assert sum(int(d.tasks.bytes_in.sum()) for d in away.dispatches) == sent + again + 3 * activations
    # The recomputed pass takes as long as the first one and the two copies of activations more, at 1 byte a
    # microsecond; with kept shards it had been over sooner.
    again_ns = max(d.settled_ns for d in away.dispatches if d.label.startswith("recompute"))
    kept_ns = max(d.settled_ns for d in quiet.dispatches if d.label.startswith("recompute"))
    assert again_ns - forward - 100 * S == forward + 2 * activations * 1000
    assert away.end_ns - quiet.end_ns == again_ns - kept_ns


def test_cleave_says_what_it_waits_for():
    quiet, _ = cleave()
    with pytest.raises(EngineError) as caught:
        cleave(here([(0, quiet.end_ns // 2)]))
    said = str(caught.value)
    assert f"the last device online left at 0.{quiet.end_ns // 2:09d} s and none ever returns; lost with it: " in said
    assert "(backward/layer 0/" in said
    assert "Cleave has not said Done" in said
