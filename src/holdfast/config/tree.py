"""Every setting there is: one frozen tree, whose attribute paths are the paths in ``holdfast.yaml``.

Each leaf is declared once, with its default, its limits, its sentence and its environment names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from holdfast.config.scheduling import ScheduledAgentSettings, SchedulerSettings
from holdfast.config.section import Section, about

# One {hash tag} at most: with more braces, Redis and we would disagree about the slot of a key.
_NAME = r"[A-Za-z0-9._:-]"
_TAGGED = rf"{_NAME}*(?:\{{{_NAME}+\}}{_NAME}*)?"
NAME_PATTERN: Final = rf"\A(?=.){_TAGGED}\Z"
NAME_ALLOWED: Final = "a name of letters, digits and . _ : - with at most one {hash tag}"
REDIS_SCHEMES: Final = (
    "redis",
    "rediss",
    "unix",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
)

_DAY: Final = 86400
_YEAR: Final = 365 * _DAY
_URL_ALLOWED: Final = "an http:// or https:// URL, or empty"
_OPTIONAL_NAME: Final = rf"\A{_TAGGED}\Z"
_HTTP: Final = r"\A(?:https?://[^\s/?#]+\S*)?\Z"


class BreakerSettings(Section, frozen=True, kw_only=True):
    """When calls to Redis stop being tried, and when they are tried again."""

    failure_threshold: Annotated[
        int, about("Failures within the window that open the circuit breaker.", ge=1, le=10_000)
    ] = 5
    window_seconds: Annotated[float, about("How long a failure counts.", ge=0.001, le=_DAY)] = 10.0
    cooldown_seconds: Annotated[
        float,
        about("How long an open breaker refuses calls before it lets probes through.", ge=0.001, le=_DAY),
    ] = 5.0
    half_open_probes: Annotated[
        int, about("Calls let through at a time while the breaker is half open.", ge=1, le=1000)
    ] = 2
    half_open_seconds: Annotated[
        float,
        about(
            "How long those may stay without an answer; then it is open again. 0 is for ever.", ge=0, le=_DAY
        ),
    ] = 0.0


class RedisSettings(Section, frozen=True, kw_only=True):
    """Where Redis is and how to talk to it."""

    url: Annotated[
        str,
        about(
            "Where Redis is; empty starts the embedded server.",
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
            "Text in front of every key, to share one Redis among installations.",
            "HOLDFAST_KEY_PREFIX",
            pattern=_OPTIONAL_NAME,
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
    max_connections: Annotated[int, about("Connections per process.", ge=1, le=100_000)] = 50
    tls_ca_file: Annotated[str, about("File of the authority that signed the server's certificate.")] = ""
    tls_cert_file: Annotated[str, about("File of our own certificate, for mutual TLS.")] = ""
    tls_key_file: Annotated[str, about("File of the key of our own certificate.")] = ""
    tls_verify: Annotated[bool, about("Whether the server's certificate is verified.")] = True
    breaker: BreakerSettings = BreakerSettings()
    embedded_dir: Annotated[
        str,
        about(
            "Where the embedded server keeps its data and socket.",
            "HOLDFAST_EMBEDDED_DIR",
            default=".holdfast/redis in the current directory",
        ),
    ] = ""
    agent: ScheduledAgentSettings = ScheduledAgentSettings()
    scheduler: SchedulerSettings = SchedulerSettings()


class MessagingSettings(Section, frozen=True, kw_only=True):
    """What carries the runs."""

    platform: Annotated[Literal["redis-streams"], about("What carries the runs.", "MESSAGING_PLATFORM")] = (
        "redis-streams"
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


class LeaseSettings(Section, frozen=True, kw_only=True):
    """How soon a dead owner's work goes to somebody else."""

    ttl_seconds: Annotated[
        float,
        about(
            "How long a silent owner is believed to be alive.",
            "HOLDFAST_LEASE_TTL_SECONDS",
            "RETRY_IDLE_MS",
            ge=1,
            le=_DAY,
        ),
    ] = 30.0

    @property
    def renew_every_seconds(self) -> float:
        """How often a holder renews: a quarter of the ttl."""
        return self.ttl_seconds / 4

    @property
    def trust_seconds(self) -> float:
        """How long a holder trusts its last renewal: it stops before another can start."""
        return self.ttl_seconds * 3 / 4


