"""Validation of the receivers of a run's events: its webhook, and its A2A push. All ways to submit use it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from holdfast.config.redact import shown
from holdfast.errors import InputError
from holdfast.events.sinks.addresses import leads_inside

if TYPE_CHECKING:
    from collections.abc import Mapping

URL_PATTERN: Final = "^https?://[!-~]+$"
URL_MUST: Final = "be an http:// or https:// URL"
URL_LONGEST: Final = 2048
UNBROKEN_PATTERN: Final = "^[!-~]*$"
UNBROKEN_MUST: Final = "be printable ASCII characters without blanks"
TOKEN_LONGEST: Final = 1024
_PUSH: Final = ("url", "token")

_is_url = re.compile(URL_PATTERN).fullmatch
_is_token = re.compile(UNBROKEN_PATTERN).fullmatch


def _has_port(url: str) -> bool:
    """Return whether a URL has a host and a port to connect to."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def require_public(webhook: str, push: Mapping[str, Any]) -> None:
    """Raise InputError if a receiver is in our own network: the relay would not call it."""
    for what, url in (("webhook", webhook), ("push.url", push.get("url", ""))):
        if url and leads_inside(url):
            got = shown(url, url=True)
            raise InputError(
                f"{what} leads to a private address, which the relay does not call: {got!r:.130}; to allow "
                "it, set relay.private_webhooks (HOLDFAST_RELAY_PRIVATE_WEBHOOKS=true) here and for the relay"
            )


def check_receivers(webhook: str, push: Mapping[str, Any]) -> None:
    """Raise InputError for a receiver that can't be called; an empty one is not a receiver."""
    if webhook:
        _require_url(webhook, "webhook")
    if not push:
        return
    if unknown := [name for name in push if name not in _PUSH]:
        raise InputError(f"push has {unknown[0]!r:.80}, which is not one of {', '.join(_PUSH)}")
    _require_url(push.get("url"), "push.url")
    token = push.get("token", "")
    if not isinstance(token, str) or len(token) > TOKEN_LONGEST or not _is_token(token):
        raise InputError(f"push.token must {UNBROKEN_MUST}, at most {TOKEN_LONGEST}")


def _require_url(value: object, what: str) -> None:
    if not isinstance(value, str) or len(value) > URL_LONGEST or not _is_url(value) or not _has_port(value):
        got = shown(value, url=True) if isinstance(value, str) else value
        raise InputError(f"{what} must {URL_MUST} of at most {URL_LONGEST} characters, got {got!r:.130}")
