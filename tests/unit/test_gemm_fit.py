"""Fitting: samples made by a known formula are predicted again, whatever disturbs a few of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from morphling.errors import InputError, RunError
from morphling.executors.gemm_fit import Errors, fit_parameters, fit_samples, predict, quality
from morphling.executors.measure_gemm import plan, shape_of
from morphling.fleet import GemmSamples
from morphling.types import DType
from tests.unit.test_gemm_model import RICH

pytest.importorskip("scipy")


def samples_of(seconds: np.ndarray | None = None, shapes: int = 300, again: float = 0.01) -> GemmSamples:
    """Shapes as the measuring program draws them, timed by `RICH`; two rounds that differ by ``again``."""
    drawn = plan(1000.0, 1e11, 10**8, seed=3)[:shapes]
    rows = [
        {"m": m, "n": n, "k": k, "layout": layout, "lda": lda, "ldb": ldb, "batch": batch, "dtype": "float32", "ms": ms}
        for m, n, k, layout, lda, ldb, batch in drawn
        for ms in (1.0, 1.0 + again)
    ]
    s = GemmSamples.of_rows(rows, {"host": "a formula"})
    return replace(s, seconds=predict(RICH, s) if seconds is None else seconds)


@cache
def clean() -> GemmSamples:
    return samples_of()


def test_the_formula_is_found_again() -> None:
    fitted = fit_samples(clean(), DType.FLOAT32, source="a formula")
    assert len(fitted.used) == 300
    assert fitted.held.sum() == 75
    assert fitted.errors.median < 0.03
    assert fitted.errors.p90 < 0.1
    p = fitted.fit.parameters
    assert p.peak == pytest.approx(1e11, rel=0.1)
    assert fitted.fit.ranges["m"] == (1, clean().m.max())
    assert fitted.fit.median_error == pytest.approx(fitted.errors.median, abs=1e-4)


def test_one_sample_in_twenty_may_be_far_off() -> None:
    truth = clean().seconds
    rng = np.random.default_rng(5)
    noisy = truth * np.exp(rng.normal(0, 0.01, len(truth)))
    noisy[rng.permutation(len(truth))[: len(truth) // 20]] *= 3.0
    found = predict(fit_parameters(samples_of(noisy)), clean())
    error = Errors.of(found, truth)
    assert error.median < 0.03
    assert error.p90 < 0.12


def test_the_same_samples_give_the_same_parameters() -> None:
    few = samples_of(shapes=40)
    assert fit_parameters(few) == fit_parameters(few)


def test_no_rate_goes_beyond_the_peak() -> None:
    p = fit_parameters(samples_of(shapes=40), 8e10)
    assert max(p.peak, p.small_peak) <= 8e10 * 1.0001


def test_too_few_shapes_and_another_dtype_are_refused() -> None:
    with pytest.raises(InputError, match="29 different shapes of float32; a fit needs 30 or more"):
        fit_samples(samples_of(shapes=29), DType.FLOAT32, source="x")
    with pytest.raises(InputError, match="0 different shapes of float16"):
        fit_samples(samples_of(shapes=29), DType.FLOAT16, source="x")


def test_samples_that_disagree_with_themselves_are_refused() -> None:
    with pytest.raises(RunError, match=r"60 of 60 shapes took times that differ by more than 15%.*too busy"):
        fit_samples(samples_of(shapes=60, again=0.3), DType.FLOAT32, source="x")


def test_rounds_of_a_shape_are_put_together() -> None:
    row = {"m": 2, "n": 3, "k": 4, "layout": "nt", "lda": 4, "ldb": 4, "batch": 1, "dtype": "float32"}
    s = GemmSamples.of_rows([{**row, "ms": ms, "cpu_share": c} for ms, c in ((3.0, 0.5), (2.0, 1.0), (2.5, 0.6))])
    assert (len(s), s.rounds[0], s.seconds[0]) == (1, 3, 0.002)
    assert s.agreement[0] == pytest.approx(0.25)
    assert quality(s).cpu_share == pytest.approx(0.7)
    assert (quality(s).settled, s.layouts(), s.flops[0]) == (0.0, ["nt"], 48.0)


def test_the_plan_holds_every_kind_of_shape_and_repeats() -> None:
    drawn = plan(100.0, 1e11, 10**7)
    assert drawn == plan(100.0, 1e11, 10**7)
    assert drawn != plan(100.0, 1e11, 10**7, seed=1)
    assert len(drawn) == len(set(drawn)) > 200
    layouts = {s[3] for s in drawn}
    assert layouts == {"nn", "nt", "tn", "tt"}
    tight = [
        shape_of(m, n, k, layout, batch=b) == (m, n, k, layout, lda, ldb, b) for m, n, k, layout, lda, ldb, b in drawn
    ]
    assert 0.02 < np.mean(np.logical_not(tight)) < 0.4
    assert any(s[6] > 1 for s in drawn)
    assert any(s[0] == 1 for s in drawn)
    assert any(s[1] == 1 for s in drawn)
    assert any(s[0] == s[1] == s[2] for s in drawn)
