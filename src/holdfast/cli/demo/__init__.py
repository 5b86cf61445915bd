"""``holdfast demo``: a whole system at work, with crashes, and a proof that nothing was lost."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.root import COMMANDS
from holdfast.packages import needs_extra

__all__ = ["add_to", "run_demo"]


def add_to(root: typer.Typer) -> None:
    """Add the command."""
    root.command("demo", help=COMMANDS["demo"])(demo)


def run_demo(*, keep: bool = False, json: bool = False) -> int:
    """Run the demo and return its exit code: 0 only if every run is accounted for."""
    with needs_extra("the demo", "api,embedded"):
        from holdfast.cli.demo.run import play_demo
    return play_demo(keep=keep, json=json)


def demo(
    keep: Annotated[
        bool, typer.Option("--keep", envvar="KEEP", help="Stay up afterwards, until Ctrl-C.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the proof as JSON; the story goes to stderr.")
    ] = False,
) -> None:
    """Run the example agents through crashes and recoveries, and prove that every run is accounted for."""
    raise typer.Exit(run_demo(keep=keep, json=json))
