"""`LevelStrategy`: an author writes how one GEMM is cut, and gets the rest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import morphling
from morphling.errors import Infeasible
from morphling.planning.levels import LevelConfig
from morphling.planning.uniform import priced
from morphling.strategies.cleave import Cleave, CleaveConfig
from morphling.testing import StrategyConformance, replay, tiny_fleet, tiny_workload
from morphling.types import DType
from morphling.workload import model_named, training_step


@dataclass(frozen=True)
class BandsConfig(LevelConfig):
    """Bands of rows.

    most : use the first so many devices
    """

    most: int = 3


class Bands(morphling.LevelStrategy):
    """Bands of rows for the first devices that are here."""

    Config = BandsConfig
    name = "bands"

    def tile(self, gemm, rates, here, view):
        count = min(len(here), self.config.most, gemm.m)
        edges = np.arange(count + 1) * gemm.m // count
        left = np.zeros(count, np.int64)
        need = gemm.item_bytes * (gemm.k * (np.diff(edges) + gemm.n) + np.diff(edges) * gemm.n)
        if (need > rates.memory_bytes[:count]).any():
            raise Infeasible("a band does not fit")
        spans = (edges[:-1], edges[1:]), (left, left + gemm.n)
        return priced(gemm, rates, np.arange(count), *spans, **self.limits(view))


class TestBands(StrategyConformance):
    strategy = Bands
    config = {"most": 2, "detection_s": 0.01}


class Remembers(Bands):
    """Counts the products it has cut so far, and takes fewer devices from the second run on."""

    cut = 0

    def prepare(self, view, *, kept):
        self.plans.clear()
        self.tilings.clear()

    def tile(self, gemm, rates, here, view):
        self.cut += 1
        keep = slice(None) if self.cut < 40 else slice(1)
        return super().tile(gemm, rates.take(np.arange(len(rates))[keep]), here[keep], view)


def test_the_suite_catches_one_that_does_not_begin_anew():
    suite = type("Suite", (StrategyConformance,), {"strategy": Remembers})()
    with pytest.raises(AssertionError, match=r"restarts is True, but run \d of one instance differs"):
        suite.test_it_can_begin_again()
    suite.test_same_seed_same_decisions()


def test_a_report_speaks_of_its_own_run():
    """Also in the second run: estimates do not add up, and the cache is empty again."""
    fleet, strategy = tiny_fleet(), Cleave(CleaveConfig())
    work = training_step(model_named("gpt2"), 1, 32, DType.FLOAT16, recompute="full")
    replay(strategy, fleet, work)
    first = strategy.report()
    replay(strategy, fleet, work)
    assert strategy.report() == first
    assert first["shard_cache"]["hits"] > 0


def test_what_an_author_gets_for_nothing():
    strategy = Bands()
    run = replay(strategy, tiny_fleet(), tiny_workload())
    said = strategy.report()
    assert said["strategy"] == "bands"
    assert said["estimate_s"] == pytest.approx(run.recording.end_ns / 1e9, rel=0.1)
    assert said["devices_used"] == 3
    assert said["devices_left_out"] == {"no part, or not online when a step was planned": 1}
    assert "lower_bounds" not in said  # `priced` knows none


@pytest.mark.parametrize(("key", "value"), [("tiles", 0), ("detection_s", [0.2, 0.1]), ("planning_s", -1.0)])
def test_values_that_mean_nothing_are_refused(key, value):
    with pytest.raises(ValueError, match=f"^{key}: "):
        BandsConfig(**{key: value})
