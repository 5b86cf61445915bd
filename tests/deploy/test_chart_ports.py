"""NetworkPolicies open the ports of the URLs that the chart sees; one that it can't see must be listed."""

from __future__ import annotations

import pytest

from tests.support.deploy.charts import Manifest, helm, one, parsed, values_file

SEEN = "redis://redis.example/0", "postgresql://holdfast:x@postgres.example/holdfast"


def ports(redis: str, database: str, more: str = "") -> set[int]:
    """What every process of ours may connect to by the policy of all of them, whoever is behind it."""
    values = [f"redis.url={escaped(redis)},database.url={escaped(database)}", *([more] if more else [])]
    words = [word for each in values for word in ("--set", each)]
    done = helm("--values", str(values_file("external")), *words)
    assert done.returncode == 0, done.stderr
    policy = one(parsed(done.stdout), "NetworkPolicy", "holdfast-processes")
    return {port for rule in policy["spec"]["egress"] for port in numbers(rule)} - {53}


def numbers(rule: Manifest) -> list[int]:
    return [each["port"] for each in rule.get("ports", [])]


def escaped(url: str) -> str:
    return url.replace(",", "\\,")


@pytest.mark.parametrize(
    ("redis", "database", "expected"),
    [
        (*SEEN, {6379, 5432}),
        (
            "rediss://redis.example:6380/0",
            "postgresql://u:p%40@pooler.example:6432/db?sslmode=require",
            {6380, 6432},
        ),
        ("redis://:a@b:1@redis.example:6390", "postgresql://one:5433,two:5434/db", {6390, 5433, 5434}),
        (SEEN[0], "postgres://[fd00::1]:5435/db", {6379, 5435}),
        (
            "redis://:p#1@redis.example:6391/0",
            "postgresql://u:p?x@db.example:5436/d?sslmode=require",
            {6391, 5436},
        ),
        ("redis://:a?b@redis.example", "postgresql://u:a#b@db.example/d", {6379, 5432}),
        ("redis://[fd00::1]", "postgres://[fd00::1]/db", {6379, 5432}),
    ],
)
def test_the_ports_of_the_urls_are_open(redis, database, expected):
    assert ports(redis, database) == expected


def test_a_port_after_the_question_mark_is_named_beside_it():
    url = "postgresql://db.example/holdfast?port=6432"
    assert ports(SEEN[0], url, "database.port=6432") == {6379, 6432}


def test_sentinels_servers_are_listed_beside_it():
    sentinel = "redis+sentinel://one:26379,two:26380/mymaster/0"
    assert ports(sentinel, SEEN[1], "redis.ports={26379,26380,6379}") == {26379, 26380, 6379, 5432}


def test_the_ports_of_all_servers_of_a_cluster_are_listed():
    given = "redis.ports={7000,7001,7002}"
    assert ports("redis+cluster://a:7000,b:7001", SEEN[1], given) == {7000, 7001, 7002, 5432}


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.observability:4318", {4318}),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://collector.example/v1/traces", {443}),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.example", {80}),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://$(NODE_IP):4318/v1", {4318}),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector.example/$(TENANT)", {443}),
    ],
)
def test_every_process_may_reach_the_collector(variable, value, expected):
    more = f"env[0].name={variable},env[0].value={value}"
    assert ports(*SEEN, more) == {6379, 5432} | expected
    own = more.replace("env[", "workers.default.env[")
    assert ports(*SEEN, own) == {6379, 5432} | expected


def test_a_collector_whose_url_is_elsewhere_has_its_ports_listed():
    hidden = "env[0].name=OTEL_EXPORTER_OTLP_ENDPOINT,env[0].valueFrom.secretKeyRef.name=x,env[0].valueFrom.secretKeyRef.key=y"
    assert ports(*SEEN, f"{hidden},networkPolicy.telemetryPorts={{4317}}") == {6379, 5432, 4317}


def test_a_collector_whose_url_is_a_reference_has_only_its_listed_ports():
    referred = "env[0].name=OTEL_EXPORTER_OTLP_ENDPOINT,env[0].value=$(COLLECTOR_URL)"
    assert ports(*SEEN, f"{referred},networkPolicy.telemetryPorts={{4317}}") == {6379, 5432, 4317}


REFUSED = {
    "a Redis in a Secret": (
        "production",
        "redis.ports=null",
        "redis.ports: the URL of Redis is in the Secret holdfast-production, which the chart does not read",
    ),
    "a database in a Secret": (
        "production",
        "database.port=0",
        "database.port: the URL of the database is in the Secret holdfast-production, which the chart does not read",
    ),
    "servers that only Sentinel knows": (
        "external",
        "redis.url=redis+sentinel://one:26379/mymaster/0",
        "redis.ports: Sentinel names servers whose ports are not in redis.url",
    ),
    "servers that only a cluster knows": (
        "external",
        "redis.url=redis+cluster://seed:7000",
        "redis.ports: a Redis Cluster names servers whose ports are not in redis.url",
    ),
    "servers that only a cluster with TLS knows": (
        "external",
        "redis.url=rediss+cluster://one:6379\\,two:6379",
        "redis.ports: a Redis Cluster names servers whose ports are not in redis.url",
    ),
    "another port than that of the URL": (
        "external",
        "redis.ports={6379}",
        "redis.ports: redis.url has the port 6380, which is not among them",
    ),
    "another port of the database than that of the URL": (
        "external",
        "database.port=6432",
        "database.port: database.url has the port 5432",
    ),
    "a host of the database after the question mark": (
        "external",
        "database.url=postgresql:///holdfast?host=db.example",
        "database.port: database.url names its host or port after the ?",
    ),
    "a port of the database after the question mark": (
        "external",
        "database.url=postgresql://db.example/holdfast?sslmode=require&port=6432",
        "database.port: database.url names its host or port after the ?",
    ),
    "a collector in a Secret": (
        "external",
        "env[0].name=OTEL_EXPORTER_OTLP_ENDPOINT,env[0].valueFrom.secretKeyRef.name=x",
        "networkPolicy.telemetryPorts: the port of OTEL_EXPORTER_OTLP_ENDPOINT is not in env itself",
    ),
    "a collector that is a reference to another variable": (
        "external",
        "env[0].name=OTEL_EXPORTER_OTLP_ENDPOINT,env[0].value=$(COLLECTOR_URL)",
        "networkPolicy.telemetryPorts: the port of OTEL_EXPORTER_OTLP_ENDPOINT is not in env itself",
    ),
    "a collector whose host and port are a reference": (
        "external",
        "env[0].name=OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,env[0].value=http://$(COLLECTOR)/v1/traces",
        "networkPolicy.telemetryPorts: the port of OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is not in env itself",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_ports_that_can_not_be_derived_are_refused(case):
    name, values, sentence = REFUSED[case]
    done = helm("--values", str(values_file(name)), "--set", values)
    assert done.returncode != 0, f"{values} was accepted"
    assert sentence in done.stderr, done.stderr
    without = helm("--values", str(values_file(name)), "--set", f"{values},networkPolicy.enabled=false")
    assert without.returncode == 0, "without policies no port matters"
