"""Checks that involve several settings. Every check is a pure function of the finished tree."""

from __future__ import annotations

import itertools
import re
from binascii import crc_hqx
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from holdfast.config.queues import partition_name
from holdfast.config.redis import REDIS_SCHEMES, RedisSettings
from holdfast.config.scaling import HPA_SECONDS, latest_lowering

if TYPE_CHECKING:
    from holdfast.config.queues import QueueSettings
    from holdfast.config.tree import Settings

_WITHOUT_TLS: Final = ("redis", "redis+sentinel", "redis+cluster", "unix")
_SLOTS: Final = 16384
# Repeated here because settings must not import the package of the keys; a test compares the two.
_COMPANIONS: Final = (
    "high",
    "low",
    "returned",
    "delayed",
    "runs",
    "ended",
    "letters",
    "limits",
    "turns",
    "waiters",
    "rollbacks",
    "unarchived",
    "outbox",
    "undelivered",
    "partitions",
    "gate",
    "control",
    "cleanup-leader",
    "turn",
)
_FAMILIES: Final = ("run:", "idempotency:", "outbox:", "holding:", "parked:")
_SYSTEM_KEYS: Final = frozenset(
    {
        *("members", "pods-leader", "rollouts", "registered-store"),
        *("agents", "agent-leases", "placement:counter"),
        *("schedules", "schedule-leases", "schedule-priorities", "schedule-changes", "schedule-nudge"),
        "schedule-sweep",
        *("waiting", "working", "cleanup-leader"),
    }
)
_SYSTEM_FAMILIES: Final = (
    *("member:", "catalogue:", "pod:", "rollout:", "schedule:", "agent:", "agent_location:", "host_agents:"),
)
_TAG = re.compile(r"\{([^}]+)\}")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+)(?::([0-9]{1,5}))?")


class Place(msgspec.Struct, frozen=True):
    """A setting in a message: its path, and its text with value and source."""

    path: str
    text: str


class Contradiction(msgspec.Struct, frozen=True):
    """Settings that contradict each other; ``paths`` are those that the sentence is about."""

    paths: tuple[str, ...]
    sentence: str


Locate = Callable[[str], Place]
LocateInQueue = Callable[[str, str], Place]


def contradictions(settings: Settings, at: Locate, in_queue: LocateInQueue) -> Iterator[Contradiction]:
    """Yield all contradictions of the tree."""
    yield from _redis(settings.redis, at)
    yield from _times(settings, at)
    yield from _schedules(settings, at)
    for name in settings.queue_names():
        queue = settings.queue_named(name)
        yield from _limits(queue, in_queue)
        yield from _deadletter(queue, settings, in_queue)
        if urlsplit_or_none(settings.redis.url, "redis+cluster", "rediss+cluster"):
            yield from _same_slot(queue, settings.redis.key_prefix, in_queue)
    yield from _idle_leave_first(settings, at, in_queue)
    yield from _separate_queues(settings, at)
    yield from _partitions(settings, in_queue)


def key_slot(key: str) -> int:
    """Return the cluster slot of a key: of its hash tag, if it has one."""
    tag = _TAG.search(key)
    return crc_hqx((tag[1] if tag else key).encode(), 0) % _SLOTS


def companion_prefix(name: str) -> str:
    """Return the prefix of a queue's other keys, by which they share the slot of its stream."""
    return name if _TAG.search(name) else f"{{{name}}}"


