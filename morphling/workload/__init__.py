"""WHAT is computed: models, the GEMM DAG of a training step, its FLOPs, activations and states.

Knows nothing of devices, links or time.
"""

from __future__ import annotations

from morphling.workload.config import model_from_config
from morphling.workload.counts import activation_bytes, state_bytes, training_flops
from morphling.workload.dag import GemmDag, Place
from morphling.workload.models import MODELS, Model, model_named, parameters
from morphling.workload.products import products_workload
from morphling.workload.training import Workload, training_step

__all__ = [
    "MODELS",
    "GemmDag",
    "Model",
    "Place",
    "Workload",
    "activation_bytes",
    "model_from_config",
    "model_named",
    "parameters",
    "products_workload",
    "state_bytes",
    "training_flops",
    "training_step",
]
