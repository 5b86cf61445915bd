"""What an exception of any library tells: an HTTP status, a Retry-After, its message and traceback.

Nothing here raises, whatever the exception's own attributes do, and no library is imported for its errors.
"""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from holdfast.reliability.retry_after import read_retry_after

if TYPE_CHECKING:
    from types import TracebackType

MESSAGE_BYTES = 1024
TRACEBACK_BYTES = 4096
LONGEST_RETRY_AFTER = 86_400.0
_FRAMES = 20
_OURS = str(Path(__file__).parents[1]) + os.sep
_EXECUTOR = str(Path("concurrent", "futures", "thread.py"))
_LINKS = 50


def links(exc: BaseException) -> list[tuple[BaseException, bool]]:
    """Return the exception and what led to it, outermost first, and whether ``raise … from`` named each."""
    chain: list[tuple[BaseException, bool]] = []
    seen: set[int] = set()
    link: BaseException | None = exc
    explicit = True
    while link is not None and id(link) not in seen and len(chain) < _LINKS:
        chain.append((link, explicit))
        seen.add(id(link))
        if link.__cause__ is not None:
            link = link.__cause__
        else:
            explicit = False
            link = None if link.__suppress_context__ else link.__context__
    return chain


def leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Return the exceptions inside a group of any depth, in order, up to a bound."""
    found: list[BaseException] = []
    waiting: list[BaseException] = [group]
    while waiting and len(found) < _LINKS:
        exc = waiting.pop()
        if isinstance(exc, BaseExceptionGroup):
            nested = cast("BaseExceptionGroup[BaseException]", exc)
            waiting.extend(reversed(nested.exceptions))
        else:
            found.append(exc)
    return found


def http_status(exc: BaseException) -> int | None:
    """Return the 4xx or 5xx status an exception carries, by the names that HTTP libraries use."""
    response = _peek(exc, "response")
    candidates = (
        _peek(exc, "status_code"),  # openai, anthropic, starlette
        _peek(response, "status_code"),  # httpx, requests
        _peek(exc, "status"),  # aiohttp
        _item(_item(response, "ResponseMetadata"), "HTTPStatusCode"),  # botocore
        _peek(exc, "code"),  # urllib, google-api-core
    )
    for status in candidates:
        if isinstance(status, int) and 400 <= status <= 599:
            return int(status)
    return None


def retry_after(exc: BaseException, now: float) -> float | None:
    """Return how many seconds an exception, or the response it carries, asks to wait."""
    own = _seconds(_peek(exc, "retry_after"), now)
    if own is not None:
        return min(own, LONGEST_RETRY_AFTER)
    response = _peek(exc, "response")
    sources = (
        _peek(response, "headers"),
        _peek(exc, "headers"),
        _item(_item(response, "ResponseMetadata"), "HTTPHeaders"),
    )
    for headers in sources:
        seconds = _asked_by(headers, now)
        if seconds is not None:
            return min(seconds, LONGEST_RETRY_AFTER)
    return None


def message_of(exc: BaseException) -> str:
    """Return ``Type: message`` within MESSAGE_BYTES, for exceptions that can't even be printed too."""
    name = type(exc).__name__
    try:
        text = str(exc)
    except Exception as broken:
        text = f"(its message can't be read: __str__ raised {type(broken).__name__})"
    return bounded(f"{name}: {text}" if text else name)


def bounded(message: str) -> str:
    """Cut a message to MESSAGE_BYTES, without what UTF-8 can't carry."""
    return message.encode("utf-8", "replace")[:MESSAGE_BYTES].decode("utf-8", "ignore")


def raised_before_the_agent(exc: BaseException) -> bool:
    """Whether Holdfast raised it without any code of the agent: its frames explain nothing to a user."""
    return exc.__traceback__ is not None and _agent_frames(exc) is None


def _from_the_agent(exc: BaseException) -> TracebackType | None:
    """Return the traceback without our frames above the agent's; all of it if there are no others."""
    return _agent_frames(exc) or exc.__traceback__


def _agent_frames(exc: BaseException) -> TracebackType | None:
    frames = exc.__traceback__
    while frames is not None and _calls_agents(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return frames


def _calls_agents(filename: str) -> bool:
    return filename.startswith(_OURS) or filename.endswith(_EXECUTOR)


def traceback_of(exc: BaseException) -> str:
    """Return the last lines of the traceback, whole lines within TRACEBACK_BYTES."""
    try:
        text = "".join(traceback.format_exception(type(exc), exc, _from_the_agent(exc), limit=-_FRAMES))
    except Exception as broken:
        return f"(the traceback can't be read: {type(broken).__name__})"
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= TRACEBACK_BYTES:
        return encoded.decode("utf-8")
    tail = encoded[-TRACEBACK_BYTES:].decode("utf-8", "ignore")
    _, newline, whole_lines = tail.partition("\n")
    return whole_lines if newline and whole_lines else tail


def _asked_by(headers: object, now: float) -> float | None:
    milliseconds = _seconds(_header(headers, "retry-after-ms"), now)  # openai, azure
    if milliseconds is not None:
        return milliseconds / 1000
    return _seconds(_header(headers, "retry-after"), now)


def _seconds(value: object, now: float) -> float | None:
    """Read a number, a timedelta, or the two forms of a Retry-After header."""
    if isinstance(value, timedelta):
        return max(0.0, value.total_seconds())
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str):
        return read_retry_after(value, now)
    try:
        seconds = float(value)
    except OverflowError:
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _header(headers: object, name: str) -> object:
    """Read a header from any mapping-like object, also from a plain dict with HTTP's usual capitals."""
    get = _peek(headers, "get")
    if not callable(get):
        return None
    try:
        found: Any = get(name)
        return get(name.title()) if found is None else found
    except Exception:
        return None


def _item(holder: object, key: str) -> object:
    return cast("Mapping[str, object]", holder).get(key) if isinstance(holder, Mapping) else None


def _peek(holder: object, name: str) -> Any:
    """Read an attribute; a property of somebody else's exception may raise anything."""
    try:
        return getattr(holder, name, None)
    except Exception:
        return None
