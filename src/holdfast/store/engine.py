"""The interface of databases, and operations, which are independent of the database.

An operation is a generator: it yields statements and is sent their answers. It is written once, and each
engine runs it as one transaction. Every operation is idempotent, so it can be repeated after a lost answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from holdfast.errors import StoreUnavailable
from holdfast.outages import Outage, OutageReporter

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

T = TypeVar("T")


class Statement(msgspec.Struct, frozen=True):
    """One statement with ``:name`` placeholders; with ``many`` it is executed once for each."""

    sql: str
    values: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    many: Sequence[Mapping[str, Any]] | None = None


class QueryResult(msgspec.Struct, frozen=True):
    """The rows that a statement returned, and how many it changed."""

    rows: Sequence[Sequence[Any]]
    count: int


Operation: TypeAlias = "Generator[Statement, QueryResult, T]"
Kind: TypeAlias = Literal["sqlite", "postgresql"]


class Away(StoreUnavailable):
    """The database is unavailable or busy now: the same operation may succeed later."""


_DATABASE: Final = Outage("database")


def database_outages(held_up: str, meanwhile: str = "") -> OutageReporter:
    """Return a reporter for calls to the database."""
    return OutageReporter(_DATABASE, held_up, meanwhile, is_outage=_is_outage)


def _is_outage(exc: BaseException) -> bool:
    return isinstance(exc, StoreUnavailable)


class DatabaseEngine(Protocol):
    """A database that runs operations."""

    kind: Kind

    async def run(self, operation: Callable[[], Operation[T]], *, write: bool, single: bool = False) -> T:
        """Run an operation in one transaction; ``single`` promises that it is one statement."""
        ...

    async def migrate(self) -> list[str]:
        """Apply missing migrations, one process at a time; return their names."""
        ...

    async def applied(self) -> set[int]:
        """Return the numbers of the migrations that the schema has."""
        ...

    async def aclose(self) -> None:
        """Finish the operations in progress and close."""
        ...
