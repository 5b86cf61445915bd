"""``holdfast worker``: one worker process. It imports what a worker needs and nothing for terminals."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.cli.service_args import ServiceArgumentParser, serving

if TYPE_CHECKING:
    from holdfast.config import Settings


def run(arguments: list[str]) -> int:
    """Serve queues until SIGTERM or Ctrl-C."""
    return _serve(parser().parse_args(arguments))


def parser() -> ServiceArgumentParser:
    """Return the parser of the command."""
    parser = ServiceArgumentParser("worker")
    parser.add_argument(
        "--app", required=True, metavar="APP", help="the agents: package.module:app or path/to/file.py:app"
    )
    parser.add_argument(
        "--queue",
        action="append",
        metavar="QUEUE",
        help="a queue to serve instead of those in worker.queues; may be repeated",
    )
    parser.add_argument(
        "--autoscale",
        nargs="?",
        const="",
        metavar="MIN..MAX",
        help="keep as many worker processes for each queue as it needs, within this range or, without one, "
        "within the queue's scaling settings",
    )
    return parser


def _serve(given: Any) -> int:
    from holdfast.agents.loader import load_app
    from holdfast.config import load
    from holdfast.config.names import checked_queue

    settings = load(given.config).settings
    if given.queue:
        names = tuple(dict.fromkeys(checked_queue(name) for name in given.queue))
        worker = msgspec.structs.replace(settings.worker, queues=names)
        settings = msgspec.structs.replace(settings, worker=worker)
    if given.autoscale is not None:
        return _autoscale(settings, given)
    from holdfast.services.worker import run_worker
    from holdfast.telemetry import traces

    with serving(settings, json=given.json) as settings:
        app = load_app(given.app)
        traces.start("worker")
        return run_worker(settings, app)


def _autoscale(settings: Settings, given: Any) -> int:
    from holdfast.config.environment import CONFIG_VARIABLE
    from holdfast.scaling.local import read_bounds
    from holdfast.services.autoscaler import run_autoscaler

    bounds = read_bounds(given.autoscale) if given.autoscale else None
    if given.config is not None:  # the workers read the settings themselves
        os.environ[CONFIG_VARIABLE] = str(given.config.absolute())
    if given.json:
        settings = msgspec.structs.replace(settings, log=msgspec.structs.replace(settings.log, format="json"))
    with serving(settings, json=given.json) as found:
        return run_autoscaler(found, given.app, bounds)
