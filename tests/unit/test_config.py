from __future__ import annotations

import pickle
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.config import LeaseSettings, Loaded, QueueSettings, RedisSettings, Settings, load
from holdfast.config.schema import leaves
from holdfast.errors import ConfigError

# One row for every name a seed gives and every short name of ours: name, what is written, where it goes, what it becomes.
NAMES = [
    ("REDIS_URL", "redis://media-redis:6379/0", "redis.url", "redis://media-redis:6379/0"),
    ("HOLDFAST_KEY_PREFIX", "blue:", "redis.key_prefix", "blue:"),
    ("REDIS_PASSWORD", "hunter2", "redis.password", "hunter2"),
    ("HOLDFAST_EMBEDDED_DIR", "/var/lib/holdfast", "redis.embedded_dir", "/var/lib/holdfast"),
    ("MESSAGING_PLATFORM", "redis-streams", "messaging.platform", "redis-streams"),
    ("MESSAGING_QUEUE_NAME", "mail", "messaging.queue", "mail"),
    ("CLUSTER_STREAM_KEY", "streams:media.cluster", "messaging.queue", "streams:media.cluster"),
    ("HOLDFAST_LEASE_TTL_SECONDS", "45", "lease.ttl_seconds", 45.0),
    ("RETRY_IDLE_MS", "60000", "lease.ttl_seconds", 60.0),
    ("CLUSTER_CONSUMER_GROUP", "media-clustering-workers", "queue.group", "media-clustering-workers"),
    ("WORKER_POD_MESSAGES_BATCH_SIZE", "16", "queue.slots", 16),
    ("MESSAGE_LOCK_DURATION", "3600", "queue.timeout_seconds", 3600.0),
    ("MAX_ATTEMPTS", "7", "queue.max_attempts", 7),
    ("MAX_PENDING_PER_WORKER", "64", "queue.max_pending", 64),
    ("STREAM_MAXLEN", "10000", "queue.max_depth", 10000),
    ("HOLDFAST_MAX_PAYLOAD_BYTES", "4096", "queue.max_payload_bytes", 4096),
    ("REDIS_STREAM_DELETE_AFTER_ACK", "false", "queue.delete_after_ack", False),
    ("REDIS_SEND_MESSAGE_MAX_RETRIES", "0", "sender.max_retries", 0),
    ("REDIS_SEND_MESSAGE_RETRY_DELAY", "0.25", "sender.retry_delay_seconds", 0.25),
    ("REDIS_SEND_MESSAGE_RETRY_BACKOFF", "1.5", "sender.retry_backoff", 1.5),
    ("WORKER_POD_NAME", "worker-7d9f", "worker.name", "worker-7d9f"),
    ("CLUSTER_WORKER_CONSUMER_NAME", "dev-worker", "worker.name", "dev-worker"),
    ("HOLDFAST_WORKER_QUEUES", "mail, media,mail", "worker.queues", ("mail", "media")),
    ("HOLDFAST_DRAIN_SECONDS", "1m", "worker.drain_seconds", 60.0),
    (
        "HOLDFAST_ENVOY_QUIT_URL",
        "http://localhost:15020/quitquitquit",
        "worker.envoy_quit_url",
        "http://localhost:15020/quitquitquit",
    ),
    ("HEARTBEAT_INTERVAL", "20", "worker.heartbeat_seconds", 20.0),
    ("REDIS_STREAM_CLEANUP_ENABLED", "no", "janitor.enabled", False),
    ("CONSUMER_CLEANUP_INTERVAL_SECONDS", "600", "janitor.consumer_interval_seconds", 600.0),
    ("IDLE_THRESHOLD_SECONDS", "900", "janitor.idle_threshold_seconds", 900.0),
    ("STREAM_CLEANUP_INTERVAL_MINUTES", "30", "janitor.stream_interval_minutes", 30.0),
    ("STREAM_CLEANUP_LOCK_TTL_SECONDS", "120", "janitor.lock_ttl_seconds", 120.0),
    ("DRY_RUN", "true", "janitor.dry_run", True),
    ("LOG_LEVEL", "debug", "log.level", "DEBUG"),
    ("HOLDFAST_LOG_FORMAT", "json", "log.format", "json"),
    ("METRICS_PORT", "8080", "metrics.port", 8080),
    ("HOLDFAST_METRICS_HOST", "0.0.0.0", "metrics.host", "0.0.0.0"),
    ("EVENT_API_URL", "https://events.example/v1", "event_api.url", "https://events.example/v1"),
    ("INTERSERVICES_SHARED_SECRET", "s3cret", "event_api.secret", "s3cret"),
    ("DATABASE_URL", "postgresql://u@h/n", "database.url", "postgresql://u@h/n"),
    ("HOLDFAST_API_URL", "http://api:8080", "client.url", "http://api:8080"),
    ("HOLDFAST_API_KEY", "hf_k", "client.key", "hf_k"),
    ("HOLDFAST_WEBHOOK_SECRET", "whsec_c2VjcmV0", "relay.webhook_secret", "whsec_c2VjcmV0"),
    ("POD_IP", "10.1.2.3", "hosts.address", "10.1.2.3"),
    ("POD_NAME", "worker-7d4f-x2b", "pod.name", "worker-7d4f-x2b"),
    ("POD_UID", "5cd4f0cb-0b5e-4d5c-9d2a-0c6f4a1b2c3d", "pod.uid", "5cd4f0cb-0b5e-4d5c-9d2a-0c6f4a1b2c3d"),
    ("POD_NAMESPACE", "agents", "pod.namespace", "agents"),
    ("MAX_PROCESSES", "10", "hosts.max_processes", 10),
    ("GRPC_PORT", "50052", "hosts.grpc_port", 50052),
    ("AGENT_HOST_SERVICE_NAME", "hosts", "hosts.service_name", "hosts"),
    ("GRPC_TIMEOUT", "10", "hosts.grpc_timeout_seconds", 10.0),
    ("GRPC_MAX_RETRIES", "1", "hosts.grpc_max_retries", 1),
]


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> Path:
        path = Path("holdfast.yaml")
        path.write_text(text)
        return path

    return write


