"""The settings of ``hosts``: the processes that run long-lived agents, and how they are found and called."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from holdfast.config.durations import DAY
from holdfast.config.patterns import OPTIONAL_NAME
from holdfast.config.section import Section, about

_ADDRESS = r"\A[^\s/?#@]+:\d{1,5}\Z"
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_MODULE = rf"\A{_NAME}(?:\.{_NAME})*\Z"
_PLACEMENT = rf"\A(?:round-robin|least-loaded|resource-aware|{_NAME}(?:\.{_NAME})*:{_NAME})\Z"
Address = Annotated[str, Meta(pattern=_ADDRESS)]
Module = Annotated[str, Meta(pattern=_MODULE)]
Label = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._=/-]{0,62}\Z")]
_MODULES_ALLOWED = "a list, or separated by commas; each is a module like package.module"


_ANSWER_SECONDS = 5.0


class HostSettings(Section, frozen=True, kw_only=True):
    """The hosts of long-lived agents, and how they are called."""

    section: ClassVar[str] = "hosts"

    name: Annotated[
        str,
        about(
            "Name of this host in Redis; must be unique among live hosts.",
            pattern=r"\A[!-~]{0,200}\Z",
            allowed="up to 200 printable ASCII characters without blanks",
            default="the machine's name",
        ),
    ] = ""
    address: Annotated[
        str,
        about(
            "Address under which other processes reach this host, without the port; in a pod its IP.",
            "POD_IP",
            pattern=r"\A[^\s/?#@]*\Z",
            allowed="an IP address or a name",
            default="127.0.0.1",
        ),
    ] = ""
    listen: Annotated[
        str,
        about(
            "Address that the gRPC server listens on; other than loopback it needs TLS or `insecure`.",
            pattern=r"\A[!-~]+\Z",
            allowed="an address or a host name",
        ),
    ] = "127.0.0.1"
    grpc_port: Annotated[
        int, about("Port of a host's gRPC server; 0 is a free one.", "GRPC_PORT", ge=0, le=65535)
    ] = 50051
    max_processes: Annotated[int, about("Agents that one host runs.", "MAX_PROCESSES", ge=1, le=100_000)] = (
        100
    )
    ttl_seconds: Annotated[
        float,
        about(
            "How long a host keeps an agent without a heartbeat; it sends three or more in that time.",
            ge=0.2,
            le=DAY,
        ),
    ] = 60.0
    placing_seconds: Annotated[
        float,
        about("How long one process may try to place an agent before others try.", ge=0.1, le=DAY),
    ] = 35.0
    placement: Annotated[
        str,
        about(
            "How a host is chosen for an agent: a built-in policy, or your own function.",
            pattern=_PLACEMENT,
            allowed="round-robin, least-loaded, resource-aware, or package.module:function",
        ),
    ] = "round-robin"
    labels: Annotated[
        tuple[Label, ...],
        about(
            "Labels of this host, for agents that require them.",
            allowed="a list, or separated by commas; each up to 63 letters, digits and . _ = / -",
        ),
    ] = ()
    engine: Annotated[
        Literal["cluster", "local"],
        about("Where agents run: on the hosts, or in the program that requests them, and end with it."),
    ] = "cluster"
    directory: Annotated[
        Literal["redis", "static", "dns", "kubernetes"],
        about("Where hosts are found: their heartbeats, `addresses`, `service_name` in DNS or Kubernetes."),
    ] = "redis"
    addresses: Annotated[
        tuple[Address, ...],
        about(
            "The hosts of a static directory.",
            allowed="a list, or separated by commas; each is host:port",
        ),
    ] = ()
    service_name: Annotated[
        str,
        about(
            "Service name of the hosts.",
            "AGENT_HOST_SERVICE_NAME",
            pattern=r"\A[A-Za-z0-9._-]+\Z",
            allowed="a name of letters, digits and . _ -",
        ),
    ] = "agent-host"
    grpc_timeout_seconds: Annotated[
        float, about("How long to wait for a host's answer.", "GRPC_TIMEOUT", ge=0.001, le=DAY)
    ] = 30.0
    grpc_max_retries: Annotated[
        int,
        about(
            "Retries of a call that no host received; a new agent is offered to the next host instead.",
            "GRPC_MAX_RETRIES",
            ge=0,
            le=1000,
        ),
    ] = 3
    token: Annotated[
        str,
        about("Secret that callers of a host must send; empty requires none.", secret=True),
    ] = ""
    tls_certificate: Annotated[str, about("File with the certificate of hosts and of callers (mTLS).")] = ""
    tls_key: Annotated[str, about("File with its key.")] = ""
    tls_ca: Annotated[
        str,
        about("File with the authority that both sides trust; a host with it requires caller certificates."),
    ] = ""
    tls_verify_callers: Annotated[
        bool, about("Whether a host with `tls_ca` requires certificates of its callers (mTLS).")
    ] = True
    insecure: Annotated[bool, about("Whether a host may listen beyond loopback without TLS.")] = False
    preload: Annotated[
        tuple[Module, ...],
        about(
            "Modules that agents use, imported once before any is forked.",
            allowed=_MODULES_ALLOWED,
        ),
    ] = ()
    preload_app: Annotated[
        bool,
        about(
            "Whether the app is imported once, before any of its residents is forked; "
            "off for an app that starts threads when it is imported."
        ),
    ] = True
    allowed: Annotated[
        tuple[Module, ...],
        about(
            "Packages whose agent classes may run here; other classes are refused.",
            allowed=_MODULES_ALLOWED,
            default="those of the app",
        ),
    ] = ()
    rustic: Annotated[
        bool,
        about(
            "Whether agents of Rustic AI may run here, where it is installed; "
            "their libraries are imported before any is forked."
        ),
    ] = True
    ready_seconds: Annotated[
        float, about("How long an agent may take until it is ready.", ge=0.01, le=DAY)
    ] = 30.0
    stop_seconds: Annotated[
        float, about("How long a stopping agent may take before it is killed.", ge=0, le=DAY)
    ] = 10.0
    max_restarts: Annotated[
        int,
        about("How often an agent that ended by itself is started again within the window.", ge=0, le=1000),
    ] = 3
    restart_window_seconds: Annotated[
        float, about("The window in which restarts are counted.", ge=0.1, le=DAY)
    ] = 300.0
    memory_mb: Annotated[
        int,
        about("Memory that one agent may use; 0 is no limit.", ge=0, le=1_000_000),
    ] = 0
    nice: Annotated[
        int,
        about("The niceness of agents: a higher one leaves more CPU to other processes.", ge=0, le=19),
    ] = 0
    cgroups: Annotated[
        bool,
        about("Whether agents with limits get cgroups, if the host's cgroup is delegated to it."),
    ] = True
    health_seconds: Annotated[
        float, about("How often an agent's health is checked; 0 is never.", ge=0, le=DAY)
    ] = 10.0
    unhealthy_after: Annotated[
        int, about("Failed health checks in a row after which an agent is restarted.", ge=1, le=1000)
    ] = 3
    agent_metrics: Annotated[
        bool,
        about("Whether each agent has its own series of memory and CPU, as many as `max_processes` at most."),
    ] = True
    hash_tag: Annotated[
        str,
        about(
            "Hash tag of the hosts' keys; a Redis Cluster needs one.",
            pattern=OPTIONAL_NAME,
            allowed="a name of letters, digits and . _ : -, or empty",
        ),
    ] = ""

    @property
    def renew_every_seconds(self) -> float:
        """How often a host renews its leases: a third of the ttl."""
        return self.ttl_seconds / 3

    @property
    def trust_seconds(self) -> float:
        """How long a host trusts its last renewal: its agents end before another host can start them."""
        return self.ttl_seconds * 7 / 8

    @property
    def create_seconds(self) -> float:
        """How long to wait for a new agent: longer than its start may take, to get the host's error."""
        # guard: start-call-timeout
        return max(self.grpc_timeout_seconds, self.ready_seconds + _ANSWER_SECONDS)
