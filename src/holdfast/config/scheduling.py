"""The settings of the schedules, under ``redis.scheduler`` and ``redis.agent``.

Their keys and units are those of the document that they come from, so that its YAML can be used unchanged.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from holdfast.config.durations import DAY
from holdfast.config.section import Section, about

_DAY_MS: Final = DAY * 1000
_YEAR_MS: Final = 365 * _DAY_MS
_MOST: Final = 1_000_000
_BASE: Final = r"\A[A-Za-z0-9._:-]+\Z"
_OPTIONAL: Final = r"\A[A-Za-z0-9._:-]*\Z"
_BASE_ALLOWED: Final = "a name of letters, digits and . _ : -"
_SWEET_SPOT: Final = 100
_LARGEST_SCRIPT: Final = 500
_SCAN_PAGES: Final = 10
KEPT_TURNS: Final = 20


class ScheduledAgentSettings(Section, frozen=True, kw_only=True, rename="kebab"):
    """The schedules that a scheduler runs, and how many at once."""

    max_concurrent_agents: Annotated[
        int,
        about(
            "Schedules that one scheduler runs at once; 0 or less is no limit.",
            ge=-_MOST,
            le=_MOST,
            allowed=f"a whole number up to {_MOST}; 0 or less is no limit",
        ),
    ] = 100
    max_threads: Annotated[
        int,
        about(
            "Sync agents that one scheduler runs at once, each in a thread; others wait for one.",
            ge=1,
            le=100_000,
        ),
    ] = 1000
    enabled_pattern: Annotated[
        str,
        about("Schedules whose whole name matches are run; empty matches all.", regex=True),
    ] = ".*"
    disabled_pattern: Annotated[
        str,
        about(
            "Schedules whose whole name matches are not run, even if enabled; empty matches none.",
            regex=True,
        ),
    ] = ""

    @property
    def permits(self) -> int | None:
        """How many schedules run at once; None is no limit."""
        return self.max_concurrent_agents if self.max_concurrent_agents > 0 else None


class BatchSettings(Section, frozen=True, kw_only=True, rename="kebab"):
    """How many schedules one call to Redis moves."""

    enabled: Annotated[bool, about("Whether schedules are moved by the batch rather than one by one.")] = True
    batch_size: Annotated[
        int,
        about(
            "Schedules acquired in one turn; 0 or less is as many as there are free permits.",
            ge=-_MOST,
            le=_MOST,
            allowed=f"a whole number up to {_MOST}; 0 or less is as many as there are free permits",
        ),
    ] = 0
    chunk_attempt_multiplier: Annotated[
        float,
        about(
            "Additional pages that one read searches behind schedules of others, per 10 pages of 500.",
            ge=0,
            le=1000,
        ),
    ] = 0.0

    @property
    def per_script(self) -> int:
        """How many schedules one script moves: longer scripts would block other clients of Redis."""
        wanted = self.batch_size if self.batch_size > 0 else _SWEET_SPOT
        return min(wanted, _LARGEST_SCRIPT) if self.enabled else 1

    @property
    def scan_pages(self) -> int:
        """How many pages one read searches for schedules that are run here."""
        return round(_SCAN_PAGES * (1 + self.chunk_attempt_multiplier))


class JitterSettings(Section, frozen=True, kw_only=True, rename="kebab"):
    """Random delays, so that schedules do not come at the same time."""

    initial_registration_seconds: Annotated[
        float, about("New schedules begin within this time; 0 is at once.", ge=0, le=DAY)
    ] = 0.0
    shutdown_seconds: Annotated[
        float, about("Turns that a stopping scheduler gives back are due within this time.", ge=0, le=DAY)
    ] = 0.0
    failure_backoff_ratio: Annotated[
        float,
        about("How much longer or shorter a wait after a failure is: 0.1 is up to 10 %.", ge=0, le=1),
    ] = 0.1


class ThrottledSettings(Section, frozen=True, kw_only=True, rename="kebab"):
    """How long to wait after a throttled failure."""

    base_ms: Annotated[int, about("Wait after the first throttled failure.", ge=0, le=_YEAR_MS)] = 30_000
    multiplier: Annotated[float, about("Factor of each further wait.", ge=1, le=100)] = 2.0
    cap_ms: Annotated[int, about("The longest wait, before jitter.", ge=0, le=_YEAR_MS)] = 600_000


class FailureBackoffSettings(Section, frozen=True, kw_only=True, rename="kebab"):
    """When a schedule that failed is run again."""

    enabled: Annotated[
        bool, about("Whether the kind of a failure decides the wait; else it is the error interval.")
    ] = False
    max_immediate_retries: Annotated[
        int, about("Retries without any wait after a transient failure.", ge=0, le=1000)
    ] = 0
    permanent_forbidden_backoff_ms: Annotated[
        int, about("Wait after a missing permission (403).", ge=0, le=_YEAR_MS)
    ] = 1_800_000
    throttled: ThrottledSettings = ThrottledSettings()


class CircuitBreakerSettings(Section, frozen=True, kw_only=True, rename="kebab"):
    """The circuit breaker of the acquisition of schedules."""

    enabled: Annotated[bool, about("Whether failures stop the acquisition for a time.")] = True
    failure_threshold: Annotated[int, about("Failures that open the breaker.", ge=1, le=10_000)] = 5
    failure_window_ms: Annotated[int, about("How long a failure counts.", ge=1, le=_DAY_MS)] = 10_000
    cooldown_ms: Annotated[int, about("How long an open breaker refuses calls.", ge=1, le=_DAY_MS)] = 30_000
    half_open_duration_ms: Annotated[
        int, about("How long probes may stay without an answer.", ge=1, le=_DAY_MS)
    ] = 5000


class ExceptionalSettings(Section, frozen=True, kw_only=True, rename="kebab"):
    """Schedules that may overrun their deadline for longer than others."""

    pattern: Annotated[str, about("Schedules whose whole name matches; empty is none.", regex=True)] = ""
    threshold_ms: Annotated[int, about("How long they may overrun.", ge=0, le=_YEAR_MS)] = 3_600_000


class ZombieCleanupSettings(Section, frozen=True, kw_only=True, rename="kebab"):
    """The cleanup of turns that run beyond their deadline."""

    enabled: Annotated[bool, about("Whether runs beyond deadline and threshold are cancelled.")] = True
    threshold_ms: Annotated[
        int, about("How long a run may continue after its deadline.", ge=0, le=_YEAR_MS)
    ] = 30_000
    interval_ms: Annotated[int, about("How often overdue runs are searched.", ge=1, le=_DAY_MS)] = 300_000
    run_budget_ms: Annotated[int, about("The longest pass; 0 is no limit.", ge=0, le=_DAY_MS)] = 0
    executor_shutdown_await_ms: Annotated[
        int, about("How long running agents may take to stop at shutdown.", ge=0, le=_DAY_MS)
    ] = 10_000
    executor_shutdown_force_await_ms: Annotated[
        int, about("How long they may take after being cancelled.", ge=0, le=_DAY_MS)
    ] = 5000
    exceptional_agents: ExceptionalSettings = ExceptionalSettings()


class OrphanCleanupSettings(Section, frozen=True, kw_only=True, rename="kebab"):
    """The cleanup of schedules of schedulers that died, besides the leases."""

    enabled: Annotated[bool, about("Whether orphans are searched.")] = True
    threshold_ms: Annotated[
        int, about("How long after its deadline an entry without a lease is an orphan.", ge=0, le=_YEAR_MS)
    ] = 600_000
    interval_ms: Annotated[int, about("How often orphans are searched.", ge=1, le=_DAY_MS)] = 300_000
    leadership_ttl_ms: Annotated[int, about("How long one term of the leader lasts.", ge=1, le=_DAY_MS)] = (
        120_000
    )
    force_all_pods: Annotated[
        bool, about("Whether every scheduler searches, rather than only the leader.")
    ] = False
    remove_numeric_only_agents: Annotated[
        bool, about("Whether members that are mere numbers, which are damaged, are removed.")
    ] = True
    run_budget_ms: Annotated[int, about("The longest pass; 0 is no limit.", ge=0, le=_DAY_MS)] = 0
    executor_shutdown_await_ms: Annotated[
        int, about("How long a pass may take to end at shutdown.", ge=0, le=_DAY_MS)
    ] = 10_000
    executor_shutdown_force_await_ms: Annotated[
        int, about("How long it may take after being cancelled.", ge=0, le=_DAY_MS)
    ] = 5000


class ReconcileSettings(Section, frozen=True, kw_only=True, rename="kebab"):
    """The reconciliation of the schedules in the code with those in Redis."""

    run_budget_ms: Annotated[int, about("The longest pass; 0 is no limit.", ge=0, le=_DAY_MS)] = 0
    executor_shutdown_await_ms: Annotated[
        int, about("How long a pass may take to end at shutdown.", ge=0, le=_DAY_MS)
    ] = 5000
    executor_shutdown_force_await_ms: Annotated[
        int, about("How long it may take after being cancelled.", ge=0, le=_DAY_MS)
    ] = 2000


class ScheduleKeySettings(Section, frozen=True, kw_only=True, rename="kebab"):
    """The names of the schedules' keys: prefix, base name, then the hash tag in braces."""

    prefix: Annotated[
        str,
        about(
            "Prefix of the schedules' keys, after `redis.key_prefix`.",
            pattern=_OPTIONAL,
            allowed=f"empty, or {_BASE_ALLOWED}",
        ),
    ] = ""
    waiting_set: Annotated[
        str, about("Name of the set of waiting schedules.", pattern=_BASE, allowed=_BASE_ALLOWED)
    ] = "waiting"
    working_set: Annotated[
        str, about("Name of the set of running schedules.", pattern=_BASE, allowed=_BASE_ALLOWED)
    ] = "working"
    cleanup_leader_key: Annotated[
        str,
        about("Name of the key of the leader of the orphan cleanup.", pattern=_BASE, allowed=_BASE_ALLOWED),
    ] = "cleanup-leader"
    hash_tag: Annotated[
        str,
        about(
            "Hash tag that puts all of the schedules' keys into one slot; a Redis Cluster needs one.",
            pattern=_OPTIONAL,
            allowed=f"empty, or {_BASE_ALLOWED}",
        ),
    ] = ""


