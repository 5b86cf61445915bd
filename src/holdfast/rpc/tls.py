"""TLS of a gRPC server: its certificate, the authority of its callers, and files that change."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

import grpc

from holdfast.errors import ConfigError
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

_log = get_logger(__name__)


class TlsFiles(Protocol):
    """The files of one server; ``section`` is where the settings name them."""

    section: ClassVar[str]

    @property
    def tls_certificate(self) -> str:
        """The file with its certificate."""
        ...

    @property
    def tls_key(self) -> str:
        """The file with the key of it."""
        ...

    @property
    def tls_ca(self) -> str:
        """The file with the authority of the callers' certificates."""
        ...


def tls_credentials(settings: TlsFiles, *, mutual: bool) -> grpc.ServerCredentials:
    """What a server shows, and asks of its callers if ``mutual``; files that change are read again."""
    _check_pair(settings)  # guard: certificate-pair-at-start
    last = _files(settings)

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        """What to show from here on; None if that has not changed. Asked with every connection."""
        nonlocal last
        try:
            _check_pair(settings)  # guard: certificate-pair-on-reload
            now = _files(settings)
        except ConfigError as exc:
            # Half written, or gone for a moment: what was read before still holds.
            _log.error("the new certificate can't be used: the old one stays", error=str(exc))
            return None
        if now == last:  # guard: server-certificate-reload
            return None
        last = now
        _log.info("a new certificate is shown", file=settings.tls_certificate)
        return _configuration(now, mutual=mutual)

    # The stubs do not know that None means "as before".
    fetch = cast("Callable[[], grpc.ServerCertificateConfiguration]", renewed)
    return grpc.dynamic_ssl_server_credentials(_configuration(last, mutual=mutual), fetch, mutual)


def _configuration(
    files: tuple[bytes, bytes, bytes | None], *, mutual: bool
) -> grpc.ServerCertificateConfiguration:
    key, certificate, authority = files
    return grpc.ssl_server_certificate_configuration([(key, certificate)], authority if mutual else None)


def _files(settings: TlsFiles) -> tuple[bytes, bytes, bytes | None]:
    section = settings.section
    return (
        read_file(settings.tls_key, f"{section}.tls_key"),
        read_file(settings.tls_certificate, f"{section}.tls_certificate"),
        read_file(settings.tls_ca, f"{section}.tls_ca") if settings.tls_ca else None,
    )


def _check_pair(settings: TlsFiles) -> None:
    """Say at once what gRPC would say to every caller, in words of its own or not at all."""
    section = settings.section
    if not settings.tls_key:
        raise ConfigError(f"{section}.tls_certificate is set, but {section}.tls_key is not: TLS needs both.")
    _files(settings)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_certificate, settings.tls_key)
    except (ssl.SSLError, OSError) as exc:
        raise ConfigError(
            f"{section}.tls_certificate = {settings.tls_certificate!r} and "
            f"{section}.tls_key = {settings.tls_key!r} are no certificate and its key: {exc}."
        ) from exc
    if settings.tls_ca:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(settings.tls_ca)
        except (ssl.SSLError, OSError) as exc:
            raise ConfigError(f"{section}.tls_ca = {settings.tls_ca!r} holds no certificate: {exc}.") from exc


def read_file(path: str, setting: str) -> bytes:
    """Read a file that a setting names."""
    try:
        return Path(path).read_bytes()
    except OSError as exc:
        raise ConfigError(f"{setting} = {path!r} can't be read: {exc.strerror or exc}.") from exc
