"""Where clusters are kept, by job: who brings the same job again, by the queue or by HTTP, changes nothing.

It stands for the service behind the workers. Both ways end here, so this is where a job is done once.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec


class Results:
    """A table of clusters in a SQLite file that workers and the HTTP service share."""

    def __init__(self, path: str | Path = "") -> None:
        self._path = Path(path or os.environ.get("MEDIA_RESULTS", ".holdfast/media_clusters.sqlite"))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with closing(self._connect()) as database, database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS clusters"
                " (job_id TEXT PRIMARY KEY, pet_id TEXT NOT NULL, clusters TEXT NOT NULL, way TEXT NOT NULL)"
            )

    def record(self, job_id: str, pet_id: str, clusters: list[list[str]], way: str) -> bool:
        """Keep the clusters of a job; False if it was done before, whichever way."""
        with closing(self._connect()) as database, database:
            added = database.execute(
                "INSERT INTO clusters VALUES (?, ?, ?, ?) ON CONFLICT (job_id) DO NOTHING",
                (job_id, pet_id, msgspec.json.encode(clusters).decode(), way),
            )
            return added.rowcount == 1

    def way_of(self, job_id: str) -> str:
        """Which way a job was done, ``queue`` or ``http``; empty if it was not."""
        with closing(self._connect()) as database:
            found = database.execute("SELECT way FROM clusters WHERE job_id = ?", (job_id,)).fetchone()
        return found[0] if found else ""

    def ways(self) -> dict[str, int]:
        """How many jobs were done each way."""
        with closing(self._connect()) as database:
            return dict(database.execute("SELECT way, count(*) FROM clusters GROUP BY way").fetchall())

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=10)
