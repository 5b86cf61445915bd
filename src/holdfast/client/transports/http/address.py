"""Where the API is and what it is shown, checked before anything is sent."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from holdfast.client.transports.http.problems import SETTING
from holdfast.config.redact import shown
from holdfast.errors import ConfigError
from holdfast.packages import version
from holdfast.runs.message import PARENT_RUN
from holdfast.telemetry.logs import current_run_id
from holdfast.telemetry.traces import inject

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEY = re.compile(r"[!-~]*")
_RUN = re.compile(r"[!-~]+")


def checked_url(url: str) -> str:
    """Return the URL that paths are put behind; a proxy may have given the API a path of its own."""
    parts = _split(url)
    if parts is None or re.search(r"[\x00-\x20\x7f]", url):
        raise ConfigError(f"{SETTING} must be like http://host:8080, got {shown(url, url=True)!r}")
    if parts.username or parts.password:
        told = "must have no user or password: the key goes into api_key (client.key, HOLDFAST_API_KEY)"
        raise ConfigError(f"{SETTING} {told}")
    if parts.query or parts.fragment:
        raise ConfigError(f"{SETTING} must end with a path, without ? and #, got {shown(url, url=True)!r}")
    return url.rstrip("/")


def headers(key: str) -> Mapping[str, str]:
    """Return what every request says."""
    if not _KEY.fullmatch(key):
        # Not shown, not even in part: most of it may be right.
        raise ConfigError("api_key (client.key, HOLDFAST_API_KEY) must be printable ASCII without blanks")
    agent = f"holdfast-client/{version()}"
    shows = {"Authorization": f"Bearer {key}"} if key else {}
    return {"User-Agent": agent, "Accept": "application/json", **shows}


def origin() -> dict[str, str]:
    """Return where a request comes from: its trace, and the run whose agent sends it."""
    run_id = current_run_id()
    return {**inject(), **({PARENT_RUN: run_id} if run_id and _RUN.fullmatch(run_id) else {})}


def run_path(run_id: str, verb: str = "", **query: str) -> str:
    """Return the path of a run, or of a verb of it; an id may hold any printable character."""
    said = urlencode({name: value for name, value in query.items() if value})
    return f"/runs/{quote(run_id, safe='')}{f'/{verb}' if verb else ''}{f'?{said}' if said else ''}"


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:  # a port or a bracket that can't be
        return None
    return parts if usable else None
