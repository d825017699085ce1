"""Costs of layers are those of the DAG, for the workload's batch and for any micro-batch of it."""

from __future__ import annotations

import numpy as np
import pytest

from morphling.planning.layer_costs import layer_costs
from morphling.testing import tiny_workload
from morphling.types import Kind, Phase
from morphling.workload import training_flops, training_step


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_flops_are_those_of_the_step(recompute):
    w = tiny_workload(3, batch_size=4)
    costs = layer_costs(w, 2, recompute=recompute)
    assert costs.total_flops == training_flops(w.model, 2, w.sequence_length, recompute=recompute)


def test_spans_add_up_to_all_work_but_the_optimizer():
    w = tiny_workload(3)
    costs = layer_costs(w, w.batch_size)
    cut = [costs.span(a, b, phase) for phase in list(Phase)[:3] for a, b in ((0, 1), (1, 3))]
    dag = w.dag
    rest = dag.kind != Kind.OPTIMIZER
    assert sum(x.flops for x in cut) == dag.flops[dag.kind == Kind.GEMM].sum()
    assert sum(x.memory_bytes for x in cut) == pytest.approx(dag.memory_bytes[rest].sum(), rel=1e-12)
    assert costs.optimizer.flops == dag.flops[~rest].sum()


def test_a_micro_batch_is_laid_out_as_the_workload_says():
    # Fused projections read their input once instead of three times: a micro-batch must not forget that.
    model = tiny_workload().model
    whole, part = (training_step(model, b, 24, tiny_workload().dtype, fused_projections=True) for b in (4, 2))
    of_whole, of_part = layer_costs(whole, 2), layer_costs(part, 2)
    assert np.array_equal(of_whole.memory_bytes, of_part.memory_bytes)
    assert of_whole.memory_bytes.sum() < layer_costs(tiny_workload(batch_size=2), 2).memory_bytes.sum()
