"""Strategies that cut tensors or states pass the suite that ships for everybody's."""

from __future__ import annotations

from morphling.strategies.megatron_tp import MegatronTp
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
