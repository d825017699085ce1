"""Morphling: an emulator for distributed machine learning on edge devices.

>>> import morphling
>>> results = morphling.run("quickstart")          # doctest: +SKIP
>>> results.metrics["iteration_time_s"]            # doctest: +SKIP

The names below are the whole public screen; what a plug-in needs is in `morphling.interfaces`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from morphling.errors import MorphlingError

if TYPE_CHECKING:
    from morphling.interfaces.executor import Executor
    from morphling.interfaces.strategy import Strategy
    from morphling.planning.levels import LevelStrategy
    from morphling.planning.rounds import RoundStrategy
    from morphling.results import Comparison, Results
    from morphling.run import compare_strategies as compare
    from morphling.run import replay_scenario as run
    from morphling.scenario import load_scenario

__version__ = "0.1.0"

__all__ = [
    "Comparison",
    "Executor",
    "LevelStrategy",
    "MorphlingError",
    "Results",
    "RoundStrategy",
    "Strategy",
    "__version__",
    "compare",
    "load_scenario",
    "run",
]

_HOMES = {
    "Comparison": "morphling.results",
    "Executor": "morphling.interfaces.executor",
    "Results": "morphling.results",
    "LevelStrategy": "morphling.planning.levels",
    "RoundStrategy": "morphling.planning.rounds",
    "Strategy": "morphling.interfaces.strategy",
    "load_scenario": "morphling.scenario",
}


def __getattr__(name: str) -> Any:
    """Import on use: `import morphling` alone costs nothing."""
    if name == "run":
        return import_module("morphling.run")  # a room that can be called
    if name == "compare":
        return import_module("morphling.run").compare_strategies
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'morphling' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