class BackoffSettings(Section, frozen=True, kw_only=True):
    """How long a failed run waits before its next attempt."""

    base_seconds: Annotated[float, about("Wait before the first delayed retry.", ge=0, le=_YEAR)] = 1.0
    multiplier: Annotated[float, about("How much longer each next wait is.", ge=1, le=100)] = 2.0
    cap_seconds: Annotated[float, about("The longest wait.", ge=0, le=_YEAR)] = 300.0
    jitter: Annotated[
        float, about("Share of a wait that is random, so that retries don't come together.", ge=0, le=1)
    ] = 0.2
    forbidden_seconds: Annotated[
        float, about("Wait after a refusal for lack of rights (401, 403).", ge=0, le=_YEAR)
    ] = 600.0
    immediate_retries: Annotated[
        int, about("Retries without any wait after a transient failure.", ge=0, le=1000)
    ] = 1


class QueueSettings(Section, frozen=True, kw_only=True):
    """One queue: its names, its limits and its patience."""

    name: str = "agent-queue"
    group: Annotated[
        str,
        about(
            "Consumer group of the queue's streams; under `queue` it is the default queue's only.",
            "CLUSTER_CONSUMER_GROUP",
            pattern=_OPTIONAL_NAME,
            allowed=NAME_ALLOWED,
            default="the queue's name + -group",
        ),
    ] = ""
    slots: Annotated[
        int, about("Runs that one worker does at once.", "WORKER_POD_MESSAGES_BATCH_SIZE", ge=1, le=100_000)
    ] = 3
    timeout_seconds: Annotated[
        float, about("How long one attempt of a run may take.", "MESSAGE_LOCK_DURATION", ge=0.01, le=_YEAR)
    ] = 1800.0
    stop_grace_seconds: Annotated[
        float,
        about(
            "How long an agent may ignore its deadline or a cancel; then its run ends without it.",
            ge=0.01,
            le=3600,
        ),
    ] = 10.0
    max_attempts: Annotated[
        int, about("Attempts before a run goes to the dead letters.", "MAX_ATTEMPTS", ge=1, le=100_000)
    ] = 5
    max_pending: Annotated[
        int,
        about(
            "Runs that one worker may hold unfinished; fewer than its slots caps them.",
            "MAX_PENDING_PER_WORKER",
            ge=1,
            le=1_000_000,
        ),
    ] = 256
    max_depth: Annotated[
        int,
        about(
            "Runs that may wait; more are refused, never trimmed.", "STREAM_MAXLEN", ge=1, le=1_000_000_000
        ),
    ] = 1_000_000
    max_payload_bytes: Annotated[
        int, about("Largest message accepted.", "HOLDFAST_MAX_PAYLOAD_BYTES", ge=1, le=512 * 1024 * 1024)
    ] = 1_048_576
    delete_after_ack: Annotated[
        bool,
        about("Whether a finished run's stream entry is deleted at once.", "REDIS_STREAM_DELETE_AFTER_ACK"),
    ] = True
    block_ms: Annotated[
        int, about("How long an idle worker waits in one blocking read.", ge=1, le=3_600_000)
    ] = 5000
    retention_seconds: Annotated[
        float, about("How long finished runs and their events are kept.", ge=1, le=10 * _YEAR)
    ] = 86400.0
    idempotency_ttl_seconds: Annotated[
        float,
        about("How long an idempotency key is remembered, at most as long as its run.", ge=1, le=10 * _YEAR),
    ] = 86400.0
    deadletter: Annotated[
        str,
        about(
            "Stream of the runs that were given up; under `queue` it is the default queue's only.",
            pattern=_OPTIONAL_NAME,
            allowed=f"empty, or {NAME_ALLOWED}",
            default="{the queue's name}:deadletter",
        ),
    ] = ""
    tenant_concurrency: Annotated[
        int, about("Runs of one tenant that go on at once; 0 is no limit.", ge=0, le=1_000_000)
    ] = 0
    key_concurrency: Annotated[
        int, about("Runs of one concurrency key that go on at once; 0 is no limit.", ge=0, le=1_000_000)
    ] = 1
    default_agent: Annotated[
        str, about("Agent for entries of other producers that name none; empty refuses them.")
    ] = ""
    backoff: BackoffSettings = BackoffSettings()

    def __post_init__(self) -> None:
        if not self.group:
            msgspec.structs.force_setattr(self, "group", f"{self.name}-group")

    def renamed(self, name: str) -> QueueSettings:
        """Return these limits for another queue, with that queue's own group and dead letters."""
        return msgspec.structs.replace(self, name=name, group="", deadletter="")


