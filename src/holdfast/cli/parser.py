"""How typer shows our commands: a usage line is written as people write it, whichever version it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from collections.abc import Callable


class ArgumentsCommand(TyperCommand):
    """A command whose usage line reads ``AGENT [JSON]``, ``RUN...`` or ``[LETTER]...``."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Write the options and the arguments."""
        arguments = [param for param in self.get_params(ctx) if param.param_type_name == "argument"]
        return [self.options_metavar or "", *(_usage(param) for param in arguments)]


class CommandParser(typer.Typer):
    """A typer whose commands are ours."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """Add a command."""
        options.setdefault("cls", ArgumentsCommand)
        return super().command(name, **options)


def _usage(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return f"{name if argument.required else f'[{name}]'}{'' if argument.nargs == 1 else '...'}"
