"""M: the document's configuration, key by key, from the file and from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from holdfast.config import Loaded, SchedulerSettings, load
from holdfast.config.scheduling import BatchSettings, ScheduledAgentSettings
from holdfast.config.schema import leaves
from holdfast.errors import ConfigError

# The document's YAML as it stands there, its sections put together; every value is its default.
DOCUMENT = """\
redis:
  agent:
    max-concurrent-agents: 100    # Instance-wide semaphore limit; ≤0 = unbounded mode
    enabled-pattern: ".*"         # Regex for agent inclusion
    disabled-pattern: ""          # Regex for agent exclusion (takes precedence)
  scheduler:
    enabled: true
    type: priority
    interval-ms: 1000               # Scheduling loop frequency (default: 1s)
    refresh-period-seconds: 30      # Agent sync to Redis (default: 30s)
    health-summary-period-seconds: 600  # Health log interval (default: 10min, ≤0 disables)
    time-cache-duration-ms: 10000   # Redis TIME cache (default: 10s)

    batch-operations:
      enabled: true                 # Enable batch Redis operations
      batch-size: 0                 # Agents per batch (≤0 = unlimited)
      chunk-attempt-multiplier: 0.0 # Extra scan attempts for filtered agents

    jitter:
      initial-registration-seconds: 0    # Default: disabled; set >0 to spread new agents
      shutdown-seconds: 0                # Default: disabled; set >0 to spread re-queued agents on shutdown
      failure-backoff-ratio: 0.1         # Default: ±10% randomization on retries

    failure-backoff:
      enabled: false                     # Default: false (disabled); set true to enable failure-aware backoff
      max-immediate-retries: 0           # Default: 0; immediate retries before applying errorInterval
      permanent-forbidden-backoff-ms: 1800000  # Default: 30 min backoff for 403/AccessDenied
      throttled:
        base-ms: 30000                   # Default: 30s; starting backoff for throttled errors
        multiplier: 2.0                  # Default: 2.0; exponential factor per consecutive failure
        cap-ms: 600000                   # Default: 10 min; maximum backoff cap
    circuit-breaker:
      enabled: true           # Protection against cascading failures
      failure-threshold: 5    # Failures to trip
      failure-window-ms: 10000
      cooldown-ms: 30000      # Wait before testing recovery
      half-open-duration-ms: 5000
    zombie-cleanup:
      enabled: true
      threshold-ms: 30000     # Buffer beyond deadline (default: 30s)
      interval-ms: 300000     # Scan frequency (default: 5min)
      run-budget-ms: 0        # Max runtime per pass; 0 disables budget
      executor-shutdown-await-ms: 10000      # Graceful shutdown wait
      executor-shutdown-force-await-ms: 5000 # Forced shutdown wait
      exceptional-agents:
        pattern: ""            # Regex for long-running agents (empty = disabled)
        threshold-ms: 3600000   # Buffer for exceptional agents (default: 60m)
    orphan-cleanup:
      enabled: true
      threshold-ms: 600000       # Orphan age threshold (default: 10min)
      interval-ms: 300000        # Scan frequency (default: 5min)
      leadership-ttl-ms: 120000  # Leadership lock duration
      force-all-pods: false      # All pods run cleanup (bypasses election; shard gating preserved)
      remove-numeric-only-agents: true  # Repair corrupted entries
      run-budget-ms: 0           # Max runtime per pass; 0 disables budget
      executor-shutdown-await-ms: 10000      # Graceful shutdown wait
      executor-shutdown-force-await-ms: 5000 # Forced shutdown wait
    reconcile:
      run-budget-ms: 0                 # Max runtime per reconcile pass; 0 disables
      executor-shutdown-await-ms: 5000 # Graceful shutdown wait
      executor-shutdown-force-await-ms: 2000 # Forced shutdown wait
    keys:
      prefix: ""                         # Optional namespace prefix (e.g., "myapp:")
      waiting-set: waiting               # Base name for waiting set (default)
      working-set: working               # Base name for working set (default)
      cleanup-leader-key: cleanup-leader # Leadership key for orphan cleanup (default)
      hash-tag: ""                       # Hash tag for Redis Cluster (e.g., "ps")
