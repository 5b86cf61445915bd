"""Security of the calls to a host: TLS, certificates of both sides, and a token.

Without TLS a host listens on loopback only, unless hosts.insecure is set.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc import aio

from holdfast.errors import ConfigError
from holdfast.rpc.tls import read_file, tls_credentials

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.config import HostSettings

MAX_MESSAGE_BYTES: Final = 32 * 2**20
"""The largest request or response of a call."""
_METADATA: Final = "authorization"


def server_credentials(settings: HostSettings) -> grpc.ServerCredentials | None:
    """Return the credentials of a host's server; None without TLS, which only loopback may have."""
    if not settings.tls_certificate:
        if not settings.insecure and not _is_loopback(settings.listen):  # guard: insecure-host-loopback
            raise ConfigError(
                f"hosts.listen = {settings.listen!r} reaches beyond this machine: set hosts.tls_certificate "
                "and hosts.tls_key, or hosts.insecure if the network is trusted."
            )
        return None
    mutual = bool(settings.tls_ca) and settings.tls_verify_callers  # guard: client-certificate-required
    return tls_credentials(settings, mutual=mutual)


def tls_stamp(settings: HostSettings) -> tuple[int, ...]:
    """Return a stamp that changes with the TLS files: older channels are not used any more then."""
    files = [path for path in (settings.tls_ca, settings.tls_certificate, settings.tls_key) if path]
    stamps: list[int] = []
    for path in files:
        with contextlib.suppress(OSError):  # missing for a moment; the reader of the file raises its error
            found = Path(path).stat()
            stamps += (found.st_mtime_ns, found.st_ino)
    return tuple(stamps)


def open_channel(address: str, settings: HostSettings) -> aio.Channel:
    """Open a channel to a host with the credentials of the settings."""
    # A host that is back is reconnected soon, and a dead one does not block a call for 20 seconds.
    options = [
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
        # guard: grpc-connect-timeout
        ("grpc.min_reconnect_backoff_ms", 2000),  # which is also how long a connection may take
        ("grpc.enable_http_proxy", 0),
        # As much as a host accepts: its response has the specs of all its agents.
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ]
    mutual = bool(settings.tls_certificate)
    if not settings.tls_ca and not mutual:
        return aio.insecure_channel(address, options=options)
    credentials = grpc.ssl_channel_credentials(
        read_file(settings.tls_ca, "hosts.tls_ca") if settings.tls_ca else None,  # None: the machine's own
        read_file(settings.tls_key, "hosts.tls_key") if mutual else None,
        read_file(settings.tls_certificate, "hosts.tls_certificate") if mutual else None,
    )
    return aio.secure_channel(address, credentials, options=options)


def call_metadata(settings: HostSettings) -> tuple[tuple[str, str], ...]:
    """Return the metadata of every call."""
    return ((_METADATA, f"Bearer {settings.token}"),) if settings.token else ()


class TokenCheck(aio.ServerInterceptor):
    """Rejects calls without the token; probes need none."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Serve or reject a call."""
        if handler_call_details.method.startswith("/grpc.health.v1.Health/"):
            return await continuation(handler_call_details)
        token = next(
            (value for key, value in handler_call_details.invocation_metadata or () if key == _METADATA), ""
        )
        token = token.encode() if isinstance(token, str) else token
        if hmac.compare_digest(token, self._expected):  # guard: host-token
            return await continuation(handler_call_details)
        return grpc.unary_unary_rpc_method_handler(_reject)


async def _reject(request: bytes, context: aio.ServicerContext[bytes, bytes]) -> bytes:
    del request
    return await context.abort(
        grpc.StatusCode.UNAUTHENTICATED,
        "This host requires its token: set hosts.token (HOLDFAST_HOSTS_TOKEN).",
    )


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
