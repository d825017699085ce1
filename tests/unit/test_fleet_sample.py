"""Draws and named random streams."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from morphling.errors import InputError
from morphling.fleet.sample import Choice, Constant, Draw, Lognormal, Normal, Uniform
from morphling.fleet.streams import stream

SEEDS = st.integers(0, 2**32)
FINITE = st.floats(-1e15, 1e15)


@given(SEEDS, FINITE, FINITE, st.integers(0, 50))
def test_uniform_keeps_its_bounds(seed, a, b, count):
    lo, hi = min(a, b), max(a, b)
    values = Uniform(lo, hi).sample(stream(seed, "x"), count)
    assert values.dtype == np.float64
    assert values.shape == (count,)
    assert np.all((values >= lo) & (values <= hi))


@given(SEEDS, st.floats(-1, 1), st.floats(0.5, 3))
def test_redrawn_values_lie_within_the_bounds_and_not_on_them(seed, low, width):
    values = Normal(0.0, 1.0, min=low, max=low + width).sample(stream(seed, "x"), 20)
    assert np.all((values > low) & (values < low + width))  # clipping would leave some of them exactly on a bound


@settings(max_examples=25)
@given(SEEDS, st.floats(1e-3, 1e12), st.floats(0.0, 2.0))
def test_lognormal_has_the_stated_median_and_sigma(seed, median, sigma):
    logs = np.log(Lognormal(median, sigma).sample(stream(seed, "x"), 2000) / median)
    assert abs(np.median(logs)) <= 6 * 1.2533 * sigma / math.sqrt(2000) + 1e-12
    assert np.std(logs) == pytest.approx(sigma, rel=0.12, abs=1e-9)


def test_normal_has_the_stated_moments():
    values = Normal(100.0, 15.0).sample(stream(1, "x"), 20_000)
    assert np.mean(values) == pytest.approx(100.0, abs=0.5)
    assert np.std(values) == pytest.approx(15.0, rel=0.02)


def test_uniform_fills_its_interval_evenly():
    values = Uniform(5.0, 7.0).sample(stream(1, "x"), 20_000)
    assert np.histogram(values, bins=4, range=(5.0, 7.0))[0] == pytest.approx([5000] * 4, rel=0.05)


def test_truncated_normal_keeps_the_shape_between_its_bounds():
    values = Normal(0.0, 1.0, min=0.0).sample(stream(1, "x"), 20_000)
    assert np.mean(values) == pytest.approx(math.sqrt(2 / math.pi), rel=0.02)


def test_constant_repeats_and_takes_nothing_from_the_stream():
    rng = stream(3, "x")
    assert Constant(2.5).sample(rng, 3).tolist() == [2.5, 2.5, 2.5]
    assert rng.random() == stream(3, "x").random()


def test_choice_follows_its_weights():
    values = Choice((1.0, 2.0, 4.0), (1.0, 2.0, 1.0)).sample(stream(1, "x"), 20_000)
    shares = [np.mean(values == v) for v in (1.0, 2.0, 4.0)]
    assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.015)
    even = Choice((1.0, 2.0)).sample(stream(1, "x"), 20_000)
    assert np.mean(even == 1.0) == pytest.approx(0.5, abs=0.015)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Constant(math.nan), "not a finite number"),
        (lambda: Uniform(2.0, 1.0), "lower bound 2 is above upper bound 1"),
        (lambda: Uniform(0.0, math.inf), "hi is inf"),
        (lambda: Normal(0.0, -1.0), "std -1 is negative"),
        (lambda: Normal(0.0, 1.0, min=2.0, max=2.0), "min 2 is not below max 2"),
        (lambda: Normal(0.0, 1.0, min=math.nan), "min is nan"),
        (lambda: Lognormal(0.0, 1.0), "median 0 is not above zero"),
        (lambda: Lognormal(1.0, -0.1), "sigma -0.1 is negative"),
        (lambda: Choice(()), "nothing to choose from"),
        (lambda: Choice((1.0, 2.0), (1.0,)), "2 values but 1 weights"),
        (lambda: Choice((1.0, 2.0), (1.0, 0.0)), "every weight must be above zero"),
    ],
)
def test_senseless_draws_are_refused(make, text):
    with pytest.raises(InputError, match=text):
        make()


def test_hopeless_bounds_end_in_an_error_and_not_in_a_clipped_value():
    with pytest.raises(InputError, match="4 of 4 values still lie outside the bounds"):
        Normal(0.0, 1.0, min=50.0).sample(stream(1, "x"), 4)


def test_an_overflowing_lognormal_is_an_error():
    with pytest.raises(InputError, match="sigma is too large"):
        Lognormal(1.0, 5000.0).sample(stream(1, "x"), 50)


DRAWS: tuple[Draw, ...] = (
    Constant(1.0),
    Uniform(5e12, 7e12),
    Normal(10.0, 3.0, min=0.5),
    Lognormal(37.2e6, 1.3, max=1e9),
    Choice((1.0, 2.0, 3.0), (1.0, 1.0, 2.0)),
)


def _all_draws() -> str:
    return ";".join(",".join(v.hex() for v in d.sample(stream(42, f"draw.{i}"), 5)) for i, d in enumerate(DRAWS))


def test_two_processes_with_different_hash_seeds_agree():
    code = f"import runpy; print(runpy.run_path({__file__!r})['_all_draws']())"
    here = [p for p in sys.path if p]
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(here)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("0", "12345")
    ]
    assert outputs == [_all_draws()] * 2


def test_streams_do_not_depend_on_the_order_in_which_they_are_made():
    first, second = stream(7, "links").random(3), stream(7, "churn").random(3)
    assert stream(7, "churn").random(3).tolist() == second.tolist()
    assert stream(7, "links").random(3).tolist() == first.tolist()
    assert first.tolist() != second.tolist()
    assert stream(8, "links").random(3).tolist() != first.tolist()


def test_the_recipe_of_a_stream_is_the_documented_one():
    import hashlib

    digest = hashlib.sha256(b"links").digest()
    words = tuple(int.from_bytes(digest[i : i + 4], "big") for i in (0, 4, 8, 12))
    expected = np.random.Generator(np.random.PCG64(np.random.SeedSequence(0, spawn_key=words)))
    assert stream(0, "links").random(4).tolist() == expected.random(4).tolist()


@pytest.mark.parametrize("seed", [-1, 1.5, True, "1", None])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(InputError, match="seed"):
        stream(seed, "x")


def test_a_stream_has_a_name():
    with pytest.raises(InputError, match="needs a name"):
        stream(1, "")
