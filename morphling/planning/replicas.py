"""Pieces that strategies with replicas share: whole samples in proportion to speed, memory, the optimizer's rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from morphling.interfaces.tasks import TaskTable
from morphling.planning.training_memory import (
    DeviceMemory,
    head_activation_bytes,
    input_activation_bytes,
    sharded_state_bytes,
    stage_activation_bytes,
)
from morphling.types import DType, FloatArray, IntArray, Kind
from morphling.workload import Workload, parameters
from morphling.workload.counts import Optimizer

__all__ = ["optimizer_rows", "replica_memory", "shares_of"]


def shares_of(rate: FloatArray, samples: int, *, even: bool = False) -> IntArray:
    """Whole samples for each device, int64[n], that add up to ``samples``; the slowest finishes as early as possible.

    rate : float64[n], speeds > 0;  even : as if all were equally fast (the first get one more where it does not divide)

    Each sample goes to the device that would finish it first (of equals, to the first), which is optimal for
    indivisible equal samples.
    """
    n = len(rate)
    speed = np.ones(n) if even else np.asarray(rate, np.float64)
    whole = np.floor(samples * speed / speed.sum()).astype(np.int64)
    start: IntArray = np.maximum(whole - 1, 0)  # never beyond the optimum, which the greedy rest then reaches
    left = samples - int(start.sum())
    for _ in range(left):
        start[int(np.argmin((start + 1) / speed))] += 1
    return start


def replica_memory(workload: Workload, optimizer: Optimizer, micro_batch: int) -> DeviceMemory:
    """Bytes of a device that trains the whole model on ``micro_batch`` sequences at a time."""
    model, s = workload.model, workload.sequence_length
    kept = stage_activation_bytes(
        model, micro_batch, s, layers=model.layers, scheme=workload.recompute, dtype=workload.dtype
    )
    return DeviceMemory(
        states=sharded_state_bytes(parameters(model), optimizer),
        activations=kept + input_activation_bytes(model, micro_batch, s) + head_activation_bytes(model, micro_batch, s),
    )


def optimizer_rows(devices: ArrayLike, flops: ArrayLike, memory_bytes: ArrayLike, dtype: DType) -> TaskTable:
    """The optimizer's step on each device: FLOPs and bytes of its share of the parameters."""
    return TaskTable.build(
        device=devices,
        kind=Kind.OPTIMIZER,
        flops=flops,
        memory_bytes=memory_bytes,
        dtype=dtype,
        resident_bytes=0,
    )
