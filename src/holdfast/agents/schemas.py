"""JSON schemas of what an agent takes and returns, made of the models that its annotations name.

An annotation that is no model promises nothing (see models.py), and has no schema.
"""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import msgspec

from holdfast.agents.models import hint_of, holds_model, is_pydantic
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.agents.spec import AgentSpec

Schema: TypeAlias = dict[str, Any]
Mode: TypeAlias = Literal["validation", "serialization"]

_REF = "#/$defs/"
_log = get_logger(__name__)


def input_schema(spec: AgentSpec) -> Schema | None:
    """The schema of an agent's input, None if its annotation is no model."""
    model = spec.input_type.model if spec.input_type is not None else None
    return None if model is None else _written(spec.name, model, "validation")


def result_schema(spec: AgentSpec) -> Schema | None:
    """The schema of an agent's result, None if its annotation is no model or can't be looked up."""
    model = _returned(spec.call)
    return None if model is None else _written(spec.name, model, "serialization")


def _returned(call: Callable[..., Any]) -> Any:
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        return None  # what it yields is streamed, and its result is the list of that
    try:
        annotation = inspect.signature(call).return_annotation
        hint = hint_of(call, annotation)
    except Exception:
        return None  # a name that only a type checker knows
    return hint if annotation is not inspect.Signature.empty and holds_model(hint) else None


def _written(agent: str, model: Any, mode: Mode) -> Schema | None:
    try:
        return _pydantic(model, mode) if is_pydantic(model) else _msgspec(model, mode)
    except Exception as exc:
        # A model's own code may raise anything here; its agent runs all the same.
        _log.warning("no JSON schema can be made of a model", agent=agent, model=str(model), error=str(exc))
        return None


def _pydantic(model: Any, mode: Mode) -> Schema:
    if hasattr(model, "model_json_schema"):
        return cast("Schema", model.model_json_schema(mode=mode))
    adapter: Any = importlib.import_module("pydantic").TypeAdapter(model)  # a model brings its own pydantic
    return cast("Schema", adapter.json_schema(mode=mode))


def _msgspec(model: Any, mode: Mode) -> Schema:
    definitions: Schema = {}

    def custom(found: Any) -> Schema:
        """Describe a class that msgspec does not know; its definitions must stand at the top."""
        if not is_pydantic(found):
            return {}
        own = dict(_pydantic(found, mode))
        definitions.update(own.pop("$defs", {}))
        return own

    schema = msgspec.json.schema(model, schema_hook=custom)
    definitions |= schema.pop("$defs", {})
    return _unfolded(schema, definitions)


def _unfolded(schema: Schema, definitions: Schema) -> Schema:
    """Put the model itself at the top: many readers of tools' schemas expect an object there."""
    name = str(schema.get("$ref", "")).removeprefix(_REF)
    if name in definitions:
        schema = {**definitions[name], **{key: value for key, value in schema.items() if key != "$ref"}}
        if f'"{_REF}{name}"'.encode() not in msgspec.json.encode([schema, definitions]):
            del definitions[name]
    return {**schema, "$defs": definitions} if definitions else schema
