"""The end of a test run: one line for each thing that could not be tested here."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.paths import ROOT

SOURCE = """
import pytest
from tests.support.not_tested import stands_for

@pytest.mark.parametrize("number", range(3))
def test_one(number):
    pytest.skip("kubectl (no kubectl is on the PATH)")

def test_many(request):
    stands_for(request, 17)
    pytest.skip("Rustic AI (no Python 3.13 was found)")

@pytest.mark.skip(reason="cgroups (not ours)")
def test_marked(): ...

def test_that_runs(): ...
"""


@pytest.mark.parametrize("processes", ["0", "2"])
def test_each_reason_is_one_line_with_its_tests_however_many_processes_ran_them(tmp_path, processes):
    (tmp_path / "test_parts.py").write_text(SOURCE)
    plugins = ["-p", "xdist", "-p", "tests.support.not_tested", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", processes, *plugins, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT, env={"PATH": "/usr/bin:/bin", "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert [line for line in done.stdout.splitlines() if line.startswith("not tested here")] == [
        "not tested here: Rustic AI (no Python 3.13 was found): 17 tests",
        "not tested here: kubectl (no kubectl is on the PATH): 3 tests",
        "not tested here: cgroups (not ours): 1 test",
    ], done.stdout + done.stderr
    assert "1 passed, 5 skipped" in done.stdout
