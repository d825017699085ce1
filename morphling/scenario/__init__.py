"""EVERYTHING READ FROM DISK: scenarios, device profiles, link and availability traces.

pydantic and yaml live only here.  What leaves this room is frozen and in base units; what is wrong leaves as one error
that names file, line, column and field of every fault.
"""

from __future__ import annotations

from morphling.scenario.availability_alone import AvailabilitySource, availability_source
from morphling.scenario.config import ConfigField, completed, config_fields, configured
from morphling.scenario.data import data_folder, shipped_names
from morphling.scenario.heat import BatteryNumbers
from morphling.scenario.jsonschema import json_schema
from morphling.scenario.load import LoadedScenario, load_scenario, resolved, resolved_yaml
from morphling.scenario.network_schema import (
    CellChoice,
    ConstantLink,
    ConstantRates,
    PopulationLink,
    PopulationRates,
    Rates,
    TraceLink,
)
from morphling.scenario.profiles import ProfileRecord, list_profiles, load_profile
from morphling.scenario.quantities import fleet_draw
from morphling.scenario.schema import (
    Coordinator,
    Execution,
    FleetEntry,
    InlineProfile,
    Run,
    Scenario,
    StrategyChoice,
    TracedWorkload,
    Workload,
)
from morphling.scenario.traces import list_traces, load_trace

__all__ = [
    "AvailabilitySource",
    "BatteryNumbers",
    "CellChoice",
    "ConfigField",
    "ConstantLink",
    "ConstantRates",
    "Coordinator",
    "Execution",
    "FleetEntry",
    "InlineProfile",
    "LoadedScenario",
    "PopulationLink",
    "PopulationRates",
    "ProfileRecord",
    "Rates",
    "Run",
    "Scenario",
    "StrategyChoice",
    "TraceLink",
    "TracedWorkload",
    "Workload",
    "availability_source",
    "completed",
    "config_fields",
    "configured",
    "data_folder",
    "fleet_draw",
    "json_schema",
    "list_profiles",
    "list_traces",
    "load_profile",
    "load_scenario",
    "load_trace",
    "resolved",
    "resolved_yaml",
    "shipped_names",
]
