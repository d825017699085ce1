"""Strategies that cut tensors or states pass the suite that ships for everybody's."""

from __future__ import annotations

from morphling.strategies.alpa import Alpa
from morphling.strategies.cloud import Cloud
from morphling.strategies.ddp import Ddp
from morphling.strategies.megatron_tp import MegatronTp
from morphling.strategies.uniform_tp import UniformTp
from morphling.strategies.zero import Zero1, Zero2, Zero3
from morphling.testing import StrategyConformance
from morphling.testing.worlds import tiny_fleet


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