class SchedulerSettings(Section, frozen=True, kw_only=True, rename="kebab"):
    """How schedules are acquired, run and maintained."""

    enabled: Annotated[bool, about("Whether schedules are run.")] = True
    type: Annotated[Literal["priority"], about("The scheduler that runs them.")] = "priority"
    sharding: Annotated[
        Literal["none", "rendezvous"],
        about("Whether every scheduler acquires all due schedules, or each has a share of the names."),
    ] = "none"
    interval_ms: Annotated[
        int, about("The longest sleep between two reads of due schedules.", ge=1, le=3_600_000)
    ] = 1000
    refresh_period_seconds: Annotated[
        float, about("How often schedules that are missing in Redis are added again.", ge=0.01, le=DAY)
    ] = 30.0
    health_summary_period_seconds: Annotated[
        float,
        about(
            "How often the scheduler's health is logged; 0 or less is never.",
            ge=-DAY,
            le=DAY,
            allowed="a number of seconds, or like 30s, 5m, up to 1d; 0 or less is never",
        ),
    ] = 600.0
    time_cache_duration_ms: Annotated[
        int,
        about(
            "How long the difference to the clock of Redis is trusted before it is read again.",
            ge=0,
            le=_DAY_MS,
        ),
    ] = 10_000
    kept_turns: Annotated[
        int, about("Past turns of each schedule that are kept to be listed; 0 keeps none.", ge=0, le=1000)
    ] = KEPT_TURNS
    batch_operations: BatchSettings = BatchSettings()
    jitter: JitterSettings = JitterSettings()
    failure_backoff: FailureBackoffSettings = FailureBackoffSettings()
    circuit_breaker: CircuitBreakerSettings = CircuitBreakerSettings()
    zombie_cleanup: ZombieCleanupSettings = ZombieCleanupSettings()
    orphan_cleanup: OrphanCleanupSettings = OrphanCleanupSettings()
    reconcile: ReconcileSettings = ReconcileSettings()
    keys: ScheduleKeySettings = ScheduleKeySettings()
