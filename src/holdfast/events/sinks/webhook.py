"""Webhooks: requests to the address of a run's submission, signed as in Standard Webhooks."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from typing import TYPE_CHECKING

from holdfast.errors import ConfigError
from holdfast.events.sinks.cloudevent import CONTENT_TYPE, cloud_event, event_name, trace_headers
from holdfast.events.sinks.request import SinkRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.events.event import Event
    from holdfast.events.relay.run_facts import RunFacts

_PREFIX = "whsec_"


class Webhook:
    """Signs with every secret, so that a secret can be rotated while receivers still have the old one."""

    name = "webhook"
    ours = False

    def __init__(self, secrets: str, clock: Callable[[], float] = time.time) -> None:
        self._keys = [_key(secret) for secret in secrets.split()]
        self._clock = clock

    def request(self, run: RunFacts, event: Event, sequence: int, address: str) -> SinkRequest:
        """Write and sign the request for one event."""
        body = cloud_event(run, event, sequence)
        identity, stamp = event_name(run, sequence), str(int(self._clock()))
        headers = {
            "content-type": CONTENT_TYPE,
            "webhook-id": identity,
            "webhook-timestamp": stamp,
            **trace_headers(run),
        }
        if self._keys:
            signed = f"{identity}.{stamp}.".encode() + body
            headers["webhook-signature"] = " ".join(_signature(key, signed) for key in self._keys)
        return SinkRequest(address, headers, body)


def _signature(key: bytes, signed: bytes) -> str:
    return f"v1,{base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}"


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        raise ConfigError(
            "relay.webhook_secret (HOLDFAST_WEBHOOK_SECRET) must be whsec_ and a key in base64, "
            "as in Standard Webhooks; several are separated by blanks"
        )
    return key
