"""Values that are wrong, or would lose or strand work, are refused with a sentence that says what to do."""

from __future__ import annotations

import pytest

from tests.support.deploy.charts import helm, values_file

KEDA_ASKS = (
    "keda.profile=redis-streams,workers.default.scaling.min=1,redis.trial.enabled=false,redis.password="
    ",keda.redisStreams.address=redis.example:6379"
)
"""A Redis elsewhere, which KEDA asks itself."""
LOSES_WORK = {
    "grace shorter than the drain": (
        "workers.default.drain=60,workers.default.terminationGracePeriodSeconds=70",
        "70 is too short: a worker drains for 60 s and needs 15 s more to hand back what did not finish",
    ),
    "grace of all types": (
        "workerDefaults.drain=300,workerDefaults.terminationGracePeriodSeconds=300",
        "workers.default.terminationGracePeriodSeconds: 300 is too short",
    ),
    "grace of the api": (
        "api.terminationGracePeriodSeconds=20",
        "preStopSeconds + linger + drain + 5 s to leave are 31",
    ),
    "grace of hosts": (
        "host.terminationGracePeriodSeconds=60",
        "100 agents that move eight at a time, each within 10 s, and 30 s more need 155",
    ),
    "grace of schedulers": (
        "scheduler.terminationGracePeriodSeconds=29",
        "scheduler.terminationGracePeriodSeconds: 29 is too short: its turns and passes may take 21 s to end",
    ),
    "grace of schedulers whose turns may end for long": (
        "settings.redis.scheduler.zombie-cleanup.executor-shutdown-await-ms=2m,scheduler.terminationGracePeriodSeconds=45",
        "-force-await-ms of redis.scheduler) and its goodbye 9 s; set it to 140 or more",
    ),
    "grace of schedulers by a variable": (
        "env[0].name=HOLDFAST_REDIS_SCHEDULER_ZOMBIE_CLEANUP_EXECUTOR_SHUTDOWN_AWAIT_MS,env[0].value=long",
        "would beat settings.redis.scheduler.zombie-cleanup.executor-shutdown-await-ms",
    ),
    "grace of relays": (
        "relay.enabled=true,relay.terminationGracePeriodSeconds=45,settings.relay.timeout_seconds=30",
        "relay.terminationGracePeriodSeconds: 45 is too short: a receiver may take 30 s to answer",
    ),
    "grace of the janitor": (
        "janitor.terminationGracePeriodSeconds=1",
        "janitor.terminationGracePeriodSeconds: 1 is too short: giving its offices back and its goodbye may take 8 s",
    ),
    "grace of the scaler": (
        "keda.profile=external-push,scaler.terminationGracePeriodSeconds=1",
        "scaler.terminationGracePeriodSeconds: 1 is too short: answering whoever asks and its goodbye may take 8 s",
    ),
    "eviction": (
        "redis.trial.maxmemoryPolicy=allkeys-lru",
        "a Redis that evicts keys loses queued runs when it is full; it must be noeviction",
    ),
    "min over max": (
        "workers.default.scaling.min=20",
        "workers.default.scaling: min is 20 and max is 10: lower min or raise max",
    ),
    "min over max of hosts": ("host.autoscaling.min=30", "host.autoscaling: min is 30 and max is 20"),
    "min over max of the api": ("api.autoscaling.min=30", "api.autoscaling: min is 30 and max is 10"),
    "fallback over max": ("keda.fallback.replicas=50", "more than workers.default.scaling.max, which is 10"),
    "a queue that nobody serves": (
        "settings.queues.browsr:jobs.max_attempts=3,workers.browser.queues={browser:jobs}",
        "no worker type serves the queue browsr:jobs, so its runs would wait for ever: workers serve agent-queue, browser:jobs;",
    ),
    "a default queue that nobody serves": (
        "settings.messaging.queue=orders",
        "settings.messaging.queue: no worker type serves the default queue orders, so a run that is submitted",
    ),
    "worker types that don't serve the default queue": (
        "workers.default=null,workers.media.queues={media}",
        "would wait for ever: workers serve media; add agent-queue to workers.<type>.queues, or set settings.messaging.queue",
    ),
    "a default queue that schedules submit to and nobody serves": (
        "api.enabled=false,keda.profile=none,workers.default=null,workers.media.queues={media}",
        "no worker type serves the default queue agent-queue",
    ),
    "a default queue by a variable": (
        "env[0].name=MESSAGING_QUEUE_NAME,env[0].value=orders",
        "env: MESSAGING_QUEUE_NAME would beat settings.messaging.queue",
    ),
    "a default queue by the variable of the media pipeline": (
        "env[0].name=CLUSTER_STREAM_KEY,env[0].value=orders",
        "env: CLUSTER_STREAM_KEY would beat settings.messaging.queue",
    ),
    "a default queue by a variable of one type": (
        "workers.default.env[0].name=HOLDFAST_MESSAGING_QUEUE,workers.default.env[0].value=orders",
        "workers.default.env: HOLDFAST_MESSAGING_QUEUE would beat settings.messaging.queue",
    ),
    "a scale-in before anybody knows who is idle": (
        "workers.default.scaling.down=15",
        "workers.default.scaling.down: 15 s is too short for idle workers to leave first",
    ),
    "a cost that is lowered after the scale-in": (
        "settings.janitor.deletion_cost_lower_seconds=1m",
        "and settings.janitor.deletion_cost_lower_seconds adds 60 s: set it to 87 or more",
    ),
    "a cost that is lowered after the scale-in, by a variable": (
        "env[0].name=HOLDFAST_JANITOR_DELETION_COST_LOWER_SECONDS,env[0].value=long",
        "would beat settings.janitor.deletion_cost_lower_seconds",
    ),
    "no database": (
        "database.trial.enabled=false",
        "steps, state and archived runs would be lost with their pod: set database.url",
    ),
    "no redis": ("redis.trial.enabled=false", "redis: say where it is: redis.url"),
    "to zero without eyes for delayed runs": (
        "keda.profile=redis-streams",
        "workers.default.scaling.min: KEDA's redis-streams trigger does not see delayed runs",
    ),
    "finished entries that count for ever": (
        "keda.profile=redis-streams,workers.default.scaling.min=1,settings.queue.delete_after_ack=false",
        "finished entries would count as work for ever",
    ),
    "finished entries of one queue that count for ever": (
        "keda.profile=redis-streams,workers.default.scaling.min=1,settings.queues.agent-queue.delete_after_ack=false",
        "finished entries would count as work for ever",
    ),
    "a drain behind the chart's back": (
        "workers.default.env[0].name=HOLDFAST_DRAIN_SECONDS,workers.default.env[0].value=long",
        "workers.default.env: HOLDFAST_DRAIN_SECONDS is set by the chart itself",
    ),
    "slots behind the chart's back": (
        "env[0].name=WORKER_POD_MESSAGES_BATCH_SIZE,env[0].value=nine",
        "env: WORKER_POD_MESSAGES_BATCH_SIZE is set by the chart itself",
    ),
    "slots behind the chart's back, by their other name": (
        "env[0].name=HOLDFAST_QUEUE_SLOTS,env[0].value=nine",
        "env: HOLDFAST_QUEUE_SLOTS is set by the chart itself, for all that must agree about it: set workerDefaults.slots instead",
    ),
    "a name that is the pod's": (
        "env[0].name=CLUSTER_WORKER_CONSUMER_NAME,env[0].value=me",
        "CLUSTER_WORKER_CONSUMER_NAME is set by the chart itself, for all that must agree about it: leave it out, it is the pod's name",
    ),
    "finished entries that count for ever, by a variable": (
        "env[0].name=REDIS_STREAM_DELETE_AFTER_ACK,env[0].value=no",
        "env: REDIS_STREAM_DELETE_AFTER_ACK would beat settings.queue.delete_after_ack",
    ),
    "partitions that KEDA does not see, by a variable of one type": (
        "workers.default.env[0].name=HOLDFAST_QUEUE_PARTITIONS,workers.default.env[0].value=four",
        "workers.default.env: HOLDFAST_QUEUE_PARTITIONS would beat settings.queue.partitions, which the chart computes",
    ),
    "slots that a worker can't fill": (
        "workers.default.slots=1000",
        "workers.default.slots: 1000 are more than the 256 runs that a worker may hold",
    ),
    "slots that a worker of this queue can't fill": (
        "workers.default.slots=9,settings.queues.agent-queue.max_pending=8",
        "workers.default.slots: 9 are more than the 8 runs that a worker may hold",
    ),
    "slots that no worker can fill": (
        "settings.queue.max_pending=2",
        "more than the 2 runs that a worker may hold",
    ),
    "partitions that KEDA does not see": (
        "keda.profile=redis-streams,workers.default.scaling.min=1,settings.queues.agent-queue.partitions=4",
        "KEDA's redis-streams trigger would see the first one only",
    ),
    "partitions of every queue that KEDA does not see": (
        "keda.profile=redis-streams,workers.default.scaling.min=1,settings.queue.partitions=4",
        "KEDA's redis-streams trigger would see the first one only",
    ),
    "nobody cleans": (
        "api.enabled=false,janitor.enabled=false,keda.profile=none",
        "enable the janitor, or the api",
    ),
    "a queue of two types": (
        "workers.other.queues={agent-queue}",
        "default serves the queue agent-queue already: a queue belongs to one worker type",
    ),
}
CONTRADICTS = {
    "a redis.url that refers to a variable": (
        "redis.trial.enabled=false,redis.url=redis://$(REDIS_HOST):6379/0",
        "redis.url: its host or port is a reference to a variable",
    ),
    "a database.url that refers to a variable": (
        "database.trial.enabled=false,database.url=postgresql://u:p@db.example:$(DB_PORT)/holdfast",
        "database.url: its host or port is a reference to a variable",
    ),
    "two places for redis": ("redis.url=redis://x:1", "keep one of redis.url and redis.trial.enabled"),
    "two places for the database": (
        "database.url=postgresql://x/y",
        "keep one of database.url and database.trial.enabled",
    ),
    "ephemeral and a database": ("database.ephemeral=true", "ephemeral means none at all"),
    "secret and values": ("secret.existing=mine", "that Secret has all of them"),
    "no app": ("app=", "it needs your agents: set app"),
    "no residents": ("app=,workers.default=null", "host: it needs your residents: set app"),
    "no schedules": (
        "app=,workers.default=null,host.enabled=false",
        "scheduler: it needs your schedules: set app",
    ),
    "a Redis that KEDA does not know": (
        "keda.profile=redis-streams,workers.default.scaling.min=1,redis.trial.enabled=false,redis.url=redis://x:1",
        "keda.redisStreams.address: KEDA asks Redis itself with this profile: say where it is",
    ),
    "a password that KEDA can't read": (
        f"{KEDA_ASKS},redis.url=rediss://:secret@redis.example:6380/0",
        "redis.url: it has the password in it, where KEDA, which asks Redis itself",
    ),
    "a password among the options of a URL": (
        f"{KEDA_ASKS},redis.url=redis://redis.example:6379/0?password=secret",
        "put it into redis.password",
    ),
    "a user that KEDA does not know": (
        f"{KEDA_ASKS},redis.url=redis://holdfast@redis.example:6379/0,redis.password=secret",
        "name it in keda.redisStreams.username, too",
    ),
    "a user without a password": (
        f"{KEDA_ASKS},redis.url=redis://redis.example:6379/0,redis.password=,keda.redisStreams.username=holdfast",
        "keda.redisStreams.username: a user needs a password: set redis.password",
    ),
    "slots in two places": ("settings.queues.agent-queue.slots=5", "set workers.<type>.slots instead"),
    "slots of all queues in two places": ("settings.queue.slots=4", "set workerDefaults.slots instead"),
    "scaling of all queues in two places": (
        "settings.queue.scaling.max_workers=4",
        "settings.queue.scaling: the chart decides this one, for all processes alike: set workerDefaults.scaling instead",
    ),
    "a secret in the settings": (
        "settings.redis.password=x",
        "settings.redis.password: the chart decides this one",
    ),
    "a port in two places": ("settings.api.port=1", "set api.port instead"),
    "open with keys": ("api.open=true", "remove one of the two"),
    "an ingress for everybody": (
        "api.ingress.enabled=true",
        "an Ingress without a host takes the requests of everybody else's: name one",
    ),
    "nobody to ask": ("api.enabled=false", "KEDA asks the api, and api.enabled is false"),
    "hosts that refuse to listen": ("host.insecure=false", "name a Secret with tls.crt, tls.key and ca.crt"),
    "an api that nobody may call": (
        "keda.profile=none,secret.apiKeys=null",
        "secret.apiKeys: nobody could call the api",
    ),
}
WRONG = {
    "a name that is not there": ("workers.default.slot=3", "Additional property slot is not allowed"),
    "a section that is not there": ("setting.queue=3", "Additional property setting is not allowed"),
    "a section of holdfast.yaml that is not there": ("settings.workers.x=3", "settings"),
    "a profile that is not there": ("keda.profile=lag", "keda.profile must be one of the following"),
    "a word for a number": ("workers.default.slots=many", "slots: Invalid type"),
    "no slots": ("workers.default.slots=0", "Must be greater than or equal to 1"),
    "no replicas": ("api.replicas=0", "api.replicas: Must be greater than or equal to 1"),
    "a budget that blocks nodes": ("api.pdb.maxUnavailable=0", "api.pdb.maxUnavailable"),
    "root": ("podSecurity.runAsUser=0", "podSecurity.runAsUser: Must be greater than or equal to 1"),
    "a key instead of its hash": ("secret.apiKeys={hf_secret}", "secret.apiKeys.0: Does not match pattern"),
    "a URL of something else": ("redis.url=http://x", "redis.url: Does not match pattern"),
    "a type that is no name": ("workers.Media.queues={media}", "Media"),
    "no queue": ("workers.default.queues=null", "queues is required"),
    "a queue that is no name": ("workers.default.queues={a b}", "Does not match pattern"),
    "a fallback to nobody": ("keda.fallback.replicas=0", "Must be greater than or equal to 1"),
    "a privileged port": ("api.port=80", "Must be greater than or equal to 1024"),
    "no sleep": ("api.preStopSeconds=0", "api.preStopSeconds"),
    "a type that is a number": ("workers.default=7", "workers.default: Invalid type"),
    "a budget of no percent": ("api.pdb.maxUnavailable=0%", "maxUnavailable: Does not match pattern"),
    "memory without a unit that exists": ("api.resources.limits.memory=1Gb", "Does not match pattern"),
}
TABLE = {**LOSES_WORK, **CONTRADICTS, **WRONG}


