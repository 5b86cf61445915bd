from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.telemetry.fast_metrics import Tallies
from holdfast.telemetry.metric_types import SECONDS
from holdfast.telemetry.metrics import MAX_GUILDS, MAX_UNDECLARED_AGENTS, Metrics, metrics_table

ALLOWED_LABELS = {"queue", "agent", "status", "reason", "kind", "sink"}
# Bounded otherwise: by what a host holds now, or by how many guilds get a name of their own.
OF_HOSTS = {"guild_id", "agent_id"}
# Words of KEDA's protocol, of which there are a handful.
OF_SCALING = {"result", "call", "active"}
# A program names its producers and their roll-outs in its code.
OF_PRODUCERS = {"producer", "rollout", "path"}


def sample(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


def test_a_finished_run_is_counted_by_its_status_and_timed():
    metrics = Metrics(["triage"])
    meter = metrics.runs("q", "triage")
    meter.claimed(0.2)
    meter.finished("succeeded", 12)
    meter.finished("failed", 0.001)
    assert sample(metrics, "holdfast_runs_claimed_total", queue="q", agent="triage") == 1
    assert sample(metrics, "holdfast_runs_finished_total", queue="q", agent="triage", status="succeeded") == 1
    assert sample(metrics, "holdfast_runs_finished_total", queue="q", agent="triage", status="failed") == 1
    assert sample(metrics, "holdfast_run_duration_seconds_sum", queue="q", agent="triage") == pytest.approx(
        12.001
    )
    assert sample(metrics, "holdfast_run_duration_seconds_bucket", queue="q", agent="triage", le="10.0") == 1
    assert sample(metrics, "holdfast_run_duration_seconds_bucket", queue="q", agent="triage", le="30.0") == 2
    assert sample(metrics, "holdfast_queue_wait_seconds_count", queue="q") == 1


def test_the_wait_in_a_queue_is_shared_by_its_agents():
    metrics = Metrics(["a", "b"])
    metrics.runs("q", "a").claimed(1)
    metrics.runs("q", "b").claimed(1)
    assert sample(metrics, "holdfast_queue_wait_seconds_count", queue="q") == 2


def test_a_submitters_clock_ahead_of_ours_does_not_shrink_the_sum():
    metrics = Metrics(["a"])
    metrics.runs("q", "a").claimed(-5)
    metrics.runs("q", "a").finished("succeeded", -1)
    assert sample(metrics, "holdfast_queue_wait_seconds_sum", queue="q") == 0
    assert sample(metrics, "holdfast_run_duration_seconds_sum", queue="q", agent="a") == 0


def test_the_meter_of_a_queue_and_agent_is_always_the_same():
    metrics = Metrics(["a"])
    assert metrics.runs("q", "a") is metrics.runs("q", "a")
    assert metrics.runs("q", "a") is not metrics.runs("r", "a")


def test_unknown_agents_share_one_label():
    metrics = Metrics(["known"])
    for n in range(1000):
        metrics.runs("q", f"invented-{n}").submitted()
    metrics.runs("q", "known").submitted(3)
    assert sample(metrics, "holdfast_runs_submitted_total", queue="q", agent="other") == 1000
    assert sample(metrics, "holdfast_runs_submitted_total", queue="q", agent="known") == 3
    assert len(metrics._meters) == 2


def test_a_process_without_an_app_names_only_the_first_agents_it_meets():
    metrics = Metrics()
    labels = {metrics.agent_label(f"agent-{n}") for n in range(MAX_UNDECLARED_AGENTS * 2)}
    assert len(labels) == MAX_UNDECLARED_AGENTS + 1
    assert metrics.agent_label("agent-0") == "agent-0"
    assert "other" in labels


def test_a_retry_is_counted_by_its_reason():
    metrics = Metrics(["a"])
    metrics.runs("q", "a").retried("throttled")
    assert sample(metrics, "holdfast_runs_retried_total", queue="q", agent="a", reason="throttled") == 1


def test_every_metric_has_our_name_a_sentence_and_bounded_labels():
    for metric in Metrics().declared:
        assert re.fullmatch(r"holdfast_[a-z_]+", metric.name)
        assert metric.text.endswith(".")
        allowed = ALLOWED_LABELS | (OF_HOSTS if metric.name.startswith("holdfast_host_") else set())
        allowed |= OF_SCALING if metric.name.startswith("holdfast_scaling_") else set()
        allowed |= (
            OF_PRODUCERS if metric.name.startswith(("holdfast_producer_", "holdfast_rollout_")) else set()
        )
        assert set(metric.labels) <= allowed


def test_every_metric_attribute_was_declared_once():
    metrics = Metrics()
    names = [metric.name for metric in metrics.declared]
    public = {name for name in vars(metrics) if not name.startswith("_")} - {"registry", "declared"}
    assert len(set(names)) == len(names)
    assert {name.removeprefix("holdfast_").removesuffix("_total") for name in names} == public


def test_two_processes_worth_of_metrics_do_not_meet():
    one, other = Metrics(["a"]), Metrics(["a"])
    one.runs("q", "a").claimed(1)
    assert sample(other, "holdfast_runs_claimed_total", queue="q", agent="a") is None


def test_what_is_scraped_can_be_parsed_and_holds_every_help_text():
    metrics = Metrics(["a"])
    metrics.runs("q", "a").claimed(1)
    metrics.runs("q", "a").finished("succeeded", 1)
    families = {
        family.name: family
        for family in text_string_to_metric_families(generate_latest(metrics.registry).decode())
    }
    for metric in metrics.declared:
        assert families[metric.name.removesuffix("_total")].documentation == metric.text


def test_the_table_lists_every_metric_in_order():
    rows = metrics_table().splitlines()[2:]
    assert len(rows) == len(Metrics().declared)
    names = [row.split("`")[1] for row in rows]
    assert names == sorted(names)
    assert (
        "| `holdfast_runs_dead_lettered_total` | counter | queue, reason | Runs given up and kept in the dead letters. |"
        in rows
    )


@given(st.lists(st.floats(min_value=0, max_value=10_000) | st.sampled_from(SECONDS)))
def test_a_tally_counts_as_prometheus_own_histogram_does(values):
    ours, theirs = (
        Tallies("x", "x.", ["queue"], SECONDS),
        Histogram("x", "x.", ["queue"], registry=None, buckets=SECONDS),
    )
    for value in values:
        ours.child("q").observe(value)
        theirs.labels("q").observe(value)
    mine = {(s.name, s.labels.get("le")): s.value for f in ours.collect() for s in f.samples}
    reference = {
        (s.name, s.labels.get("le")): s.value
        for f in theirs.collect()
        for s in f.samples
        if not s.name.endswith("_created")
    }
    if values:
        assert mine.keys() == reference.keys()
        assert all(math.isclose(mine[key], reference[key]) for key in mine)


def test_what_is_gone_has_no_series_any_more():
    metrics = Metrics()
    metrics.host_agent_memory_bytes.show({("a", "g"): 1.0, ("b", "g"): 2.0})
    assert sample(metrics, "holdfast_host_agent_memory_bytes", agent_id="b", guild_id="g") == 2
    metrics.host_agent_memory_bytes.show({("a", "g"): 3.0})
    assert sample(metrics, "holdfast_host_agent_memory_bytes", agent_id="a", guild_id="g") == 3
    assert sample(metrics, "holdfast_host_agent_memory_bytes", agent_id="b", guild_id="g") is None


def test_only_the_first_guilds_have_counters_of_their_own():
    metrics = Metrics()
    labels = {metrics.guild_label(f"guild-{n}") for n in range(MAX_GUILDS * 2)}
    assert len(labels) == MAX_GUILDS + 1
    assert metrics.guild_label("guild-0") == "guild-0"
    assert metrics.guild_label("one more") == "other"
