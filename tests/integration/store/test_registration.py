"""All processes of a system use one store: whoever comes with another one is refused, in a sentence."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis as redis_py

from holdfast.config import DatabaseSettings
from holdfast.store.open import migrate_store
from tests.support.processes import forked
from tests.support.store.service_processes import Service
from tests.support.waiting import wait_until

Start = Callable[..., Service]
USERS = ("worker", "api", "scheduler", "janitor")


@pytest.fixture
def start(short_dir: Path, redis_url: str) -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def start(command: str, folder: str, *options: str, **environ: str) -> Service:
            service = Service(command, short_dir / folder, redis_url, *options, **environ)
            stack.callback(service.close)
            return service

        yield start


@pytest.fixture
def shell(short_dir: Path, redis_url: str) -> Callable[..., str]:
    """Call a command in a folder, and return what it printed."""

    def call(folder: str, *arguments: str, **environ: str) -> str:
        (short_dir / folder).mkdir(exist_ok=True)
        done = forked.run(
            [sys.executable, "-m", "holdfast", *arguments],
            env={**os.environ, "REDIS_URL": redis_url, **environ},
            cwd=short_dir / folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


@pytest.fixture
def server(redis_url: str) -> Iterator[redis_py.Redis]:
    with redis_py.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.mark.parametrize("command", [*USERS, "host", "dev"])
def test_a_process_with_another_store_is_refused_and_told_both_and_what_to_set(start, short_dir, command):
    start("worker", "a").started()
    said = start(command, "b", GRPC_PORT="0").refused()
    for folder in "ab":
        assert str(short_dir / folder / ".holdfast" / "holdfast.sqlite") in said
    for word in (platform.node(), "database.url", "database.per_worker", "holdfast store register"):
        assert word in said


def test_processes_in_one_folder_share_its_store(start):
    for command in USERS:
        start(command, "a").started()


def test_the_first_ones_are_not_two_however_close_they_come(start):
    both = [start("worker", folder) for folder in "ab"]
    wait_until(lambda: sum(each.ready for each in both) + sum(each.process.poll() == 1 for each in both) == 2)
    assert sorted(each.ready for each in both) == [False, True]


def test_a_registration_outlives_the_process_that_made_it(start):
    start("worker", "a").started().close()
    start("worker", "b").refused()
    start("worker", "a").started()


def test_a_store_for_each_worker_is_allowed_if_somebody_asks_for_it(start):
    start("worker", "a").started()
    start("worker", "b", HOLDFAST_DATABASE_PER_WORKER="true").started()


def test_systems_with_prefixes_of_their_own_have_stores_of_their_own(start):
    start("worker", "a").started()
    start("worker", "b", HOLDFAST_KEY_PREFIX="b:").started()


def test_an_interrupted_run_does_not_repeat_its_step_on_a_worker_with_another_store(start, short_dir, shell):
    worker = start("worker", "a").started()
    ledger = short_dir / "ledger"
    shell("a", "submit", "order", f'"{ledger}"', "--run-id", "r")
    wait_until(lambda: "interrupted" in shell("a", "runs", "show", "r"))
    worker.close()
    shell("a", "runs", "resume", "r", "true")
    start("worker", "b").refused()
    start("worker", "a").started()
    wait_until(lambda: "succeeded" in shell("a", "runs", "show", "r"))
    assert ledger.read_text() == "charged\n"


def test_a_store_that_was_recreated_needs_one_command(start, short_dir, shell):
    start("worker", "a").started().close()
    shutil.rmtree(short_dir / "a" / ".holdfast")
    said = start("worker", "a").refused()
    assert "was recreated" in said
    assert "`holdfast store register`" in said
    assert "registered" in shell("a", "store", "register")
    start("worker", "a").started()


def test_a_system_moves_to_postgresql_while_old_processes_go_on(start, shell, postgres_url):
    asyncio.run(migrate_store(DatabaseSettings(url=postgres_url)))
    old = start("worker", "a").started()
    said = start("worker", "b", DATABASE_URL=postgres_url).refused()
    assert "/.holdfast/holdfast.sqlite" in said
    assert "postgresql://" in said
    assert "still use" in shell("b", "store", "register", DATABASE_URL=postgres_url)
    start("worker", "b", DATABASE_URL=postgres_url).started()
    start("api", "c", DATABASE_URL=postgres_url).started()
    assert old.process.poll() is None
    start("worker", "a").refused()


def test_a_flushed_redis_learns_the_store_again_from_those_that_run(start, server):
    start("worker", "a").started()
    server.flushall()
    wait_until(lambda: server.hget("registered-store", "id"))
    start("worker", "b").refused()


@pytest.mark.parametrize("command", ["worker", "api", "scheduler", "janitor"])
def test_a_refused_password_ends_a_process_that_starts(start, server, command):
    """Fails if a process that can do nothing reports that it is ready."""
    server.config_set("requirepass", "secret")
    try:
        service = start(command, "a")
        assert service.process.wait(60) == 1
        assert "refuses our password" in service.logged()
        assert f"{command} ready" not in service.logged()
    finally:
        server.config_set("requirepass", "")


def test_a_process_whose_store_another_one_replaced_in_a_flushed_redis_ends(start, server):
    """Both would serve the same queue, each with its own steps: nobody has decided that, unlike `store register`."""
    slow = start("worker", "a").started()
    slow.freeze()  # else it may register its store again before the other one starts
    server.flushall()
    start("worker", "b").started()
    slow.thaw()
    wait_until(lambda: slow.process.poll() is not None, what="the end of the worker whose store was replaced")
    assert slow.process.wait() == 1
    assert "with two stores finished steps would be repeated" in slow.logged()
    assert "Traceback" not in slow.logged()


def test_a_file_that_was_registered_on_another_machine_is_warned_of(start, server):
    """Fails if a copy of the file is taken for the file: its id is the same."""
    start("worker", "a").started().close()
    server.hset("registered-store", "host", "elsewhere")
    copy = start("worker", "a").started()
    wait_until(lambda: "registered on another machine" in copy.logged())
    assert "database.url" in copy.logged()


def test_a_database_that_is_away_at_the_start_is_compared_when_it_is_back(
    start, short_dir, server, start_postgres
):
    postgres = start_postgres()
    asyncio.run(migrate_store(DatabaseSettings(url=postgres.url)))
    start("worker", "a").started()
    postgres.stop()
    away = start("worker", "b", DATABASE_URL=postgres.url, HOLDFAST_DATABASE_TIMEOUT_SECONDS="0.5").started()
    postgres.start()
    wait_until(lambda: away.process.poll() is not None, what="the end of a worker with another store")
    assert away.process.wait() == 1
    assert "database.per_worker" in away.logged()
    assert "Traceback" not in away.logged()
