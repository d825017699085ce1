"""WHO AND WHERE, as arrays: fleet, devices, links, availability.

Plain numpy records without behaviour over time; how they come out of YAML is the business of `morphling.run.build`.
"""

from __future__ import annotations

from morphling.fleet.availability import Availability
from morphling.fleet.battery import Battery
from morphling.fleet.fleet import Coordinator, Fleet
from morphling.fleet.gemm import GemmFit, GemmParameters, GemmSamples
from morphling.fleet.links import Links, LinkTrace, PastEnd, Tcp
from morphling.fleet.thermal import Thermal

__all__ = [
    "Availability",
    "Battery",
    "Coordinator",
    "Fleet",
    "GemmFit",
    "GemmParameters",
    "GemmSamples",
    "LinkTrace",
    "Links",
    "PastEnd",
    "Tcp",
    "Thermal",
]
