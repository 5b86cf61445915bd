"""Runs tests/rustic in an environment of its own: Rustic AI needs Python 3.13, whatever runs this."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from tests.support.not_tested import stands_for
from tests.support.paths import ROOT, TESTS
from tests.support.tools.environments import clean_environ
from tests.support.tools.fetching import RUSTIC, needed

SUITE = TESTS / "rustic"
OPTIONS = (
    "--strict-markers --strict-config --import-mode=importlib -p no:cacheprovider"
    " --disable-plugin-autoload -p pytest_asyncio.plugin -p pytest_timeout"
)


def count_tests(folder: Path) -> int:
    """How many tests there are, as their source says: without Rustic AI they can't be imported."""
    trees = [ast.parse(file.read_text()) for file in folder.glob("test_*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return sum(node.name.startswith("test_") for node in functions)


@pytest.mark.timeout(1200)
def test_rustic_ai_on_python_3_13(request):
    stands_for(request, count_tests(SUITE))
    python = needed(RUSTIC) / "bin" / "python"
    command = [str(python), "-m", "pytest", "-q", "-m", "not long", "--durations=5"]
    # Not this suite's conftest and plugins: they ask for what that environment does not have.
    command += ["-o", f"addopts={OPTIONS}", f"--confcutdir={SUITE}", str(SUITE)]
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env=clean_environ(),
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    print(ran.stdout)
    assert ran.returncode == 0, f"{SUITE} failed, see its output"
