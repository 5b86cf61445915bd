"""``holdfast simulate``: the command; the simulator itself is a package of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast_simulator.command import simulate

if TYPE_CHECKING:
    import typer


def add_to(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(simulate, name="simulate")
