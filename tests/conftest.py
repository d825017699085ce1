"""Settings of the whole suite."""

from __future__ import annotations

from hypothesis import settings

# On a busy machine any example may take long; no test asserts seconds.
settings.register_profile("no-clock", deadline=None)
settings.load_profile("no-clock")
