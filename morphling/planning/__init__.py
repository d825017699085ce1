"""Pure arithmetic that strategies share: GEMM lists, areas, tilings, shard caches, collectives, pipelines, memory.

Only functions of numbers and arrays belong here: no clock, no randomness, no state of a run.
"""

from __future__ import annotations
