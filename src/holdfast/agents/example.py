"""An example of an agent's input, made from its annotation, so that a command that is shown can be tried."""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast.agents.models import hint_of
from holdfast.errors import InputError

if TYPE_CHECKING:
    from holdfast.agents.spec import AgentSpec

UNTYPED: Final = {"id": 7}
"""For an agent that takes any JSON: README's agents don't fail with it."""
_TEXTS: Final = {
    "date-time": "2030-01-31T07:00:00Z",
    "date": "2030-01-31",
    "time": "07:00:00Z",
    "duration": "PT30S",
    "uuid": "0192f0c1-7e6a-7c3b-9d54-0a8f5e1b2c3d",
    "email": "ada@example.com",
    "uri": "https://example.com/",
}


def example_input(spec: AgentSpec) -> Any:
    """Return an input that fits the agent's annotation; InputError if none is found."""
    if not spec.wants_input:
        return None
    try:
        hint = hint_of(spec.call, _annotation(spec))
        if hint in {inspect.Parameter.empty, Any, dict, object}:
            return UNTYPED
        schema = _schema(hint)
        # The schema of a plain datetime has no format: one of the texts fits.
        examples = [_Example(schema, text).of(schema) for text in ("text", *_TEXTS.values())]
    except (TypeError, ValueError, NameError, KeyError, RecursionError, StopIteration) as exc:
        raise InputError(f"agent {spec.name!r}: no example of its input can be made: {exc}") from exc
    if spec.input_type is None:
        return examples[0] or UNTYPED
    for example in examples:
        with contextlib.suppress(InputError):
            spec.input_type.read(example)
            return example
    raise InputError(f"agent {spec.name!r}: no example of its input can be made")


def _annotation(spec: AgentSpec) -> Any:
    kinds = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    parameters = [each for each in inspect.signature(spec.call).parameters.values() if each.kind in kinds]
    return parameters[-1].annotation if parameters else inspect.Parameter.empty


def _schema(hint: Any) -> dict[str, Any]:
    return _pydantic_schema(hint) or msgspec.json.schema(hint, schema_hook=_pydantic_schema)


def _pydantic_schema(hint: Any) -> dict[str, Any]:
    make = getattr(hint, "model_json_schema", None)
    return make() if make is not None else {}


class _Example:
    """The simplest values that parts of one JSON schema allow: required fields only."""

    def __init__(self, root: dict[str, Any], text: str) -> None:
        self._root = root
        self._text = text

    def of(self, schema: dict[str, Any]) -> Any:
        """Return the value for a part of the schema."""
        for word in ("examples", "enum"):
            if schema.get(word):
                return schema[word][0]
        for word in ("default", "const"):
            if word in schema:
                return schema[word]
        if "$ref" in schema:
            return self.of(self._referred(schema["$ref"]))
        for word in ("anyOf", "oneOf", "allOf"):
            if word in schema:
                choices: list[dict[str, Any]] = schema[word]
                return self.of(next(each for each in choices if each.get("type") != "null"))
        return self._plain(schema)

    def _plain(self, schema: dict[str, Any]) -> Any:
        match schema.get("type"):
            case "object":
                fields: dict[str, Any] = schema.get("properties", {})
                return {name: self.of(fields.get(name, {})) for name in schema.get("required", ())}
            case "array":
                items = schema.get("prefixItems", [schema.get("items") or {}] * schema.get("minItems", 0))
                return [self.of(each) for each in cast("list[dict[str, Any]]", items)]
            case "string":
                text = _TEXTS.get(schema.get("format", ""), self._text)
                return text.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength")]
            case "integer" | "number":
                return _number(schema)
            case kind:
                return {"boolean": True, "null": None}.get(kind or "", UNTYPED)

    def _referred(self, reference: str) -> dict[str, Any]:
        found: Any = self._root
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]
        return found


def _number(schema: dict[str, Any]) -> float:
    least = max(schema.get("minimum", 7), schema.get("exclusiveMinimum", 6) + 1)
    return min(least, schema.get("maximum", least), schema.get("exclusiveMaximum", least + 1) - 1)
