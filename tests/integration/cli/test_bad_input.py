"""Every wrong word gives exit code 1 or 2 and one sentence that names it."""

from __future__ import annotations

import json

import pytest

USAGE = [
    (["rnus"], "runs"),
    (["--nonsense"], "--nonsense"),
    (["runs", "lst"], "list"),
    (["submit"], "AGENT"),
    (["submit", ""], "agent"),
    (["submit", "echo", "{bad"], "{bad"),
    (["submit", "echo", "{}", "extra"], "extra"),
    (["submit", "echo", "1", "--priority", "urgent"], "urgent"),
    (["submit", "echo", "1", "--delay", "soon"], "soon"),
    (["submit", "echo", "1", "--delay=-5s"], "-5s"),
    (["submit", "echo", "1", "--timeout", "0"], "timeout"),
    (["submit", "echo", "1", "--timeout", "x"], "'x'"),
    (["submit", "echo", "1", "--run-id", "two words"], "two words"),
    (["submit", "echo", "1", "--idempotency-key", "ключ"], "idempotency_key"),
    (["submit", "echo", "1", "--metadata", "nothing"], "nothing"),
    (["submit", "echo", "1", "--metadata", "{bad"], "{bad"),
    (["submit", "echo", "1", "--metadata", '{"a": 1'], "metadata"),
    (["submit", "echo", "1", "--queue", "two words"], "two words"),
    (["submit", "echo", "1", "--nonsense"], "--nonsense"),
    (["runs", "list", "--status", "lost"], "lost"),
    (["runs", "list", "--limit", "0"], "--limit"),
    (["runs", "list", "--limit", "many"], "--limit"),
    (["runs", "list", "--cursor", "here"], "here"),
    (["runs", "show"], "RUN"),
    (["runs", "show", "two words"], "two words"),
    (["runs", "events", "a", "--after", "yesterday"], "yesterday"),
    (["runs", "cancel"], "RUN"),
    (["queues", "pause", "two words"], "two words"),
    (["dead", "show"], "LETTER"),
    (["dead", "list", "--cursor", "here"], "here"),
    (["dead", "replay"], "--all"),
    (["cleanup", "--idle", "long"], "long"),
    (["members", "everybody"], "everybody"),
    (["worker"], "--app"),
    (["worker", "--app", "agents:app", "--queue", "two words"], "two words"),
    (["worker", "--app", "agents:app", "--nonsense"], "--nonsense"),
    (["janitor", "now"], "now"),
    (["api", "--fd", "99999"], "--fd 99999"),
    (["api", "--fd", "99999", "--port", "8080"], "--port"),
    (["dev"], "APP"),
    (["dev", "agents:app", "--workers", "0"], "--workers"),
    (["--", "worker"], "first"),
]

FAILED = [
    (["runs", "show", "nobody"], "nobody"),
    (["runs", "events", "nobody"], "nobody"),
    (["runs", "events", "nobody", "--follow"], "nobody"),
    (["runs", "cancel", "nobody"], "nobody"),
    (["runs", "cancel", "two words"], "two words"),
    (["runs", "retry", "nobody"], "nobody"),
    (["runs", "list", "--queue", "agent-queu"], "agent-queue"),
    (["submit", "echo", "1", "--queue", "nowhere"], "nowhere"),
    (["queues", "show", "nowhere"], "nowhere"),
    (["queues", "pause", "nowhere"], "nowhere"),
    (["dead", "show", "nobody"], "nobody"),
    (["dead", "replay", "nobody"], "nobody"),
    (["dead", "drop", "1-1"], "1-1"),
    (["dead", "list", "--queue", "nowhere"], "nowhere"),
    (["cleanup", "--queue", "nowhere"], "nowhere"),
    (["runs", "list", "--config", "missing.yaml"], "missing.yaml"),
    (["worker", "--app", "no_such_module:app"], "no_such_module"),
    (["worker", "--app", "missing.py:app"], "missing.py"),
    (["worker", "--app", "json:loads"], "json:loads"),
    (["worker", "--app", "agents:app", "--config", "missing.yaml"], "missing.yaml"),
    (["dev", "missing.py:app", "--no-reload"], "missing.py"),
]


def one_sentence(said, code, named):
    assert (said.code, said.out) == (code, ""), said
    assert named in said.err
    assert said.err.startswith("holdfast: ")
    assert said.err.count("\n") == 1, said.err


@pytest.mark.parametrize(
    ("words", "named"), USAGE, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_wrong_usage_is_said_in_a_sentence(cli, words, named):
    one_sentence(cli(*words), 2, named)


@pytest.mark.parametrize(
    ("words", "named"), FAILED, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_what_fails_is_said_in_a_sentence(cli, words, named):
    if words[0] == "dev":  # its lines have the name of their process in front
        said = cli(*words)
        assert said.code == 1
        assert named in said.out + said.err
        return
    one_sentence(cli(*words), 1, named)


@pytest.mark.parametrize(
    ("words", "named"),
    [each for each in [*USAGE, *FAILED] if each[0][0] not in {"rnus", "--nonsense", "--", "dev"}],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_with_json_what_is_wrong_is_json_too(cli, words, named):
    """Fails if a machine has to read a sentence, as after `holdfast submit --json`."""
    said = cli(*words, "--json")
    if said.out:  # of several things some may be refused: each is a part of the answer
        assert named in said.out
        assert said.err == ""
        return
    assert said.code in {1, 2}
    assert said.err.count("\n") == 1
    told = json.loads(said.err)
    assert list(told) == ["error"]
    assert named in told["error"]


def test_a_word_that_only_looks_like_an_option_asks_for_no_json(cli):
    assert cli("runs", "show", "--", "--json").err.startswith("holdfast: ")


def test_a_payload_over_the_limit_is_refused(cli, monkeypatch):
    monkeypatch.setenv("HOLDFAST_MAX_PAYLOAD_BYTES", "100")
    one_sentence(cli("submit", "echo", '"' + "x" * 200 + '"'), 2, "max_payload_bytes")


def test_a_setting_that_is_wrong_is_named(cli, monkeypatch):
    monkeypatch.setenv("HOLDFAST_LEASE_TTL", "30")
    one_sentence(cli("runs", "list"), 1, "HOLDFAST_LEASE_TTL_SECONDS")


def test_a_redis_that_is_away_is_named_without_its_password(cli, monkeypatch):
    monkeypatch.setenv("REDIS_URL", "redis://:secret@127.0.0.1:1/0")
    monkeypatch.setenv("REDIS_SEND_MESSAGE_MAX_RETRIES", "0")
    for words in (["runs", "list"], ["submit", "echo"], ["queues", "list"], ["members"], ["cleanup"]):
        said = cli(*words)
        one_sentence(said, 1, "127.0.0.1:1")
        assert "secret" not in said.err


def test_without_any_redis_it_says_how_to_get_one(cli, monkeypatch, place):
    monkeypatch.delenv("REDIS_URL")
    for words in (["runs", "list"], ["submit", "echo"], ["worker", "--app", "agents:app"], ["janitor"]):
        one_sentence(cli(*words), 1, "holdfast dev")
    assert list(place.iterdir()) == []


def test_a_key_that_is_something_else_is_said_in_a_sentence(cli, redis_url):
    import redis as redis_py

    with redis_py.Redis.from_url(redis_url) as client:
        client.set("agent-queue", "mine")
    one_sentence(cli("queues", "list"), 1, "WRONGTYPE")
