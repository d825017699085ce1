"""What rooms promise each other: task table, view, decisions, strategy, executor, event columns.

Only frozen records, tables and abstract classes belong here; nothing that computes a result.
"""

from __future__ import annotations

INTERFACE_VERSION = 1
"""Raised when a promise changes so that a plug-in must change with it."""
