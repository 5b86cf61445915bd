"""A small HTTP server on its own thread: /metrics, /healthz and /readyz.

It answers even while agent code blocks the event loop, so a probe never kills a busy worker.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from prometheus_client.exposition import choose_encoder

from holdfast.errors import ConfigError
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from holdfast.config import MetricsSettings
    from holdfast.telemetry.metrics import Metrics

PLAIN_TEXT = "text/plain; charset=utf-8"
# A client that connects and sends nothing must not occupy a thread.
CLIENT_TIMEOUT_SECONDS = 5.0


class HttpAnswer(NamedTuple):
    """The response of a path."""

    status: HTTPStatus
    content_type: str
    body: bytes


class Exporter:
    """Serves the metrics and the health of one process; port 0 serves nothing."""

    def __init__(self, metrics: Metrics, settings: MetricsSettings, ready: Callable[[], bool]) -> None:
        self._metrics = metrics
        self._settings = settings
        self._ready = ready
        self._log = get_logger(__name__)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Bind the port and serve, or do nothing when the port is 0."""
        if not self._settings.port or self._server is not None:
            return
        self._server = self._bind()
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="holdfast-metrics", daemon=True
        )
        self._thread.start()
        self._log.info("metrics served", host=self._settings.host, port=self._settings.port)

    def stop(self) -> None:
        """Stop serving, at once."""
        server, thread = self._server, self._thread
        self._server = self._thread = None
        if server is None or thread is None:
            return
        # Wakes the accepting thread; shutdown() alone would wait for its next poll, half a second later.
        with contextlib.suppress(OSError):
            server.socket.shutdown(socket.SHUT_RDWR)
        server.shutdown()
        server.server_close()
        thread.join()

    def answer(self, path: str, accept: str = "") -> HttpAnswer:
        """Answer a path, as the handler does."""
        match path.partition("?")[0]:
            case "/metrics":
                return self._answer_metrics(accept)
            case "/healthz":
                return HttpAnswer(HTTPStatus.OK, PLAIN_TEXT, b"ok\n")
            case "/readyz":
                return self._answer_ready()
            case _:
                return HttpAnswer(HTTPStatus.NOT_FOUND, PLAIN_TEXT, b"try /metrics, /healthz or /readyz\n")

    def _answer_metrics(self, accept: str) -> HttpAnswer:
        try:
            encode, content_type = choose_encoder(accept)
            return HttpAnswer(HTTPStatus.OK, content_type, encode(self._metrics.registry))
        except Exception:
            self._log.exception("metrics not collected")
            return HttpAnswer(
                HTTPStatus.INTERNAL_SERVER_ERROR, PLAIN_TEXT, b"collecting failed; see the log\n"
            )

    def _answer_ready(self) -> HttpAnswer:
        try:
            ready = self._ready()
        except Exception:
            self._log.exception("readiness check failed")
            ready = False
        if ready:
            return HttpAnswer(HTTPStatus.OK, PLAIN_TEXT, b"ready\n")
        return HttpAnswer(HTTPStatus.SERVICE_UNAVAILABLE, PLAIN_TEXT, b"not ready\n")

    def _bind(self) -> _Server:
        host, port = self._settings.host, self._settings.port
        try:
            return _Server(host, port, self.answer)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"metrics.port (METRICS_PORT) {port} can't be opened on metrics.host {host!r}: {error}; "
                "choose another port, or 0 to serve no metrics"
            ) from error


class _Server(ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, answer: Callable[[str, str], HttpAnswer]) -> None:
        self.answer = answer
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that close their connections."""


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_TIMEOUT_SECONDS
    server_version = "holdfast"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a request."""
        answer = cast("_Server", self.server).answer(self.path, self.headers.get("Accept", ""))
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_HEAD = do_GET  # noqa: N815  the base class calls this name

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        """Probes come every few seconds: nothing to log."""
