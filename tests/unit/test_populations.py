"""Populations of links: statistics of large draws, variation in time, independence of the count, refusals."""

from __future__ import annotations

import hashlib
import math
from itertools import islice

import numpy as np
import pytest

from morphling.errors import InputError, TraceError
from morphling.fleet import LinkTrace
from morphling.fleet.populations import LINK_POPULATIONS, device_traces, link_means, population_header
from morphling.fleet.summary import summarize, time_percentile

NAMES = sorted(LINK_POPULATIONS)


def logs(name, count=20_000, seed=1):
    down, up = link_means(name, seed, count)
    return np.log(down / 1e6), np.log(up / 1e6)


@pytest.mark.parametrize("name", NAMES)
def test_means_over_devices_have_the_stated_medians_spread_and_correlation(name):
    what = LINK_POPULATIONS[name]
    down, up = logs(name)
    # Pairs out of range are drawn again, which moves the medians by a few percent and narrows the spread a little.
    assert math.exp(np.median(down)) == pytest.approx(what.down_bps / 1e6, rel=0.03)
    assert math.exp(np.median(up)) == pytest.approx(what.up_bps / 1e6, rel=0.06)
    assert np.std(down) == pytest.approx(what.down_sigma, rel=0.06)
    assert np.std(up) == pytest.approx(what.up_sigma, rel=0.06)
    assert np.corrcoef(down, up)[0, 1] == pytest.approx(what.rho, abs=0.03)


@pytest.mark.parametrize("name", NAMES)
def test_means_stay_in_range_and_nothing_piles_up_on_a_bound(name):
    what = LINK_POPULATIONS[name]
    down, up = link_means(name, 2, 20_000)
    for rates, (low, high) in ((down, what.down_range), (up, what.up_range)):
        assert low <= rates.min()
        assert rates.max() <= high
        assert np.all(rates % 1000 == 0)
        assert np.count_nonzero((rates == low) | (rates == high)) < 20


def test_home_connections_are_as_asymmetric_as_the_tests_they_were_fitted_to():
    # Percentiles of down/up in M-Lab NDT, the clean subset: 0.30, 0.96, 2.39, 7.36, 25.9; the fit is a lognormal.
    down, up = link_means("home-wifi-ndt", 3, 20_000)
    got = np.percentile(down / up, [5, 25, 50, 75, 95])
    assert got == pytest.approx([0.30, 0.96, 2.39, 7.36, 25.9], rel=0.16)
    assert np.mean(up > down) == pytest.approx(0.25, abs=0.02)


def test_the_cleave_population_lies_between_two_and_ten_everywhere():
    down, up = link_means("cleave-2-10x", 3, 20_000)
    ratio = down / up
    assert ratio.min() >= 2
    assert ratio.max() <= 10
    # Percentiles of that subset: down 6 / 29 / 56 / 105 / 305, up 1.3 / 6.5 / 12 / 23 / 63 Mbit/s.
    assert np.percentile(down / 1e6, [25, 50, 75, 95]) == pytest.approx([29, 56, 105, 305], rel=0.15)
    assert np.percentile(up / 1e6, [25, 50, 75, 95]) == pytest.approx([6.5, 12, 23, 63], rel=0.15)


