"""Strategies that cut tensors or states pass the suite that ships for everybody's."""

from __future__ import annotations

from morphling.strategies.ddp import Ddp
from morphling.strategies.megatron_tp import MegatronTp
from morphling.strategies.zero import Zero1, Zero2, Zero3
from morphling.testing import StrategyConformance


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
