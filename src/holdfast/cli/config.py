"""``holdfast config``: what the settings are, and where each came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import options, output
from holdfast.cli.output import Column
from holdfast.cli.root import COMMANDS, FAILED
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.config import Loaded

config_commands = options.group(COMMANDS["config"])

_COLUMNS = (Column("SETTING"), Column("VALUE", free=True), Column("FROM"))


def add_to(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(config_commands, name="config")


@config_commands.command("show")
def show_config(
    changed: Annotated[bool, typer.Option("--changed", help="Only what differs from the defaults.")] = False,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Show every setting, its value and where that came from. Secrets are hidden."""
    from holdfast.config import load

    rows = [shown for shown in load(config).shown() if not changed or shown.source != "default"]
    if json:
        output.document({"settings": rows})
    else:
        cells = [(shown.path, shown.value, shown.source) for shown in rows]
        output.table(_COLUMNS, cells, empty="every setting has its default")


@config_commands.command("check")
def check_config(json: options.Json = False, config: options.Config = None) -> None:
    """Check file and environment without starting anything. Exit 1 if something is wrong."""
    try:
        loaded = _checked(config)
    except ConfigError as exc:
        if not json:
            raise
        output.document({"ok": False, "problem": str(exc)})
        raise typer.Exit(FAILED) from exc
    changed = sum(source != "default" for source in loaded.sources.values())
    file = str(loaded.file) if loaded.file else None
    if json:
        output.document({"ok": True, "file": file, "changed": changed})
    else:
        output.line(f"settings OK ({file or 'no holdfast.yaml'}, {_changed(changed)})")


def _changed(number: int) -> str:
    if not number:
        return "all defaults"
    return "1 differs from its default" if number == 1 else f"{number} differ from their defaults"


def _checked(config: Path | None) -> Loaded:
    from holdfast.config import load
    from holdfast.redis.client import parse

    loaded = load(config)
    if loaded.settings.redis.url:
        parse(loaded.settings.redis.url)
    return loaded
