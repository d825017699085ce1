"""The command line: one file a command, no logic.

Each command parses its options, calls the public functions, prints, and returns; heavy imports happen inside.
"""

from __future__ import annotations

from morphling.cli.app import main

__all__ = ["main"]