class SenderSettings(Section, frozen=True, kw_only=True):
    """How a submission is retried when Redis does not answer."""

    max_retries: Annotated[
        int, about("Retries of one submission.", "REDIS_SEND_MESSAGE_MAX_RETRIES", ge=0, le=1000)
    ] = 3
    retry_delay_seconds: Annotated[
        float, about("Wait before the first retry.", "REDIS_SEND_MESSAGE_RETRY_DELAY", ge=0, le=3600)
    ] = 0.5
    retry_backoff: Annotated[
        float, about("How much longer each next wait is.", "REDIS_SEND_MESSAGE_RETRY_BACKOFF", ge=1, le=100)
    ] = 2.0


QueueName = Annotated[str, Meta(pattern=NAME_PATTERN)]


class WorkerSettings(Section, frozen=True, kw_only=True):
    """What a worker process serves and how it stops."""

    name: Annotated[
        str,
        about(
            "Name of this worker in Redis; must be unique among live workers.",
            "WORKER_POD_NAME",
            "CLUSTER_WORKER_CONSUMER_NAME",
            pattern=r"\A[!-~]{0,200}\Z",
            allowed="up to 200 printable ASCII characters without blanks",
            default="consumer-{uuid}",
        ),
    ] = ""
    queues: Annotated[
        tuple[QueueName, ...],
        about(
            "Queues that the worker serves; one that `queues` does not describe has the defaults.",
            "HOLDFAST_WORKER_QUEUES",
            allowed=f"a list, or separated by commas; each is {NAME_ALLOWED}",
            default="the default queue",
        ),
    ] = ()
    drain_seconds: Annotated[
        float,
        about(
            "How long running runs may finish at shutdown before they are handed back.",
            "HOLDFAST_DRAIN_SECONDS",
            ge=0,
            le=_DAY,
        ),
    ] = 20.0
    progress_seconds: Annotated[
        float, about("How often a draining worker says what it still waits for.", ge=0.01, le=_DAY)
    ] = 5.0
    envoy_quit_url: Annotated[
        str,
        about(
            "Asked by POST at the very end, so that a sidecar stops too.",
            "HOLDFAST_ENVOY_QUIT_URL",
            pattern=_HTTP,
            allowed=_URL_ALLOWED,
            url=True,
        ),
    ] = ""
    heartbeat_seconds: Annotated[
        float, about("How often a process says that it lives.", "HEARTBEAT_INTERVAL", ge=0.01, le=3600)
    ] = 10.0
    event_loop: Annotated[
        Literal["uvloop", "asyncio"],
        about("The event loop under the agents: uvloop is faster, asyncio is Python's own."),
    ] = "uvloop"
    blocked_seconds: Annotated[
        float,
        about("After how long code that blocks the event loop is named in the log; 0 is off.", ge=0, le=_DAY),
    ] = 1.0


class JanitorSettings(Section, frozen=True, kw_only=True):
    """What is swept, how often, and by whom."""

    enabled: Annotated[bool, about("Whether the janitor runs.", "REDIS_STREAM_CLEANUP_ENABLED")] = True
    consumer_interval_seconds: Annotated[
        float,
        about(
            "How often dead consumers are removed.", "CONSUMER_CLEANUP_INTERVAL_SECONDS", ge=0.01, le=_YEAR
        ),
    ] = 3600.0
    idle_threshold_seconds: Annotated[
        float,
        about(
            "How long a consumer must be idle before it may be removed.",
            "IDLE_THRESHOLD_SECONDS",
            ge=1,
            le=_YEAR,
            default="the longest queue timeout + 5m",
        ),
    ] = 2100.0
    stream_interval_minutes: Annotated[
        float,
        about("How often streams are swept.", "STREAM_CLEANUP_INTERVAL_MINUTES", ge=0.01, le=_YEAR // 60),
    ] = 60.0
    archive_interval_seconds: Annotated[
        float, about("How often ended runs are copied to the database.", ge=0.01, le=_DAY)
    ] = 5.0
    lock_ttl_seconds: Annotated[
        float,
        about("How long one janitor's turn lasts.", "STREAM_CLEANUP_LOCK_TTL_SECONDS", ge=1, le=_DAY),
    ] = 300.0
    dry_run: Annotated[bool, about("Whether the janitor only says what it would do.", "DRY_RUN")] = False


class LogSettings(Section, frozen=True, kw_only=True):
    """What is logged and how it looks."""

    level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"],
        about("The least important level that is logged.", "LOG_LEVEL"),
    ] = "INFO"
    format: Annotated[
        Literal["auto", "json", "console"],
        about("Lines of JSON or for people; auto is console on a terminal.", "HOLDFAST_LOG_FORMAT"),
    ] = "auto"