def at(loaded: Loaded, path: str) -> object:
    value: object = loaded.settings
    for name in path.replace("-", "_").split("."):
        value = getattr(value, name)
    return value


def generated_name(leaf) -> str:
    return f"HOLDFAST_{leaf.path.upper().replace('.', '_').replace('-', '_')}"


def sample(leaf) -> tuple[str, object]:
    """Something other than the default, as text and as a value."""
    match leaf.kind:
        case "true or false":
            return str(not leaf.default).lower(), not leaf.default
        case "list of names" if leaf.path == "api.keys":
            lines = (f"one:acme:read+submit:{'0' * 64}", f"two:*:operate:{'f' * 64}")
            return ",".join(lines), lines
        case "list of names" if leaf.path == "hosts.addresses":
            return "a:1,b:2", ("a:1", "b:2")
        case "list of names" if leaf.path == "janitor.pod_selector":
            return "app=worker,example.com/tier=", ("app=worker", "example.com/tier=")
        case "list of names":
            return "a,b", ("a", "b")
        case "choice":
            return leaf.choices[-1], leaf.choices[-1]
        case "text":
            text = "https://example.com" if leaf.url else "something"
            special = {
                "redis.url": "redis://example",
                "database.url": "postgresql://example/name",
                "relay.webhook_secret": "whsec_c2VjcmV0",
                "hosts.placement": "package.module:function",
            }
            text = special.get(leaf.path, text)
            return text, text
    number = 1 if leaf.default != 1 else 2
    return str(number), number


@pytest.mark.parametrize(("name", "text", "path", "value"), NAMES)
def test_every_short_name_reaches_its_setting(name, text, path, value):
    loaded = load(environ={name: text})
    assert at(loaded, path) == value
    assert type(at(loaded, path)) is type(value)
    assert loaded.sources[path] == f"environment {name}"


