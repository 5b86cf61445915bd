"""What is checked and changed in Rustic AI's specs, which needs nothing of Rustic AI."""

from __future__ import annotations

import pytest

from holdfast.compat.rustic.specs import check_classes, client_path, messaging_of
from holdfast.config import HostSettings
from holdfast.errors import InputError, NotAllowed
from holdfast.hosts import entries
from holdfast.hosts.agent import guild_prefix, organization_of, qualified

REDIS = {
    "backend_module": "rustic_ai.redis.messaging.backend",
    "backend_class": "RedisMessagingBackend",
    "backend_config": {"redis_client": {"host": "h", "port": 1}},
}
ALLOWED = ("rustic_ai", "mine")


def payload(**parts):
    return {"agent_spec": {"class_name": "mine.Agent"}, "messaging_config": REDIS, **parts}


def test_redis_is_polled_once_a_second_unless_somebody_says_otherwise():
    made = messaging_of(REDIS)
    assert made["backend_config"]["redis_client"] == {"host": "h", "port": 1, "pubsub_poll_sleep_time": 1.0}
    assert messaging_of(made) == made
    own = {**REDIS, "backend_config": {"redis_client": {"pubsub_poll_sleep_time": 0.2}}}
    assert messaging_of(own) == own
    assert "pubsub_poll_sleep_time" not in REDIS["backend_config"]["redis_client"], "nobody's own is changed"


def test_other_backends_are_left_as_they_are():
    other = {
        "backend_module": "mine",
        "backend_class": "Backend",
        "backend_config": {"redis_client": {"x": 1}},
    }
    assert messaging_of(other) == other


def test_memory_is_no_way_between_processes():
    with pytest.raises(InputError, match="reaches no agent in another process"):
        messaging_of({"backend_class": "InMemoryMessagingBackend"})


@pytest.mark.parametrize(
    ("said", "path"),
    [
        ("", "rustic_ai.core.messaging.SimpleClient"),
        ("MessageTrackingClient", "rustic_ai.core.messaging.MessageTrackingClient"),
        ("mine.Client", "mine.Client"),
    ],
)
def test_a_client_has_a_full_path(said, path):
    assert client_path(said) == path


ENGINES = ("holdfast.compat.rustic.K8sExecutionEngine", "holdfast.hosts.rustic.K8sExecutionEngine")


@pytest.mark.parametrize("engine", ENGINES)
def test_allowed_classes_pass(engine):
    run_by = {
        "execution_engine": engine,
        "messaging": REDIS,
        "client_type": "SimpleClient",
    }
    guild = {"agents": [{"class_name": "rustic_ai.core.X"}], "properties": run_by}
    check_classes(payload(guild_spec=guild), ALLOWED)
    own = {"class_name": "mine.Agent", "properties": {"messaging": {"channel": "x"}, "client_type": "gold.x"}}
    check_classes(payload(agent_spec=own), ALLOWED)


@pytest.mark.parametrize(
    "parts",
    [
        {"agent_spec": {"class_name": "os.Agent"}},
        {"agent_spec": {"class_name": "mine.A", "dependency_map": {"d": {"class_name": "os.Agent"}}}},
        {"guild_spec": {"agents": [{"class_name": "os.Agent"}]}},
        {"guild_spec": {"dependency_map": {"d": {"class_name": "os.Agent"}}}},
        {"agent_spec": {"properties": {"guild_spec": {"agents": [{"class_name": "os.Agent"}]}}}},
        {"messaging_config": {"backend_module": "os", "backend_class": "Agent"}},
        {"client_type": "os.Agent"},
        {"client_properties": {"tracking_store_class": "os.Agent"}},
        *(
            {"agent_spec": {"properties": {"guild_spec": {"properties": named}}}}
            for named in (
                {"execution_engine": "os.Agent"},
                {"state_manager": "os.Agent"},
                {"messaging": {"backend_module": "os", "backend_class": "Agent"}},
                {"client_type": "os.Agent"},
                {"client_properties": {"tracking_store_class": "os.Agent"}},
            )
        ),
    ],
)
def test_no_class_comes_in_by_another_way(parts):
    with pytest.raises(NotAllowed, match=r"'os\.Agent' is outside of the prefixes"):
        check_classes(payload(**parts), ALLOWED)


def test_specs_of_a_wrong_shape_are_for_rustic_ai_to_refuse():
    check_classes(payload(guild_spec={"agents": {"a": 1}, "dependency_map": [], "properties": 1}), ALLOWED)


def test_the_organization_is_in_the_id():
    assert organization_of(qualified("a", "g", "my org/unit")) == "my org/unit"
    assert organization_of(qualified("a", "g")) == ""
    assert organization_of("plain/id") == ""
    assert qualified("a", "g#1", "my org/unit").startswith(guild_prefix("g#1", "my org/unit"))
    assert not qualified("a", "g#1", "my org").startswith(guild_prefix("g", "my org"))


def test_rustic_ai_is_offered_where_it_is_installed(tmp_path, monkeypatch):
    """Nothing of it is imported to find that out."""
    monkeypatch.setattr(
        entries, "_RUSTIC_PRELOAD", ("holdfast.own", "rustic_ai.redis.backend", "rustic_ai.none.here")
    )
    assert not entries.offers_rustic(HostSettings())
    for package in ("core", "redis"):
        (tmp_path / "rustic_ai" / package).mkdir(parents=True)
        (tmp_path / "rustic_ai" / package / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "rustic_ai" / "redis" / "backend.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert entries.offers_rustic(HostSettings())
    assert not entries.offers_rustic(HostSettings(rustic=False))
    assert entries.rustic_preload() == ("holdfast.own", "rustic_ai.redis.backend")
