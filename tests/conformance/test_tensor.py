"""Strategies that cut tensors or states pass the suite that ships for everybody's."""

from __future__ import annotations

import numpy as np

from morphling.planning.costs import Gemm
from morphling.planning.rectangles import split_columns
from morphling.strategies.alpa import Alpa
from morphling.strategies.cloud import Cloud
from morphling.strategies.ddp import Ddp
from morphling.strategies.megatron_tp import MegatronTp
from morphling.strategies.uniform_tp import UniformTp
from morphling.strategies.zero import Zero1, Zero2, Zero3
from morphling.testing import Placement, StrategyConformance
from morphling.testing.worlds import tiny_fleet
from morphling.types import item_bytes


class TestMegatronTp(StrategyConformance):
    strategy = MegatronTp
    margin = 0.01


class TestMegatronTpInReplicas(StrategyConformance):
    strategy = MegatronTp
    config = {"tensor_parallel": 2, "micro_batch": 1, "sequence_parallel": True, "detection_s": [0.0, 0.01]}
    margin = 0.01


class TestMegatronTpSavingOften(StrategyConformance):
    strategy = MegatronTp
    config = {"setup_s": 0.0, "planning_s": 0.001, "checkpoint_every": 1}
    margin = 0.01


class TestDdpInMicroBatches(StrategyConformance):
    strategy = Ddp
    config = {"micro_batch": 3, "setup_s": 0.0}
    margin = 0.01


class TestZero1(StrategyConformance):
    strategy = Zero1
    margin = 0.01


class TestZero2(StrategyConformance):
    strategy = Zero2
    config = {"shares": "even", "checkpoint_every": 1}
    margin = 0.01


class TestZero3(StrategyConformance):
    strategy = Zero3
    margin = 0.01


class TestZero3InLargeMicroBatches(StrategyConformance):
    strategy = Zero3
    config = {"micro_batch": 8, "detection_s": [0.0, 0.01]}
    margin = 0.01


class TestUniformTp(StrategyConformance):
    strategy = UniformTp
    margin = 0.1

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


class TestUniformTpPerfectOverlap(StrategyConformance):
    strategy = UniformTp
    config = {"overlap": "perfect", "detection_s": 0.0, "planning_s": 0.01}


class TestCloud(StrategyConformance):
    strategy = Cloud
    config = {"gpu": "h200", "gpus": 2, "mfu": 0.4}
    margin = 0.01


class TestAlpa(StrategyConformance):
    """On devices of which none holds the model, so that there are stages; with one leaving, the others still do."""

    strategy = Alpa
    margin = 0.05

    def fleet(self):
        return tiny_fleet(memory_bytes=3_500_000)


class TestAlpaEven(TestAlpa):
    strategy = Alpa
    config = {"search": "even", "micro_batches": 2, "detection_s": [0.0, 0.01], "setup_s": 0.0}


class TestAlpaPaper(StrategyConformance):
    strategy = Alpa
    config = {"model": "paper"}
    recovers = False
    margin = 0.01

    def fleet(self):
        return tiny_fleet(16)
