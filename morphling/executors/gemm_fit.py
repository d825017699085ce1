"""Fitting the GEMM latency model to samples: robust least squares on the logarithm of the time.

A part of the shapes is held out, never seen by the fit, and what is reported is the error on that part.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from morphling.errors import InputError, RunError
from morphling.executors.gemm_model import seconds
from morphling.executors.least_squares import least_squares
from morphling.fleet.gemm import RANGES, GemmFit, GemmParameters, GemmSamples
from morphling.types import BoolArray, DType, FloatArray, IntArray, item_bytes

__all__ = ["LEAST_SHAPES", "Errors", "Fitted", "Quality", "fit_parameters", "fit_samples", "predict", "quality"]

LEAST_SHAPES: Final = 30
"""Fewer shapes say too little about some thirty parameters, even with a prior on each."""
HELD_OUT: Final = 0.25
TILES: Final = ((1, 1), (4, 16), (16, 4), (8, 8), (6, 16), (16, 16), (12, 32), (32, 32), (64, 64))
_SCALE: Final = 0.05
"""Deviations beyond 5 % count linearly, not squared: a disturbed sample must not bend the rest."""
_NUDGE: Final = 1e-6
_PRIOR: Final = 0.01
"""Weight of the distance (in the logarithm) of each parameter from its start: only what no sample tells stays there."""
_SHARES: Final = ("tile_paid_m", "tile_paid_n", "small_paid_m", "small_paid_n", "unhidden", "batch_share")
_STEPS: Final = ("tile_m", "tile_n", "small_most")
"""Parameters that are tried one by one, since the time jumps with them."""
_OTHER_START: Final = {"unhidden": 1.5, "cache_bytes": 1.5, "memory_bandwidth": -1.0, "half_n": 1.0, "half_m": 1.0}
"""A second start for the search, as steps of the logarithm."""
SMALL_MOST: Final = (1e12, 1e5, 3e5, 1e6, 3e6, 1e7)
_FREE: Final = tuple(f.name for f in fields(GemmParameters) if f.name not in _STEPS)
AGREE: Final = 0.15
"""Shapes whose two shortest rounds differ by more are not used: they were disturbed in every round."""
MOST_UNSETTLED: Final = 1 / 3


@dataclass(frozen=True)
class Errors:
    """Absolute errors over some shapes: shares of the measured time, and the mean in milliseconds."""

    shapes: int
    median: float
    p90: float
    mae_ms: float

    @classmethod
    def of(cls, predicted: FloatArray, measured: FloatArray) -> Errors:
        """From seconds."""
        share = np.abs(predicted / measured - 1)
        mae = float(np.mean(np.abs(predicted - measured)) * 1e3)
        return cls(len(measured), float(np.median(share)), float(np.percentile(share, 90)), mae)


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fit for one dtype, with the samples it was made of.

    used : the samples without those that disagree with themselves
    held : bool[len(used)]   which of them the fit did not see
    predicted : float64[len(used)]   seconds
    dropped : shapes that were left out because their rounds disagree
    """

    fit: GemmFit
    used: GemmSamples
    held: BoolArray
    predicted: FloatArray
    dropped: int

    @property
    def errors(self) -> Errors:
        """On the held-out shapes."""
        return Errors.of(self.predicted[self.held], self.used.seconds[self.held])

    @property
    def errors_seen(self) -> Errors:
        """On the shapes that the fit saw."""
        return Errors.of(self.predicted[~self.held], self.used.seconds[~self.held])

    def worst(self, count: int = 5) -> IntArray:
        """Indices of the held-out shapes that are predicted worst, by factor."""
        off = np.abs(np.log(self.predicted / self.used.seconds)) * self.held
        order: IntArray = np.argsort(-off, kind="stable")[: min(count, int(self.held.sum()))]
        return order


@dataclass(frozen=True)
class Quality:
    """How far samples can be trusted.

    settled : share of the shapes whose two shortest rounds agree within `AGREE` (single rounds do not count)
    agreement : median of how far they differ; NaN if every shape has one round
    cpu_share : CPU time by wall time; NaN where not given
    """

    settled: float
    agreement: float
    cpu_share: float


