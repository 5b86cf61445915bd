"""``holdfast dev``: a whole system in one command."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec
import typer

from holdfast.cli import options
from holdfast.cli.root import COMMANDS

_WORKERS = 2


def add_to(root: typer.Typer) -> None:
    """Add the command."""
    root.command("dev", help=COMMANDS["dev"])(dev)


def dev(
    app: Annotated[str, typer.Argument(metavar="APP", help="package.module:app or path/to/file.py:app.")],
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            min=1,
            max=64,
            help=f"Worker processes, {_WORKERS} unless said; with --autoscale the most of a queue.",
        ),
    ] = None,
    autoscale: Annotated[
        bool,
        typer.Option(
            "--autoscale",
            help="Have as many workers for each queue as its scaling settings say; --workers 4 caps them.",
        ),
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65535, help="The API's port, instead of api.port; 0 is a free one."
        ),
    ] = None,
    reload: Annotated[bool, typer.Option("--reload/--no-reload", help="Follow changes of the code.")] = True,
    json: options.LogJson = False,
    config: options.Config = None,
) -> None:
    """Run the server, workers, a scheduler, the API and a host for residents until Ctrl-C; reload them."""
    from holdfast.config import load
    from holdfast.config.environment import CONFIG_VARIABLE
    from holdfast.scaling.local import capped
    from holdfast.services.dev.run import run_dev

    loaded = load(config)
    settings, port_asked = loaded.settings, port is not None or loaded.sources["api.port"] != "default"
    # The processes read the settings themselves, so they are told the same.
    if config is not None:
        os.environ[CONFIG_VARIABLE] = str(config.absolute())
    if json:
        os.environ["HOLDFAST_LOG_FORMAT"] = "json"
        settings = options.read_settings(config)
    if port is not None:
        settings = msgspec.structs.replace(settings, api=msgspec.structs.replace(settings.api, port=port))
    raise typer.Exit(
        run_dev(
            settings,
            app,
            workers=workers or _WORKERS,
            autoscaled=[capped(queue, workers) for queue in settings.worker_queues()] if autoscale else (),
            reload=reload,
            port_asked=port_asked,
        )
    )
