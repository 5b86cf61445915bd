"""Options of a command, derived from the fields of a Struct: their types, limits, defaults and help."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, get_args

import typer
from msgspec import inspect as kinds
from typer.models import ArgumentInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import msgspec

Command = TypeVar("Command", bound=Callable[..., Any])

_UNLIMITED: Final = 1_000_000_000
"""A limit that only keeps damage out; help does not show it."""


def derived(
    shape: type[msgspec.Struct], *, flags: Mapping[str, tuple[str, ...]], without: tuple[str, ...]
) -> Callable[[Command], Command]:
    """Give a command an option for each other field of ``shape``, which it receives as a keyword.

    Types, limits, defaults and help are those of the field; ``flags`` names options that differ from it.
    """

    def add(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        arguments = [each for each in own if _is_argument(each)]
        rest = [each.replace(kind=each.KEYWORD_ONLY) for each in own if each not in arguments]
        fields = [field for field in _fields_of(shape) if field.name not in without]
        added = [_option(field, flags.get(field.name) or (flag_of(field.name),)) for field in fields]
        extended: Any = command
        extended.__signature__ = signature.replace(parameters=[*arguments, *added, *rest])
        return command

    return add


def _is_argument(parameter: inspect.Parameter) -> bool:
    return any(isinstance(each, ArgumentInfo) for each in get_args(parameter.annotation))


def _fields_of(shape: type[msgspec.Struct]) -> tuple[kinds.Field, ...]:
    described = kinds.type_info(shape)
    assert isinstance(described, kinds.StructType)
    return described.fields


def _option(field: kinds.Field, flags: tuple[str, ...]) -> inspect.Parameter:
    parts = list(_parts(field.type))
    notes: list[Any] = [part for part in parts if isinstance(part, kinds.Metadata)]
    number = next((part for part in parts if isinstance(part, kinds.IntType)), None)
    option = typer.Option(
        *flags,
        metavar=next((note.extra["metavar"] for note in notes if "metavar" in (note.extra or ())), None),
        help=next((note.extra_json_schema["description"] for note in notes if note.extra_json_schema), ""),
        min=number and number.ge,
        max=number.le if number and (number.le or 0) < _UNLIMITED else None,
    )
    kind: Any = int if number else bool if any(isinstance(part, kinds.BoolType) for part in parts) else str
    default = None if field.default == "" else field.default
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind | None if default is None else kind, option],
    )


def _parts(kind: kinds.Type) -> Iterator[kinds.Type]:
    """Yield a type, the notes around it and the members of a union, the outermost first."""
    yield kind
    if isinstance(kind, kinds.Metadata):
        yield from _parts(kind.type)
    elif isinstance(kind, kinds.UnionType):
        for each in kind.types:
            yield from _parts(each)


def flag_of(field: str) -> str:
    """Return the option that a field has: ``starts_at`` is ``--starts-at``."""
    return f"--{field.replace('_', '-')}"
