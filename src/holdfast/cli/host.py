"""``holdfast host``: one host of long-lived agents."""

from __future__ import annotations

import os

from holdfast.cli.service_args import ServiceArgumentParser, serving
from holdfast.packages import needs_extra


def run(arguments: list[str]) -> int:
    """Hold agents until SIGTERM or Ctrl-C."""
    given = parser().parse_args(arguments)
    from holdfast.agents.loader import load_app
    from holdfast.config import load
    from holdfast.config.environment import CONFIG_VARIABLE

    settings = load(given.config).settings
    if given.config is not None:
        os.environ[CONFIG_VARIABLE] = str(given.config.resolve())  # for the processes of its agents
    if given.app:
        load_app(given.app)  # what is wrong with it is said now, and not by every agent
    with needs_extra("a host", "hosts"):
        from holdfast.services.host import run_host

    from holdfast.telemetry import traces

    with serving(settings, json=given.json) as settings:
        traces.start("host")
        return run_host(settings, given.app)


def parser() -> ServiceArgumentParser:
    """Return the parser of the command."""
    parser = ServiceArgumentParser("host")
    parser.add_argument(
        "--app", default="", metavar="APP", help="its residents: package.module:app or path/to/file.py:app"
    )
    return parser
