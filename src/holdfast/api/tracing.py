"""Where a request comes from: its trace, as W3C Trace Context has it, and the run whose agent sent it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypedDict

from holdfast.runs.message import PARENT_RUN

if TYPE_CHECKING:
    from collections.abc import Mapping

_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?")
_LONGEST_PARENT: Final = 256
_STATE = re.compile(r"[ -~]{1,512}")
_RUN = re.compile(r"[!-~]{1,256}")

HEADERS: Final[list[dict[str, Any]]] = [
    {
        "name": "traceparent",
        "in": "header",
        "required": False,
        "description": "The span that the run's span is a child of (W3C Trace Context).",
        "schema": {"type": "string", "maxLength": _LONGEST_PARENT},
    },
    {
        "name": "tracestate",
        "in": "header",
        "required": False,
        "description": "What goes with it.",
        "schema": {"type": "string", "maxLength": 512},
    },
    {
        "name": PARENT_RUN,
        "in": "header",
        "required": False,
        "description": "The run whose agent asks for this one; clients send it by themselves.",
        "schema": {"type": "string", "maxLength": _LONGEST_PARENT},
    },
]


class Origin(TypedDict):
    """What a submission takes over from its request."""

    trace: dict[str, str]
    parent: str


def origin_of(headers: Mapping[str, str]) -> Origin:
    """Return where a submission comes from; a header that can't be read is ignored."""
    parent = headers.get(PARENT_RUN, "")
    return {"trace": trace_of(headers), "parent": parent if _RUN.fullmatch(parent) else ""}


def trace_of(headers: Mapping[str, str]) -> dict[str, str]:
    """Return what travels with a run; a header that can't be one is ignored, as its standard wants."""
    parent = headers.get("traceparent", "").strip()
    if not parent or len(parent) > _LONGEST_PARENT or not _PARENT.fullmatch(parent):
        return {}
    if parent.startswith("00-") and len(parent) > len("00-") + 32 + 1 + 16 + 3:
        return {}
    state = headers.get("tracestate", "").strip()
    return {"traceparent": parent, **({"tracestate": state} if _STATE.fullmatch(state) else {})}
