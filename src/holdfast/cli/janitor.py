"""``holdfast janitor``: one janitor process."""

from __future__ import annotations

from holdfast.cli.service_args import ServiceArgumentParser, serving


def run(arguments: list[str]) -> int:
    """Sweep until SIGTERM or Ctrl-C."""
    given = parser().parse_args(arguments)
    from holdfast.config import load
    from holdfast.services.janitor import run_janitor

    with serving(load(given.config).settings, json=given.json) as settings:
        return run_janitor(settings)


def parser() -> ServiceArgumentParser:
    """Return the parser of the command."""
    return ServiceArgumentParser("janitor")
