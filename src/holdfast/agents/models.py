"""Models as JSON: pydantic models, dataclasses, TypedDicts and msgspec Structs, in and out.

An agent whose input is annotated with one is called with one. Any other annotation promises nothing, and the
agent gets the JSON as it was sent. No pydantic is imported here: a model brings its own.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec.inspect import CustomType, Field, type_info

from holdfast.errors import AppError, InputError
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MOST_SHOWN = 5
_log = get_logger(__name__)


class InputType:
    """The type of an agent's input; looked up once, when it is declared or when its app has been loaded."""

    def __init__(self, name: str, whose: str, call: Callable[..., Any], annotation: Any) -> None:
        self.whose = whose
        self._name = name
        self._call = call
        self._annotation = annotation
        self._read: Callable[[Any], Any] | None = None
        self._wanted = ""
        self._hint: Any = None

    @property
    def model(self) -> Any:
        """The annotation, looked up; None if it is no model."""
        self.complete()
        return self._hint

    def look_up(self) -> bool:
        """Return whether it is a model; AppError if JSON can't be read as it, NameError if it is unknown."""
        hint = hint_of(self._call, self._annotation)
        if not holds_model(hint):
            self._read = _as_it_is
            return False
        self._wanted = _name(hint)
        self._read = _reader(self.whose, self._wanted, hint)
        self._hint = hint
        return True

    def complete(self) -> None:
        """Look it up if that has not worked yet; a name that only a type checker knows is left alone."""
        if self._read is not None:
            return
        try:
            self.look_up()
        except AppError:
            raise
        except Exception as exc:
            if self._wanted:
                why = f"its types can't be looked up ({exc}): import them outside of TYPE_CHECKING"
                raise AppError(f"{self.whose}: its input is a {self._wanted}, but {why}") from exc
            self._read = _as_it_is
            _log.warning(
                "the type of an agent's input can't be looked up, so the input stays as it is sent: "
                "import it outside of TYPE_CHECKING",
                agent=self._name,
                annotation=str(self._annotation),
                error=str(exc),
            )

    def read(self, payload: Any) -> Any:
        """Make the model out of what was sent; InputError says which field does not fit."""
        self.complete()
        assert self._read is not None
        try:
            return self._read(payload)
        except (msgspec.ValidationError, ValueError) as exc:
            raise InputError(f"{self.whose}: the input does not fit {self._wanted}: {_worded(exc)}") from None


def input_type(
    name: str, whose: str, call: Callable[..., Any], parameter: inspect.Parameter
) -> InputType | None:
    """Return the type of an agent's input, None if it is no model; ``whose`` begins its errors."""
    if parameter.annotation in {parameter.empty, Any, dict, "Any", "dict"}:
        return None
    found = InputType(name, whose, call, parameter.annotation)
    try:
        return found if found.look_up() else None
    except AppError:
        raise
    except Exception:
        return found  # a name that may be defined further down: it is looked up when the app is loaded


def dumped(value: Any) -> Any:
    """Write what msgspec can't: models of pydantic, by alias, as others expect them."""
    return _dumped(value, by_alias=True)


def dumped_to_keep(value: Any) -> Any:
    """Write what msgspec can't, so that ``read_kept`` finds it: an alias may be for writing only."""
    return _dumped(value, by_alias=not _reads_names(type(value)))


def read_kept(model: Any, data: bytes) -> Any:
    """Read a model of pydantic that ``dumped_to_keep`` has written, or one that was written by alias."""
    if _reads_names(model):
        return model.model_validate_json(data, by_alias=True, by_name=True)
    return model.model_validate_json(data)


def _dumped(value: Any, *, by_alias: bool) -> Any:
    kind = type(value).__name__
    try:
        if hasattr(value, "model_dump"):
            return value.model_dump(mode="json", by_alias=by_alias)
    except (TypeError, ValueError, RecursionError):
        raise
    except Exception as exc:
        # The model's own code raised, such as a computed field. As it is, the error would end the process
        # that writes a result, and the run would be tried again as if its worker had crashed.
        raise ValueError(f"writing the {kind} raised {type(exc).__name__}: {exc}") from exc
    raise TypeError(f"a value of type {kind} can't be written as JSON")


def _reads_names(model: Any) -> bool:
    """Whether a model can be read by the names of its fields: pydantic 2.11 and later."""
    read = getattr(model, "model_validate_json", None)
    return read is not None and "by_name" in inspect.signature(read).parameters


def unwritable(value: Any) -> str:
    """Say where in a value the first thing is that can't be written as JSON."""
    path = "$"
    for _ in range(100):
        inner = next(((where, part) for where, part in _parts(value) if not _writable(part)), None)
        if inner is None:
            break
        path, value = path + inner[0], inner[1]
    kind = type(value).__name__
    return f"{path} is {'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def _as_it_is(payload: Any) -> Any:
    return payload


