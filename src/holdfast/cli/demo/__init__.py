"""``holdfast demo``: a whole system at work, with crashes, and a proof that nothing was lost."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.demo.run import run_demo

__all__ = ["add_to", "run_demo"]

SENTENCE = "See a whole system at work: agents, crashes, recovery, and a proof from Redis."


def add_to(root: typer.Typer) -> None:
    """Add the command."""
    root.command("demo", help=SENTENCE)(demo)


def demo(
    keep: Annotated[
        bool, typer.Option("--keep", envvar="KEEP", help="Stay up afterwards, until Ctrl-C.")
    ] = False,
) -> None:
    """Run the example agents through crashes and recoveries, and prove that every run is accounted for."""
    raise typer.Exit(run_demo(keep=keep))
