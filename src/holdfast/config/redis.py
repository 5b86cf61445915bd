"""The settings of Redis and of submissions: ``redis``, ``messaging`` and ``sender``."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from holdfast.config.durations import DAY
from holdfast.config.patterns import NAME_ALLOWED, NAME_PATTERN, OPTIONAL_NAME
from holdfast.config.scheduling import ScheduledAgentSettings, SchedulerSettings
from holdfast.config.section import Section, about

REDIS_SCHEMES: Final = (
    "redis",
    "rediss",
    "unix",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
)


PLATFORM: Final = "redis-streams"
"""The only messaging platform, and a field of the workers' log lines."""


class BreakerSettings(Section, frozen=True, kw_only=True):
    """The circuit breaker around calls to Redis."""

    failure_threshold: Annotated[
        int, about("Failures within the window that open the circuit breaker.", ge=1, le=10_000)
    ] = 5
    window_seconds: Annotated[float, about("How long a failure counts.", ge=0.001, le=DAY)] = 10.0
    cooldown_seconds: Annotated[
        float,
        about("How long an open breaker refuses calls before it allows probes.", ge=0.001, le=DAY),
    ] = 5.0
    half_open_probes: Annotated[
        int, about("Calls that a half-open breaker allows at a time.", ge=1, le=1000)
    ] = 2
    half_open_seconds: Annotated[
        float,
        about(
            "How long these calls may wait for an answer before the breaker opens again; 0 is no limit.",
            ge=0,
            le=DAY,
        ),
    ] = 0.0


class RedisSettings(Section, frozen=True, kw_only=True):
    """The address of Redis and the connections to it."""

    url: Annotated[
        str,
        about(
            "URL of Redis; empty is the embedded server, which `dev` and `demo` start.",
            "REDIS_URL",
            url=True,
            allowed="empty, or a URL that begins with "
            + ", ".join(f"{scheme}://" for scheme in REDIS_SCHEMES[:-1])
            + f" or {REDIS_SCHEMES[-1]}://",
        ),
    ] = ""
    key_prefix: Annotated[
        str,
        about(
            "Prefix of every key, to share one Redis among installations.",
            "HOLDFAST_KEY_PREFIX",
            pattern=OPTIONAL_NAME,
            allowed=f"empty, or {NAME_ALLOWED}",
        ),
    ] = ""
    password: Annotated[
        str, about("The password, if it is not in the URL.", "REDIS_PASSWORD", secret=True)
    ] = ""
    connect_timeout_seconds: Annotated[
        float, about("How long to wait for a connection.", ge=0.001, le=3600)
    ] = 5.0
    socket_timeout_seconds: Annotated[float, about("How long to wait for a reply.", ge=0.001, le=3600)] = 5.0
    max_connections: Annotated[
        int,
        about(
            "Connections per process, to each server of a cluster; twice as many while slots move.",
            ge=1,
            le=100_000,
        ),
    ] = 50
    tls_ca_file: Annotated[str, about("File of the authority that signed the server's certificate.")] = ""
    tls_cert_file: Annotated[str, about("File of the client certificate, for mutual TLS.")] = ""
    tls_key_file: Annotated[str, about("File of the key of the client certificate.")] = ""
    tls_verify: Annotated[bool, about("Whether the server's certificate is verified.")] = True
    breaker: BreakerSettings = BreakerSettings()
    embedded_dir: Annotated[
        str,
        about(
            "Directory of the embedded server's data and socket.",
            "HOLDFAST_EMBEDDED_DIR",
            default=".holdfast/redis in the current directory",
        ),
    ] = ""
    agent: ScheduledAgentSettings = ScheduledAgentSettings()
    scheduler: SchedulerSettings = SchedulerSettings()


class MessagingSettings(Section, frozen=True, kw_only=True):
    """The messaging platform."""

    platform: Annotated[Literal["redis-streams"], about("The messaging platform.", "MESSAGING_PLATFORM")] = (
        PLATFORM
    )
    queue: Annotated[
        str,
        about(
            "Name of the default queue, which is also the key of its stream.",
            "MESSAGING_QUEUE_NAME",
            "CLUSTER_STREAM_KEY",
            pattern=NAME_PATTERN,
            allowed=NAME_ALLOWED,
        ),
    ] = "agent-queue"


class SenderSettings(Section, frozen=True, kw_only=True):
    """How a submission is retried when Redis does not answer."""

    max_retries: Annotated[
        int, about("Retries of one submission.", "REDIS_SEND_MESSAGE_MAX_RETRIES", ge=0, le=1000)
    ] = 3
    retry_delay_seconds: Annotated[
        float, about("Wait before the first retry.", "REDIS_SEND_MESSAGE_RETRY_DELAY", ge=0, le=3600)
    ] = 0.5
    retry_backoff: Annotated[
        float, about("Factor of each further wait.", "REDIS_SEND_MESSAGE_RETRY_BACKOFF", ge=1, le=100)
    ] = 2.0
