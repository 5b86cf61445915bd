"""Who calls: bearer keys with a tenant and roles, kept as SHA-256 only; without keys, this machine alone.

A key is 256 random bits, so a plain hash is enough: there is nothing to guess that a slow one would protect.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import ipaddress
import re
import secrets
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException

from holdfast.errors import ConfigError, InputError
from holdfast.operations.caller import EVERY_TENANT, OPERATOR, ROLES, Caller

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.config import ApiSettings

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_HASH = re.compile(r"[0-9a-f]{64}")
_BEARER = b"bearer "


class Denied(HTTPException):
    """The request is refused: 401 if its key is missing or unknown, 403 if it may not come from there."""


class Keyring:
    """The keys of ``api.keys``; without any, callers are believed if they are on this machine."""

    def __init__(self, settings: ApiSettings) -> None:
        self._keys = tuple(_read(line) for line in settings.keys)
        self._open = settings.open
        names = [caller.name for _, caller in self._keys]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(f"api.keys (HOLDFAST_API_KEYS) has two keys of the name {twice!r}: rename one")
        if self._keys and settings.open:
            raise ConfigError(
                "api.open (HOLDFAST_API_OPEN) lets anybody in without a key, but api.keys has keys: "
                "remove one of the two"
            )

    def __len__(self) -> int:
        return len(self._keys)

    def caller(self, scope: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> Caller:
        """Tell who sent a request, or raise Denied with what to do about it."""
        if self._keys:
            return self._by_key(headers.get(b"authorization", b""))
        if not self._open:
            _require_this_machine(scope, headers)  # guard: keyless-local-only
        return OPERATOR

    def _by_key(self, authorization: bytes) -> Caller:
        if authorization[:7].lower() != _BEARER:
            raise _unknown("send a key: `Authorization: Bearer <key>`")
        given = hashlib.sha256(authorization[7:].strip()).digest()
        found: Caller | None = None
        # Every key is compared, in constant time, so that an answer's time tells nothing about them.
        for known, caller in self._keys:
            if hmac.compare_digest(known, given):  # guard: api-key-constant-time
                found = caller  # guard: api-key-no-early-exit
        if found is None:
            raise _unknown("this key is not known here: check it, or ask the operator for a new one")
        return found


def _unknown(detail: str) -> Denied:
    return Denied(401, detail, headers={"WWW-Authenticate": 'Bearer realm="holdfast"'})


def _read(line: str) -> tuple[bytes, Caller]:
    parts = line.split(":")
    name = parts[0][:40] if _NAME.fullmatch(parts[0][:100]) else "?"
    where = f"api.keys (HOLDFAST_API_KEYS): the key {name!r}"
    if len(parts) != 4:
        raise ConfigError(f"{where} is not name:tenant:roles:hash; `holdfast api new-key` writes one")
    name, tenant, roles, digest = parts
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: a name has letters, digits and _ . - only")
    if tenant != EVERY_TENANT and not _NAME.fullmatch(tenant):
        raise ConfigError(f"{where}: its tenant must be {EVERY_TENANT} or letters, digits and _ . -")
    if not _HASH.fullmatch(digest):
        raise ConfigError(f"{where}: its hash must be the 64 hex digits of a SHA-256, not the key itself")
    return bytes.fromhex(digest), Caller(name, "" if tenant == EVERY_TENANT else tenant, _roles(roles, where))


def _roles(text: str, where: str) -> frozenset[str]:
    roles = frozenset(text.split("+"))
    if not roles <= set(ROLES):
        raise ConfigError(f"{where}: roles must be of {'+'.join(ROLES)}, got {text[:80]!r}")
    return roles


def new_key(name: str, *, tenant: str, roles: str) -> tuple[str, str]:
    """Make a key: what the caller sends, and the line for ``api.keys`` that recognises it."""
    key = f"hf_{secrets.token_urlsafe(32)}"
    line = f"{name}:{tenant}:{roles}:{hashlib.sha256(key.encode()).hexdigest()}"
    try:
        _read(line)
    except ConfigError as exc:
        raise InputError(str(exc).partition(": ")[2]) from exc
    return key, line


# -- without keys


def check_exposure(settings: ApiSettings) -> None:
    """Refuse to listen where strangers could call an API that asks nobody who they are."""
    if settings.keys or settings.open or is_loopback_host(settings.host):  # guard: keyless-listen-loopback
        return
    raise ConfigError(
        f"api.host (HOLDFAST_API_HOST) {settings.host!r} can be reached by others, and it has no api.keys: "
        "make one with `holdfast api new-key NAME`, listen on 127.0.0.1, "
        "or set api.open (HOLDFAST_API_OPEN) to let anybody call"
    )


def is_loopback_host(host: str) -> bool:
    """Whether every address of ``host`` is of this machine only."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False  # binding will say what is wrong with it
    return all(_is_loopback(str(address[4][0])) for address in found)


@functools.lru_cache(maxsize=1024)
def _is_loopback(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback


def _require_this_machine(scope: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> None:
    """A browser on this machine speaks for any page it shows, so Host and Origin must be local too."""
    peer = _peer(scope)
    if not _is_loopback(peer) and peer != "unix":
        raise Denied(
            403,
            f"this API has no keys, so it serves its own machine only, and you connect from {peer} (the "
            "connection's address counts, not X-Forwarded-For): set api.keys (HOLDFAST_API_KEYS), or "
            "api.open (HOLDFAST_API_OPEN) to let anybody call",
        )
    host, origin = headers.get(b"host"), headers.get(b"origin")
    if peer == "unix" or (_local_name(host) and _local_origin(origin)):  # guard: keyless-browser-origin
        return
    raise Denied(
        403,
        "this API has no keys, so it answers only to localhost, and this request was meant for another host "
        "or comes from a web page of another site: call it as localhost, or set api.keys (HOLDFAST_API_KEYS)",
    )


def _peer(scope: Mapping[str, Any]) -> str:
    client, server = scope.get("client"), scope.get("server")
    if client:
        return str(client[0])
    # No peer and no port is a unix socket; no peer alone is a connection that has gone.
    return "unix" if server and server[1] is None else "unknown"  # guard: unix-peer


def _local_name(host: bytes | None) -> bool:
    if not host:
        return True  # HTTP/1.0, which no browser speaks
    name = host.decode("latin-1").lower()
    name = name[1 : name.find("]")] if name.startswith("[") else name.rpartition(":")[0] or name
    return name == "localhost" or name.endswith(".localhost") or _is_loopback(name)


def _local_origin(origin: bytes | None) -> bool:
    if origin is None:
        return True
    try:
        netloc = urlsplit(origin.decode("latin-1")).netloc
    except ValueError:
        return False
    return bool(netloc) and _local_name(netloc.encode("latin-1"))
