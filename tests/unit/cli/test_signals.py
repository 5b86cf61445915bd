"""Which commands a SIGTERM ends with 0: those that serve, before they have begun, and no others."""

from __future__ import annotations

import signal

import pytest

from holdfast.cli import root


@pytest.mark.parametrize(
    ("words", "serves"),
    [
        (["relay"], True),
        (["relay", "--json"], True),
        (["api", "--port", "0"], True),
        (["relay", "undelivered", "redeliver", "--all"], False),
        (["api", "new-key", "ops"], False),
        (["runs", "list"], False),
    ],
)
def test_only_a_service_leaves_with_0_on_a_sigterm(words, serves, monkeypatch):
    """Fails if a command that does one thing ends half-way and calls it success."""
    before = signal.getsignal(signal.SIGTERM)
    handlers = []

    def call(_given):
        handlers.append(signal.getsignal(signal.SIGTERM))
        return 0

    monkeypatch.setattr(root, "_call", call)
    root.main(words)
    assert (handlers[0] is not before) is serves
