"""The numbered files of ``migrations/``, and those that a database still needs."""

from __future__ import annotations

import re
from importlib import resources
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.store.engine import Kind

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")

CREATE_TABLE = """
CREATE TABLE IF NOT EXISTS holdfast_migrations (
    number integer NOT NULL PRIMARY KEY, name text NOT NULL, applied_at double precision NOT NULL
)
"""
APPLIED = "SELECT number FROM holdfast_migrations"
NOTE = "INSERT INTO holdfast_migrations (number, name, applied_at) VALUES (:number, :name, :now)"


class Migration(msgspec.Struct, frozen=True, order=True):
    """One step of the schema."""

    number: int
    name: str
    sql: str

    @property
    def title(self) -> str:
        """The name of its file, without the ending."""
        return f"{self.number:04}_{self.name}"


def migrations(kind: Kind) -> list[Migration]:
    """Read all migrations for a kind of database, in order."""
    folder = resources.files("holdfast.store").joinpath("migrations", kind)
    return sorted(
        Migration(int(matched[1]), matched[2], file.read_text("utf-8"))
        for file in folder.iterdir()
        if (matched := _FILE.fullmatch(file.name))
    )


def missing(kind: Kind, applied: Iterable[int], where: str) -> list[Migration]:
    """Return the migrations that a database still needs; refuse the schema of a newer version."""
    known, seen = migrations(kind), set(applied)
    newest = known[-1].number
    if seen and max(seen) > newest:
        raise ConfigError(
            f"{where} has schema {max(seen)}, this version of Holdfast knows schemas up to {newest}: "
            "upgrade Holdfast here, or use another database"
        )
    return [each for each in known if each.number not in seen]
