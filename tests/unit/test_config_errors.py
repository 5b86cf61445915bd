from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.config import REDIS_SCHEMES, load
from holdfast.config.checks import is_house_key, key_slot
from holdfast.config.schema import leaves
from holdfast.errors import ConfigError
from holdfast.redis.datamodel import DATA_MODEL
from holdfast.redis.keys import QueueKeys


@pytest.fixture
def refusal(tmp_path, monkeypatch):
    """What an operator reads, for this file and this environment."""
    monkeypatch.chdir(tmp_path)

    def read(text: str = "", **environ: str) -> str:
        Path("holdfast.yaml").write_text(text)
        with pytest.raises(ConfigError) as raised:
            load(environ=environ)
        return str(raised.value)

    return read


@pytest.fixture
def accepted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def read(text: str = "", **environ: str) -> None:
        Path("holdfast.yaml").write_text(text)
        load(environ=environ)

    return read


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("redis: {ur: x}", "redis.ur (holdfast.yaml:1) is not a setting. Did you mean redis.url?"),
        ("lease:\n  ttl: 5", "lease.ttl (holdfast.yaml:2) is not a setting. Did you mean lease.ttl_seconds?"),
        ("redis: {slots: 3}", "redis.slots (holdfast.yaml:1) is not a setting. Did you mean queue.slots?"),
        ("wroker: {}", "wroker (holdfast.yaml:1) is not a setting. Did you mean worker?"),
        ("log: {log-level: x}", "log.log-level (holdfast.yaml:1) is not a setting. Did you mean log.level?"),
        ("queue: {max-attempts: 3}", "Did you mean queue.max_attempts?"),
        ("REDIS_URL: redis://h", "REDIS_URL (holdfast.yaml:1) is not a setting. Did you mean redis.url?"),
        (
            "queues: {media: {slot: 3}}",
            "queues.media.slot (holdfast.yaml:1) is not a setting. Did you mean queues.media.slots?",
        ),
        ("queue: {name: x}", "a queue's name is its key under queues, or messaging.queue"),
        (
            "queues: {a: &a {slots: 3}, b: {<<: *a}}",
            "merge keys are not supported; put what the queues share under queue",
        ),
        (
            "zzz: 1",
            "zzz (holdfast.yaml:1) is not a setting. Remove it; `holdfast config show` lists every setting.",
        ),
    ],
)
def test_an_unknown_key_is_named_with_what_was_meant(refusal, text, says):
    assert says in refusal(text)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("HOLDFAST_LEASE_TLL", "Did you mean HOLDFAST_LEASE_TTL_SECONDS?"),
        ("HOLDFAST_REDIS_ULR", "Did you mean REDIS_URL?"),
        ("HOLDFAST_MAX_ATTEMPTS", "Did you mean MAX_ATTEMPTS or HOLDFAST_QUEUE_MAX_ATTEMPTS?"),
        ("HOLDFAST_ZZZ", "Remove it; `holdfast config show` lists every setting."),
    ],
)
def test_an_unknown_variable_of_ours_is_named_with_what_was_meant(refusal, name, says):
    told = refusal(**{name: "1"})
    assert f"{name} (environment) is not a setting." in told
    assert says in told