def hint_of(call: Callable[..., Any], annotation: Any) -> Any:
    """Look up one annotation; those of other parameters may be names that only a type checker knows."""
    function = _function(call)
    # The names of a function's module, and its type parameters: `def f[T](ctx, input: T)`.
    names = {each.__name__: each for each in getattr(function, "__type_params__", ())}
    holder = types.SimpleNamespace(__annotations__={"input": annotation})
    spaces = (getattr(function, "__globals__", {}), names)
    return typing.get_type_hints(cast("Any", holder), *spaces, include_extras=True)["input"]


def _function(call: Any) -> Any:
    """The function that an agent is in the end, whose module knows the names of its annotations."""
    while isinstance(call, functools.partial):
        call = cast("functools.partial[Any]", call).func
    call = inspect.unwrap(call)
    call = getattr(call, "__func__", call)
    return call if hasattr(call, "__globals__") else type(call).__call__


def holds_model(hint: Any) -> bool:
    """Whether an annotation is a model, or one of its parts is."""
    return _is_model(hint) or any(map(holds_model, typing.get_args(hint)))


def _is_model(hint: Any) -> bool:
    found: Any = typing.get_origin(hint) or hint
    if not inspect.isclass(found):
        return False
    own: Any = found  # not narrowed by each test
    known = issubclass(own, msgspec.Struct) or dataclasses.is_dataclass(own)
    return known or typing.is_typeddict(own) or is_pydantic(own)


def is_pydantic(found: Any) -> bool:
    """Whether a class is a model or a dataclass of pydantic."""
    return hasattr(found, "__pydantic_validator__")


def _reader(whose: str, wanted: str, hint: Any) -> Callable[[Any], Any]:
    if is_pydantic(hint):
        _require_complete(hint)
        return functools.partial(_read_pydantic, hint)
    try:
        msgspec.json.Decoder(hint)
        _require_readable(hint)
    except (TypeError, RuntimeError) as exc:
        raise AppError(f"{whose}: its input is a {wanted}, which JSON can't be read as: {exc}") from exc
    return functools.partial(msgspec.convert, type=hint, dec_hook=_read_pydantic, str_keys=True)


def _require_complete(model: Any) -> None:
    rebuild = getattr(model, "model_rebuild", None)
    if not getattr(model, "__pydantic_complete__", True) and rebuild is not None:
        rebuild()  # raises if a name of a field is not known yet


def _read_pydantic(model: Any, payload: Any) -> Any:
    """Read one model, as JSON: its strict types know what a date is in JSON."""
    if not is_pydantic(model):
        raise ValueError(f"Expected `{model.__name__}`, which can't be sent as JSON")
    try:
        return model.__pydantic_validator__.validate_json(msgspec.json.encode(payload))
    except ValueError as exc:
        raise _Misfit(exc) from None


class _Misfit(ValueError):
    """Why a model of pydantic could not be read; if it is inside another type, msgspec adds where that is."""

    def __init__(self, exc: ValueError) -> None:
        self.exc = exc
        super().__init__(_worded(exc))


def _require_readable(hint: Any) -> None:
    """Raise TypeError if a field that must be sent is of a class that nothing in JSON can be."""
    for where, info in _required(type_info(hint), "", set()):
        if isinstance(info, CustomType) and not is_pydantic(info.cls):
            at = f"field `{where}` is a" if where else "it is a"
            raise TypeError(f"{at} {info.cls.__name__}")


def _required(info: Any, where: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Go through a type and those of all fields that have no default."""
    if id(info) in seen:  # a type that holds itself
        return
    seen.add(id(info))
    yield where, info
    fields: tuple[Field, ...] = getattr(info, "fields", ())
    for field in fields:
        if field.required:
            yield from _required(field.type, f"{where}.{field.encode_name}".strip("."), seen)


def _worded(exc: Exception, root: str = "$") -> str:
    """Say what does not fit, and where: pydantic's errors in the form of msgspec's."""
    inner = exc.__cause__
    if isinstance(inner, _Misfit):
        outer = str(exc).removeprefix(str(inner))  # like " - at `$[1]`", nothing at the top
        return _worded(inner.exc, outer.removeprefix(" - at `").removesuffix("`") or "$")
    errors: Any = getattr(exc, "errors", None)
    if not callable(errors):
        return str(exc)
    found = cast("list[dict[str, Any]]", errors())
    texts = [f"{each['msg']} - at `{root}{_path(each['loc'])}`" for each in found[:_MOST_SHOWN]]
    more = f"; and {len(found) - _MOST_SHOWN} more" if len(found) > _MOST_SHOWN else ""
    return "; ".join(texts) + more


def _path(places: tuple[Any, ...]) -> str:
    return "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in places)


def _name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f".{key}", each) for key, each in cast("dict[Any, Any]", value).items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"[{at}]", each) for at, each in enumerate(cast("list[Any]", value))]
    if isinstance(value, msgspec.Struct):
        return [(f".{name}", getattr(value, name)) for name in value.__struct_fields__]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{each.name}", getattr(value, each.name)) for each in dataclasses.fields(value)]
    return []


def _writable(value: Any) -> bool:
    try:
        msgspec.json.encode(value, enc_hook=dumped)
    except (TypeError, ValueError, RecursionError, OverflowError):
        return False
    return True
