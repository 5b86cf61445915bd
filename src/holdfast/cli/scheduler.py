"""``holdfast scheduler``: one scheduler process. It imports what that needs and nothing for terminals."""

from __future__ import annotations

from holdfast.cli.service_args import ServiceArgumentParser, serving


def run(arguments: list[str]) -> int:
    """Run the schedules of an app, and those added at run time, until SIGTERM or Ctrl-C."""
    given = parser().parse_args(arguments)
    from holdfast.agents.loader import load_app
    from holdfast.config import load
    from holdfast.services.scheduler import run_scheduler
    from holdfast.telemetry import traces

    with serving(load(given.config).settings, json=given.json) as settings:
        app = load_app(given.app)
        traces.start("scheduler")
        return run_scheduler(settings, app)


def parser() -> ServiceArgumentParser:
    """Return the parser of the command."""
    parser = ServiceArgumentParser("scheduler")
    parser.add_argument(
        "--app", required=True, metavar="APP", help="the agents: package.module:app or path/to/file.py:app"
    )
    return parser
