"""The settings of processes: ``worker`` and ``janitor``, and the ``pod``, ``log`` and ``metrics`` of each."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from holdfast.config.durations import DAY, YEAR
from holdfast.config.patterns import NAME_ALLOWED, NAME_PATTERN, URL_ALLOWED, URL_PATTERN
from holdfast.config.section import Section, about

QueueName = Annotated[str, Meta(pattern=NAME_PATTERN)]
PodLabel = Annotated[
    str, Meta(pattern=r"\A(?:[a-z0-9.-]{1,253}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,62}=[A-Za-z0-9._-]{0,63}\Z")
]
_DNS = r"\A(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?)?\Z"
_DNS_ALLOWED = "a name of Kubernetes: lower case letters, digits, . and -"


class WorkerSettings(Section, frozen=True, kw_only=True):
    """The queues of a worker process, and its shutdown."""

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
            "Queues that the worker serves; a queue that is not under `queues` has the defaults.",
            "HOLDFAST_WORKER_QUEUES",
            allowed=f"a list, or separated by commas; each is {NAME_ALLOWED}",
            default="the default queue",
        ),
    ] = ()
    drain_seconds: Annotated[
        float,
        about(
            "How long runs may continue at shutdown before they are handed back.",
            "HOLDFAST_DRAIN_SECONDS",
            ge=0,
            le=DAY,
        ),
    ] = 20.0
    progress_seconds: Annotated[
        float, about("How often a draining worker logs what it waits for.", ge=0.01, le=DAY)
    ] = 5.0
    envoy_quit_url: Annotated[
        str,
        about(
            "URL that is called by POST at the end of the shutdown, so that a sidecar stops too.",
            "HOLDFAST_ENVOY_QUIT_URL",
            pattern=URL_PATTERN,
            allowed=URL_ALLOWED,
            url=True,
        ),
    ] = ""
    heartbeat_seconds: Annotated[
        float,
        about(
            "How often a process sends its heartbeat, and a host those of its agents.",
            "HEARTBEAT_INTERVAL",
            ge=0.01,
            le=3600,
        ),
    ] = 10.0
    event_loop: Annotated[
        Literal["uvloop", "asyncio"],
        about("The event loop of the agents: uvloop is faster, asyncio is Python's own."),
    ] = "uvloop"
    blocked_seconds: Annotated[
        float,
        about("After how long code that blocks the event loop is logged; 0 is off.", ge=0, le=DAY),
    ] = 1.0


class JanitorSettings(Section, frozen=True, kw_only=True):
    """The cleanup by the janitor."""

    enabled: Annotated[bool, about("Whether the janitor runs.", "REDIS_STREAM_CLEANUP_ENABLED")] = True
    consumer_interval_seconds: Annotated[
        float,
        about("How often dead consumers are removed.", "CONSUMER_CLEANUP_INTERVAL_SECONDS", ge=0.01, le=YEAR),
    ] = 3600.0
    idle_threshold_seconds: Annotated[
        float,
        about(
            "How long a consumer must be idle before it may be removed.",
            "IDLE_THRESHOLD_SECONDS",
            ge=1,
            le=YEAR,
            default="the longest queue timeout + 5m",
        ),
    ] = 2100.0
    stream_interval_minutes: Annotated[
        float,
        about("How often streams are swept.", "STREAM_CLEANUP_INTERVAL_MINUTES", ge=0.01, le=YEAR // 60),
    ] = 60.0
    archive_interval_seconds: Annotated[
        float, about("How often ended runs are copied to the database.", ge=0.01, le=DAY)
    ] = 5.0
    lock_ttl_seconds: Annotated[
        float,
        about("How long one janitor's lock lasts.", "STREAM_CLEANUP_LOCK_TTL_SECONDS", ge=1, le=DAY),
    ] = 300.0
    dry_run: Annotated[bool, about("Whether the janitor only logs what it would do.", "DRY_RUN")] = False
    kubernetes: Annotated[
        bool,
        about(
            "Whether the janitor reads pods, as one more proof that a worker is dead or alive; "
            "needs get, list, watch and patch of pods in `pod.namespace`."
        ),
    ] = False
    pod_selector: Annotated[
        tuple[PodLabel, ...],
        about(
            "Labels of the pods that are watched; those of the workers must have them all.",
            allowed="a list, or separated by commas; each is a label like key=value",
        ),
    ] = ("app.kubernetes.io/component=worker",)
    deletion_cost: Annotated[
        bool,
        about(
            "Whether, with `kubernetes`, busy workers' pods are marked to be the last that a scale-in ends."
        ),
    ] = True
    deletion_cost_seconds: Annotated[
        float, about("How often the janitor checks which workers are busy.", ge=0.01, le=3600)
    ] = 2.0
    deletion_cost_raise_seconds: Annotated[
        float, about("How long a worker must have held work before its pod's cost is raised.", ge=0, le=DAY)
    ] = 0.0
    deletion_cost_lower_seconds: Annotated[
        float,
        about(
            "How long a worker must have held less before its pod's cost is lowered: well before a scale-in, "
            "which may come 15 s before `scaling.down_seconds` are over.",
            ge=0,
            le=DAY,
            default="half of the shortest scaling.down_seconds - 15s",
        ),
    ] = 15.0
    deletion_cost_per_second: Annotated[
        float, about("The most pods that are marked per second.", ge=0.1, le=1000)
    ] = 10.0


class PodSettings(Section, frozen=True, kw_only=True):
    """The pod that this process runs in, by the downward API; all empty outside of Kubernetes."""

    name: Annotated[
        str, about("The pod's name.", "POD_NAME", pattern=_DNS, allowed=_DNS_ALLOWED, default="none")
    ] = ""
    uid: Annotated[
        str, about("The pod's uid.", "POD_UID", pattern=_DNS, allowed=_DNS_ALLOWED, default="none")
    ] = ""
    namespace: Annotated[
        str,
        about(
            "The pod's namespace; that of the workers' pods for the janitor.",
            "POD_NAMESPACE",
            pattern=_DNS,
            allowed=_DNS_ALLOWED,
            default="that of the service account",
        ),
    ] = ""


class LogSettings(Section, frozen=True, kw_only=True):
    """The level and the format of logs."""

    level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"],
        about("The least important level that is logged.", "LOG_LEVEL"),
    ] = "INFO"
    format: Annotated[
        Literal["auto", "json", "console"],
        about("JSON lines or console lines; auto is console on a terminal.", "HOLDFAST_LOG_FORMAT"),
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
