"""The sidecar beside a process that leaves: it would keep the pod alive if nobody told it."""

from __future__ import annotations

import asyncio
import http.client
import threading
import urllib.request

from holdfast.telemetry.logs import get_logger

_SECONDS = 2.0
"""How long the sidecar may be silent."""
_MOST_SECONDS = 3.0
"""How long it may take altogether: one that answers byte by byte is never silent."""
_HURRIED_SECONDS = 0.3
"""The same while agents that ignore their stop go on beside those that have their runs now."""

_log = get_logger(__name__)


async def quit_sidecar(url: str, *, hurried: bool = False) -> None:
    """Tell the sidecar to leave too, if there is one; its answer is not waited for long."""
    if not url:
        return
    # Not the loop's executor: that is joined at the end, however long its threads take.
    thread = threading.Thread(target=_post, args=(url,), name="holdfast-sidecar", daemon=True)
    thread.start()
    # guard: sidecar-wait
    await asyncio.to_thread(thread.join, _HURRIED_SECONDS if hurried else _MOST_SECONDS)
    if thread.is_alive():
        _log.warning("the sidecar still answers the goodbye: leaving without the rest", url=url)


def _post(url: str) -> None:
    request = urllib.request.Request(url, method="POST")  # noqa: S310  the operator's own setting
    # It is in our pod: a proxy that the environment names for the world outside can't reach it.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_SECONDS):
            pass
    except (OSError, http.client.HTTPException) as exc:
        _log.warning(
            "the sidecar did not take the goodbye: is HOLDFAST_ENVOY_QUIT_URL right?",
            url=url,
            error=str(exc) or type(exc).__name__,
        )