def test_the_table_of_names_is_complete():
    generated = {generated_name(leaf) for leaf in leaves()}
    declared = {name for leaf in leaves() for name in leaf.env}
    assert declared - generated == {row[0] for row in NAMES} - generated


def test_every_setting_has_a_name_made_of_its_path():
    extra = {
        # what the checks demand beside it
        "redis.tls_cert_file": {"HOLDFAST_REDIS_TLS_KEY_FILE": "k"},
        "redis.tls_key_file": {"HOLDFAST_REDIS_TLS_CERT_FILE": "c"},
        "janitor.stream_interval_minutes": {"STREAM_CLEANUP_LOCK_TTL_SECONDS": "1"},
        "queue.backoff.cap_seconds": {"HOLDFAST_QUEUE_BACKOFF_BASE_SECONDS": "1"},
        "redis.scheduler.failure-backoff.throttled.cap-ms": {
            "HOLDFAST_REDIS_SCHEDULER_FAILURE_BACKOFF_THROTTLED_BASE_MS": "1"
        },
    }
    for leaf in leaves():
        text, value = sample(leaf)
        name = generated_name(leaf)
        loaded = load(environ={name: text} | extra.get(leaf.path, {}))
        assert at(loaded, leaf.path) == value, leaf.path
        assert loaded.sources[leaf.path] == f"environment {name}"


def test_every_setting_says_what_it_is_for():
    for leaf in leaves():
        assert leaf.description.endswith("."), leaf.path
        assert leaf.allowed, leaf.path
        assert all(name == name.upper() for name in leaf.env), leaf.path


def test_no_two_settings_share_an_environment_name():
    names = [name for leaf in leaves() for name in leaf.env]
    assert len(names) == len(set(names))


def test_every_default_is_itself_allowed():
    for leaf in leaves():
        assert msgspec.convert(leaf.default, leaf.annotation) == leaf.default, leaf.path


def test_without_file_and_environment_everything_is_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loaded = load(environ={})
    assert set(loaded.sources.values()) == {"default"}
    assert loaded.file is None
    assert loaded.settings.queue_names() == ("agent-queue",)
    assert loaded.settings.queue_named("agent-queue") == QueueSettings()
    assert loaded.settings.janitor == Settings().janitor


def test_environment_beats_file_beats_default(file):
    file("queue:\n  slots: 4\n  max_attempts: 9\n")
    loaded = load(environ={"WORKER_POD_MESSAGES_BATCH_SIZE": "8"})
    assert (loaded.settings.queue.slots, loaded.sources["queue.slots"]) == (
        8,
        "environment WORKER_POD_MESSAGES_BATCH_SIZE",
    )
    assert (loaded.settings.queue.max_attempts, loaded.sources["queue.max_attempts"]) == (
        9,
        "holdfast.yaml:3",
    )
    assert (loaded.settings.queue.max_depth, loaded.sources["queue.max_depth"]) == (1_000_000, "default")


def test_the_process_environment_is_read_when_none_is_given(monkeypatch):
    monkeypatch.setenv("MAX_ATTEMPTS", "2")
    assert load().settings.queue.max_attempts == 2


def test_a_given_path_beats_the_variable_which_beats_the_current_directory(file, tmp_path):
    file("log: {level: ERROR}\n")
    for name, level in (("named", "WARNING"), ("given", "DEBUG")):
        (tmp_path / f"{name}.yaml").write_text(f"log:\n  level: {level}\n")
    variable = {"HOLDFAST_CONFIG": "named.yaml"}
    assert load(environ={}).settings.log.level == "ERROR"
    assert load(environ=variable).settings.log.level == "WARNING"
    given = load(tmp_path / "given.yaml", variable)
    assert given.settings.log.level == "DEBUG"
    assert given.sources["log.level"] == f"{tmp_path / 'given.yaml'}:2"


