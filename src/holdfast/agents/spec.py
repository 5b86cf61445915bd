"""What an agent is: a function, how to call it, and its limits.

Everything that can be wrong with an agent's declaration is found here, before any run.
"""

from __future__ import annotations

import inspect
import re
import reprlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from holdfast.agents.context import Context, SyncContext
from holdfast.agents.frameworks import adapt
from holdfast.agents.logfields import LogFields, checked_log_fields
from holdfast.agents.models import InputType, input_type
from holdfast.config import duration_seconds
from holdfast.errors import AppError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta

Isolation: TypeAlias = Literal["loop", "thread", "process"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")
LONGEST_TIMEOUT_SECONDS = 365 * 86400
_NICEST = 19
_SHAPES = "an agent takes (ctx, input), (input), (ctx) or nothing"


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """One registered agent; limits that are None are the queue's."""

    name: str
    call: Callable[..., Any]
    is_async: bool
    wants_context: bool
    wants_input: bool
    timeout_seconds: float | None = None
    max_attempts: int | None = None
    retry_programming_errors: bool | None = None
    """Whether a first attempt that ends with a TypeError, KeyError … is followed by another."""
    isolation: Isolation = "loop"
    description: str = ""
    concurrency: int | None = None
    """How many of its runs go on at once, over all workers."""
    memory_mb: int | None = None
    nice: int | None = None
    """What the process of an attempt may use, and how far it steps back behind others."""
    input_type: InputType | None = None
    """What its input is made into, if its annotation is a model."""
    log_fields: LogFields = ()
    """Fields of its input that every log line about a run carries."""

    def arguments(self, ctx: Context | SyncContext, payload: Any) -> tuple[Any, ...]:
        """Return what to call the agent with; InputError if the input is not what it takes."""
        if self.input_type is not None:
            payload = self.input_type.read(payload)
        if self.wants_context:
            return (ctx, payload) if self.wants_input else (ctx,)
        return (payload,) if self.wants_input else ()


def describe(
    name: str,
    call: object,
    *,
    timeout: float | str | timedelta | None = None,
    max_attempts: int | None = None,
    retry_programming_errors: bool | None = None,
    isolation: Isolation | None = None,
    description: str | None = None,
    concurrency: int | None = None,
    memory_mb: int | None = None,
    nice: int | None = None,
    log_fields: Iterable[str] | None = None,
) -> AgentSpec:
    """Check an agent's declaration and make its spec; AppError says what is wrong with it."""
    require_name(name, "agent name")
    function = _callable(name, adapt(call) or call)
    is_async = _is_async(function)
    wants_context, takes = _parameters(name, function, is_async=is_async)
    return AgentSpec(
        name=name,
        call=function,
        is_async=is_async,
        wants_context=wants_context,
        wants_input=takes is not None,
        timeout_seconds=_timeout(name, timeout),
        max_attempts=_at_least_one(name, "max_attempts", max_attempts),
        retry_programming_errors=_yes_or_no(name, "retry_programming_errors", retry_programming_errors),
        concurrency=_at_least_one(name, "concurrency", concurrency),
        isolation=_isolation(name, isolation, is_async=is_async),
        description=_first_paragraph(function) if description is None else description,
        memory_mb=_of_a_process(name, isolation, "memory_mb", _at_least_one(name, "memory_mb", memory_mb)),
        nice=_of_a_process(name, isolation, "nice", _niceness(name, nice)),
        input_type=input_type(name, _named(name, function), function, takes) if takes is not None else None,
        log_fields=checked_log_fields(name, log_fields),
    )


def require_name(name: object, what: str) -> None:
    """Refuse names that can't travel in a message, a label and a URL."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise AppError(
            f"invalid {what} {name!r}: use up to 200 letters, digits, _ . : / and -, "
            "the first a letter, digit or _"
        )


def _callable(name: str, call: object) -> Callable[..., Any]:
    if isinstance(call, type):
        raise AppError(
            f"agent {name!r}: {call.__name__} is a class: register a function or a callable instance"
        )
    if not callable(call):
        what = f"{reprlib.repr(call)} is not callable"
        raise AppError(f"agent {name!r}: {what}: register a function or a callable instance")
    return call


def _is_async(call: Callable[..., Any]) -> bool:
    """Tell whether a call gives something to await or to ``async for`` over; also of callable objects."""
    tests = (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    return any(test(call) or test(type(call).__call__) for test in tests)


def _parameters(
    name: str, call: Callable[..., Any], *, is_async: bool
) -> tuple[bool, inspect.Parameter | None]:
    """Return whether the agent takes the context, and the parameter that takes the input."""
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (ValueError, TypeError):
        raise AppError(
            f"agent {name!r}: its parameters can't be read: wrap it in a function; {_SHAPES}"
        ) from None
    positional = [p for p in parameters if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}]
    wants_context = bool(positional) and _is_context(name, positional[0], is_async=is_async)
    rest = positional[1:] if wants_context else positional
    _refuse_more_than_one(name, rest, parameters)
    varargs = (p for p in parameters if p.kind is p.VAR_POSITIONAL)
    return wants_context, rest[0] if rest else next(varargs, None)


def _is_context(name: str, parameter: inspect.Parameter, *, is_async: bool) -> bool:
    annotation: Any = parameter.annotation
    # Annotations are strings under `from __future__ import annotations`.
    written = annotation.strip("'\" ").rpartition(".")[2] if isinstance(annotation, str) else ""
    if is_async and (annotation is SyncContext or written == "SyncContext"):
        raise AppError(f"agent {name!r} is async, so its context is a Context: annotate {parameter.name} so")
    return (
        parameter.name == "ctx"
        or annotation in {Context, SyncContext}
        or written in {"Context", "SyncContext"}
    )


def _refuse_more_than_one(
    name: str, rest: list[inspect.Parameter], parameters: list[inspect.Parameter]
) -> None:
    required = [p.name for p in rest if p.default is p.empty]
    if "ctx" in required:
        raise AppError(f"agent {name!r} takes ctx as its input: put ctx first; {_SHAPES}")
    keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if len(required) > 1 or keywords:
        wanted = ", ".join((required if len(required) > 1 else []) + keywords)
        raise AppError(f"agent {name!r} can't be called, it requires {wanted}: {_SHAPES}; send one dict")


def _named(name: str, call: Callable[..., Any]) -> str:
    """How an error names the agent; all residents are called 'receive', so its class is named too."""
    of = f" of {type(call.__self__).__name__}" if inspect.ismethod(call) else ""
    return f"agent {name!r}{of}"


def _timeout(name: str, timeout: float | str | timedelta | None) -> float | None:
    if timeout is None:
        return None
    try:
        seconds = duration_seconds(timeout)
    except (ConfigError, ValueError, TypeError) as exc:
        raise AppError(f"agent {name!r}: timeout {timeout!r}: {exc}") from exc
    if not 0 < seconds <= LONGEST_TIMEOUT_SECONDS:
        raise AppError(f"agent {name!r}: timeout {timeout!r} must be more than 0 and at most a year")
    return seconds


def _at_least_one(name: str, what: str, number: int | None) -> int | None:
    if number is not None and (not isinstance(number, int) or number < 1):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise AppError(f"agent {name!r}: {what} is {number!r}: a whole number, at least 1")
    return number


def _yes_or_no(name: str, what: str, value: bool | None) -> bool | None:
    if value is not None and not isinstance(value, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise AppError(f"agent {name!r}: {what} is {value!r}: True or False")
    return value


def _isolation(name: str, isolation: str | None, *, is_async: bool) -> Isolation:
    """An async agent shares the event loop, a sync one would stop it and so gets a thread."""
    fitting: Isolation = "loop" if is_async else "thread"
    if isolation == "process":
        return "process"
    if isolation is not None and isolation != fitting:
        kind = "async" if is_async else "sync"
        raise AppError(
            f"agent {name!r} is {kind}: its isolation is {fitting!r} or 'process', not {isolation!r}"
        )
    return fitting


def _niceness(name: str, nice: int | None) -> int | None:
    if nice is not None and (not isinstance(nice, int) or not 0 <= nice <= _NICEST):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise AppError(f"agent {name!r}: nice is {nice!r}: a whole number, from 0 to {_NICEST}")
    return nice


def _of_a_process(name: str, isolation: str | None, what: str, value: int | None) -> int | None:
    if value is not None and isolation != "process":
        raise AppError(f"agent {name!r}: {what} limits a process: write isolation='process' too")
    return value


def _first_paragraph(call: Callable[..., Any]) -> str:
    text = inspect.getdoc(call) if inspect.isroutine(call) else None
    return " ".join(text.partition("\n\n")[0].split()) if text else ""
