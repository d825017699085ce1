"""HOW LONG a row takes on its device: a ladder of executors behind one interface.

`analytic` (a roofline from the device profile) needs nothing but the profile; the profiled and live rungs stand above
it.
"""

from __future__ import annotations

from morphling.executors.analytic import Analytic

__all__ = ["Analytic"]