@pytest.mark.parametrize("text", ["", "# nothing\n", "redis:\nqueues:\n", "---\n", "queue: {}\n"])
def test_an_empty_file_or_section_changes_nothing(file, text):
    assert load(file(text), {}).settings == load(environ={}).settings


def test_an_empty_variable_counts_as_not_set(file):
    file("redis: {url: 'redis://h'}\n")
    loaded = load(environ={"REDIS_URL": "", "MAX_ATTEMPTS": " "})
    assert loaded.settings.redis.url == "redis://h"
    assert loaded.settings.queue.max_attempts == 5


def test_text_is_taken_as_it_is_written_whatever_yaml_makes_of_it(file):
    file("redis: {password: 0123}\nmessaging: {queue: no}\nworker: {queues: [on, 1_0]}\n")
    settings = load(environ={}).settings
    assert settings.redis.password == "0123"
    assert settings.queue_names() == ("no", "on", "1_0")


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("'500ms'", 0.5),
        ("30s", 30.0),
        ("5m", 300.0),
        ("2h", 7200.0),
        ("1h30m", 5400.0),
        ("90", 90.0),
        ("1.5", 1.5),
    ],
)
def test_durations_in_the_file_are_numbers_or_have_a_unit(file, line, value):
    file(f"queue: {{timeout_seconds: {line}}}\n")
    assert load(environ={}).settings.queue.timeout_seconds == value


def test_durations_are_counted_in_the_unit_of_their_name(file):
    file("queue: {block_ms: 1.5s}\njanitor: {stream_interval_minutes: 2h}\n")
    settings = load(environ={}).settings
    assert settings.queue.block_ms == 1500
    assert settings.janitor.stream_interval_minutes == 120
    assert load(environ={"RETRY_IDLE_MS": "45s"}).settings.lease.ttl_seconds == 45


def test_a_queue_overrides_any_subset_of_the_defaults(file):
    file(
        "queue: {slots: 2, backoff: {jitter: 0}}\n"
        "queues:\n  media:\n    slots: 16\n    backoff: {cap_seconds: 10m}\n  plain:\n"
    )
    loaded = load(environ={"MAX_ATTEMPTS": "9"})
    media, plain = (loaded.settings.queue_named(name) for name in ("media", "plain"))
    assert (media.name, media.group, media.slots, media.max_attempts) == ("media", "media-group", 16, 9)
    assert (media.backoff.cap_seconds, media.backoff.jitter) == (600, 0)
    assert plain == loaded.settings.queue.renamed("plain")
    assert loaded.settings.queue_names() == ("agent-queue", "media", "plain")
    assert loaded.sources["queues.media.backoff.cap_seconds"] == "holdfast.yaml:5"


def test_group_and_deadletter_of_the_defaults_belong_to_the_default_queue_only(file):
    file("queue: {deadletter: streams:media.cluster.deadletter}\nqueues: {other: {}}\n")
    settings = load(
        environ={"CLUSTER_STREAM_KEY": "streams:media.cluster", "CLUSTER_CONSUMER_GROUP": "team"}
    ).settings
    own, other = settings.queue_named("streams:media.cluster"), settings.queue_named("other")
    assert (own.group, own.deadletter) == ("team", "streams:media.cluster.deadletter")
    assert (other.group, other.deadletter) == ("other-group", "")
    assert settings.queue_named("never-described").group == "never-described-group"


MEDIA = {"CLUSTER_STREAM_KEY": "streams:media.cluster"}


def test_a_media_stream_has_its_dead_letters_beside_it_and_needs_no_agent_ids(file):
    queue = load(environ=MEDIA).settings.queue_named("streams:media.cluster")
    assert (queue.deadletter, queue.default_agent) == ("streams:media.cluster.deadletter", "*")
    assert load(environ=MEDIA).settings.queue_named("other").deadletter == ""
    named = load(environ={"MESSAGING_QUEUE_NAME": "streams:media.cluster"}).settings.queue
    assert (named.deadletter, named.default_agent) == ("", "")
    own = {"HOLDFAST_QUEUE_DEADLETTER": "mine", "HOLDFAST_QUEUE_DEFAULT_AGENT": "cluster"}
    told = load(environ=MEDIA | own).settings.queue
    assert (told.deadletter, told.default_agent) == ("mine", "cluster")