def quality(samples: GemmSamples) -> Quality:
    """Of a set of samples."""
    several = samples.rounds > 1
    agreement = samples.agreement[several]
    share = samples.cpu_share[~np.isnan(samples.cpu_share)]
    return Quality(
        float(np.mean(agreement <= AGREE)) if several.any() else 1.0,
        float(np.median(agreement)) if several.any() else float("nan"),
        float(np.mean(share)) if len(share) else float("nan"),
    )


def predict(p: GemmParameters, s: GemmSamples) -> FloatArray:
    """Seconds for the shapes of samples (all of one dtype), with their layouts and strides."""
    width = item_bytes(DType(int(s.dtype[0])))
    return seconds(
        p, width, s.m, s.n, s.k, s.batch,
        a_transposed=s.a_transposed, b_transposed=s.b_transposed, lda=s.lda, ldb=s.ldb,
    )  # fmt: skip


def fit_samples(
    samples: GemmSamples, dtype: DType, *, source: str, seed: int = 0, most_flops: float | None = None
) -> Fitted:
    """Fit the samples of one dtype.  ``most_flops`` is the device's peak, where it is known; FLOP/s.

    Raises
    ------
    InputError
        Fewer than `LEAST_SHAPES` shapes of that dtype.
    RunError
        More than a third of the shapes disagree with themselves: the machine was too busy to be measured.
    """
    mine = samples.take(samples.dtype == dtype)
    if len(mine) < LEAST_SHAPES:
        raise InputError(f"{len(mine)} different shapes of {dtype.label}; a fit needs {LEAST_SHAPES} or more")
    steady = ~(mine.agreement > AGREE)
    if np.mean(~steady) > MOST_UNSETTLED or steady.sum() < LEAST_SHAPES:
        raise RunError(
            f"{int(np.sum(~steady))} of {len(mine)} shapes took times that differ by more than {AGREE:.0%} from round "
            "to round: the machine is too busy to be measured. Stop other programs, or give a longer budget"
        )
    used = mine.take(steady)
    held = np.zeros(len(used), bool)
    held[np.random.default_rng(seed).permutation(len(used))[: round(HELD_OUT * len(used))]] = True
    parameters = fit_parameters(used.take(~held), most_flops)
    predicted = predict(parameters, used)
    errors = Errors.of(predicted[held], used.seconds[held])
    fit = GemmFit(
        parameters, _ranges(used), source, median_error=round(errors.median, 4), p90_error=round(errors.p90, 4)
    )
    return Fitted(fit, used, held, predicted, int(np.sum(~steady)))


