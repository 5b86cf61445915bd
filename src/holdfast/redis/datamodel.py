"""The content and lifetime of every Redis key, from which docs/reference/keys.md is generated."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class KeyDoc:
    """One row of the data model: the content of a key, and its lifetime."""

    pattern: str
    type: str
    stays: str
    holds: str


DATA_MODEL = (
    KeyDoc("agent-queue", "stream", "permanent", "the normal lane; group `agent-queue-group`"),
    KeyDoc("{agent-queue}:high", "stream", "permanent", "runs submitted with priority high"),
    KeyDoc("{agent-queue}:low", "stream", "permanent", "runs submitted with priority low"),
    KeyDoc(
        "{agent-queue}:returned",
        "stream",
        "permanent",
        "runs that were handed back, reclaimed or retried; served first",
    ),
    KeyDoc("{agent-queue}:delayed", "zset", "permanent", "run id by due time (ms): delayed and retried runs"),
    KeyDoc(
        "{agent-queue}:deadletter",
        "stream",
        "permanent",
        "runs given up: reason, status, attempts, error, message_data",
    ),
    KeyDoc(
        "{agent-queue}:letters",
        "hash",
        "permanent",
        "by dead letter, the fields of its run that a replay needs after Redis has removed the run: tenant, "
        "key, submit time, answers, number of events",
    ),
    KeyDoc(
        "{agent-queue}:runs", "zset", "permanent", "index of runs by submit time (ms); swept by the janitor"
    ),
    KeyDoc(
        "{agent-queue}:ended",
        "zset",
        "permanent",
        "ended runs by their expiry (ms): an id, or `finished_at id id …` of runs that succeeded in one "
        "batch; workers and the janitor remove them",
    ),
    KeyDoc(
        "{agent-queue}:run:<id>",
        "hash",
        "while live, then retention_seconds",
        "status, lane, entry, submitted_at, agent, thread, fence, attempt (from the second on), owner, "
        "started_at, finished_at, message (the envelope with the input), result, error; parent: the run "
        "whose agent submitted it",
    ),
    KeyDoc(
        "{agent-queue}:run:<id>:events",
        "stream",
        "as its run",
        "the feed: type and data (JSON); the time is in the id",
    ),
    KeyDoc(
        "{agent-queue}:run:<id>:live",
        "channel",
        "-",
        "the run's emitted and final events as they happen: JSON of id, type, data",
    ),
    KeyDoc("{agent-queue}:limits", "set", "permanent", "names of the limits that are in use"),
    KeyDoc(
        "{agent-queue}:turns",
        "string",
        "permanent",
        "the last place of a waiting run, or generation of a thread, which follow the clock (us)",
    ),
    KeyDoc("{agent-queue}:most", "hash", "permanent", "the value of each limit that runs wait for"),
    KeyDoc(
        "{agent-queue}:holding:<name>", "zset", "permanent", "runs that hold a limit, by when they got it"
    ),
    KeyDoc("{agent-queue}:parked:<name>", "zset", "permanent", "runs that wait for a limit, in their order"),
    KeyDoc(
        "{agent-queue}:outbox",
        "zset",
        "permanent",
        "runs with new events for sinks, by when they are due (ms)",
    ),
    KeyDoc(
        "{agent-queue}:outbox:<name>",
        "zset",
        "permanent",
        "outbox entries: runs with events for one sink (eventapi, webhook, push), by when they are due (ms; "
        "held: the end of the lease); the cursor is in the run's record as `relay:<name>`",
    ),
    KeyDoc(
        "{agent-queue}:outbox:notify",
        "channel",
        "-",
        "wakes relays: a run has new events for receivers, or undelivered ones must be delivered again",
    ),
    KeyDoc(
        "{agent-queue}:outbox:redeliver:<name>:<id>",
        "zset",
        "permanent",
        "undelivered events of a run that wait for their redelivery to a sink, by their position",
    ),
    KeyDoc(
        "{agent-queue}:outbox:departed",
        "hash",
        "permanent",
        "`<sink> <run>`: the state of redelivery for removed runs, until their events are delivered",
    ),
    KeyDoc(
        "{agent-queue}:undelivered",
        "stream",
        "permanent",
        "events that no receiver accepted: run_id, event_id, sequence, type, sink, error, data; for "
        "redelivery also address and origin, as the run may have been removed; 100,000 are kept",
    ),
    KeyDoc(
        "{agent-queue}:unarchived", "list", "permanent", "ended runs not archived yet: `finished_at id id …`"
    ),
    KeyDoc("{agent-queue}:waiters", "set", "permanent", "all runs that wait for a limit"),
    KeyDoc(
        "{agent-queue}:rollbacks", "hash", "permanent", "the runs that the next run of a thread rolls back"
    ),
    KeyDoc(
        "{agent-queue}:idempotency:<key>",
        "string",
        "idempotency_ttl_seconds",
        "the id of the run with this key",
    ),
    KeyDoc(
        "{agent-queue}:gate",
        "hash",
        "until resumed",
        "mode (paused or draining), reason, since; absent = open",
    ),
    KeyDoc(
        "{agent-queue}:turn", "string", "one turn", "set while one worker reclaims the runs of dead workers"
    ),
    KeyDoc(
        "{agent-queue}:control",
        "channel",
        "-",
        "`cancel <run id> <reason>` and `gate`, which notify workers at once",
    ),
    KeyDoc(
        "{agent-queue}:cleanup-leader",
        "hash",
        "lock_ttl_seconds",
        "the leader that runs the janitor's passes for this queue",
    ),
    KeyDoc(
        "{agent-queue}:partitions",
        "zset",
        "permanent",
        "numbers of partitions that processes announce, by the last announcement (ms)",
    ),
    KeyDoc("waiting", "zset", "permanent", "schedules by their next run (epoch seconds)"),
    KeyDoc("working", "zset", "permanent", "schedules that run, by their deadline (epoch seconds)"),
    KeyDoc("schedule-leases", "zset", "permanent", "schedules that run, by the expiry of their lease (ms)"),
    KeyDoc("schedules", "hash", "permanent", "every schedule's definition (JSON) by its name"),
    KeyDoc(
        "schedule-priorities",
        "zset",
        "permanent",
        "schedules whose priority is not the normal one (5), by priority; 0 is the most urgent",
    ),
    KeyDoc(
        "schedule:#turns",
        "set",
        "permanent",
        "turns that are schedules of their own (`name#n`, `name@time`) while they wait or run; gone with the "
        "last one",
    ),
    KeyDoc(
        "schedule:<name>",
        "hash",
        "permanent",
        "one schedule's state until it is removed: fence, owner, trigger, timeout_ms, streak, runs, ready, "
        "acquired_at, last_start, last_end, last_duration_ms, last_outcome, last_error, last_error_at, "
        "paused, paused_since, next, done, cadence, replan, buffered, cancel, reclaimed, revision, beside, "
        "names, backfill_most; a turn may be a schedule of its own (`name#n`, `name@time`), and of one "
        "that was backfilled ended is kept for a week; of one that was removed its revision for 10 minutes",
    ),
    KeyDoc(
        "schedule:<name>#line",
        "zset",
        "permanent",
        "turns of a backfill that have not begun, by their time (epoch seconds); gone with the last one",
    ),
    KeyDoc(
        "schedule:<name>#backfill",
        "zset",
        "permanent",
        "turns of a backfill that wait or run now; gone with the last one",
    ),
    KeyDoc(
        "schedule:<name>#history",
        "list",
        "permanent",
        "the last turns that ended, newest first: `redis.scheduler.kept-turns` and up to a quarter more; "
        "JSON of planned_at, started_at, ended_at, duration_ms, owner, fence, outcome, and where they apply "
        "attempt, manual, error_kind, error, queue, run_id; gone when the schedule is removed",
    ),
    KeyDoc(
        "schedule-changes",
        "string",
        "permanent",
        "`era-count`, which changes with every definition or pause: if it is the same, nothing has to be "
        "compared",
    ),
    KeyDoc(
        "schedule-nudge",
        "channel",
        "-",
        "a schedule is new, changed, resumed, triggered or given back; a scheduler has left",
    ),
    KeyDoc(
        "cleanup-leader", "string", "leadership-ttl-ms", "the leader of the orphan cleanup: `owner fence`"
    ),
    KeyDoc(
        "schedule-sweep",
        "string",
        "ten times orphan-cleanup.interval-ms",
        "where the next orphan cleanup continues, if the last one ended early: `working` or `waiting`, and "
        "the rank; shared by all schedulers",
    ),
    KeyDoc(
        "agents", "zset", "permanent", "long-lived agents that should run, by the time of their request (ms)"
    ),
    KeyDoc(
        "agent:<id>",
        "hash",
        "while wanted, then 1 hour",
        "one agent: wanted, status, owner (its host), address, fence, pid, restarts, error, entry, payload, "
        "name, guild, organization, needs, bound, created_at, started_at",
    ),
    KeyDoc(
        "agent-leases",
        "zset",
        "permanent",
        "agents by the end of the lease of their host, or of the process that places them (ms)",
    ),
    KeyDoc("agent_location:<id>", "string", "hosts.ttl_seconds", "`host:port` while an agent runs"),
    KeyDoc("host_agents:<host>", "set", "permanent", "the agents that run on a host"),
    KeyDoc("placement:counter", "string", "permanent", "counts placements, for round-robin"),
    KeyDoc("members", "zset", "permanent", "index of live processes by expiry; swept by its readers"),
    KeyDoc(
        "member:<kind>:<name>",
        "hash",
        "three heartbeats",
        "one live process: kind, name, host, pid, version, since; with an app also agents (their names) and "
        "catalogue (the digest of their descriptions); of workers and schedulers also capacity and load, of "
        "hosts capacity and agents; of a worker in Kubernetes also namespace, pod, pod_uid, and "
        "held_seconds: for how long it has held its runs, summed up",
    ),
    KeyDoc(
        "catalogue:<digest>",
        "string",
        "three heartbeats",
        "the agents of an app (JSON): name, description, input_schema, result_schema, isolation, "
        "timeout_seconds, max_attempts, concurrency; written when a process starts, then only its ttl is "
        "renewed; 256 KiB at most",
    ),
    KeyDoc(
        "pod:<kind>:<name>",
        "string",
        "1 day after its last heartbeat",
        "the pod of a process, `namespace/pod/uid`, by which the janitor detects that it is gone",
    ),
    KeyDoc("pods-leader", "hash", "the lease's ttl", "the janitor that watches the pods and marks busy ones"),
    KeyDoc(
        "registered-store",
        "hash",
        "permanent",
        "the store that the first process of the system registered: id, location, host, process, "
        "registered_at (ms); a process with another store refuses to start; `holdfast store register` "
        "replaces it",
    ),
    KeyDoc("rollouts", "set", "permanent", "names of the roll-outs that were set"),
    KeyDoc(
        "rollout:<name>",
        "hash",
        "permanent",
        "one roll-out: percent (0 to 100), reason, changed_at (ms), and `tenant:<id>` = `on` or `off` for "
        "tenants that are exempt from the percentage",
    ),
)


def keys_table() -> str:
    """Render the data model as a markdown table."""
    rows = [f"| `{doc.pattern}` | {doc.type} | {doc.stays} | {doc.holds} |" for doc in DATA_MODEL]
    return "\n".join(["| key | type | stays | holds |", "|---|---|---|---|", *rows]) + "\n"
