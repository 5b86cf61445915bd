"""The sidecar beside a process that leaves: it would keep the pod alive if nobody told it."""

from __future__ import annotations

import asyncio
import urllib.request

from holdfast.telemetry.logs import get_logger

_SECONDS = 2.0

_log = get_logger(__name__)


async def quit_sidecar(url: str) -> None:
    """Tell the sidecar to leave too, if there is one; its answer is not waited for long."""
    if url:
        await asyncio.to_thread(_post, url)


def _post(url: str) -> None:
    request = urllib.request.Request(url, method="POST")  # noqa: S310  the operator's own setting
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS):  # noqa: S310
            pass
    except OSError as exc:
        _log.warning("the sidecar did not take the goodbye", url=url, error=str(exc))
