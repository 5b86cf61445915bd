"""The settings of HTTP servers and clients: ``api``, ``client``, ``event_api`` and ``relay``."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from holdfast.config.durations import DAY, YEAR
from holdfast.config.patterns import (
    URL_ALLOWED,
    URL_PATTERN,
    WEBHOOK_SECRETS_ALLOWED,
    WEBHOOK_SECRETS_PATTERN,
)
from holdfast.config.section import Section, about

ApiKeyLine = Annotated[
    str,
    Meta(
        pattern=r"\A[\w.-]{1,64}:(\*|[\w.-]{1,64}):(read|submit|operate)(\+(read|submit|operate))*:[0-9a-f]{64}\Z"
    ),
]


class ApiSettings(Section, frozen=True, kw_only=True):
    """The HTTP API."""

    host: Annotated[
        str,
        about(
            "Address that the API listens on.",
            "HOLDFAST_API_HOST",
            pattern=r"\A[!-~]+\Z",
            allowed="an address or a host name",
        ),
    ] = "127.0.0.1"
    port: Annotated[int, about("Port of the API; 0 is a free one.", "HOLDFAST_API_PORT", ge=0, le=65535)] = (
        8080
    )
    keys: Annotated[
        tuple[ApiKeyLine, ...],
        about(
            "API keys: name:tenant:roles:hash, roles read+submit+operate, the SHA-256 of the key.",
            "HOLDFAST_API_KEYS",
            allowed="a list, or separated by commas; `holdfast api new-key` writes one",
            secret=True,
        ),
    ] = ()
    open: Annotated[bool, about("Whether calls from any address need no key.", "HOLDFAST_API_OPEN")] = False
    max_body_bytes: Annotated[int, about("The largest body that is read.", ge=1, le=1 << 30)] = 2 << 20
    max_head_bytes: Annotated[
        int, about("The largest head of a request (its line and headers) that is read.", ge=1, le=1 << 24)
    ] = 64 << 10
    request_seconds: Annotated[
        float, about("How long a request may take to arrive, head and body; then 408.", ge=0.05, le=3600)
    ] = 30.0
    send_seconds: Annotated[
        float,
        about(
            "How long a client may read nothing of a response before it is disconnected.", ge=0.05, le=3600
        ),
    ] = 30.0
    keep_alive_seconds: Annotated[
        float, about("How often an event stream without events sends a keep-alive.", ge=0.05, le=3600)
    ] = 15.0
    drain_seconds: Annotated[
        float, about("How long open requests may continue at shutdown.", ge=0, le=DAY)
    ] = 20.0
    linger_seconds: Annotated[
        float,
        about("How long new connections are accepted at shutdown while /readyz is not ready.", ge=0, le=3600),
    ] = 1.0
    unserved_seconds: Annotated[
        float,
        about(
            "How long runs may wait in a queue without a worker before the log and /readyz report it: longer "
            "than a scale-up takes, with a new node; 0 is off.",
            ge=0,
            le=DAY,
        ),
    ] = 300.0
    janitor: Annotated[bool, about("Whether the api process is a janitor too.")] = True
    relay: Annotated[bool, about("Whether the api process is a relay too.")] = True


class ClientSettings(Section, frozen=True, kw_only=True):
    """How programs that submit runs reach the system: the HTTP API, or Redis without one."""

    url: Annotated[
        str,
        about(
            "The HTTP API that clients use; empty: they use Redis.",
            "HOLDFAST_API_URL",
            pattern=URL_PATTERN,
            allowed=URL_ALLOWED,
            url=True,
        ),
    ] = ""
    key: Annotated[str, about("The API key of clients.", "HOLDFAST_API_KEY", secret=True)] = ""
    timeout_seconds: Annotated[
        float, about("How long to wait for an answer of the API.", ge=0.01, le=3600)
    ] = 10.0
    max_retries: Annotated[int, about("Retries of an idempotent call.", ge=0, le=1000)] = 3


class EventApiSettings(Section, frozen=True, kw_only=True):
    """The Event API."""

    url: Annotated[
        str,
        about(
            "The Event API; empty is off.",
            "EVENT_API_URL",
            pattern=URL_PATTERN,
            allowed=URL_ALLOWED,
            url=True,
        ),
    ] = ""
    secret: Annotated[
        str, about("Secret shared with the Event API.", "INTERSERVICES_SHARED_SECRET", secret=True)
    ] = ""


class RelaySettings(Section, frozen=True, kw_only=True):
    """The delivery of events."""

    concurrency: Annotated[int, about("Runs whose events are delivered at once.", ge=1, le=10_000)] = 64
    timeout_seconds: Annotated[
        float, about("How long to wait for a receiver's answer.", ge=0.01, le=3600)
    ] = 10.0
    retry_first_seconds: Annotated[
        float, about("The first pause after a failed delivery; it doubles.", ge=0.01, le=3600)
    ] = 0.5
    retry_most_seconds: Annotated[float, about("The longest pause between two tries.", ge=0.01, le=DAY)] = (
        60.0
    )
    give_up_seconds: Annotated[
        float,
        about("How long one event is tried before it is stored as undelivered.", ge=0.1, le=YEAR),
    ] = 86400.0
    webhook_secret: Annotated[
        str,
        about(
            "Secrets that sign webhooks, as in Standard Webhooks; with several, each signs.",
            "HOLDFAST_WEBHOOK_SECRET",
            secret=True,
            pattern=WEBHOOK_SECRETS_PATTERN,
            allowed=WEBHOOK_SECRETS_ALLOWED,
        ),
    ] = ""
    private_webhooks: Annotated[
        bool,
        about("Whether webhooks may point to private addresses and to names of private networks."),
    ] = False
    poll_seconds: Annotated[
        float,
        about(
            "The shortest time between two reads of new events; without notifications, the poll interval.",
            ge=0.001,
            le=60,
        ),
    ] = 0.05
    breaker_failures: Annotated[
        int, about("Failures after which a receiver is not called for a while.", ge=1, le=10_000)
    ] = 5
    breaker_seconds: Annotated[
        float, about("How long a receiver is not called after these failures.", ge=0.01, le=3600)
    ] = 5.0
