"""LIVE: sub-tasks really executed, timed in a part of this host, and scaled to the device.

`partition` is what back ends promise; `host` (a CPU thread) runs anywhere, `cuda` is parts of a GPU (`green_contexts`).
`measuring` executes each distinct product once and `cache` keeps it, `scaling` goes from host to device time,
`numerics` compares results, `executor` puts them together.  torch and CUDA are imported on use.
"""

from __future__ import annotations

from morphling.executors.live.backends import offers
from morphling.executors.live.executor import Live, LiveConfig

__all__ = ["Live", "LiveConfig", "offers"]