def fit_parameters(s: GemmSamples, most_flops: float | None = None) -> GemmParameters:
    """Parameters that fit samples of one dtype best; the same samples give the same parameters.

    No rate goes beyond ``most_flops``, the device's peak; left out, beyond a quarter more than the best sample.

    ``RunError`` if scipy is not installed.
    """
    begin = _start(s)
    most = 1.25 * float(np.max(s.flops / s.seconds)) if most_flops is None else most_flops
    begin["peak"], begin["small_peak"] = (min(begin[name], 0.999 * most) for name in ("peak", "small_peak"))
    start = np.array([begin[name] for name in _FREE])
    highest = {**dict.fromkeys(_SHARES, 1.0), "peak": most, "small_peak": most}
    upper = np.array([np.log(highest[name] / begin[name]) if name in highest else 12.0 for name in _FREE])
    log_measured = np.log(s.seconds)

    def made(x: FloatArray, steps: tuple[int, int, float]) -> GemmParameters:
        """One set of parameters, or for each row of ``x`` one: the formula takes columns of them as well."""
        made_of = start * np.exp(x)
        columns = made_of.tolist() if x.ndim == 1 else list(made_of.T[:, :, None])
        values: dict[str, Any] = dict(zip(_FREE, columns, strict=True))
        return GemmParameters(tile_m=steps[0], tile_n=steps[1], small_most=steps[2], **values)

    def fitted(
        x: FloatArray, steps: tuple[int, int, float], rounds: int = 40
    ) -> tuple[float, FloatArray, tuple[int, int, float]]:
        def deviations(x: FloatArray) -> FloatArray:
            return np.concatenate([np.log(predict(made(x, steps), s)) - log_measured, _PRIOR * x])

        def slopes(x: FloatArray) -> FloatArray:
            near = np.log(predict(made(x + _NUDGE * np.eye(len(x)), steps), s))
            here = np.log(predict(made(x, steps), s))
            return np.concatenate([(near - here).T / _NUDGE, _PRIOR * np.eye(len(x))])

        found = least_squares(
            deviations, x, slopes, bounds=(-12.0, upper), loss="soft_l1", f_scale=_SCALE, max_nfev=rounds
        )
        return float(found.cost), found.x, steps

    # Deviations have several minima: traffic may hide behind computing or not, and caches be small or large.
    starts = [np.zeros(len(start)), np.array([_OTHER_START.get(name, 0.0) for name in _FREE])]
    tried = [fitted(x, (*tiles, SMALL_MOST[0])) for tiles in TILES for x in starts]
    for _, x, steps in sorted(tried, key=lambda found: found[0])[:3]:
        tried += [fitted(from_x, (*steps[:2], most)) for most in SMALL_MOST[1:] for from_x in (x, *starts)]
    tried = sorted(tried, key=lambda found: found[0])[:6]
    _, x, steps = min((fitted(x, steps, 200) for _, x, steps in tried), key=lambda found: found[0])
    rounded: dict[str, Any] = {k: v if k in _STEPS else float(f"{v:.5g}") for k, v in vars(made(x, steps)).items()}
    return GemmParameters(**rounded)


def _start(s: GemmSamples) -> dict[str, float]:
    """A guess of each parameter, from extremes of the samples; it is also what the prior holds on to."""
    width = item_bytes(DType(int(s.dtype[0])))
    size = width * s.batch * (1.0 * s.m * s.k + 1.0 * s.k * s.n + 1.0 * s.m * s.n)
    vector = (s.m == 1) | (s.n == 1)
    peak, least = float(np.max(s.flops / s.seconds)), float(s.seconds.min())
    traffic = float(np.max(size / s.seconds))
    streamed = float(np.max((size / s.seconds)[vector])) if vector.any() else traffic
    return {
        "launch": least, "item": least / 10, "peak": peak * 1.05,
        "tile_paid_m": 0.3, "tile_paid_n": 0.3, "edge_m": 0.3, "edge_n": 1.0,
        "half_m": 4.0, "half_m_t": 4.0, "half_n": 4.0, "half_n_t": 4.0, "half_k": 4.0, "aliased": 1.1, "unaligned": 1.1,
        "cache_bandwidth": traffic, "memory_bandwidth": traffic / 5, "cache_bytes": 4e6, "batch_share": 0.5,
        "traffic_a": 1.0, "traffic_c": 1.0, "unhidden": 0.2,
        "small_launch": least / 2, "small_peak": peak * 0.7, "small_nt": 1.0, "small_tn": 1.0, "small_tt": 1.0,
        "small_paid_m": 0.3, "small_paid_n": 0.3, "small_edge_m": 0.3, "small_edge_n": 1.0,
        "small_half_m": 4.0, "small_half_n": 4.0, "small_half_k": 4.0, "small_half_k_nt": 16.0,
        "vector_launch": least, "vector_cache_bandwidth": streamed, "vector_memory_bandwidth": streamed / 4,
        "vector_cache_bytes": 4e6, "vector_row": 2e-3 * least, "vector_step": 2e-4 * least,
        "vector_across": 1.0, "vector_across_row": 2e-3 * least, "vector_across_step": 2e-4 * least,
        "vector_aliased": 1.1,
    }  # fmt: skip


def _ranges(s: GemmSamples) -> dict[str, tuple[float, float]]:
    values = {"m": s.m, "n": s.n, "k": s.k, "batch": s.batch, "flops": s.flops / s.batch}
    return {name: (float(values[name].min()), float(values[name].max())) for name in RANGES}
