"""Strategies that are pipelines pass the suite that ships for everybody's."""

from __future__ import annotations

from morphling.strategies.asteroid import Asteroid
from morphling.strategies.confidant import Confidant
from morphling.strategies.dtfm import Dtfm
from morphling.strategies.gpipe import Gpipe
from morphling.strategies.interleaved import Interleaved
from morphling.strategies.one_f_one_b import OneFOneB
from morphling.strategies.swarm import Swarm
from morphling.testing import StrategyConformance, tiny_fleet, tiny_workload
from morphling.testing.accounts import layer_gemm_flops
from morphling.workload import training_step

QUICK = {"detection_s": [0.0, 0.01], "setup_s": 0.0, "planning_s": 0.001}


class Several(StrategyConformance):
    """Four layers and eight sequences, so that there are stages and micro-batches."""

    margin = 0.2

    def workload(self, layers=4):
        return tiny_workload(layers, batch_size=8)


def recomputed(workload):
    """FLOPs of a layer's forward pass."""
    more = training_step(
        workload.model, workload.batch_size, workload.sequence_length, workload.dtype, recompute="full"
    )
    return layer_gemm_flops(more) - layer_gemm_flops(workload)


class TestGpipe(Several):
    strategy = Gpipe


class TestGpipeCopies(Several):
    strategy = Gpipe
    config = {"stages": 2, "recompute": "none", **QUICK}


class TestOneFOneB(Several):
    strategy = OneFOneB


class TestOneFOneBBalanced(Several):
    strategy = OneFOneB
    config = {"warm_up": "early", "partition": "balanced", **QUICK}


class TestInterleaved(Several):
    strategy = Interleaved
    config = {"stages": "fewest", **QUICK}


class TestAsteroid(Several):
    strategy = Asteroid
    config = {"micro_batch": 2}


class TestAsteroidHeavy(Several):
    strategy = Asteroid
    config = {"micro_batch": 2, "replay": "heavy", "copied": "states", **QUICK}


class TestAsteroidLight(Several):
    strategy = Asteroid
    config = {"micro_batch": 1, "most_stages": 3, **QUICK}


class TestAsteroidPaper(Several):
    strategy = Asteroid
    config = {"model": "paper"}
    recovers = False


class TestConfidant(Several):
    strategy = Confidant


class TestConfidantStates(Several):
    strategy = Confidant
    config = {"micro_batch": 2, "copied": "states", "recompute": "full", "central_every": 0, **QUICK}

    def layer_flops(self, workload):
        """With one forward pass more."""
        return super().layer_flops(workload) + recomputed(workload)


class TestConfidantPaper(Several):
    strategy = Confidant
    config = {"model": "paper", "quirks": False}
    recovers = False


class TestDtfm(Several):
    strategy = Dtfm
    config = {"offspring": 20}

    def layer_flops(self, workload):
        """Every layer is computed again."""
        return super().layer_flops(workload) + recomputed(workload)


class TestDtfmRing(Several):
    strategy = Dtfm
    config = {"stages": 2, "reduction": "ring", "recompute": "none", "offspring": 20, **QUICK}


class TestDtfmPaper(Several):
    strategy = Dtfm
    config = {"model": "paper"}
    recovers = False


class TestSwarm(Several):
    strategy = Swarm
    margin = 0.5

    def fleet(self):
        return tiny_fleet(6)

    def layer_flops(self, workload):
        """Every layer is computed again."""
        return super().layer_flops(workload) + recomputed(workload)


class TestSwarmStages(TestSwarm):
    config = {"stages": 2, "compression": "none", "detection_s": [0.0, 0.01], "in_flight": 4}
