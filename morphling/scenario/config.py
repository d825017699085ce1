"""Checking a section of the scenario against the Config of the strategy or executor that it names, and listing it."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from morphling.errors import ScenarioError
from morphling.scenario.load import LoadedScenario
from morphling.scenario.schema import Execution, StrategyChoice

__all__ = ["ConfigField", "completed", "config_fields", "configured"]


def configured(loaded: LoadedScenario, section: str, values: dict[str, Any], config: type) -> Any:
    """An instance of ``config``, a dataclass or pydantic model, from the keys of a section.

    Unknown keys and wrong types are refused with their place in the file (``ScenarioError``), all at once; so is what
    the
    class itself refuses with ``ValueError``.
    """
    model = _model_of(config)
    try:
        checked = model.model_validate(values)
    except ValidationError as error:
        raise loaded.faults(error, (section,), model) from None
    except Exception as error:  # a validator of a stranger
        raise _unmade(loaded, section, error) from error
    try:
        if issubclass(config, BaseModel):
            return config.model_validate(values)
        return config(**{name: getattr(checked, name) for name in type(checked).model_fields})
    except ValueError as error:
        name, _, reason = str(error).partition(": ")
        if name in type(checked).model_fields and reason:
            raise loaded.fault((section, name), reason) from None
        raise loaded.fault((section,), str(error)) from None
    except Exception as error:  # a stranger's code may raise anything
        raise _unmade(loaded, section, error) from error


def _unmade(loaded: LoadedScenario, section: str, error: Exception) -> ScenarioError:
    return loaded.fault((section,), f"its Config cannot be made: {type(error).__name__}: {error}")


def _model_of(config: type) -> type[BaseModel]:
    if issubclass(config, BaseModel):
        # A model that lets unknown keys pass would let a typo pass.
        return config if config.model_config.get("extra") == "forbid" else _forbidding(config)
    hints = get_type_hints(config)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(config):  # type: ignore[arg-type] # a dataclass, as the interface asks
        default: Any = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        fields[field.name] = (hints[field.name], ... if default is dataclasses.MISSING else default)
    return create_model(config.__name__, __config__=ConfigDict(extra="forbid", strict=True), **fields)


def _forbidding(config: type[BaseModel]) -> type[BaseModel]:
    strict = {"__module__": config.__module__, "model_config": ConfigDict(extra="forbid")}
    return type(config.__name__, (config,), strict)


@dataclasses.dataclass(frozen=True)
class ConfigField:
    """One parameter of a strategy or executor.

    ``type`` as an author would say it (``none | pipelined``); ``default`` a plain JSON value, None where ``required``;
    ``about`` its description, from the field or from a line ``name : text`` of the Config's docstring, or empty.
    """

    name: str
    type: str
    required: bool
    default: Any
    about: str


def config_fields(config: type) -> tuple[ConfigField, ...]:
    """The fields of a Config, a dataclass or pydantic model, in order."""
    said = _documented(config)
    return tuple(
        ConfigField(
            name=name,
            type=_shown_type(field.annotation),
            required=field.is_required(),
            default=None if field.is_required() else _json(field.get_default(call_default_factory=True)),
            about=field.description or said.get(name, ""),
        )
        for name, field in _model_of(config).model_fields.items()
    )


def _documented(config: type) -> dict[str, str]:
    """What docstrings say of fields: ``name : text``, going on in indented lines; of bases too, the nearest counts."""
    said: dict[str, str] = {}
    for kind in reversed(config.__mro__):
        said |= _said(vars(kind).get("__doc__") or "")
    return said


def _said(text: str) -> dict[str, str]:
    said: dict[str, str] = {}
    current = None
    for line in inspect.cleandoc(text).splitlines():
        found = re.match(r"(\w+) : (.*)", line)
        if found:
            current = found[1]
            said[current] = found[2]
        elif current is not None and line.startswith(" "):
            said[current] += " " + line.strip()
        else:
            current = None
    return said


def _shown_type(kind: Any) -> str:
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " | ".join(str(value) for value in inside)
    if origin in (Union, types.UnionType):
        return " | ".join(_shown_type(part) for part in inside)
    if kind is type(None):
        return "null"
    if origin in (list, tuple, set, frozenset):
        return "list of " + (" or ".join(dict.fromkeys(_shown_type(i) for i in inside if i is not ...)) or "anything")
    return kind.__name__ if isinstance(kind, type) and origin is None else str(kind).replace("typing.", "")


def _json(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return str(value)


def completed(loaded: LoadedScenario, strategy: Any, execution: Any) -> LoadedScenario:
    """The scenario with every default of its strategy's and executor's Config written out.

    A run folder then replays the same even if a later version has other defaults.  A ``strategy`` of None is one whose
    code was not run: its section stays as written.
    """
    chosen, mode = loaded.scenario.strategy, loaded.scenario.execution
    named = {"plugin": chosen.plugin} if chosen.name is None else {"name": chosen.name}
    filled = loaded.scenario.model_copy(
        update={
            "strategy": chosen if strategy is None else StrategyChoice.model_validate({**named, **_values(strategy)}),
            "execution": Execution.model_validate({"mode": mode.mode, "heat": mode.heat, **_values(execution)}),
        }
    )
    return dataclasses.replace(loaded, scenario=filled)


def _values(config: Any) -> dict[str, Any]:
    if isinstance(config, BaseModel):
        return config.model_dump(mode="json")
    return dataclasses.asdict(config) if dataclasses.is_dataclass(config) and not isinstance(config, type) else {}