"""
OURS = {"redis.agent.max-threads", "redis.scheduler.kept-turns", "redis.scheduler.sharding"}


def flat(tree: dict, prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


DOCUMENTED = flat(yaml.safe_load(DOCUMENT))


def at(loaded: Loaded, path: str) -> object:
    value: object = loaded.settings
    for name in path.replace("-", "_").split("."):
        value = getattr(value, name)
    return value


@pytest.fixture
def read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def load_text(text: str, **environ: str) -> Loaded:
        Path("holdfast.yaml").write_text(text)
        return load(environ=environ)

    return load_text


@pytest.fixture
def refusal(read):
    def of(text: str, **environ: str) -> str:
        with pytest.raises(ConfigError) as raised:
            read(text, **environ)
        return str(raised.value)

    return of


def test_m1_the_documents_yaml_is_read_as_it_stands(read):
    loaded = read(DOCUMENT)
    assert {path: at(loaded, path) for path in DOCUMENTED} == DOCUMENTED
    assert all(loaded.sources[path].startswith("holdfast.yaml:") for path in DOCUMENTED)


def test_m2_every_default_is_the_documents(read):
    loaded = read("")
    assert {path: at(loaded, path) for path in DOCUMENTED} == DOCUMENTED


def test_m3_there_is_no_other_key_but_ours():
    ours = {leaf.path for leaf in leaves() if leaf.path.startswith(("redis.scheduler.", "redis.agent."))}
    assert ours == set(DOCUMENTED) | OURS


@pytest.mark.parametrize(
    ("name", "text", "path", "value"),
    [
        ("HOLDFAST_REDIS_SCHEDULER_INTERVAL_MS", "250", "redis.scheduler.interval-ms", 250),
        ("HOLDFAST_REDIS_SCHEDULER_INTERVAL_MS", "2s", "redis.scheduler.interval-ms", 2000),
        ("HOLDFAST_REDIS_AGENT_MAX_CONCURRENT_AGENTS", "-1", "redis.agent.max-concurrent-agents", -1),
        ("HOLDFAST_REDIS_SCHEDULER_BATCH_OPERATIONS_BATCH_SIZE", "50", "redis.scheduler.batch-operations.batch-size", 50),
        ("HOLDFAST_REDIS_SCHEDULER_FAILURE_BACKOFF_THROTTLED_CAP_MS", "1h", "redis.scheduler.failure-backoff.throttled.cap-ms", 3_600_000),
        ("HOLDFAST_REDIS_SCHEDULER_ZOMBIE_CLEANUP_EXCEPTIONAL_AGENTS_PATTERN", "slow/.*", "redis.scheduler.zombie-cleanup.exceptional-agents.pattern", "slow/.*"),
        ("HOLDFAST_REDIS_SCHEDULER_KEYS_HASH_TAG", "ps", "redis.scheduler.keys.hash-tag", "ps"),
        ("HOLDFAST_REDIS_SCHEDULER_HEALTH_SUMMARY_PERIOD_SECONDS", "-1", "redis.scheduler.health-summary-period-seconds", -1),
    ],
)  # fmt: skip
def test_m4_the_environment_beats_the_file_and_is_named_as_the_source(read, name, text, path, value):
    loaded = read(DOCUMENT, **{name: text})
    assert at(loaded, path) == value
    assert loaded.sources[path] == f"environment {name}"
    assert path in {row.path for row in loaded.shown()}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "redis: {agent: {enabled-pattern: 'a['}}",
            (
                "redis.agent.enabled-pattern = a[ (holdfast.yaml:1) is not allowed: it must be a regular expression, and "
                "this is none (unterminated character set at position 1)"
            ),
        ),
        ("redis: {agent: {disabled-pattern: '*'}}", "(nothing to repeat at position 0)"),
        (
            "redis: {scheduler: {zombie-cleanup: {exceptional-agents: {pattern: '('}}}}",
            "redis.scheduler.zombie-cleanup.exceptional-agents.pattern = ( (holdfast.yaml:1)",
        ),
        (
            "redis:\n  scheduler:\n    batch-operations:\n      batch-size: many",
            (
                "redis.scheduler.batch-operations.batch-size = many (holdfast.yaml:4) is not allowed: it must be a whole "
                "number up to 1000000; 0 or less is as many as there are free permits"
            ),
        ),
        (
            "redis: {scheduler: {orphan-cleanup: {leadership-ttl-ms: 5s, run-budget-ms: 10s}}}",
            (
                "redis.scheduler.orphan-cleanup.leadership-ttl-ms = 5000 (holdfast.yaml:1) is shorter than "
                "redis.scheduler.orphan-cleanup.run-budget-ms = 10000 (holdfast.yaml:1): a second leader"
            ),
        ),
        (
            "redis: {scheduler: {failure-backoff: {throttled: {base-ms: 20m}}}}",
            "base-ms = 1200000 (holdfast.yaml:1) is more than redis.scheduler.failure-backoff.throttled.cap-ms = 600000",
        ),
        (
            "redis: {scheduler: {keys: {waiting-set: working}}}",
            (
                "redis.scheduler.keys.waiting-set = working (holdfast.yaml:1) and redis.scheduler.keys.working-set = "
                "working (default) are one key"
            ),
        ),
        (
            "redis: {scheduler: {keys: {waiting-set: agent-queue}}}",
            "makes the key agent-queue, which belongs to a queue",
        ),
        ("redis: {scheduler: {keys: {hash-tag: '{ps}'}}}", "redis.scheduler.keys.hash-tag = {ps} "),
        (
            "redis: {scheduler: {interval_ms: 5}}",
            "redis.scheduler.interval_ms (holdfast.yaml:1) is not a setting. Did you mean redis.scheduler.interval-ms?",
        ),
        ("redis: {scheduler: {zombie: {}}}", "Did you mean redis.scheduler.zombie-cleanup?"),
        ("redis: {scheduler: {batch-size: 5}}", "Did you mean redis.scheduler.batch-operations"),
        (
            "redis: {scheduler: {interval-ms: 0}}",
            "it must be a duration from 1ms to 1h: a number of milliseconds",
        ),
        ("redis: {scheduler: {interval-ms: 1.5}}", "redis.scheduler.interval-ms = 1.5 "),
        ("redis: {scheduler: {type: default}}", "it must be priority"),
        ("redis: {scheduler: {jitter: {failure-backoff-ratio: 2}}}", "it must be a number from 0 to 1"),
        ("redis: {scheduler: {zombie-cleanup: {threshold-ms: -1}}}", "it must be a duration from 0 to 365d"),
        ("redis: {scheduler: 5}", "redis.scheduler (holdfast.yaml:1) must be a mapping"),
    ],
)
def test_m5_what_is_wrong_stops_the_start_with_its_path_and_the_reason(refusal, text, says):
    assert says in refusal(text)


def test_m6_an_unknown_variable_is_named_with_what_was_meant(refusal):
    told = refusal("", HOLDFAST_REDIS_SCHEDULER_INTERVALL_MS="1")
    assert "Did you mean HOLDFAST_REDIS_SCHEDULER_INTERVAL_MS" in told


def test_m7_everything_that_is_wrong_is_told_at_once(refusal):
    told = refusal(
        "redis: {agent: {enabled-pattern: '('}, scheduler: {nope: 1, batch-operations: {batch-size: many}}}"
    )
    assert told.startswith("3 problems with the settings:")


@pytest.mark.parametrize(("most", "permits"), [(100, 100), (1, 1), (0, None), (-7, None)])
def test_m8_no_permits_or_less_is_no_limit(most, permits):
    assert ScheduledAgentSettings(max_concurrent_agents=most).permits == permits


@pytest.mark.parametrize(
    ("enabled", "size", "per_script"),
    [(True, 0, 100), (True, -1, 100), (True, 7, 7), (True, 5000, 500), (False, 50, 1)],
)
def test_m9_no_script_moves_more_than_500(enabled, size, per_script):
    assert BatchSettings(enabled=enabled, batch_size=size).per_script == per_script


def test_m10_the_settings_are_one_frozen_value():
    assert SchedulerSettings() == SchedulerSettings()
    with pytest.raises(AttributeError):
        SchedulerSettings().interval_ms = 5


CONNECTION = """
redis:
  connection:
    pool:
      max-wait-millis: 5000     # Max time to wait for a connection from the pool
      max-total: 40             # Maximum pool size
      max-idle: 10              # Maximum idle connections
      min-idle: 2               # Minimum idle connections
    timeout: 3000               # Socket timeout for read/write operations (ms)
    connect-timeout: 2s         # Connection establishment timeout (ms)
"""


def test_m18_the_documents_connection_is_read_as_our_settings(read):
    loaded = read(CONNECTION)
    redis = loaded.settings.redis
    assert (redis.max_connections, redis.socket_timeout_seconds, redis.connect_timeout_seconds) == (40, 3, 2)
    assert loaded.sources["redis.max_connections"] == "holdfast.yaml:6"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("redis: {connection: {timeout: soon}}", "redis.socket_timeout_seconds = soon (holdfast.yaml:1)"),
        ("redis: {connection: {pool: {max-totl: 5}}}", "Did you mean redis.connection.pool.max-total?"),
        ("redis: {connection: 5}", "redis.connection (holdfast.yaml:1) must be a mapping"),
        (
            "redis:\n  max_connections: 5\n  connection: {pool: {max-total: 6}}",
            "redis.connection.pool.max-total (holdfast.yaml:3) is redis.max_connections, which is already set at holdfast.yaml:2",
        ),
        (
            "redis:\n  connection: {pool: {max-total: 6}}\n  max_connections: 5",
            "redis.max_connections (holdfast.yaml:3) is already set at holdfast.yaml:2",
        ),
    ],
)
def test_m19_what_is_wrong_with_it_is_told(refusal, text, says):
    assert says in refusal(text)
