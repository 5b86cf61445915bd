"""Where the packages of an extra are missing, every command names the extra in the same words, in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import ConfigError
from holdfast.packages import hidden, missing_extra

APP = f"{Path(__file__).with_name('agents.py')}:app"


@pytest.mark.parametrize(
    ("package", "command", "what", "extra"),
    [
        ("grpc", ("host",), "a host", "hosts"),
        ("grpc", ("scaler",), "the scaler", "scaler"),
        ("fastapi", ("api",), "the API", "api"),
        ("aiohttp", ("relay",), "the relay", "relay"),
        ("psycopg", ("worker", "--app", APP), "PostgreSQL (database.url, DATABASE_URL)", "postgres"),
    ],
)
def test_a_missing_extra_is_named_in_one_line(
    tmp_path: Path, package: str, command: tuple[str, ...], what: str, extra: str
):
    (tmp_path / f"{package}.py").write_text(
        f'raise ModuleNotFoundError("No module named {package!r}", name={package!r})'
    )
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *command],
        env={
            **os.environ,
            "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "DATABASE_URL": "postgresql://127.0.0.1:1/none" if package == "psycopg" else "",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    said = f"holdfast: {what} needs {package}, which is not installed: pip install 'holdfast[{extra}]'"
    assert said in done.stderr.splitlines()
    assert "Traceback" not in done.stderr


def test_several_missing_packages_are_named_in_the_plural():
    said = missing_extra("the API", "fastapi, uvicorn", "api")
    assert said == "the API needs fastapi, uvicorn, which are not installed: pip install 'holdfast[api]'"


def test_the_engine_of_rustic_ai_names_its_extra():
    with (
        hidden("rustic_ai"),
        pytest.raises(
            ConfigError, match=r"needs rustic_ai.*, which is not installed: pip install 'holdfast\[rustic\]'"
        ),
    ):
        from holdfast.compat.rustic import K8sExecutionEngine  # noqa: F401