def test_other_peoples_variables_are_not_our_business(accepted):
    accepted(PATH="/bin", REDIS_ULR="x", HOLDFASTER="x")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "queue: {slots: many}",
            "queue.slots = many (holdfast.yaml:1) is not allowed: it must be a whole number from 1 to 100000",
        ),
        ("queue: {slots: 0}", "queue.slots = 0 (holdfast.yaml:1) is not allowed"),
        ("queue: {slots: 3.5}", "queue.slots = 3.5 "),
        ("queue: {slots: 017x}", "queue.slots = 017x "),
        ("queue: {slots: true}", "queue.slots = true "),
        ("queue: {slots: [1]}", "queue.slots = [1] "),
        ("queue: {slots: {a: 1}}", "queue.slots = a mapping "),
        ("queue: {slots: }", "queue.slots = nothing "),
        ("queue: {slots: !some 3}", "queue.slots = a value with the tag !some "),
        ("queue: {slots: 99999999999999999999999}", "it must be a whole number from 1 to 100000"),
        (
            "queue: {backoff: {jitter: 1.5}}",
            "queue.backoff.jitter = 1.5 (holdfast.yaml:1) is not allowed: it must be a number from 0 to 1",
        ),
        ("queue: {backoff: {jitter: .nan}}", "queue.backoff.jitter = .nan "),
        ("sender: {retry_backoff: .inf}", "sender.retry_backoff = .inf "),
        (
            "queue: {delete_after_ack: perhaps}",
            "queue.delete_after_ack = perhaps (holdfast.yaml:1) is not allowed: it must be true or false",
        ),
        (
            "lease: {ttl_seconds: 0}",
            "lease.ttl_seconds = 0 (holdfast.yaml:1) is not allowed: it must be a duration from 1s to 1d: a number of seconds, or like 500ms",
        ),
        ("lease: {ttl_seconds: 999ms}", "lease.ttl_seconds = 999ms "),
        ("lease: {ttl_seconds: 3 parsecs}", "lease.ttl_seconds = 3 parsecs "),
        (
            "worker: {drain_seconds: -1}",
            "worker.drain_seconds = -1 (holdfast.yaml:1) is not allowed: it must be a duration from 0 to 1d",
        ),
        (
            "queue: {block_ms: 0.5ms}",
            "queue.block_ms = 0.5ms (holdfast.yaml:1) is not allowed: it must be a duration from 1ms to 1h: a number of milliseconds",
        ),
        ("janitor: {lock_ttl_seconds: 0}", "janitor.lock_ttl_seconds = 0 "),
        ("janitor: {pod_selector: [app in (a)]}", "janitor.pod_selector = [app in (a)] "),
        ("pod: {namespace: Not_A_Namespace}", "pod.namespace = Not_A_Namespace "),
        (
            "log: {level: WARN}",
            "it must be one of DEBUG, INFO, WARNING, ERROR, CRITICAL. Did you mean WARNING?",
        ),
        (
            "messaging: {platform: kafka}",
            "messaging.platform = kafka (holdfast.yaml:1) is not allowed: it must be redis-streams",
        ),
        ("metrics: {port: 65536}", "it must be a whole number from 0 to 65535"),
        (
            "messaging: {queue: two words}",
            "messaging.queue = two words (holdfast.yaml:1) is not allowed: it must be a name of letters",
        ),
        ("messaging: {queue: ''}", 'messaging.queue = "" '),
        ("messaging: {queue: 'a{b'}", "messaging.queue = a{b "),
        ("messaging: {queue: '{a}{b}'}", "messaging.queue = {a}{b} "),
        ("messaging: {queue: 'a{}'}", "messaging.queue = a{} "),
        ('messaging: {queue: "a\\nb"}', r"messaging.queue = 'a\nb' "),
        ("queue: {group: two words}", "queue.group = two words "),
        ("queue: {deadletter: two words}", "queue.deadletter = two words "),
        (
            "queues: {two words: {}}",
            "queues.two words (holdfast.yaml:1) is not allowed: a queue must have a name of letters",
        ),
        (
            "worker: {queues: [a, b c]}",
            "worker.queues = [a, b c] (holdfast.yaml:1) is not allowed: it must be a list, or separated by commas",
        ),
        ("worker: {queues: [a, [b]]}", "worker.queues = a list of more than plain text "),
        (
            "event_api: {url: 'ftp://h'}",
            "event_api.url = ftp://h (holdfast.yaml:1) is not allowed: it must be an http:// or https:// URL, or empty",
        ),
        ("redis: 3", "redis (holdfast.yaml:1) must be a mapping"),
        ("queues: [a]", "queues (holdfast.yaml:1) must be a mapping"),
        ("queues: {a: 3}", "queues.a (holdfast.yaml:1) must be a mapping"),
        (
            "queue: {slots: 1}\nqueue: {slots: 2}",
            "queue (holdfast.yaml:2) is already set at holdfast.yaml:1: remove one of the two",
        ),
        ("? [a]\n: 1", "holdfast.yaml:1: the name of a setting must be plain text"),
        ("[a]", "holdfast.yaml must be a mapping of settings"),
        ("a: [", "holdfast.yaml:1 (column 5) is not valid YAML"),
        ("a: 1\n---\nb: 2", "is not valid YAML: but found another document"),
        ("a: " + "[" * 5000, "holdfast.yaml is nested too deeply"),
        ("queue: \x00", "holdfast.yaml is not valid YAML: it holds characters that are not text"),
    ],
)
def test_what_can_not_be_is_told_with_its_name_value_place_and_what_is_allowed(refusal, text, says):
    assert says in refusal(text)


