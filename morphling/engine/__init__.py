"""WHEN everything happens: the only room where anything changes, and the only one with simpy.

`Engine` replays a strategy's decisions on a fleet in virtual time.  `kernels` holds the compiled loops, `closed_lane`
and
`event_lane` drive them, `view` is what the strategy sees.
"""

from __future__ import annotations

from morphling.engine.engine import Engine

__all__ = ["Engine"]
