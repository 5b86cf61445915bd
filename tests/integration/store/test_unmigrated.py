"""A PostgreSQL without its tables: every process ends with the same line before it says that it is ready."""

from __future__ import annotations

import pytest

from tests.support.store.service_processes import Service

PROCESSES = ("worker", "api", "scheduler", "janitor", "relay", "host", "dev", "autoscale")


@pytest.mark.parametrize("process", PROCESSES)
def test_every_process_reports_an_unmigrated_database_in_the_same_line(
    process, short_dir, redis_url, postgres_url
):
    command, options = ("worker", ["--autoscale", "1..1"]) if process == "autoscale" else (process, [])
    service = Service(command, short_dir / "a", redis_url, *options, DATABASE_URL=postgres_url, GRPC_PORT="0")
    try:
        said = service.refused()
    finally:
        service.close()
    assert said.startswith("holdfast: the database lacks 0001_journal, ")
    assert said.endswith(": run `holdfast migrate`")
