"""Pure arithmetic that strategies share: GEMM lists, areas, tilings, shard caches, collectives, pipelines, memory.

Only functions of numbers and arrays belong here: no clock, no randomness, no state of a run.  The one exception is a
published search that draws and has a time limit: it takes a seed, and its result says whether the limit cut it.
"""

from __future__ import annotations
