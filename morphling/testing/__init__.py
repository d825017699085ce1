"""Shipped to authors of strategies and executors: suites that say whether yours keeps its promises, and tiny worlds.

::

    from morphling.testing import StrategyConformance

    class TestMine(StrategyConformance):
        strategy = Mine
        config = {"devices": 3}

and run pytest.  Importing this package does not import pytest; what a suite finds wrong is an ``AssertionError``.
"""

from __future__ import annotations

from morphling.testing.executors import ExecutorConformance
from morphling.testing.replay import Replayed, replay
from morphling.testing.strategies import Placement, StrategyConformance
from morphling.testing.worlds import coming_and_going, tiny_fleet, tiny_workload

__all__ = [
    "ExecutorConformance",
    "Placement",
    "Replayed",
    "StrategyConformance",
    "coming_and_going",
    "replay",
    "tiny_fleet",
    "tiny_workload",
]
