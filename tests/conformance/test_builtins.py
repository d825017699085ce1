"""The built-in strategies and executors pass the suites that ship for everybody's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from morphling.executors import Profiled
from morphling.executors.analytic import Analytic
from morphling.fleet import GemmFit
from morphling.fleet.gemm import RANGES
from morphling.planning.costs import Gemm
from morphling.planning.gemms import linear_gemms
from morphling.planning.rectangles import split_columns
from morphling.strategies.cleave import Cleave
from morphling.strategies.ddp import Ddp
from morphling.testing import ExecutorConformance, Placement, StrategyConformance
from morphling.types import DType, item_bytes
from tests.unit.test_gemm_model import PLAIN


class TestCleave(StrategyConformance):
    strategy = Cleave

    def rectangles(self, strategy, dispatch):
        """Where the rows of a step lie, worked out from its tilings; without devices in it, nowhere."""
        asked = getattr(strategy, "asked", 0)
        strategy.asked = asked + 1
        step = strategy.steps[asked % len(strategy.steps)]
        place = np.full((3, len(dispatch.tasks)), -1, np.int64)
        dag, at = self.workload().dag, 0
        for group in step.groups:
            nodes = np.array(group)
            ends = np.cumsum(dag.n[nodes])
            gemm = Gemm(int(dag.m[nodes[0]]), int(ends[-1]), int(dag.k[nodes[0]]), item_bytes(self.workload().dtype))
            parts = split_columns(strategy.tilings[strategy.fleet_version, gemm, len(step.groups)], ends)
            place[:, at : at + len(parts)] = nodes[parts.gemm], parts.row0, parts.col0
            at += len(parts)
        return Placement(*place)


class TestCleaveWithoutCache(TestCleave):
    config = {"cache": False, "overlap": "none"}


class TestCleavePerfectOverlap(StrategyConformance):
    strategy = Cleave
    config = {"detection_s": 0.0, "planning_s": 0.01, "overlap": "perfect"}


class TestCleavePaper(StrategyConformance):
    """The published model has a contract of its own: the FLOPs of the linear layers, without attention."""

    strategy = Cleave
    config = {"model": "paper"}

    def layer_flops(self, workload):
        model = workload.model
        listed = linear_gemms(model.hidden_size, model.ffn_size, workload.tokens, gated=model.gated_mlp)
        return sum(2 * g.m * g.n * g.k * g.count for g in listed)

    def test_its_own_flops_are_those_of_the_linear_layers(self):
        # forward, dX and dW of four 64 x 64 and two 64 x 256 matrices on 48 tokens
        assert self.layer_flops(self.workload()) == 3 * 2 * 48 * (4 * 64 * 64 + 2 * 64 * 256)


class TestAnalytic(ExecutorConformance):
    executor = Analytic


class TestProfiled(ExecutorConformance):
    """On a fleet in which every device has a fitted model."""

    executor = Profiled

    def fleet(self):
        fleet = super().fleet()
        fit = GemmFit(PLAIN, dict.fromkeys(RANGES, (1, 2048)), "a formula")
        return replace(fleet, gemm_fits=tuple({DType.FLOAT16: fit} for _ in range(int(fleet.group.max()) + 1)))


class TestProfiledAllowingNone(ExecutorConformance):
    """Devices without a model are timed by the roofline."""

    executor = Profiled
    config = {"missing": "analytic"}


class TestDdp(StrategyConformance):
    strategy = Ddp


class TestDdpEven(StrategyConformance):
    strategy = Ddp
    config = {"shares": "even", "detection_s": [0.0, 0.01], "setup_s": 0.0, "planning_s": 0.001}
