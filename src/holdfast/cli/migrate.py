"""``holdfast migrate``: brings the database up to date, from however many processes at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.cli import options, output
from holdfast.cli.root import COMMANDS

if TYPE_CHECKING:
    import typer


class Migrated(msgspec.Struct, frozen=True):
    """What was brought up to date, and by which migrations; none if it was already."""

    database: str
    applied: list[str]


def add_to(root: typer.Typer) -> None:
    """Add the command."""
    root.command("migrate", help=COMMANDS["migrate"])(migrate)


def migrate(json: options.Json = False, config: options.Config = None) -> None:
    """Apply the migrations that the database lacks; a SQLite file is also brought up to date by its use."""
    from holdfast.services.signals import run_until_interrupted
    from holdfast.store.lazy import location
    from holdfast.store.open import migrate_store

    database = options.read_settings(config).database
    where = location(database)
    done = Migrated(where, run_until_interrupted(migrate_store(database)))
    if json:
        output.document(done)
    elif done.applied:
        output.line(f"{where}: applied {', '.join(done.applied)}")
    else:
        output.line(f"{where}: up to date")
