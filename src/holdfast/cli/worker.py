"""``holdfast worker``: one worker process. It imports what a worker needs and nothing for terminals."""

from __future__ import annotations

import msgspec

from holdfast.agents.loader import load_app
from holdfast.cli.serving import Parser, serving
from holdfast.config import load
from holdfast.config.names import checked_queue
from holdfast.services.worker import run_worker


def run(arguments: list[str]) -> int:
    """Serve queues until SIGTERM or Ctrl-C."""
    parser = Parser("worker")
    parser.add_argument(
        "--app", required=True, metavar="APP", help="the agents: package.module:app or path/to/file.py:app"
    )
    parser.add_argument(
        "--queue",
        action="append",
        metavar="QUEUE",
        help="a queue to serve instead of those in worker.queues; may be repeated",
    )
    given = parser.parse_args(arguments)
    settings = load(given.config).settings
    if given.queue:
        names = tuple(dict.fromkeys(checked_queue(name) for name in given.queue))
        worker = msgspec.structs.replace(settings.worker, queues=names)
        settings = msgspec.structs.replace(settings, worker=worker)
    with serving(settings, json=given.json) as settings:
        return run_worker(settings, load_app(given.app))
