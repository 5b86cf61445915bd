"""The sidecar of a worker: unless it is asked to quit, it keeps the pod alive after the worker's end."""

from __future__ import annotations

import asyncio
import http.client
import threading
import urllib.request

from holdfast.telemetry.logs import get_logger

_SECONDS = 2.0
"""The timeout of each read of the sidecar's response."""
_MOST_SECONDS = 3.0
"""The timeout of the whole response: one that arrives byte by byte never exceeds the timeout of a read."""
_HURRIED_SECONDS = 0.3
"""The same while agents that ignore their stop still run: other workers have their runs by then."""

_log = get_logger(__name__)


async def quit_sidecar(url: str, *, hurried: bool = False) -> None:
    """Ask the sidecar to quit, if there is one; wait for its response with a short timeout."""
    if not url:
        return
    # Not the loop's executor: its threads are joined at the end, without a timeout.
    thread = threading.Thread(target=_post, args=(url,), name="holdfast-sidecar", daemon=True)
    thread.start()
    # guard: sidecar-wait
    await asyncio.to_thread(thread.join, _HURRIED_SECONDS if hurried else _MOST_SECONDS)
    if thread.is_alive():
        _log.warning("sidecar response incomplete, exiting without it", url=url)


def _post(url: str) -> None:
    request = urllib.request.Request(url, method="POST")  # noqa: S310  the operator's own setting
    # The sidecar is in our pod: a proxy of the environment can't reach it.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_SECONDS):
            pass
    except (OSError, http.client.HTTPException) as exc:
        _log.warning(
            "sidecar quit request failed (HOLDFAST_ENVOY_QUIT_URL)",
            url=url,
            error=str(exc) or type(exc).__name__,
        )