def test_on_a_cluster_a_media_streams_dead_letters_are_in_its_slot(file):
    queue = load(environ=MEDIA | {"REDIS_URL": "redis+cluster://localhost:7000"}).settings.queue
    assert (queue.deadletter, queue.default_agent) == ("", "*")


def test_a_variable_beats_the_file_for_the_default_queue_but_not_for_a_described_one(file):
    file("queues:\n  agent-queue: {slots: 5}\n  media: {slots: 6}\n")
    loaded = load(environ={"WORKER_POD_MESSAGES_BATCH_SIZE": "10"})
    slots = {name: loaded.settings.queue_named(name).slots for name in ("agent-queue", "media", "new")}
    assert slots == {"agent-queue": 10, "media": 6, "new": 10}
    assert loaded.sources["queues.agent-queue.slots"] == "environment WORKER_POD_MESSAGES_BATCH_SIZE"
    assert load(environ={}).settings.queue_named("agent-queue").slots == 5


def test_a_worker_serves_the_default_queue_unless_told_otherwise(file):
    file("queues: {media: {slots: 6}}\n")
    assert [queue.name for queue in load(environ={}).settings.worker_queues()] == ["agent-queue"]
    settings = load(environ={"HOLDFAST_WORKER_QUEUES": "media,new"}).settings
    assert [(queue.name, queue.slots) for queue in settings.worker_queues()] == [("media", 6), ("new", 3)]
    assert settings.queue_names() == ("agent-queue", "media", "new")


def test_the_idle_threshold_follows_the_longest_timeout(file):
    file("queues: {slow: {timeout_seconds: 2h}}\n")
    assert load(environ={}).settings.janitor.idle_threshold_seconds == 7500
    assert load(environ={"MESSAGE_LOCK_DURATION": "8000"}).settings.janitor.idle_threshold_seconds == 8300
    assert load(environ={"IDLE_THRESHOLD_SECONDS": "60"}).settings.janitor.idle_threshold_seconds == 60


def test_the_cost_of_an_idle_pod_is_lowered_well_before_the_shortest_scale_in(file):
    def lower(environ: dict[str, str]) -> float:
        return load(environ=environ).settings.janitor.deletion_cost_lower_seconds

    assert lower({}) == 15
    file("queues: {slow: {scaling: {down_seconds: 10m}}, quick: {scaling: {down_seconds: 40}}}\n")
    assert lower({}) == 5, "half of it, and before the HPA may look"
    assert lower({"HEARTBEAT_INTERVAL": "22"}) == 1, "it is heard of late"
    file("queues: {quick: {scaling: {down_seconds: 27}}}\n")
    assert lower({"HOLDFAST_JANITOR_KUBERNETES": "true"}) == 0
    file("queues: {agent-queue: {}, fixed: {scaling: {enabled: false, down_seconds: 1}}}\n")
    assert lower({}) == 15, "nobody scales that one in"


def test_a_queue_that_nobody_scales_in_limits_no_cost(file):
    file(
        "janitor: {kubernetes: true, deletion_cost_lower_seconds: 15}\n"
        "queues: {fixed: {scaling: {enabled: false, down_seconds: 1}}}\n"
    )
    assert load(environ={}).settings.janitor.deletion_cost_lower_seconds == 15


def test_two_names_of_one_setting_may_agree():
    environ = {
        "WORKER_POD_NAME": "a",
        "CLUSTER_WORKER_CONSUMER_NAME": "a",
        "RETRY_IDLE_MS": "30000",
        "HOLDFAST_LEASE_TTL_SECONDS": "30",
    }
    assert load(environ=environ).settings.worker.name == "a"


