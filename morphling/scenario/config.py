"""Checking a section of the scenario against the Config of the strategy or executor that it names."""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from morphling.scenario.load import LoadedScenario
from morphling.scenario.schema import Execution, StrategyChoice

__all__ = ["completed", "configured"]


def configured(loaded: LoadedScenario, section: str, values: dict[str, Any], config: type) -> Any:
    """An instance of ``config``, a dataclass or pydantic model, from the keys of a section.

    Unknown keys and wrong types are refused with their place in the file (``ScenarioError``), all at once; so is what
    the
    class itself refuses with ``ValueError``.
    """
    if issubclass(config, BaseModel):
        model: type[BaseModel] = config
    else:
        hints = get_type_hints(config)
        fields: dict[str, Any] = {}
        for field in dataclasses.fields(config):  # type: ignore[arg-type] # a dataclass, as the interface asks
            default: Any = field.default
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            fields[field.name] = (hints[field.name], ... if default is dataclasses.MISSING else default)
        model = create_model(config.__name__, __config__=ConfigDict(extra="forbid", strict=True), **fields)
    try:
        checked = model.model_validate(values)
    except ValidationError as error:
        raise loaded.faults(error, (section,), model) from None
    if isinstance(checked, config):
        return checked
    try:
        return config(**{name: getattr(checked, name) for name in type(checked).model_fields})
    except ValueError as error:
        name, _, reason = str(error).partition(": ")
        if name in type(checked).model_fields and reason:
            raise loaded.fault((section, name), reason) from None
        raise loaded.fault((section,), str(error)) from None


def completed(loaded: LoadedScenario, strategy: Any, execution: Any) -> LoadedScenario:
    """The scenario with every default of its strategy's and executor's Config written out.

    A run folder then replays the same even if a later version has other defaults.
    """
    chosen, mode = loaded.scenario.strategy, loaded.scenario.execution
    named = {"plugin": chosen.plugin} if chosen.name is None else {"name": chosen.name}
    filled = loaded.scenario.model_copy(
        update={
            "strategy": StrategyChoice.model_validate({**named, **_values(strategy)}),
            "execution": Execution.model_validate({"mode": mode.mode, "heat": mode.heat, **_values(execution)}),
        }
    )
    return dataclasses.replace(loaded, scenario=filled)


def _values(config: Any) -> dict[str, Any]:
    if isinstance(config, BaseModel):
        return config.model_dump(mode="json")
    return dataclasses.asdict(config) if dataclasses.is_dataclass(config) and not isinstance(config, type) else {}