def urlsplit_or_none(url: str, *schemes: str) -> SplitResult | None:
    """Return the parts of a URL of one of these schemes."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    return parts if parts.scheme in schemes else None


def _redis(redis: RedisSettings, at: Locate) -> Iterator[Contradiction]:
    url, cert, key = at("redis.url"), at("redis.tls_cert_file"), at("redis.tls_key_file")
    if redis.url and (fault := _url_fault(redis.url)):
        yield Contradiction((url.path,), f"{url.text} is not allowed: {fault}")
    if bool(redis.tls_cert_file) != bool(redis.tls_key_file):
        sentence = f"{cert.text} and {key.text} go together: set both for mutual TLS, or neither"
        yield Contradiction((cert.path, key.path), sentence)
    for name in ("tls_ca_file", "tls_cert_file"):
        if getattr(redis, name) and urlsplit_or_none(redis.url, *_WITHOUT_TLS):
            file = at(f"redis.{name}")
            sentence = (
                f"{file.text} has no effect with {url.text}, which does not use TLS: "
                f"write rediss instead of redis, or remove {file.path}"
            )
            yield Contradiction((file.path, url.path), sentence)


def _url_fault(url: str) -> str | None:
    parts = urlsplit_or_none(url, *REDIS_SCHEMES)
    if parts is None or "://" not in url:
        return f"it must begin with {', '.join(f'{scheme}://' for scheme in REDIS_SCHEMES)}, or be empty"
    if parts.scheme == "unix":
        return None if parts.path.strip("/") else "it must name the socket, like unix:///run/redis.sock"
    return _hosts_fault(parts)


def _hosts_fault(parts: SplitResult) -> str | None:
    hosts = parts.netloc.rpartition("@")[2].split(",")
    if "@" in parts.path + parts.query + parts.fragment:
        return "within a user or password, write / as %2F, ? as %3F and # as %23"
    if not all(_is_host(host) for host in hosts):
        return f"it must name a host, like {parts.scheme}://redis.example:6379"
    if len(hosts) > 1 and parts.scheme in {"redis", "rediss"}:
        return "several hosts need redis+sentinel:// or redis+cluster://"
    if parts.scheme.endswith("+sentinel") and not parts.path.strip("/"):
        return "it must name the service after the hosts, like redis+sentinel://host:26379/mymaster/0"
    return None


def _is_host(text: str) -> bool:
    match = _HOST.fullmatch(text)
    return match is not None and (match[1] is None or 0 < int(match[1]) < 65536)


def _times(settings: Settings, at: Locate) -> Iterator[Contradiction]:
    lock, sweep = at("janitor.lock_ttl_seconds"), at("janitor.stream_interval_minutes")
    if settings.janitor.lock_ttl_seconds > settings.janitor.stream_interval_minutes * 60:
        yield Contradiction(
            (lock.path, sweep.path),
            f"{lock.text} outlasts {sweep.text}: a janitor that dies would cost a whole round; "
            f"lower {lock.path} or raise {sweep.path}",
        )
    metrics, grpc = at("metrics.port"), at("hosts.grpc_port")
    if settings.metrics.port == settings.hosts.grpc_port != 0:
        sentence = f"{metrics.text} and {grpc.text} are the same port: a host needs two, change one of them"
        yield Contradiction((metrics.path, grpc.path), sentence)


def _schedules(settings: Settings, at: Locate) -> Iterator[Contradiction]:
    scheduler, path = settings.redis.scheduler, "redis.scheduler"
    throttled, orphans = scheduler.failure_backoff.throttled, scheduler.orphan_cleanup
    base, cap = (at(f"{path}.failure-backoff.throttled.{name}") for name in ("base-ms", "cap-ms"))
    if throttled.base_ms > throttled.cap_ms:
        sentence = f"{base.text} is more than {cap.text}: lower {base.path} or raise {cap.path}"
        yield Contradiction((base.path, cap.path), sentence)
    ttl, budget = (at(f"{path}.orphan-cleanup.{name}") for name in ("leadership-ttl-ms", "run-budget-ms"))
    if orphans.leadership_ttl_ms < orphans.run_budget_ms:
        yield Contradiction(
            (ttl.path, budget.path),
            f"{ttl.text} is shorter than {budget.text}: a second leader would begin before the first has "
            f"ended; raise {ttl.path} or lower {budget.path}",
        )
    yield from _schedule_keys(settings, at)


def _schedule_keys(settings: Settings, at: Locate) -> Iterator[Contradiction]:
    keys, path = settings.redis.scheduler.keys, "redis.scheduler.keys"
    named = {
        "waiting-set": keys.waiting_set,
        "working-set": keys.working_set,
        "cleanup-leader-key": keys.cleanup_leader_key,
    }
    places = {name: at(f"{path}.{name}") for name in named}
    for (one, base), (other, same) in itertools.combinations(named.items(), 2):
        if base == same:
            sentence = f"{places[one].text} and {places[other].text} are one key: rename one of them"
            yield Contradiction((places[one].path, places[other].path), sentence)
    tag = f"{{{keys.hash_tag}}}" if keys.hash_tag else ""
    for name, place in places.items():
        key = f"{keys.prefix}{named[name]}{tag}"
        if any(_is_key_of(key, queue) for queue in settings.queue_names()):
            sentence = f"{place.text} makes the key {key}, which belongs to a queue: rename one of them"
            yield Contradiction((place.path,), sentence)


def _limits(queue: QueueSettings, in_queue: LocateInQueue) -> Iterator[Contradiction]:
    base, cap = in_queue(queue.name, "backoff.base_seconds"), in_queue(queue.name, "backoff.cap_seconds")
    if queue.backoff.base_seconds > queue.backoff.cap_seconds:
        yield Contradiction(
            (base.path, cap.path),
            f"{base.text} is more than {cap.text}: lower {base.path} or raise {cap.path}",
        )
    least, most = (in_queue(queue.name, f"scaling.{name}_workers") for name in ("min", "max"))
    if queue.scaling.min_workers > queue.scaling.max_workers:
        yield Contradiction(
            (least.path, most.path),
            f"{least.text} is more than {most.text}: lower {least.path} or raise {most.path}",
        )


def _idle_leave_first(settings: Settings, at: Locate, in_queue: LocateInQueue) -> Iterator[Contradiction]:
    """A deletion cost that is lowered after the scale-in does not distinguish idle workers from busy ones."""
    janitor, place = settings.janitor, at("janitor.deletion_cost_lower_seconds")
    if not (janitor.kubernetes and janitor.deletion_cost):
        return
    late = settings.worker.heartbeat_seconds + janitor.deletion_cost_seconds
    for queue in settings.queues.values():
        if not queue.scaling.enabled:  # it has no scale-in
            continue
        down = in_queue(queue.name, "scaling.down_seconds")
        latest = latest_lowering(queue.scaling.down_seconds, late)
        least = HPA_SECONDS + late
        if queue.scaling.down_seconds < least:
            heartbeat, round_ = at("worker.heartbeat_seconds"), at("janitor.deletion_cost_seconds")
            sentence = (
                f"{down.text} is too short for janitor.kubernetes with janitor.deletion_cost: the HPA may "
                f"end workers {HPA_SECONDS:g} s before it is over, and the janitor detects an idle worker "
                f"up to {heartbeat.text} plus {round_.text} late, so busy workers would be ended with idle "
                f"ones; set {down.path} to {least:g} or more, or janitor.deletion_cost to false"
            )
            yield Contradiction((down.path, heartbeat.path, round_.path), sentence)
        elif janitor.deletion_cost_lower_seconds > latest:
            sentence = (
                f"{place.text} is too late for {down.text}: the HPA may end workers {HPA_SECONDS:g} s "
                f"before that is over, and a janitor detects an idle worker up to {late:g} s late; set it "
                f"to {latest:g} or less, raise {down.path}, or leave {place.path} out"
            )
            yield Contradiction((place.path, down.path), sentence)


def _deadletter(queue: QueueSettings, settings: Settings, in_queue: LocateInQueue) -> Iterator[Contradiction]:
    place = in_queue(queue.name, "deadletter")
    for name in settings.queue_names():
        if queue.deadletter and _is_key_of(queue.deadletter, name):
            sentence = (
                f"{place.text} is a key of the queue {name} itself: dead letters would be taken for work; "
                "give them a name of their own, or leave it empty"
            )
            yield Contradiction((place.path,), sentence)


def _same_slot(queue: QueueSettings, prefix: str, in_queue: LocateInQueue) -> Iterator[Contradiction]:
    place = in_queue(queue.name, "deadletter")
    if queue.deadletter and key_slot(prefix + queue.deadletter) != key_slot(prefix + queue.name):
        yield Contradiction(
            (place.path, "redis.url", "redis.key_prefix"),
            f"{place.text} is in another cluster slot than its queue {queue.name}, and a run moves between "
            f"them in one step: use {companion_prefix(queue.name)}:deadletter, or leave it empty",
        )


def is_house_key(name: str) -> bool:
    """Return whether a name is that of a key outside of queues: of processes, schedules, agents or hosts."""
    return name in _SYSTEM_KEYS or name.startswith(_SYSTEM_FAMILIES)


def _separate_queues(settings: Settings, at: Locate) -> Iterator[Contradiction]:
    names = settings.queue_names()
    paths = (at("messaging.queue").path, at("worker.queues").path)
    for index, name in enumerate(names):
        if is_house_key(name):
            yield Contradiction(
                paths, f"a queue can't be called {name}: a key of Holdfast's own has that name"
            )
        for other in names[:index]:
            if _is_key_of(name, other) or _is_key_of(other, name) or _same_companions(name, other):
                sentence = f"the queues {other} and {name} would share keys in Redis: rename one of them"
                yield Contradiction(paths, sentence)


def _partitions(settings: Settings, in_queue: LocateInQueue) -> Iterator[Contradiction]:
    """Partitions have keys like queues: each needs a name that no queue has, and a slot."""
    names = settings.queue_names()
    taken = {companion_prefix(name): name for name in names}
    clustered = urlsplit_or_none(settings.redis.url, "redis+cluster", "rediss+cluster")
    for name in names:
        count, place = settings.queue_named(name).partitions, in_queue(name, "partitions")
        parts = [partition_name(name, number) for number in range(1, count)]
        for part in parts:
            if other := taken.get(companion_prefix(part)):
                sentence = f"{place.text} needs the name {part}, which the queue {other} has: rename that"
                yield Contradiction((place.path,), sentence)
        if parts and clustered and _TAG.search(settings.redis.key_prefix):
            yield Contradiction(
                (place.path, "redis.url", "redis.key_prefix"),
                f"{place.text} has no effect while redis.key_prefix has a hash tag, which puts all of them "
                "into one cluster slot: take the {} away",
            )


def _same_companions(name: str, other: str) -> bool:
    return companion_prefix(name) == companion_prefix(other)


def _is_key_of(key: str, name: str) -> bool:
    """Return whether a key belongs to a queue, except for its dead letters."""
    if key == name:
        return True
    rest = key.removeprefix(f"{companion_prefix(name)}:")
    return rest != key and (rest in _COMPANIONS or rest.startswith(_FAMILIES))
