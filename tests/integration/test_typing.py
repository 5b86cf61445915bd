"""The public types, as mypy and pyright see them in a program of a user, both at their strictest."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "typing"
FOUND = re.compile(r"(?:^|/)(\w+\.py):(\d+)(?::\d+)?:? (?:- )?error\b")

pytestmark = pytest.mark.timeout(600)


def mypy(folder: Path) -> list[str]:
    return ["mypy", "--strict", "--config-file=", f"--cache-dir={folder / 'cache'}"]


def pyright(folder: Path) -> list[str]:
    environment = Path(sys.prefix)
    config = {"typeCheckingMode": "strict", "venvPath": str(environment.parent), "venv": environment.name}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    return ["basedpyright"]


@pytest.fixture(scope="module", params=[mypy, pyright])
def errors(request, tmp_path_factory) -> dict[str, dict[int, str]]:
    """Check the programs in a folder of their own, as a user's is; return the errors by file and line."""
    folder = tmp_path_factory.mktemp("program")
    for program in PROGRAMS.glob("*.py"):
        shutil.copy(program, folder)
    name, *options = request.param(folder)
    command = [sys.executable, "-m", name, *options, "program.py", "mistakes.py"]
    environ = {**os.environ, "NO_COLOR": "1"}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1, f"mistakes.py has some: {done.stdout}{done.stderr}"
    found = defaultdict[str, dict[int, str]](dict)
    for line in done.stdout.splitlines():
        if match := FOUND.search(line):
            found[match[1]][int(match[2])] = line
    return found


def test_a_users_program_has_no_error(errors):
    assert not errors.get("program.py"), "\n".join(errors["program.py"].values())


def test_each_mistake_is_found_and_nothing_else(errors):
    lines = (PROGRAMS / "mistakes.py").read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert set(errors["mistakes.py"]) == wrong, "\n".join(errors["mistakes.py"].values())
