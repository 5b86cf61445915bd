"""The names of all Redis keys; no other module builds one.

All keys of a queue share one hash tag: they are in one cluster slot, so that a script can access them all.
"""

from __future__ import annotations

import re

import msgspec

LANES = ("returned", "high", "normal", "low")
"""The lanes of a queue in the order they are served; ``returned`` is for hand-backs, reclaims and retries."""

_TAG = re.compile(r"\{[^}]+\}")


class QueueKeys(msgspec.Struct, frozen=True):
    """The keys of one queue; ``stream`` is the normal lane and has the plain name."""

    stream: str
    high: str
    low: str
    returned: str
    delayed: str
    deadletter: str
    letters: str
    runs: str
    run_prefix: str
    idempotency_prefix: str
    gate: str
    control: str
    cleanup: str
    turn: str
    ended: str
    limits: str
    turns: str
    waiters: str
    rollbacks: str
    unarchived: str
    outbox: str
    undelivered: str
    partitions: str

    @classmethod
    def of(cls, name: str, *, prefix: str = "", deadletter: str = "") -> QueueKeys:
        """Derive the keys of the queue ``name``; ``deadletter`` overrides that one name."""
        stream = prefix + name
        tag = stream if _TAG.search(stream) else "{" + stream + "}"
        return cls(
            stream=stream,
            high=f"{tag}:high",
            low=f"{tag}:low",
            returned=f"{tag}:returned",
            delayed=f"{tag}:delayed",
            deadletter=prefix + deadletter if deadletter else f"{tag}:deadletter",
            letters=f"{tag}:letters",
            runs=f"{tag}:runs",
            run_prefix=f"{tag}:run:",
            idempotency_prefix=f"{tag}:idempotency:",
            gate=f"{tag}:gate",
            control=f"{tag}:control",
            cleanup=f"{tag}:cleanup-leader",
            turn=f"{tag}:turn",
            ended=f"{tag}:ended",
            limits=f"{tag}:limits",
            turns=f"{tag}:turns",
            waiters=f"{tag}:waiters",
            rollbacks=f"{tag}:rollbacks",
            unarchived=f"{tag}:unarchived",
            outbox=f"{tag}:outbox",
            undelivered=f"{tag}:undelivered",
            partitions=f"{tag}:partitions",
        )

    @property
    def lanes(self) -> tuple[str, str, str, str]:
        """The four streams, in the order of ``LANES``."""
        return (self.returned, self.high, self.stream, self.low)

    def run(self, run_id: str) -> str:
        """The hash of one run."""
        return self.run_prefix + run_id

    def feed(self, run_id: str) -> str:
        """The stream of one run's events."""
        return f"{self.run_prefix}{run_id}:events"

    def outbox_entries(self, sink: str) -> str:
        """The runs with events for one sink."""
        return f"{self.outbox}:{sink}"

    @property
    def outbox_notify(self) -> str:
        """The channel on which relays are notified of new events."""
        return f"{self.outbox}:notify"

    def redeliveries(self, sink: str, run_id: str) -> str:
        """The undelivered events of a run that will be delivered to a sink again."""
        return f"{self.outbox}:redeliver:{sink}:{run_id}"

    def live(self, run_id: str) -> str:
        """The channel on which a run's events are published as they happen."""
        return f"{self.run_prefix}{run_id}:live"


class ScheduleKeys(msgspec.Struct, frozen=True):
    """The keys of one set of schedules, each ``prefix + base + "{tag}"``; in a cluster they need the tag."""

    waiting: str
    working: str
    leader: str
    sweep: str
    leases: str
    definitions: str
    priorities: str
    record_prefix: str
    nudge: str
    changes: str

    @classmethod
    def of(
        cls,
        *,
        prefix: str = "",
        waiting: str = "waiting",
        working: str = "working",
        leader: str = "cleanup-leader",
        hash_tag: str = "",
    ) -> ScheduleKeys:
        """Derive the keys; the three bases and the tag are settings (``redis.scheduler.keys``)."""
        tag = "{" + hash_tag + "}" if hash_tag else ""
        return cls(
            waiting=f"{prefix}{waiting}{tag}",
            working=f"{prefix}{working}{tag}",
            leader=f"{prefix}{leader}{tag}",
            sweep=f"{prefix}schedule-sweep{tag}",
            leases=f"{prefix}schedule-leases{tag}",
            definitions=f"{prefix}schedules{tag}",
            priorities=f"{prefix}schedule-priorities{tag}",
            record_prefix=f"{prefix}schedule{tag}:",
            nudge=f"{prefix}schedule-nudge{tag}",
            changes=f"{prefix}schedule-changes{tag}",
        )

    @property
    def turns(self) -> str:
        """The set of turns that are schedules of their own; no schedule name begins with ``#``."""
        return self.record_prefix + "#turns"

    def record(self, name: str) -> str:
        """The hash of one schedule's state."""
        return self.record_prefix + name

    def history(self, name: str) -> str:
        """The list of one schedule's last turns."""
        return f"{self.record_prefix}{name}#history"


class HostKeys(msgspec.Struct, frozen=True):
    """The keys of all hosts' agents; in a cluster they need the tag, like those of schedules."""

    leases: str
    index: str
    record_prefix: str
    location_prefix: str
    host_prefix: str
    counter: str

    @classmethod
    def of(cls, *, prefix: str = "", hash_tag: str = "") -> HostKeys:
        """Derive the keys; the names of the last three are prescribed."""
        tag = "{" + hash_tag + "}" if hash_tag else ""
        return cls(
            leases=f"{prefix}agent-leases{tag}",
            index=f"{prefix}agents{tag}",
            record_prefix=f"{prefix}agent{tag}:",
            location_prefix=f"{prefix}agent_location{tag}:",
            host_prefix=f"{prefix}host_agents{tag}:",
            counter=f"{prefix}placement{tag}:counter",
        )


def member_key(kind: str, name: str, *, prefix: str = "") -> str:
    """The record of one live process."""
    return f"{prefix}member:{kind}:{name}"


def catalogue_key(digest: str, *, prefix: str = "") -> str:
    """The agents of one app, by the digest of their descriptions: processes of the same app share it."""
    return f"{prefix}catalogue:{digest}"


def members_key(*, prefix: str = "") -> str:
    """The index of member records, by expiry."""
    return f"{prefix}members"


def pod_key(kind: str, name: str, *, prefix: str = "") -> str:
    """The pod of one process, which is kept for longer than the process lives."""
    return f"{prefix}pod:{kind}:{name}"


def pods_leader_key(*, prefix: str = "") -> str:
    """The leader that watches the pods."""
    return f"{prefix}pods-leader"


def registered_store_key(*, prefix: str = "") -> str:
    """The store that the processes of a system share."""
    return f"{prefix}registered-store"


def rollout_key(name: str, *, prefix: str = "") -> str:
    """The flag of one roll-out."""
    return f"{prefix}rollout:{name}"


def rollouts_key(*, prefix: str = "") -> str:
    """The index of roll-outs."""
    return f"{prefix}rollouts"
