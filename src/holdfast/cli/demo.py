"""``holdfast demo``: the command; the demo itself is a package of its own, in ``examples/demo``."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.root import COMMANDS
from holdfast.packages import needs_extra


def add_to(root: typer.Typer) -> None:
    """Add the command."""
    root.command("demo", help=COMMANDS["demo"])(demo)


def demo(
    keep: Annotated[
        bool, typer.Option("--keep", envvar="KEEP", help="Stay up afterwards, until Ctrl-C.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the proof as JSON; the story goes to stderr.")
    ] = False,
) -> None:
    """Run the example agents through crashes and recoveries, and prove that every run is accounted for."""
    with needs_extra("the demo", "api,embedded,hosts"):
        from holdfast_demo.run import play_demo
    raise typer.Exit(play_demo(keep=keep, json=json))
