"""HOW LONG a row takes on its device: a ladder of executors behind one interface.

`analytic` (a roofline from the device profile) needs nothing but the profile; `profiled` times GEMMs by a model that is
fitted to measurements; `live` executes them on this host.  `measure_gemm` measures, `gemm_fit` fits, `gemm_model` has
the formula.
"""

from __future__ import annotations

from morphling.executors.analytic import Analytic
from morphling.executors.profiled import Profiled

__all__ = ["Analytic", "Profiled"]