class MetricsSettings(Section, frozen=True, kw_only=True):
    """Where metrics and health are served."""

    port: Annotated[
        int, about("Port of /metrics, /healthz and /readyz; 0 is off.", "METRICS_PORT", ge=0, le=65535)
    ] = 0
    host: Annotated[
        str,
        about(
            "Address that the port listens on.",
            "HOLDFAST_METRICS_HOST",
            pattern=r"\A[!-~]+\Z",
            allowed="an address or a host name",
        ),
    ] = "127.0.0.1"


class EventApiSettings(Section, frozen=True, kw_only=True):
    """Where events are sent."""

    url: Annotated[
        str,
        about("The Event API; empty is off.", "EVENT_API_URL", pattern=_HTTP, allowed=_URL_ALLOWED, url=True),
    ] = ""
    secret: Annotated[
        str, about("Secret shared with the Event API.", "INTERSERVICES_SHARED_SECRET", secret=True)
    ] = ""


class RelaySettings(Section, frozen=True, kw_only=True):
    """How events reach the outside."""

    concurrency: Annotated[int, about("Runs whose events are delivered at once.", ge=1, le=10_000)] = 64
    timeout_seconds: Annotated[
        float, about("How long to wait for a receiver's answer.", ge=0.01, le=3600)
    ] = 10.0
    retry_first_seconds: Annotated[
        float, about("The first pause after a failed delivery; it doubles.", ge=0.01, le=3600)
    ] = 0.5
    retry_most_seconds: Annotated[float, about("The longest pause between two tries.", ge=0.01, le=_DAY)] = (
        60.0
    )
    give_up_seconds: Annotated[
        float,
        about("How long one event is tried before it goes to the undelivered ones.", ge=0.1, le=_YEAR),
    ] = 86400.0
    webhook_secret: Annotated[
        str,
        about(
            "Signs webhooks, as Standard Webhooks has it; with several, each signs.",
            "HOLDFAST_WEBHOOK_SECRET",
            secret=True,
            pattern=r"\A\s*((whsec_)?[A-Za-z0-9+/]+={0,2}(\s+|\Z))*\Z",
            allowed="empty, or whsec_ and a key in base64; several are separated by blanks",
        ),
    ] = ""
    private_webhooks: Annotated[
        bool,
        about("Whether webhooks may point to private and loopback addresses."),
    ] = False
    poll_seconds: Annotated[
        float, about("How often an idle relay looks for new events.", ge=0.001, le=60)
    ] = 0.05
    breaker_failures: Annotated[
        int, about("Failures after which a receiver is not called for a while.", ge=1, le=10_000)
    ] = 5
    breaker_seconds: Annotated[float, about("How long it is not called then.", ge=0.01, le=3600)] = 5.0


class DatabaseSettings(Section, frozen=True, kw_only=True):
    """Where steps, state and finished runs are kept."""

    url: Annotated[
        str,
        about(
            "PostgreSQL; empty is a SQLite file.",
            "DATABASE_URL",
            pattern=r"\A(postgres(ql)?://\S+)?\Z",
            allowed="postgresql://user:password@host:port/name",
            url=True,
        ),
    ] = ""
    path: Annotated[
        str,
        about("The SQLite file, if there is no url.", "HOLDFAST_DATABASE_PATH"),
    ] = ".holdfast/holdfast.sqlite"
    pool_size: Annotated[int, about("Connections to PostgreSQL of one process.", ge=1, le=1000)] = 10
    timeout_seconds: Annotated[
        float, about("How long to wait for a connection or an answer.", ge=0.01, le=3600)
    ] = 5.0
    archive_days: Annotated[
        float, about("How long finished runs and their steps are kept.", ge=0.001, le=36500)
    ] = 30.0


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
            "Who may call: name:tenant:roles:hash, roles read+submit+operate, the SHA-256 of the key.",
            "HOLDFAST_API_KEYS",
            allowed="a list, or separated by commas; `holdfast api new-key` writes one",
            secret=True,
        ),
    ] = ()
    open: Annotated[
        bool, about("Whether anybody may call from anywhere, without keys.", "HOLDFAST_API_OPEN")
    ] = False
    max_body_bytes: Annotated[int, about("The largest body that is read.", ge=1, le=1 << 30)] = 2 << 20
    max_head_bytes: Annotated[
        int, about("The largest head of a request (its line and headers) that is read.", ge=1, le=1 << 24)
    ] = 64 << 10
    request_seconds: Annotated[
        float, about("How long a request may take to arrive, head and body; then 408.", ge=0.05, le=3600)
    ] = 30.0
    send_seconds: Annotated[
        float,
        about("How long a client may take nothing of its answer before it is dropped.", ge=0.05, le=3600),
    ] = 30.0
    keep_alive_seconds: Annotated[
        float, about("How often an event stream without events says that it lives.", ge=0.05, le=3600)
    ] = 15.0
    drain_seconds: Annotated[float, about("How long open requests may go on at shutdown.", ge=0, le=_DAY)] = (
        20.0
    )
    linger_seconds: Annotated[
        float,
        about("How long new connections are taken at shutdown while /readyz says no.", ge=0, le=3600),
    ] = 1.0
    janitor: Annotated[bool, about("Whether the api process is a janitor too.")] = True
    relay: Annotated[bool, about("Whether the api process is a relay too.")] = True


