"""How a run is named in a request: its id in the path, and its queue if another one knows the same id.

Invariant: a slash of an id that is written %2F is no slash of the path, so every id has a path of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import Path, Query
from fastapi.routing import APIRoute
from starlette.routing import Match

if TYPE_CHECKING:
    from starlette.types import Scope

RunId = Annotated[
    str,
    Path(
        description="The run's id; a slash in it may be written %2F, and must be if it ends like /result.",
        min_length=1,
        max_length=256,
        pattern="^[!-~]+$",
        examples=["0192f0c1-7e6a-7c3b-9d54-0a8f5e1b2c3d"],
    ),
]

OfQueue = Annotated[
    str, Query(description="The queue that the run is in; without it, the first that knows the id.")
]


class VerbRoute(APIRoute):
    """A route that ends in a verb, like ``/runs/{run_id:path}/result``: it is not for ids that end so."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match only if the verb was written as a part of the path, not as the end of an id."""
        match, child = super().matches(scope)
        if match is Match.NONE or self.path.endswith("}"):
            return match, child
        verb = self.path.rpartition("/")[2].encode()
        # Without a raw path, of a server that gives none, nobody can tell.
        raw: bytes = scope.get("raw_path") or b"/" + verb
        return (match, child) if raw.rpartition(b"/")[2] == verb else (Match.NONE, {})
