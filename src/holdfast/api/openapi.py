"""The description of the API: shapes from msgspec, examples from beside the routes, problems everywhere."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec
from fastapi.openapi.utils import get_openapi

from holdfast.api import shapes
from holdfast.packages import missing_extra
from holdfast.scaling.depth import Need
from holdfast.views import (
    agents,
    dead_letters,
    hosts,
    members,
    queues,
    residents,
    runs,
    schedule_options,
    schedules,
    undelivered,
)
from holdfast.views.problems import MEDIA_TYPE, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fastapi import FastAPI

_REF: Final = "#/components/schemas/{name}"
_PROBLEMS: Final[Mapping[int, tuple[str, str, str]]] = {
    401: ("A key is needed.", "unauthorized", "send a key: `Authorization: Bearer <key>`"),
    403: (
        "The caller may not do this.",
        "forbidden",
        "the key 'dashboard' has the role read; this needs the role submit",
    ),
    404: ("Not found.", "not-found", "no run 'x' is known here: check the id"),
    409: (
        "Conflicts with the current state.",
        "conflict",
        "run 7 is running: only an interrupted run takes an answer",
    ),
    410: (
        "The run ended long ago: its record is in the archive, its events are not.",
        "events-expired",
        "the events of run 7 are not kept any more: only its record is in the archive",
    ),
    413: (
        "The body is too large.",
        "too-large",
        "a body may have 2097152 bytes (api.max_body_bytes): send less, or a reference to it",
    ),
    422: ("The request is not valid.", "invalid", "body: Object missing required field `agent_id`"),
    429: (
        "The queue is full or paused; Retry-After says when to come back.",
        "queue-full",
        "queue 'agent-queue' holds 100003 runs, its max_depth (STREAM_MAXLEN) is 100000; try again later",
    ),
    501: (
        "A part that this needs is not installed in this API.",
        "not-installed",
        f"{missing_extra('this', 'grpc', 'hosts')} where the API runs",
    ),
    503: (
        "Redis does not answer; Retry-After says when to come back.",
        "redis-unavailable",
        "what this needs (Redis, or the database) does not answer now: try again after Retry-After seconds",
    ),
}


def answers(
    status: int = 0,
    shape: type | None = None,
    description: str = "",
    example: Any = None,
    *,
    errors: Iterable[int] = (),
) -> dict[int | str, dict[str, Any]]:
    """Describe an answer, and the problems that may come instead."""
    described: dict[int | str, dict[str, Any]] = {}
    if shape is not None:
        content = {"schema": _ref(shape), **({"example": example} if example is not None else {})}
        described[status] = {"description": description, "content": {"application/json": content}}
    for code in errors:
        sentence, slug, detail = _PROBLEMS[code]
        example = {
            "type": f"urn:holdfast:problem:{slug}",
            "title": HTTPStatus(code).phrase,
            "status": code,
            "detail": detail,
            "request_id": "5f0c2a7be1d94b3c8a6e7d10",
        }
        content = {"schema": _ref(Problem), "example": example}
        described[code] = {"description": sentence, "content": {MEDIA_TYPE: content}}
        if code in {429, 503}:
            described[code]["headers"] = {
                "Retry-After": {"schema": {"type": "string"}, "description": "Seconds."}
            }
    return described


def takes(shape: type, examples: Mapping[str, Any], *, required: bool = True) -> dict[str, Any]:
    """Describe a body."""
    named = {name: {"value": value} for name, value in examples.items()}
    content = {"application/json": {"schema": _ref(shape), "examples": named}}
    return {"requestBody": {"required": required, "content": content}}


def describe(app: FastAPI) -> dict[str, Any]:
    """Write the whole description."""
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    _, components = msgspec.json.schema_components(_shapes(), ref_template=_REF)
    parts: dict[str, Any] = document.setdefault("components", {})
    parts["schemas"] = components
    parts["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "A key of `holdfast api new-key`."}
    }
    document["security"] = [{"key": []}, {}]
    for operations in document["paths"].values():
        for operation in operations.values():
            _complete(operation)
    return document


def _complete(operation: dict[str, Any]) -> None:
    """FastAPI describes its own validation errors, which never leave here: ours are problems."""
    answers_of: dict[str, Any] = operation["responses"]
    if MEDIA_TYPE not in answers_of.get("422", {}).get("content", {MEDIA_TYPE: 0}):
        answers_of.update({f"{code}": text for code, text in answers(errors=(422,)).items()})


def _shapes() -> list[type]:
    modules = (
        *(shapes, schedule_options),
        *(runs, queues, dead_letters, undelivered, members, agents, hosts, residents, schedules),
    )
    found = [value for each in modules for value in vars(each).values() if isinstance(value, type)]
    return [each for each in (*found, Need, Problem) if issubclass(each, msgspec.Struct)]


def _ref(shape: type) -> dict[str, str]:
    return {"$ref": _REF.format(name=shape.__name__)}
