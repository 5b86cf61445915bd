"""``holdfast relay``: one relay process; ``holdfast relay undelivered``: what could not be delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli.root import COMMANDS
from holdfast.cli.service_args import ServiceArgumentParser, serving

if TYPE_CHECKING:
    import typer


def run(arguments: list[str]) -> int:
    """Deliver until SIGTERM or Ctrl-C, or look after undelivered events."""
    if arguments[:1] == ["undelivered"]:
        from holdfast.cli import dispatch

        return dispatch.run("relay", ["relay", *arguments])
    given = parser().parse_args(arguments)
    from holdfast.config import load
    from holdfast.services.relay import run_relay
    from holdfast.telemetry import traces

    with serving(load(given.config).settings, json=given.json) as settings:
        traces.start("relay")
        return run_relay(settings)


def parser() -> ServiceArgumentParser:
    """Return the parser of the process itself."""
    parser = ServiceArgumentParser("relay")
    parser.epilog = (
        "`holdfast relay undelivered` lists events that no receiver took, and has them delivered again"
    )
    return parser


def add_to(root: typer.Typer) -> None:
    """Add the commands beside the process itself."""
    from holdfast.cli import options
    from holdfast.cli.undelivered import undelivered

    relay = options.group(COMMANDS["relay"])
    relay.add_typer(undelivered, name="undelivered")
    root.add_typer(relay, name="relay")
