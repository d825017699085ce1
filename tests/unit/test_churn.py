"""Devices that come and go: drawn lengths against published statistics, spot counts, periods, what comes after."""

from __future__ import annotations

import math

import numpy as np
import pytest

from morphling.errors import EngineError, InputError
from morphling.fleet import Availability
from morphling.fleet.churn import FITS, Diurnal, Lengths, Renewal, laid_out, periodic, renewal, spot
from morphling.fleet.presence import presence
from morphling.types import FAR_NS

S = 10**9
DAY = 86_400 * S
SIZE = 20_000


def drawn(what: Renewal | str, size: int = SIZE, seed: int = 1, horizon_ns: int = 7 * DAY) -> Availability:
    found = renewal(FITS[what] if isinstance(what, str) else what, size, seed, horizon_ns)
    return laid_out(found, size, "renewal", horizon_ns, "error")


def arrays(here: Availability) -> list[list[int]]:
    return [here.ptr.tolist(), here.start_ns.tolist(), here.end_ns.tolist()]


def spans(*own: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([a for a, _ in own], np.int64), np.array([b for _, b in own], np.int64)


# ------------------------------------------------------------------------------------------------------- distributions


@pytest.mark.parametrize(
    ("lengths", "mean"),
    [
        (Lengths("weibull", 1.0, 500.0), 500.0),
        (Lengths("weibull", 0.393, 10_670.4), 10_670.4 * math.gamma(1 + 1 / 0.393)),
        (Lengths("lognormal", 1.602, 866.0), 866.0 * math.exp(1.602**2 / 2)),
        (Lengths("weibull", 1.0, 500.0, min_s=100.0), 600.0),  # an exponential has no memory
    ],
)
def test_means_by_quadrature(lengths, mean):
    assert lengths.mean_s == pytest.approx(mean, rel=2e-4)


def test_bounds_are_kept_by_drawing_again():
    lengths = Lengths("lognormal", 1.0, 100.0, min_s=50.0, max_s=300.0)
    x = lengths.draw(np.random.default_rng(1), 200_000)
    assert (x.min(), x.max()) >= (50.0, 50.0)
    assert x.max() <= 300.0
    assert (np.abs(x - 50) < 1e-6).mean() < 1e-3  # nothing heaps at the bound
    assert x.mean() == pytest.approx(lengths.mean_s, rel=0.01)
    with pytest.raises(InputError, match="the bounds keep"):
        Lengths("lognormal", 1.0, 100.0, min_s=1e9)


def test_the_residual_of_an_exponential_is_the_same_exponential():
    x = Lengths("weibull", 1.0, 500.0).left(np.random.default_rng(1), 200_000)
    assert x.mean() == pytest.approx(500.0, rel=0.01)
    assert np.median(x) == pytest.approx(500 * math.log(2), rel=0.01)


def test_phones_are_as_measured():
    """FLASH sample: 9.5 % of the time, per-user Beta(0.514, 4.907); of sessions >= 10 min, 34 % last an hour."""
    seen = presence(drawn("phones-flash"))
    assert seen.share.mean() == pytest.approx(0.095, abs=0.004)
    assert seen.online.min() / SIZE > 0.045
    assert seen.online.max() / SIZE < 0.145
    long = seen.session_s[seen.session_s >= 600]
    assert long.sum() / seen.session_s.sum() == pytest.approx(0.96, abs=0.01)
    assert (long >= 3600).mean() == pytest.approx(11 / 32.5, abs=0.05)
    assert seen.session_s.min() >= 60
    hour = (seen.time_s / 3600) % 24
    online = [seen.online[(hour >= h) & (hour < h + 1)].mean() for h in range(24)]
    assert 4 <= int(np.argmax(online)) <= 8  # the rate of coming is highest at 04:30, the share follows it
    assert max(online) / min(online) == pytest.approx(1.42, abs=0.15)


def test_desktops_are_as_fitted():
    """BOINC: sessions Weibull of median 2.964 ln(2)^(1/0.393) h, gaps of median exp(-0.586) h."""
    fit = FITS["desktops-boinc"]
    rng = np.random.default_rng(1)
    assert np.median(fit.on.draw(rng, 400_000)) / 3600 == pytest.approx(2.964 * math.log(2) ** (1 / 0.393), rel=0.02)
    assert np.median(fit.off.draw(rng, 400_000)) / 3600 == pytest.approx(0.5566, rel=0.02)
    seen = presence(drawn("desktops-boinc"))
    on, off = 2.964 * math.gamma(1 + 1 / 0.393), math.exp(-0.586 + 2.844**2 / 2)
    assert seen.share.mean() == pytest.approx(on / (on + off), abs=0.01)
    assert (seen.online / SIZE).std() < 0.005  # stationary from the first instant on


def test_an_exponential_renewal_is_stationary_and_ignores_the_hour():
    what = Renewal(Lengths("weibull", 1.0, 3000.0), Lengths("weibull", 1.0, 9000.0))
    seen = presence(drawn(what))
    assert seen.online[0] / SIZE == pytest.approx(0.25, abs=0.01)
    assert seen.share.mean() == pytest.approx(0.25, abs=0.002)
    assert seen.session_s.mean() == pytest.approx(3000, rel=0.01)


def test_the_hour_changes_the_rate_of_coming():
    quick = Renewal(Lengths("weibull", 1.0, 60.0), Lengths("weibull", 1.0, 600.0), diurnal=Diurnal(3.0, 6.0, 2.0))
    here = drawn(quick, 2000, horizon_ns=4 * DAY)
    hour = ((here.start_ns / S / 3600 + 2.0) % 24).astype(int)
    starts = np.bincount(hour, minlength=24)
    assert starts[[5, 6]].sum() / starts[[17, 18]].sum() == pytest.approx(3.0, rel=0.15)
    flat = Diurnal(1.0, 6.0).after(np.array([5.0, 100.0]), np.array([1.0, 7.0]))
    assert flat.tolist() == [6.0, 107.0]


@pytest.mark.parametrize(("initial", "count"), [(1.0, SIZE), (0.0, 0)])
def test_the_initial_state_may_be_given(initial, count):
    what = Renewal(Lengths("weibull", 1.0, 3000.0), Lengths("weibull", 1.0, 9000.0), initial=initial)
    assert presence(drawn(what, horizon_ns=DAY)).online[0] == count


def test_draws_repeat_and_a_longer_horizon_begins_with_the_shorter_one():
    short, again = (drawn("phones-flash", 500, horizon_ns=DAY) for _ in range(2))
    assert arrays(short) == arrays(again)
    assert arrays(short) != arrays(drawn("phones-flash", 500, seed=2, horizon_ns=DAY))
    long = renewal(FITS["phones-flash"], 500, 1, 3 * DAY)
    begun = long.start_ns < DAY
    assert long.start_ns[begun].tolist() == short.start_ns.tolist()
    ends = short.end_ns < FAR_NS
    assert long.end_ns[begun][ends].tolist() == short.end_ns[ends].tolist()


@pytest.mark.parametrize("fit", list(FITS))
def test_sessions_are_sorted_and_do_not_touch(fit):
    here = drawn(fit, 3000, horizon_ns=2 * DAY)
    device = here.device()
    assert (here.start_ns < here.end_ns).all()
    assert (here.start_ns[1:] > here.end_ns[:-1])[device[1:] == device[:-1]].all()


# -------------------------------------------------------------------------------------------------- counts and periods


def test_spot_counts_are_kept_at_every_step():
    time, count = np.array([0, 0, 5, 5, 9, 20]) * S, np.array([0, 3, 3, 1, 4, 0])
    here = laid_out(spot(time, count, 6, 1), 6, "spot", 30 * S, "hold")
    for at, wanted in ((0, 3), (4, 3), (5, 1), (8, 1), (9, 4), (19, 4), (20, 0), (29, 0)):
        assert int(((here.start_ns <= at * S) & (here.end_ns > at * S)).sum()) == wanted
    assert arrays(here) == arrays(laid_out(spot(time, count, 6, 1), 6, "spot", 30 * S, "hold"))
    drawn_apart = {str(arrays(laid_out(spot(time, count, 6, seed), 6, "spot"))) for seed in range(8)}
    assert len(drawn_apart) > 1
    with pytest.raises(InputError, match="4 devices are there at once, but the fleet has 3"):
        spot(time, count, 3, 1)


def test_records_repeat_with_their_own_periods():
    records = [(*spans((1, 3)), 5), (*spans((0, 2), (6, 7)), 7), (*spans(), 9)]
    here = laid_out(periodic(records, 14), 3, "fedscale", 14, "error")
    assert here.ptr.tolist() == [0, 3, 6, 6]
    # the last session of a record that ends with its period and the first of the next are one
    assert list(zip(here.start_ns.tolist(), here.end_ns.tolist(), strict=True)) == [
        (1, 3), (6, 8), (11, 13), (0, 2), (6, 9), (13, FAR_NS),
    ]  # fmt: skip


def test_after_the_horizon():
    found = periodic([(*spans((2, 4), (8, 12)), 20)], 10)
    hold = laid_out(found, 1, "x", 10, "hold")
    assert (hold.end_ns.tolist(), hold.limit_ns) == ([4, FAR_NS], FAR_NS - 1)
    error = laid_out(found, 1, "x", 10, "error")
    assert (error.end_ns.tolist(), error.limit_ns) == ([4, FAR_NS], 10)
    repeat = laid_out(found, 1, "x", 10, "repeat", 25)
    assert (repeat.start_ns.tolist(), repeat.end_ns.tolist()) == ([2, 8, 12, 18, 22, 28], [4, 10, 14, 20, 24, FAR_NS])
    assert repeat.limit_ns == 25
    with pytest.raises(InputError, match=r"repeat needs run\.max_time"):
        laid_out(found, 1, "x", 10, "repeat")


def test_a_seam_between_repeats_is_no_departure():
    found = periodic([(*spans((0, 3), (8, 10)), 10)], 10)
    repeat = laid_out(found, 1, "x", 10, "repeat", 20)
    assert (repeat.start_ns.tolist(), repeat.end_ns.tolist()) == ([0, 8, 18], [3, 13, 20])


# ------------------------------------------------------------------------------------------------------------- presence


def test_presence_counts_whole_sessions_and_gaps():
    here = Availability.of([[(0, 2 * S), (4 * S, 5 * S), (8 * S, FAR_NS)], [(1 * S, 3 * S)], []])
    seen = presence(here, 10 * S, points=10)
    assert seen.online.tolist() == [1, 2, 1, 0, 1, 0, 0, 0, 1, 1]
    assert (seen.session_s.tolist(), seen.gap_s.tolist()) == ([1.0, 2.0], [2.0, 3.0])
    assert seen.share.tolist() == [0.5, 0.2, 0.0]
    assert seen.cut == 2 + 2 + 1  # device 0's first and last session, device 1's two gaps, device 2's absence
    assert presence(here).until_s == 8.0
    with pytest.raises(InputError, match="nobody ever comes or goes"):
        presence(Availability.always(2))


def test_the_engine_stops_at_the_horizon():
    from morphling.run import replay_scenario

    text = """\
name: short
workload: {model: opt-125m, batch_size: 8, sequence_length: 128}
fleet: [{profile: &p {compute: 5 TFLOP/s, memory: 4 GB}, count: 4, link: {downlink: 80 Mbit/s, uplink: 20 Mbit/s}}]
coordinator: {profile: *p}
availability:
  {model: renewal, on: {exponential: {mean: 1 h}}, off: {exponential: {mean: 1 s}}, initial: online, horizon: 2 s}
strategy: {name: cleave}
"""
    with pytest.raises(EngineError, match=r"would pass the limit of 2 s \(availability\.horizon\)"):
        replay_scenario(text, figures=False)


# ------------------------------------------------------------------------------------------------- means by their draws


@pytest.mark.parametrize(
    ("lengths", "mean", "deviation"),
    [
        # a Weibull of shape k and scale s has mean s Γ(1 + 1/k) and second moment s² Γ(1 + 2/k)
        (Lengths("weibull", 0.5, 100.0), 200.0, math.sqrt(24 * 100.0**2 - 200.0**2)),
        (Lengths("weibull", 2.0, 100.0), 50 * math.sqrt(math.pi), 100 * math.sqrt(1 - math.pi / 4)),
        # an exponential: mean and deviation are one
        (Lengths("weibull", 1.0, 3600.0), 3600.0, 3600.0),
        # a lognormal of median m: mean m exp(σ²/2), deviation that times sqrt(exp(σ²) - 1)
        (
            Lengths("lognormal", 0.5, 100.0),
            100.0 * math.exp(0.125),
            100.0 * math.exp(0.125) * math.sqrt(math.expm1(0.25)),
        ),
    ],
)
def test_the_mean_of_draws_is_that_of_the_distribution(lengths, mean, deviation):
    count = 400_000
    x = lengths.draw(np.random.default_rng(20), count)
    # within three standard errors; the seed is fixed, so this does not change from day to day
    assert abs(x.mean() - mean) < 3 * deviation / math.sqrt(count)
    assert lengths.mean_s == pytest.approx(mean, rel=2e-4)
    renewed = drawn(Renewal(lengths, Lengths("weibull", 1.0, mean)), 4000, horizon_ns=2 * DAY)
    assert presence(renewed).share.mean() == pytest.approx(0.5, abs=0.01)  # on and off last equally long


def test_the_mean_rate_over_a_day_is_one():
    """Over whole days the modulation gives and takes alike; over the half around its peak it gives 1 + 2a/π."""
    day = Diurnal(ratio=3.0, peak_hour=6.0)
    zero = np.zeros(3)
    ends = day.after(zero, np.array([1.0, 2.0, 7.0]) * 86_400)
    assert ends == pytest.approx(np.array([1.0, 2.0, 7.0]) * 86_400, abs=1e-3)
    # a = 1/2: from midnight to noon the integral of the rate is 12 h (1 + 1/π)
    noon = day.after(zero[:1], np.array([43_200 * (1 + 1 / math.pi)]))
    assert noon == pytest.approx([43_200], abs=1e-3)
    # peak and trough: a short gap ends 1.5 times as fast, and half as fast
    short = day.after(np.array([6.0, 18.0]) * 3600, np.array([1.0, 1.0])) - np.array([6.0, 18.0]) * 3600
    assert short == pytest.approx([1 / 1.5, 2.0], rel=1e-3)


def test_a_spot_step_takes_and_gives_exactly_so_many():
    time, count = np.array([0, 10, 10, 25]) * S, np.array([5, 5, 2, 4])
    here = laid_out(spot(time, count, 5, 3), 5, "spot", 30 * S, "hold")
    seen = presence(here, 30 * S, points=30)
    assert seen.online.tolist() == [5] * 10 + [2] * 15 + [4] * 5
    assert seen.share.mean() * 5 == pytest.approx((5 * 10 + 2 * 15 + 4 * 5) / 30)
    assert sorted(here.end_ns.tolist()) == [10 * S] * 3 + [FAR_NS] * 4
    assert (np.sort(here.start_ns) == np.array([0] * 5 + [25 * S] * 2)).all()


def test_more_sessions_than_fit_are_refused_before_they_are_drawn():
    blink = Lengths("weibull", 1.0, 1e-9)
    with pytest.raises(InputError, match="more than 67,108,864 sessions would be laid out"):
        renewal(Renewal(on=blink, off=blink), 4, 1, DAY)
