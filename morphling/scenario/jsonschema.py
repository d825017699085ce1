"""JSON Schema of scenario and profile files, for editors that complete and check as you type."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from morphling.scenario.profiles import ProfileRecord
from morphling.scenario.schema import Scenario

__all__ = ["json_schema"]


def json_schema(kind: Literal["scenario", "profile"] = "scenario") -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a scenario or a device profile, as plain values.

    Quantities are strings with a number and one of the usual units (no compounds such as ``Mbit/min``, which do load).
    An editor cannot know which names, files and plug-ins exist, nor rules that join several fields.
    """
    model: type[BaseModel] = Scenario if kind == "scenario" else ProfileRecord
    schema = model.model_json_schema(mode="validation")
    schema = _renamed(schema, _short_names(schema.get("$defs", {})))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _short_names(definitions: dict[str, Any]) -> dict[str, str]:
    """Definitions of generic models are named after their type arguments in full; their titles are short."""
    short: dict[str, str] = {}
    for name, definition in definitions.items():
        wanted = base = str(definition.get("title", name))
        number = 2
        while wanted in short.values():
            wanted, number = f"{base}{number}", number + 1
        short[name] = wanted
    return short


def _renamed(value: Any, short: dict[str, str]) -> Any:
    if isinstance(value, list):
        return [_renamed(item, short) for item in value]
    if not isinstance(value, dict):
        return value
    out: dict[str, Any] = {}
    for key, item in value.items():
        if key == "$defs":
            out[key] = {short[name]: _renamed(definition, short) for name, definition in item.items()}
        elif key == "$ref":
            out[key] = "#/$defs/" + short[item.removeprefix("#/$defs/")]
        else:
            out[key] = _renamed(item, short)
    return out
