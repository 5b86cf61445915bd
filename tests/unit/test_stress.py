"""What ``make stress`` takes for a failure of a round: tests that failed, and also pytest itself."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import stress

GREEN = '<testcase classname="tests.unit.test_a" name="test_b" file="tests/unit/test_a.py"/>'
RED = '<testcase classname="tests.unit.test_a" name="test_c" file="tests/unit/test_a.py"><failure>x</failure></testcase>'
RED_TEST = "tests/unit/test_a.py::test_c"


@pytest.mark.parametrize(
    ("code", "cases", "expected"),
    [
        (0, GREEN, []),
        (1, GREEN + RED, [RED_TEST]),
        (1, GREEN, ["pytest exited with code 1, no test failed"]),
        (2, GREEN, ["pytest exited with code 2"]),
        (1, None, ["pytest exited with code 1"]),
    ],
)
def test_a_round_is_green_only_if_pytest_says_so(tmp_path, monkeypatch, code, cases, expected):
    """A warning at exit or a plugin can make pytest fail when no test has."""

    def run(command: list[str], **_: object) -> SimpleNamespace:
        report = next(part for part in command if part.startswith("--junitxml="))
        if cases is not None:
            Path(report.removeprefix("--junitxml=")).write_text(f"<testsuite>{cases}</testsuite>")
        return SimpleNamespace(returncode=code)

    monkeypatch.setattr(subprocess, "run", run)
    failed = stress.run_once(tmp_path, 7, [])
    assert [name for name, _ in failed] == expected
    assert all(log.exists() for _, log in failed)
