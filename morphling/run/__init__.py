"""THE FRONT HALL: from a scenario to results.

`plugins` finds strategies and executors, `build` turns YAML records into domain objects (the only file that knows both),
`run` replays and writes the run folder.
"""

from __future__ import annotations

from morphling.run.build import Built, build
from morphling.run.plugins import Plugin, find_plugin, list_plugins
from morphling.run.run import run

__all__ = ["Built", "Plugin", "build", "find_plugin", "list_plugins", "run"]
