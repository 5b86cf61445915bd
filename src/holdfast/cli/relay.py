"""``holdfast relay``: one relay process."""

from __future__ import annotations

from holdfast.cli.serving import Parser, serving


def run(arguments: list[str]) -> int:
    """Deliver until SIGTERM or Ctrl-C."""
    given = Parser("relay").parse_args(arguments)
    from holdfast.config import load
    from holdfast.services.relay import run_relay

    with serving(load(given.config).settings, json=given.json) as settings:
        return run_relay(settings)
