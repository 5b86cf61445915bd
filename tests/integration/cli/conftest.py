"""The command line as people use it: ``cli`` calls it in this process, ``shell`` as a real command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from tests.support.cli.in_process import run_command
from tests.support.processes import forked

APP = f"{Path(__file__).with_name('agents.py')}:app"


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, an empty server, and no settings but where it is."""
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.chdir(tmp_path)
    with redis_py.Redis.from_url(redis_url) as client:
        client.flushall()
    return tmp_path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def call(*arguments: str) -> Said:
        code = run_command(*arguments)
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return call


@pytest.fixture
def shell() -> Callable[..., Said]:
    def call(*arguments: str, stdin: str = "", **environ: str) -> Said:
        done = forked.run(
            [sys.executable, "-m", "holdfast", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, **environ},
        )
        return Said(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture
def worker(place: Path, redis_url: str) -> Iterator[subprocess.Popen[str]]:
    """A real worker of the tests' app that is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "worker", "--app", APP, "--json"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=place,
        env={**os.environ, "WORKER_POD_NAME": "worker-a", "HOLDFAST_DRAIN_SECONDS": "0"},
    )
    with process:
        assert process.stderr is not None
        for line in process.stderr:
            if "worker ready" in line:
                break
        yield process
        process.terminate()
        process.stderr.read()