def test_a_lease_is_renewed_each_quarter_and_trusted_three():
    lease = LeaseSettings(ttl_seconds=30)
    assert (lease.renew_every_seconds, lease.trust_seconds) == (7.5, 22.5)


def test_settings_are_frozen_and_can_be_sent_to_another_process():
    settings = load(environ={}).settings
    with pytest.raises(AttributeError):
        settings.log.level = "DEBUG"
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_a_repr_shows_no_secret():
    settings = Settings(redis=RedisSettings(url="redis://u:hunter2@h", password="hunter3"))
    assert "hunter" not in repr(settings)
    assert "redis://u:***@h" in repr(settings)


def test_what_is_shown_has_sources_and_no_secret(file):
    file("queues:\n  media: {slots: 6}\n")
    loaded = load(environ={"REDIS_URL": "redis://:hunter2@h", "INTERSERVICES_SHARED_SECRET": "hunter3"})
    rows = {row.path: row for row in loaded.shown()}
    assert set(rows) == set(loaded.sources)
    assert rows["redis.url"].value == "redis://:***@h"
    assert rows["event_api.secret"].value == "***"
    assert (rows["queues.media.slots"].value, rows["queues.media.slots"].source) == ("6", "holdfast.yaml:2")
    assert "hunter" not in repr(rows)


KUBERNETES = {
    "HOLDFAST_API_SERVICE_HOST": "10.0.0.7",
    "HOLDFAST_API_SERVICE_PORT": "80",
    "HOLDFAST_API_SERVICE_PORT_HTTP": "80",
    "HOLDFAST_API_PORT": "tcp://10.0.0.7:80",
    "HOLDFAST_API_PORT_80_TCP": "tcp://10.0.0.7:80",
    "HOLDFAST_API_PORT_80_TCP_ADDR": "10.0.0.7",
    "HOLDFAST_METRICS_PORT": "tcp://10.0.0.8:80",
    "GRPC_PORT": "tcp://10.0.0.9:50051",
}


@pytest.mark.parametrize("name", KUBERNETES)
def test_what_kubernetes_says_of_its_services_is_no_setting(name):
    loaded = load(environ={name: KUBERNETES[name]})
    assert set(loaded.sources.values()) == {"default"}


patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

# The trees are drawn from real names, so that the walk goes deep, and from anything at all.
WORDS = st.sampled_from(
    sorted({part for leaf in leaves() for part in leaf.path.split(".")} | {"queues", "<<", "no", "~"})
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.dates()
    | st.just("redis://a:b@c")
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | SCALARS, inner, max_size=5),
    max_leaves=25,
)


@patient
@given(tree=st.dictionaries(WORDS, TREES, max_size=6))
def test_any_mapping_loads_or_is_a_config_error(tmp_path_factory, tree):
    path = tmp_path_factory.mktemp("any") / "holdfast.yaml"
    path.write_text(yaml.safe_dump(tree, allow_unicode=True), encoding="utf-8")
    loads_or_is_a_config_error(path, {})


@patient
@given(
    text=st.text(alphabet=st.characters(codec="utf-8") | st.sampled_from("&*!|>{}[]:-#'\"\n ,"), max_size=60)
)
def test_any_text_loads_or_is_a_config_error(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any") / "holdfast.yaml"
    path.write_text(text, encoding="utf-8")
    loads_or_is_a_config_error(path, {})


@patient
@given(
    environ=st.dictionaries(
        st.sampled_from([name for leaf in leaves() for name in leaf.env]), st.text(max_size=20), max_size=6
    )
)
def test_any_environment_loads_or_is_a_config_error(environ):
    loads_or_is_a_config_error(None, environ)


def loads_or_is_a_config_error(path, environ):
    try:
        loaded = load(path, environ)
    except ConfigError as error:
        assert str(error)
    else:
        assert loaded.settings.worker_queues()
        assert repr(loaded)
        assert loaded.shown()