def test_every_setting_that_can_be_wrong_says_so(refusal):
    wrong = "[no such thing\x07"
    for leaf in [leaf for leaf in leaves() if leaf.allowed != "text"]:
        message = refusal(**{leaf.env[0]: wrong})
        assert f"{leaf.path} = " in message
        assert f"(environment {leaf.env[0]})" in message
        assert leaf.allowed in message or leaf.path == "redis.url", leaf.path


def test_everything_that_is_wrong_is_told_at_once(refusal):
    told = refusal(
        "redis: {ur: x}\nlog: {level: loud}\nqueues: {a: {slots: 0}}\n", HOLDFAST_NO="1", MAX_ATTEMPTS="x"
    )
    assert told.startswith("5 problems with the settings:\n  - ")
    assert all(
        part in told
        for part in ("redis.ur", "log.level", "queues.a.slots", "HOLDFAST_NO", "queue.max_attempts")
    )
    assert len(told.splitlines()) == 6


def test_a_wrong_file_and_a_wrong_environment_are_told_together(refusal):
    told = refusal("a: [", MAX_ATTEMPTS="x")
    assert "is not valid YAML" in told
    assert "queue.max_attempts" in told


def test_a_wrong_value_is_not_blamed_again_for_its_default(refusal):
    told = refusal("queue: {backoff: {base_seconds: 10m, cap_seconds: none}}")
    assert told.startswith("queue.backoff.cap_seconds = none ")


def test_a_value_in_the_file_is_checked_even_if_a_variable_beats_it(refusal):
    assert refusal("queue: {slots: many}", WORKER_POD_MESSAGES_BATCH_SIZE="3").startswith(
        "queue.slots = many "
    )


def test_so_is_a_value_of_the_default_queues_own_section(refusal):
    told = refusal("queues: {agent-queue: {slots: many}}", WORKER_POD_MESSAGES_BATCH_SIZE="3")
    assert told.startswith("queues.agent-queue.slots = many ")


def test_two_variables_that_disagree_are_both_named(refusal):
    told = refusal(WORKER_POD_NAME="a", CLUSTER_WORKER_CONSUMER_NAME="b")
    assert told == (
        "worker.name is set to different values: a (environment WORKER_POD_NAME) and "
        "b (environment CLUSTER_WORKER_CONSUMER_NAME). Keep one of the variables"
    )


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_was_asked_for_must_be_readable(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for attempt in (lambda: load(Path(name), {}), lambda: load(environ={"HOLDFAST_CONFIG": name})):
        with pytest.raises(
            ConfigError,
            match=r"can't be read .*: correct the path, on the command line or in HOLDFAST_CONFIG",
        ):
            attempt()


def test_a_file_that_is_not_utf8_is_refused(tmp_path):
    path = tmp_path / "holdfast.yaml"
    path.write_bytes(b"redis: {url: '\xff'}")
    with pytest.raises(ConfigError, match="is not UTF-8 text: save it as UTF-8"):
        load(path, {})


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "redis://h:6379/0",
        "rediss://user:p%40ss@h:6380/1",
        "redis://[::1]:6379",
        "unix:///run/redis.sock",
        "redis+sentinel://a:26379,b:26379/mymaster/0",
        "redis+cluster://a:7000,b:7001",
        "rediss+cluster://a:7000",
    ],
)
def test_these_urls_are_accepted(accepted, url):
    accepted(REDIS_URL=url)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://h", "it must begin with redis://"),
        ("localhost:6379", "it must begin with redis://"),
        ("redis:h", "it must begin with redis://"),
        ("redis://[::1", "it must begin with redis://"),
        ("redis://", "it must name a host, like redis://redis.example:6379"),
        ("redis://h:99999", "it must name a host"),
        ("redis://h:port", "it must name a host"),
        ("redis+cluster://a:7000,", "it must name a host"),
        ("redis://a,b", "several hosts need redis+sentinel:// or redis+cluster://"),
        ("redis+sentinel://a:26379", "it must name the service after the hosts"),
        ("unix://", "it must name the socket, like unix:///run/redis.sock"),
    ],
)
def test_these_urls_are_refused(refusal, url, says):
    told = refusal(REDIS_URL=url)
    assert told.startswith(f"redis.url = {url} (environment REDIS_URL) is not allowed: ")
    assert says in told


