"""Synthetic link traces: shipped bytes, statistics, refusals."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from morphling.errors import InputError, TraceError
from morphling.fleet.generate import POPULATIONS, Population, generate, recipe_header, to_csv
from morphling.fleet.links import LinkTrace

TRACES = Path(__file__).parents[2] / "network_traces"
SHIPPED_SEED = 7
NAMES = sorted(POPULATIONS)


@pytest.mark.parametrize("name", NAMES)
def test_regenerating_gives_the_shipped_bytes(name):
    text = to_csv(generate(name, SHIPPED_SEED, 600, 1), recipe_header(name, SHIPPED_SEED))
    assert text.encode() == (TRACES / f"{name}.csv").read_bytes()


def test_every_shipped_generated_trace_has_a_population():
    assert {p.stem for p in TRACES.glob("mobiperf-*.csv")} == set(POPULATIONS)
    readme = (TRACES / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}.csv`" in readme for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_shipped_medians_lie_within_the_stated_six_percent(name):
    trace, what = generate(name, SHIPPED_SEED), POPULATIONS[name]
    present = trace.down_bps > 0
    assert np.median(trace.down_bps[present]) == pytest.approx(what.down_bps, rel=0.06)
    assert np.median(trace.up_bps[present]) == pytest.approx(what.up_bps, rel=0.06)


@pytest.mark.parametrize("name", NAMES)
def test_a_long_trace_has_the_statistics_of_its_population(name):
    trace, what = generate(name, 1, 60_000), POPULATIONS[name]
    present = (trace.down_bps > 0) & (trace.up_bps > 0)
    logs = []
    for rates, median in ((trace.down_bps, what.down_bps), (trace.up_bps, what.up_bps)):
        rate = rates[present].astype(float)
        assert np.median(rate) == pytest.approx(median, rel=0.03)
        assert np.std(rate) / np.mean(rate) == pytest.approx(what.cv, rel=0.05)
        logs.append(np.log(rate))
    assert np.corrcoef(*logs)[0, 1] == pytest.approx(what.rho, abs=0.04)


def test_the_rates_forget_with_the_stated_time_constant():
    trace = generate("mobiperf-5g", 1, 60_000)
    x = np.log(trace.down_bps.astype(float))
    x -= x.mean()
    for lag in (1, 3, 6):
        assert np.mean(x[lag:] * x[:-lag]) / np.var(x) == pytest.approx(math.exp(-lag / 3.0), abs=0.04)


def test_lte_pauses_both_directions_together_and_as_often_as_stated():
    trace = generate("mobiperf-lte", 1, 200_000)
    paused = trace.down_bps == 0
    assert np.array_equal(paused, trace.up_bps == 0)
    starts = np.count_nonzero(paused[1:] & ~paused[:-1])
    assert np.count_nonzero(~paused) / starts == pytest.approx(180, rel=0.1)
    # A pause is seen at whole steps, so its mean is 1 / (1 - exp(-1/4)) steps.
    assert np.count_nonzero(paused) / starts == pytest.approx(1 / -math.expm1(-1 / 4), rel=0.1)


@pytest.mark.parametrize("name", ["mobiperf-wifi", "mobiperf-5g"])
def test_the_others_never_pause(name):
    trace = generate(name, 3, 20_000)
    assert trace.down_bps.min() > 0
    assert trace.up_bps.min() > 0


@pytest.mark.parametrize("name", NAMES)
def test_shape_units_and_asymmetry(name):
    trace = generate(name, 0, 120)
    assert trace.start_ns.tolist() == [i * 1_000_000_000 for i in range(120)]
    assert trace.period_ns == 120_000_000_000
    for rates in (trace.down_bps, trace.up_bps):
        assert rates.dtype == np.int64
        assert np.all(rates % 1000 == 0)
    present = trace.down_bps > 0
    assert np.mean(trace.down_bps[present]) > 1.3 * np.mean(trace.up_bps[present])


def test_a_longer_trace_begins_with_the_shorter_one():
    short, long = (generate("mobiperf-lte", 5, d, 0.5) for d in (60, 90))
    assert long.down_bps[:120].tolist() == short.down_bps.tolist()
    assert long.up_bps[:120].tolist() == short.up_bps.tolist()


def test_seeds_differ_and_repeat():
    one, again, other = (generate("mobiperf-wifi", seed, 30) for seed in (1, 1, 2))
    assert one.down_bps.tolist() == again.down_bps.tolist()
    assert one.down_bps.tolist() != other.down_bps.tolist()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("mobiperf-6g", 1, 600, 1), "no population of traces is called 'mobiperf-6g'; there are mobiperf-lte"),
        (("mobiperf-lte", 1, 10, 3), "not a whole number of steps"),
        (("mobiperf-lte", 1, 0, 1), "above zero"),
        (("mobiperf-lte", 1, 10, -1), "above zero"),
        (("mobiperf-lte", 1, math.inf, 1), "finite"),
        (("mobiperf-lte", 1, 1e-9, 1e-10), "whole number of steps"),
    ],
)
def test_what_cannot_be_generated_is_refused(arguments, text):
    with pytest.raises(TraceError, match=text):
        generate(*arguments)


def test_a_negative_seed_is_refused():
    with pytest.raises(InputError, match="seed"):
        generate("mobiperf-lte", -1)


def test_a_rate_that_rounds_to_nothing_is_an_error_and_not_a_pause(monkeypatch):
    slow = Population("slow", 400, 400, 0.1, 5.0, 0.4, None, None, ("made up",))
    monkeypatch.setitem(POPULATIONS, "slow", slow)
    with pytest.raises(TraceError, match="rounds to 0 kbit/s"):
        generate("slow", 1, 10)


def test_csv_writes_exact_times_and_the_duration():
    trace = LinkTrace(
        "t", np.array([0, 500_000_000, 1_000_000_001]), np.array([1, 0, 3]), np.array([4, 5, 6]), 2_500_000_000
    )
    assert to_csv(trace, ["made by hand"]) == (
        "# made by hand\n# duration_s: 2.5\ntime_s,down_bps,up_bps\n0,1,4\n0.5,0,5\n1.000000001,3,6\n"
    )


def test_a_header_line_cannot_smuggle_in_rows():
    with pytest.raises(TraceError, match="line break"):
        to_csv(generate("mobiperf-wifi", 1, 2), ["a\n0,1,1"])


def test_every_population_names_its_sources():
    for what in POPULATIONS.values():
        assert {line.split(":")[0] for line in what.sources} >= {"medians", "cv", "tau", "rho"}
        assert (what.between_s is None) == (what.outage_s is None)


def test_shipped_files_load_through_the_reader():
    from morphling.scenario import traces

    for name in NAMES:
        read, made = traces.load_trace(name), generate(name, SHIPPED_SEED)
        assert read.down_bps.tolist() == made.down_bps.tolist()
        assert read.up_bps.tolist() == made.up_bps.tolist()
        assert read.start_ns.tolist() == made.start_ns.tolist()
        assert read.period_ns == made.period_ns
