"""The settings of SQL, under ``database``."""

from __future__ import annotations

from typing import Annotated

from holdfast.config.section import Section, about


class DatabaseSettings(Section, frozen=True, kw_only=True):
    """Where steps, state and finished runs are kept."""

    url: Annotated[
        str,
        about(
            "PostgreSQL; empty is a SQLite file.",
            "DATABASE_URL",
            pattern=r"\A(postgres(ql)?://\S+)?\Z",
            allowed="postgresql://user:password@host:port/name",
            url=True,
        ),
    ] = ""
    path: Annotated[
        str,
        about("The SQLite file, if there is no url.", "HOLDFAST_DATABASE_PATH"),
    ] = ".holdfast/holdfast.sqlite"
    per_worker: Annotated[
        bool,
        about(
            "Whether each process has its own store: a run that moves to another worker repeats its steps. "
            "Only for agents that use no steps, state or interrupts.",
        ),
    ] = False
    pool_size: Annotated[int, about("Connections to PostgreSQL of one process.", ge=1, le=1000)] = 10
    timeout_seconds: Annotated[
        float, about("How long to wait for a connection or an answer.", ge=0.01, le=3600)
    ] = 5.0
    archive_days: Annotated[
        float, about("How long finished runs and their steps are kept.", ge=0.001, le=36500)
    ] = 30.0
