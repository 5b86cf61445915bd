"""Where an event comes from: what is told of its run to whoever receives it."""

from __future__ import annotations

from typing import Any, cast

import msgspec


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """A run as the outside knows it; ``trace`` and ``logger_context`` are those of whoever submitted it."""

    run_id: str
    queue: str
    agent: str = ""
    thread_id: str = ""
    tenant: str = ""
    client_id: str = ""
    project_id: str = ""
    trace: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    logger_context: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


class Address(msgspec.Struct, frozen=True):
    """Where the events of a run go, apart from the Event API; ``push`` is JSON."""

    webhook: str = ""
    push: str = ""


class _Said(msgspec.Struct, frozen=True):
    """The part of a run's message that matters here; what has the wrong type is passed over."""

    thread_id: Any = ""
    client_id: Any = ""
    project_id: Any = ""
    tenant: Any = ""
    webhook: Any = ""
    push: Any = None
    trace: Any = None
    logger_context: Any = None


def read_origin(
    message: bytes, *, run_id: str, queue: str, agent: str, thread_id: str, tenant: str
) -> tuple[Origin, Address]:
    """Read what a run's record and its message say; a message that nobody can read says nothing."""
    said = _said(message)
    trace = _mapping(said.trace)
    origin = Origin(
        run_id=run_id,
        queue=queue,
        agent=agent,
        thread_id=_text(said.thread_id) or thread_id,
        tenant=tenant or _text(said.tenant),
        client_id=_text(said.client_id),
        project_id=_text(said.project_id),
        trace={name: value for name, value in trace.items() if isinstance(value, str)},
        logger_context=_mapping(said.logger_context),
    )
    push = _mapping(said.push)
    return origin, Address(_text(said.webhook), msgspec.json.encode(push).decode() if push else "")


def _said(message: bytes) -> _Said:
    try:
        return msgspec.json.decode(message, type=_Said)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Said()


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _mapping(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