def test_a_quarter_of_fedscale_devices_is_below_three_mbit():
    down, _ = link_means("fedscale-like", 3, 20_000)
    assert np.mean(down < 3_000_000) == pytest.approx(0.26, abs=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_one_device_varies_around_its_mean_as_stated(name):
    what = LINK_POPULATIONS[name]
    trace = next(device_traces(name, 5, 1, 60_000))
    means = link_means(name, 5, 1)
    moving = trace.down_bps > 0
    series = []
    for rates, mean in zip((trace.down_bps, trace.up_bps), means, strict=True):
        rate = rates[moving]
        assert np.mean(rate) == pytest.approx(mean[0], rel=0.03)
        assert np.std(rate) / np.mean(rate) == pytest.approx(what.cv, rel=0.06)
        series.append(np.log(rate))
    assert np.corrcoef(*series)[0, 1] == pytest.approx(what.rho_in_time, abs=0.04)
    x = series[0] - series[0].mean()
    if what.between_s is None:
        assert moving.all()
        assert np.mean(x[3:] * x[:-3]) / np.var(x) == pytest.approx(math.exp(-3 / what.tau_s), abs=0.04)


def test_pauses_stop_both_directions_and_are_as_frequent_as_stated():
    what = LINK_POPULATIONS["driving-lte"]
    starts = still = moving = 0
    for trace in device_traces("driving-lte", 1, 20, 10_000):
        paused = trace.down_bps == 0
        assert np.array_equal(paused, trace.up_bps == 0)
        assert not paused[0]
        starts += np.count_nonzero(paused[1:] & ~paused[:-1])
        still, moving = still + np.count_nonzero(paused), moving + np.count_nonzero(~paused)
    assert moving / starts == pytest.approx(what.between_s, rel=0.1)
    assert still / starts == pytest.approx(1 / -math.expm1(-1 / what.outage_s), rel=0.1)


def test_a_device_does_not_depend_on_how_many_are_drawn_nor_on_how_long():
    few = list(device_traces("lte", 9, 3, 60))
    many = list(islice(device_traces("lte", 9, 300, 120), 300))
    for a, b in zip(few, many, strict=False):
        assert a.name == b.name
        assert a.down_bps.tolist() == b.down_bps[:60].tolist()
        assert a.up_bps.tolist() == b.up_bps[:60].tolist()
    # Those of the second group drawn side by side are the same, whoever came before.
    assert many[299].name == "lte-00299"
    again = list(device_traces("lte", 9, 300, 120))[299]
    assert again.down_bps.tolist() == many[299].down_bps.tolist()


def test_seeds_scopes_and_devices_differ():
    def rates(seed, scope=None):
        return [t.down_bps.tolist() for t in device_traces("5g", seed, 2, 20, scope=scope)]

    assert rates(1) == rates(1)
    assert rates(1)[0] != rates(1)[1]
    assert rates(1) != rates(2)
    assert rates(1) != rates(1, "fleet/0/link.population")


def test_the_bytes_of_every_population_are_known():
    digest = hashlib.sha256()
    for name in NAMES:
        for trace in device_traces(name, 7, 2, 100, 0.5):
            digest.update(trace.down_bps.astype("<i8").tobytes() + trace.up_bps.astype("<i8").tobytes())
    # Changes only together with POPULATION_RECIPE.
    assert digest.hexdigest() == "df63934fd71f5058d08d5b949783932ac8c0dc3006e1d810076a8b97474f6565"


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("wifi", 1, 1), TraceError, "no population of links is called 'wifi'; there are home-wifi-ndt"),
        (("lte", 1, 0), TraceError, "at least one device"),
        (("lte", -1, 1), InputError, "seed"),
        (("lte", 1, 1, 10, 3), TraceError, "not a whole number of steps"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        list(device_traces(*arguments))


def test_every_population_names_its_sources_and_says_it_is_synthetic():
    for name, what in LINK_POPULATIONS.items():
        assert {line.split(":")[0].split(",")[0] for line in what.sources} >= {"means", "ranges", "cv", "pauses"}
        assert (what.between_s is None) == (what.outage_s is None)
        assert "Synthetic" in population_header(name, 1, 0, 1, 1)[0]


def test_a_summary_counts_steps_by_how_long_they_last():
    trace = LinkTrace("t", np.array([0, 9, 10]), np.array([100, 900, 0]), np.array([50, 100, 70]), 20)
    facts = summarize(trace)
    assert facts.down_bps == {5: 0, 25: 0, 50: 0, 75: 100, 95: 100}
    assert facts.up_bps == {5: 50, 25: 50, 50: 70, 75: 70, 95: 70}
    assert facts.ratio == {5: 2, 25: 2, 50: 2, 75: 2, 95: 9}
    assert (facts.mean_down_bps, facts.mean_up_bps) == (90, (450 + 100 + 700) / 20)
    assert (facts.paused_share, facts.longest_pause_s) == (0.5, 10e-9)
    assert time_percentile(np.array([3, 1]), np.array([1, 1]), 100) == 3


def test_a_link_that_never_moves_has_no_ratio():
    still = summarize(LinkTrace("t", np.array([0, 5]), np.array([0, 7]), np.array([7, 0]), 10))
    assert still.ratio == {}
    assert still.paused_share == 1
