"""HOW the work is split: one file a strategy, none imports another.

A strategy decides from what the view shows and never touches time or state; arithmetic that several of them share is in
`morphling.planning`.  Built-ins enter through the same entry points as anybody's plug-in.
"""

from __future__ import annotations
