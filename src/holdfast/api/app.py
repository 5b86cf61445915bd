"""The API as an ASGI application, made for one backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from holdfast.api import (
    agents,
    batch,
    deadletters,
    events,
    execute,
    health,
    hosts,
    members,
    problems,
    queues,
    relay,
    residents,
    runs,
    scaling,
    schedules,
)
from holdfast.api.auth import Keyring, check_exposure
from holdfast.api.middleware import RequestMiddleware
from holdfast.api.openapi import describe
from holdfast.api.replies import reply
from holdfast.packages import version

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from holdfast.api.backend import Backend

_ABOUT = "Runs AI agents that finish: submit runs, follow and steer them, look after the queues."


def create_app(backend: Backend) -> FastAPI:
    """Build the API; a configuration that would expose it unasked is refused here."""
    settings = backend.system.settings
    check_exposure(settings.api)
    app = FastAPI(
        title="Holdfast",
        version=version(),
        description=_ABOUT,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        exception_handlers={HTTPException: _answer, RequestValidationError: _answer},
        # The door opens the span of a request; FastAPI would add three of its own, also for every probe.
        telemetry={"tracing": False},
    )
    app.state.backend = backend
    # The busiest first: routes are tried in order.
    for module in (
        execute,
        batch,
        events,
        runs,
        queues,
        schedules,
        agents,
        residents,
        hosts,
        deadletters,
        relay,
        members,
        scaling,
        health,
    ):
        app.include_router(module.router)
    app.include_router(runs.last_routes())
    _serve_description(app)
    app.add_middleware(
        RequestMiddleware,
        keyring=Keyring(settings.api),
        max_body_bytes=settings.api.max_body_bytes,
        redis_url=settings.redis.url,
        closing=backend.draining.is_set,
        count=backend.count,
        express={("POST", "/execute"): execute.express},
    )
    return app


def _serve_description(app: FastAPI) -> None:
    document: dict[str, Any] = {}

    async def openapi(request: Request) -> Response:
        del request
        if not document:
            document.update(describe(app))
        return reply(document)

    app.add_route("/openapi.json", openapi, include_in_schema=False)


async def _answer(request: Request, exc: Exception) -> Response:
    return problems.answer(exc, request_id=request.scope.get("request_id", ""))
