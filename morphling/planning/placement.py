"""What a planned strategy is configured with, and what its plans are: records and small translations of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from morphling.interfaces.tasks import TaskTable
from morphling.planning.delays import check_delay
from morphling.planning.training_memory import DeviceMemory
from morphling.types import IntArray

__all__ = ["Placement", "PlannedConfig", "Recovery", "assumed", "holding"]


@dataclass(frozen=True)
class PlannedConfig:
    """How a strategy that places whole iterations recovers.

    detection_s : seconds until a departure is noticed; or ``[lowest, highest]``, of which one is drawn, uniformly, for
        each instant at which devices leave
    planning_s : seconds charged for each new plan, or ``measured``: the wall time of the planner (two runs then differ)
    setup_s : seconds to start again once states have arrived (processes, connections)
    checkpoint_every : iterations between two checkpoints, which all devices send to the coordinator while they go on
        training; 0: none but the initial one, which costs nothing
    """

    detection_s: float | list[float] = 30.0
    planning_s: float | Literal["measured"] = 0.0
    setup_s: float = 30.0
    checkpoint_every: int = 100

    def __post_init__(self) -> None:
        """Refuse delays that are none."""
        check_delay("detection_s", self.detection_s)
        check_delay("setup_s", self.setup_s)
        if self.planning_s != "measured":
            check_delay("planning_s", self.planning_s)
        if self.checkpoint_every < 0:
            raise ValueError(f"checkpoint_every: 0 or more iterations, not {self.checkpoint_every}")


@dataclass(frozen=True, eq=False)
class Placement:
    """Who takes part, and what each holds.

    devices : int64[n], each once
    memory : what each holds at most, in the same order; checked against the devices' memory
    saved_bytes : int64[n], what each sends to a checkpoint (replicas of the same states send them once)
    restored_bytes : int64[n], what each fetches from a checkpoint
    facts : plain values for the report
    own : the strategy's own record of its plan
    """

    devices: IntArray
    memory: tuple[DeviceMemory, ...]
    saved_bytes: IntArray
    restored_bytes: IntArray
    facts: Mapping[str, Any] = field(default_factory=dict)
    own: Any = None

    def record(self, devices: int) -> dict[str, Any]:
        """For the report of a strategy, of a fleet of so many devices."""
        most = max(self.memory, key=lambda m: m.total)
        return {
            "model": "physical",
            "devices_used": len(self.devices),
            "devices_left_out": {"not in the plan": devices - len(self.devices)},
            "memory_bytes": {"states": most.states, "activations": most.activations, "other": most.other},
            "plan": dict(self.facts),
        }


@dataclass(frozen=True, eq=False)
class Recovery:
    """How to go on after an interruption.

    moves : rows that bring states to where the new placement needs them
    from_checkpoint : whether iterations since the last checkpoint are lost (else the interrupted one is done again)
    """

    moves: TaskTable
    from_checkpoint: bool


def holding(tasks: TaskTable, placement: Placement) -> TaskTable:
    """The table with what each device holds written into its first row."""
    held = dict(zip(placement.devices.tolist(), (m.total for m in placement.memory), strict=True))
    resident = np.zeros(len(tasks), np.int64)
    for device, first in zip(*(x.tolist() for x in np.unique(tasks.device, return_index=True)), strict=True):
        resident[first] = held.get(device, 0)
    return replace(tasks, resident_bytes=resident)


def assumed(config: PlannedConfig, detection_s: tuple[float, float]) -> list[str]:
    """What a reader of any planned strategy's numbers should know; ``detection_s`` the shortest and the longest."""
    low, high = detection_s
    after = f"{low:g} s" if low == high else f"{low:g} to {high:g} s"
    charged = "the wall time of the planner" if config.planning_s == "measured" else f"{config.planning_s:g} s"
    delays = f"noticed after {after}, a new plan is charged {charged}, starting again takes {config.setup_s:g} s"
    return [
        "rows are sums over whole layers; profiled and live time their products one by one",
        "analytic times a sum by the profile's rate of large GEMMs, and memory-bound operations overlap with it",
        "the initial states are on their devices at time 0",
        f"a departure is {delays}",
    ]