def test_a_password_that_must_be_escaped_is_told_how(refusal):
    told = refusal(REDIS_URL="redis://:hunter/2@h")
    assert told.endswith("within a user or password, write / as %2F, ? as %3F and # as %23")
    assert "hunter" not in told


def test_every_scheme_is_offered(refusal):
    assert all(f"{scheme}://" in refusal(REDIS_URL="http://h") for scheme in REDIS_SCHEMES)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "queue: {backoff: {base_seconds: 10m}}",
            "queue.backoff.base_seconds = 600 (holdfast.yaml:1) is more than queue.backoff.cap_seconds = 300 (default)",
        ),
        (
            "janitor: {lock_ttl_seconds: 2h}",
            "janitor.lock_ttl_seconds = 7200 (holdfast.yaml:1) outlasts janitor.stream_interval_minutes = 60 (default)",
        ),
        (
            "janitor: {kubernetes: true, deletion_cost_lower_seconds: 60}",
            "janitor.deletion_cost_lower_seconds = 60 (holdfast.yaml:1) is too late for queue.scaling.down_seconds = 60 (default)",
        ),
        (
            "janitor: {kubernetes: true}\nqueue: {scaling: {down_seconds: 15}}",
            "queue.scaling.down_seconds = 15 (holdfast.yaml:2) is too short for janitor.kubernetes with janitor.deletion_cost",
        ),
        (
            "janitor: {kubernetes: true}\nqueue: {scaling: {down_seconds: 26.9}}",
            "set queue.scaling.down_seconds to 27 or more, or janitor.deletion_cost to false",
        ),
        (
            "metrics: {port: 50051}",
            "metrics.port = 50051 (holdfast.yaml:1) and hosts.grpc_port = 50051 (default) are the same port",
        ),
        (
            "redis: {tls_cert_file: c}",
            'redis.tls_cert_file = c (holdfast.yaml:1) and redis.tls_key_file = "" (default) go together',
        ),
        (
            "redis: {url: 'redis://h', tls_ca_file: ca}",
            "redis.tls_ca_file = ca (holdfast.yaml:1) has no effect with redis.url = redis://h",
        ),
        (
            "queue: {deadletter: agent-queue}",
            "queue.deadletter = agent-queue (holdfast.yaml:1) is a key of the queue agent-queue itself",
        ),
        (
            "queues: {a: {deadletter: agent-queue}}",
            "queues.a.deadletter = agent-queue (holdfast.yaml:1) is a key of the queue agent-queue itself",
        ),
        (
            "queues: {'{agent-queue}': {}}",
            "the queues agent-queue and {agent-queue} would share keys in Redis: rename one of them",
        ),
        ("queues: {members: {slots: 1}}", "a queue can't be called members: a key of Holdfast's own"),
        ("queues: {'schedule:x': {}}", "a queue can't be called schedule:x: a key of Holdfast's own"),
        (
            "queues: {'{agent-queue}:high': {}}",
            "the queues agent-queue and {agent-queue}:high would share keys in Redis",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_named_with_the_way_out(refusal, text, says):
    assert says in refusal(text)


def test_a_contradiction_that_many_queues_inherit_is_told_once(refusal):
    told = refusal("queue: {backoff: {base_seconds: 10m}}\nqueues: {a: {}, b: {}}")
    assert told.count("queue.backoff.base_seconds = 600") == 1


@pytest.mark.parametrize("field", [name for name in QueueKeys.__struct_fields__ if name != "deadletter"])
@pytest.mark.parametrize("name", ["agent-queue", "team{a}"])
def test_dead_letters_can_be_none_of_the_queues_own_keys(refusal, name, field):
    key = getattr(QueueKeys.of(name), field)
    key += "x" if key.endswith(":") else ""
    told = refusal(f"messaging: {{queue: '{name}'}}\nqueue: {{deadletter: '{key}'}}")
    assert f"is a key of the queue {name} itself" in told


CLUSTER = {"REDIS_URL": "redis+cluster://a:7000"}


def test_dead_letters_in_another_slot_are_refused_in_a_cluster_only(refusal, accepted):
    text = (
        "messaging: {queue: 'streams:media.cluster'}\nqueue: {deadletter: 'streams:media.cluster.deadletter'}"
    )
    accepted(text, REDIS_URL="redis://h")
    for scheme in ("redis+cluster", "rediss+cluster"):
        assert refusal(text, REDIS_URL=f"{scheme}://a:7000") == (
            "queue.deadletter = streams:media.cluster.deadletter (holdfast.yaml:2) is in another cluster slot than its queue "
            "streams:media.cluster, and a run moves between them in one step: use {streams:media.cluster}:deadletter, or leave it empty"
        )


@pytest.mark.parametrize(
    "text",
    [
        "queue: {deadletter: ''}",
        "queue: {deadletter: '{agent-queue}:given-up'}",
        "redis: {key_prefix: '{blue}:'}\nqueue: {deadletter: anything}",
    ],
)
def test_dead_letters_in_the_queues_slot_are_accepted_in_a_cluster(accepted, text):
    accepted(text, **CLUSTER)


# Known from the cluster specification and from CLUSTER KEYSLOT.
@pytest.mark.parametrize(
    ("key", "slot"),
    [("123456789", 12739), ("foo", 12182), ("{foo}.bar", 12182), ("a{foo}{bar}", 12182), ("", 0)],
)
def test_slots_are_those_of_redis(key, slot):
    assert key_slot(key) == slot


SECRET = "hunter2"


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        ("", {"REDIS_URL": f"http://u:{SECRET}@h"}),
        ("", {"REDIS_URL": f"u:{SECRET}@h:6379"}),
        ("", {"REDIS_URL": f"redis:/:{SECRET}@h"}),
        ("", {"REDIS_URL": f"redis://{SECRET}@h:port"}),
        ("", {"REDIS_URL": f"redis://h:port?password={SECRET}"}),
        ("", {"EVENT_API_URL": f"ftp://h?api_key={SECRET}"}),
        ("", {"EVENT_API_URL": f"ftp://h?x=1&X-Amz-Signature={SECRET}"}),
        ("", {"EVENT_API_URL": f"ftp://{SECRET}:@h"}),
        ("", {"REDIS_URL": f"redis://:a b/{SECRET}#@h:port"}),
        ("", {"MESSAGING_QUEUE_NAME": f"redis://:{SECRET}@h"}),
        ("", {"LOG_LEVEL": f"redis://:{SECRET}@h"}),
        ("", {"EVENT_API_URL": f"ftp://u:{SECRET}@h"}),
        ("", {"REDIS_PASSWORD": SECRET, "HOLDFAST_REDIS_PASSWORD": f"{SECRET}2"}),
        (f"redis: {{password: [{SECRET}]}}", {}),
        (f"redis: {{password: {{{SECRET}: 1}}}}", {}),
        (f"redis: {{password: !{SECRET} x}}", {}),
        (f"redis: {{url: ['redis://:{SECRET}@h']}}", {}),
        (f"redis:\n  password: *{SECRET}\n", {}),
        (f"redis:\n  password: &{SECRET}%\n", {}),
        (f"redis:\n  password: %{SECRET}\n", {}),
        (f"redis:\n  password: '{SECRET}\n", {}),
        (f"redis:\n  password: a: {SECRET}\n", {}),
    ],
)
def test_no_error_shows_a_secret(refusal, text, environ):
    assert SECRET not in refusal(text, **environ)


def test_no_queue_can_be_called_as_a_key_that_is_of_no_queue():
    """Fails if a new key is not named in the checks, which are below the room of the keys."""
    ours = [doc.pattern for doc in DATA_MODEL if not doc.pattern.startswith(("agent-queue", "{agent-queue}"))]
    names = [pattern.replace("<", "").replace(">", "") for pattern in ours]
    assert len(names) > 10
    assert [name for name in names if not is_house_key(name)] == []
