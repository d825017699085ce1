"""THE FRONT HALL: from a scenario to results.

`plugins` finds strategies and executors, `build` turns YAML records into domain objects (the only file that knows
both),
`run` replays and writes the run folder, `compare` makes many runs `side_by_side`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from morphling.results import Results
from morphling.run.build import Built, build, check, complete
from morphling.run.compare import compare as compare_strategies
from morphling.run.plugins import Plugin, find_plugin, list_plugins
from morphling.run.run import run as replay_scenario

__all__ = [
    "Built",
    "Plugin",
    "build",
    "check",
    "compare_strategies",
    "complete",
    "find_plugin",
    "list_plugins",
    "replay_scenario",
]


class _CallableModule(ModuleType):
    """`morphling.run` is this room and the function of the public screen: importing the room must not hide it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Results:
        """As `morphling.run.run.run`."""
        return replay_scenario(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
