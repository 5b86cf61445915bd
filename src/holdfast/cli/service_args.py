"""What the long-running commands share: a small parser, logs, and an embedded server that stays with them."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from holdfast.cli.root import COMMANDS
from holdfast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.config import Settings


class ServiceArgumentParser(argparse.ArgumentParser):
    """A parser that fits into a worker's memory, which typer does not; its errors look like the others'."""

    def __init__(self, command: str) -> None:
        super().__init__(prog=f"holdfast {command}", description=COMMANDS[command], allow_abbrev=False)
        self.add_argument("--json", action="store_true", help="log lines of JSON, also on a terminal")
        self.add_argument(
            "--config",
            type=Path,
            metavar="FILE",
            help="read the settings from FILE instead of ./holdfast.yaml",
        )

    def actions(self) -> list[argparse.Action]:
        """The arguments and options that were added."""
        return self._actions

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the arguments."""
        raise InputError(f"{message} (`{self.prog} --help` tells more)")


@contextlib.contextmanager
def serving(settings: Settings, *, json: bool) -> Generator[Settings]:
    """Configure the logs and find Redis; a running embedded server is joined, none is started.

    A worker that lost its REDIS_URL must say so: with a server of its own it would look well and do nothing.
    """
    from holdfast.redis.locate import embedded_server, located
    from holdfast.telemetry import logs, traces

    logs.configure(msgspec.structs.replace(settings.log, format="json") if json else settings.log)
    found = located(settings)
    with contextlib.ExitStack() as stack:
        stack.callback(traces.finish)  # guard: last-spans-sent
        if not settings.redis.url:
            server = embedded_server(settings.redis)
            server.start_sync()
            stack.callback(server.stop_sync)
        yield found