class ClientSettings(Section, frozen=True, kw_only=True):
    """How programs that submit runs reach the system: the HTTP API, or Redis if no API is named."""

    url: Annotated[
        str,
        about(
            "The HTTP API that clients use; empty: they use Redis.",
            "HOLDFAST_API_URL",
            pattern=_HTTP,
            allowed=_URL_ALLOWED,
            url=True,
        ),
    ] = ""
    key: Annotated[str, about("The key that they show the API.", "HOLDFAST_API_KEY", secret=True)] = ""
    timeout_seconds: Annotated[
        float, about("How long to wait for an answer of the API.", ge=0.01, le=3600)
    ] = 10.0
    max_retries: Annotated[
        int, about("Retries of one call that can be made twice without harm.", ge=0, le=1000)
    ] = 3


class HostSettings(Section, frozen=True, kw_only=True):
    """The hosts of long-lived agents, and how they are called."""

    max_processes: Annotated[int, about("Agents that one host holds.", "MAX_PROCESSES", ge=1, le=100_000)] = (
        100
    )
    grpc_port: Annotated[int, about("Port of a host's gRPC server.", "GRPC_PORT", ge=1, le=65535)] = 50051
    service_name: Annotated[
        str,
        about(
            "Name by which the hosts are found.",
            "AGENT_HOST_SERVICE_NAME",
            pattern=r"\A[A-Za-z0-9._-]+\Z",
            allowed="a name of letters, digits and . _ -",
        ),
    ] = "agent-host"
    grpc_timeout_seconds: Annotated[
        float, about("How long to wait for a host's answer.", "GRPC_TIMEOUT", ge=0.001, le=_DAY)
    ] = 30.0
    grpc_max_retries: Annotated[int, about("Retries of one call.", "GRPC_MAX_RETRIES", ge=0, le=1000)] = 3


class Settings(Section, frozen=True, kw_only=True):
    """The whole tree."""

    redis: RedisSettings = RedisSettings()
    messaging: MessagingSettings = MessagingSettings()
    lease: LeaseSettings = LeaseSettings()
    queue: QueueSettings = QueueSettings()
    queues: Mapping[str, QueueSettings] = {}
    sender: SenderSettings = SenderSettings()
    worker: WorkerSettings = WorkerSettings()
    janitor: JanitorSettings = JanitorSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()
    event_api: EventApiSettings = EventApiSettings()
    relay: RelaySettings = RelaySettings()
    database: DatabaseSettings = DatabaseSettings()
    api: ApiSettings = ApiSettings()
    client: ClientSettings = ClientSettings()
    hosts: HostSettings = HostSettings()

    def queue_names(self) -> tuple[str, ...]:
        """Return every queue's name, the default queue first."""
        return tuple(dict.fromkeys((self.messaging.queue, *self.queues, *self.worker.queues)))

    def queue_named(self, name: str) -> QueueSettings:
        """Return a queue's settings; one that nobody described has the defaults."""
        described = self.queues.get(name)
        if described is not None:
            return described
        return self.queue if name == self.queue.name else self.queue.renamed(name)

    def worker_queues(self) -> tuple[QueueSettings, ...]:
        """Return the queues that a worker serves."""
        return tuple(self.queue_named(name) for name in self.worker.queues or (self.messaging.queue,))