@pytest.mark.parametrize("case", TABLE)
def test_wrong_values_are_refused_with_a_sentence(case):
    values, sentence = TABLE[case]
    done = helm("--values", str(values_file("trial")), "--set", values)
    assert done.returncode != 0, f"{values} was accepted"
    assert sentence in done.stderr, done.stderr


@pytest.mark.parametrize("case", WRONG)
def test_the_schema_says_what_is_wrong_and_not_how_it_looked(case):
    done = helm("--values", str(values_file("trial")), "--set", WRONG[case][0])
    assert "oneOf" not in done.stderr
    assert "anyOf" not in done.stderr


@pytest.mark.parametrize(
    "values",
    [
        "workers.default=null,workers.other.queues={other},settings.messaging.queue=other",
        "workers.default=null,workers.other.queues={other},api.enabled=false,scheduler.enabled=false,keda.profile=none",
        "workers.default=null",
        "workers.default.scaling.down=27",
        "workers.default.scaling.down=15,settings.janitor.deletion_cost=false",
        "workers.default.scaling.down=15,janitor.kubernetes=false",
        "workers.default.scaling.down=15,keda.profile=none",
        "api.pdb.maxUnavailable=2",
        "api.pdb.maxUnavailable=25%",
        "api.resources.limits.cpu=null",
    ],
)
def test_what_may_be_one_or_the_other_is_taken_either_way(values):
    done = helm("--values", str(values_file("trial")), "--set", values)
    assert done.returncode == 0, done.stderr


def test_the_values_that_the_table_begins_with_are_right():
    done = helm("--values", str(values_file("trial")))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "values",
    [
        "workers.default.drain=60,workers.default.terminationGracePeriodSeconds=75",
        "scheduler.terminationGracePeriodSeconds=30",
        "relay.enabled=true,relay.terminationGracePeriodSeconds=30",
        "janitor.terminationGracePeriodSeconds=10",
    ],
)
def test_the_shortest_grace_that_is_enough_is_taken(values):
    done = helm("--values", str(values_file("trial")), "--set", values)
    assert done.returncode == 0, done.stderr
