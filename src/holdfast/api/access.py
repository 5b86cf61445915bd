"""The operations of a request's caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.operations import Operations

if TYPE_CHECKING:
    from starlette.requests import Request

    from holdfast.api.backend import Backend
    from holdfast.operations import Caller


def access(request: Request, role: str) -> Operations:
    """Return what the request's caller can ask for, if it has the role."""
    caller: Caller = request.scope["caller"]
    caller.require(role)
    backend: Backend = request.app.state.backend
    return Operations(backend.system, caller)
