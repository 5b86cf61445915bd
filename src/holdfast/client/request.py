"""What a caller may say about a run, in the caller's words; checked before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict, cast

from holdfast.config import duration_seconds
from holdfast.errors import ConfigError, InputError
from holdfast.runs.run import Multitask, Priority, Submission
from holdfast.runs.submit import check_words

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    Duration = float | str | timedelta


PriorityName: TypeAlias = Literal["high", "normal", "low"]
MultitaskName: TypeAlias = Literal["enqueue", "reject", "interrupt", "rollback"]


class SubmitOptions(TypedDict, total=False):
    """The keywords of ``submit``; durations are seconds, ``"5m"`` or a timedelta."""

    queue: str | None
    run_id: str
    correlation_id: str
    thread_id: str
    priority: PriorityName | Priority
    delay: Duration
    timeout: Duration | None
    idempotency_key: str
    metadata: Mapping[str, Any] | None
    client_id: str
    project_id: str
    tenant: str
    webhook: str
    push: Mapping[str, Any] | None
    logger_context: Mapping[str, Any] | None
    multitask: MultitaskName | Multitask
    concurrency_key: str


class SubmitRequest(SubmitOptions):
    """One item of ``submit_many``."""

    agent: str
    input: Any


_WORDS: Final = ("agent", "input", *SubmitOptions.__annotations__)


def requested(request: object) -> tuple[str | None, Submission]:
    """Return the queue and what is sent for an item of ``submit_many``, or raise InputError."""
    if not isinstance(request, Mapping):
        raise InputError(f"a request must be a mapping with the words of submit, got {request!r:.60}")
    options: dict[str, Any] = dict(cast("Mapping[str, Any]", request))
    if told := _unknown(options):
        raise InputError(told)
    queue = options.pop("queue", None)
    return queue, submission(options.pop("agent", None), **options)


def submission(
    agent: str,
    input: Any = None,  # noqa: A002 - the public name of what an agent is given
    *,
    run_id: str = "",
    correlation_id: str = "",
    priority: str = "normal",
    delay: Duration = 0,
    timeout: Duration | None = None,
    metadata: Mapping[str, Any] | None = None,
    multitask: str = "enqueue",
    push: Mapping[str, Any] | None = None,
    logger_context: Mapping[str, Any] | None = None,
    **rest: Any,
) -> Submission:
    """Return what is sent for a request, or raise InputError that names what is wrong with it."""
    if told := _unknown(rest):
        raise TypeError(told)
    _require_text(agent=agent, run_id=run_id, correlation_id=correlation_id, **rest)
    if run_id and correlation_id and run_id != correlation_id:
        raise InputError(f"run_id {run_id!r} and correlation_id {correlation_id!r} are two names of one id")
    wanted = Submission(
        agent=agent,
        input=input,
        run_id=run_id or correlation_id,
        priority=_priority(priority),
        delay_seconds=seconds_of("delay", delay),
        timeout_seconds=None if timeout is None else _timeout(timeout),
        metadata=_named(metadata, "metadata"),
        multitask=_multitask(multitask),
        push=_named(push, "push"),
        logger_context=_named(logger_context, "logger_context"),
        **rest,
    )
    check_words(wanted)
    return wanted


def seconds_of(name: str, value: Duration) -> float:
    """Return a duration that a caller gave in seconds, or raise InputError that names it."""
    try:
        return duration_seconds(value)
    except (ConfigError, TypeError) as exc:
        raise InputError(f"{name}: {exc}") from exc


def _unknown(words: Iterable[str]) -> str:
    """Say which of these is no word of ``submit``, and which are; nothing if all are."""
    unknown = next((word for word in words if word not in _WORDS), None)
    return "" if unknown is None else f"submit has no option {unknown!r:.60}: it has {', '.join(_WORDS)}"


def _require_text(**values: object) -> None:
    for name, value in values.items():
        if not isinstance(value, str):
            raise InputError(f"{name} must be text, got {value!r}")


def _priority(value: str) -> Priority:
    try:
        return Priority(value)
    except ValueError:
        raise InputError(f"priority must be one of {', '.join(Priority)}, got {value!r}") from None


def _multitask(value: str) -> Multitask:
    try:
        return Multitask(value)
    except ValueError:
        raise InputError(f"multitask must be one of {', '.join(Multitask)}, got {value!r}") from None


def _timeout(value: Duration) -> float:
    seconds = seconds_of("timeout", value)
    if not seconds:
        raise InputError("timeout must be more than 0: leave it out for the agent's own, or the queue's")
    return seconds


def _named(value: Mapping[str, Any] | None, what: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
        raise InputError(f"{what} must be a mapping of names to values, got {value!r:.60}")
    given = dict(value)
    for key in given:
        if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
            raise InputError(f"{what} must have text as its keys, got {key!r}")
    return given
