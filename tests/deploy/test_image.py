"""The image and the compose file, without Docker: what they say is checked, and the steps of the build are done."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from holdfast.cli.root import COMMANDS
from holdfast.config import duration_seconds, load, setting_rows
from tests.support.deploy.charts import CHART, ROOT

DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
COMPOSE = ROOT / "deploy" / "compose" / "docker-compose.yml"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


# -- the Dockerfile


def instructions() -> list[tuple[str, str]]:
    """Every instruction, with its arguments on one line."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    whole = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in whole.splitlines() if line.strip()]


def stages() -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = []
    for name, words in instructions():
        if name == "FROM":
            found.append([])
        if found:
            found[-1].append((name, words))
    return found


FINAL = stages()[-1]


def last(name: str) -> str:
    return [words for each, words in FINAL if each == name][-1]


def copied(stage: list[tuple[str, str]]) -> list[str]:
    """What a stage takes from the folder of the build."""
    mine = [words for name, words in stage if name == "COPY" and "--from=" not in words]
    return [source for words in mine for source in words.split()[:-1]]


def ignored(path: str) -> bool:
    """Whether .dockerignore keeps a path out: the last line that matches decides."""
    out = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.strip().lstrip("!")
        if pattern and not line.startswith("#"):
            parts = [path, *(str(above) for above in Path(path).parents)]
            if any(fnmatch.fnmatch(part, pattern.removeprefix("**/")) for part in parts):
                out = not line.startswith("!")
    return out


def test_the_image_is_built_in_stages_and_keeps_no_tools():
    assert len(stages()) >= 3
    assert FINAL[0][1].endswith("-slim-bookworm")
    assert not [words for name, words in FINAL if name == "RUN" and re.search(r"\b(apt|apk|pip|uv)\b", words)]
    bases = [words.split()[0] for name, words in instructions() if name == "FROM"]
    assert all(":" in base and not base.endswith(":latest") for base in bases)
    assert not [name for name, _ in instructions() if name == "ADD"]


def test_the_image_runs_as_nobody_special():
    uid, gid = map(int, last("USER").split(":"))
    assert uid == VALUES["podSecurity"]["runAsUser"] > 0
    assert gid == VALUES["podSecurity"]["runAsGroup"] > 0
    names = [name for name, _ in FINAL]
    assert "RUN" not in names[names.index("USER") :]


def test_signals_reach_holdfast_itself():
    assert json.loads(last("ENTRYPOINT")) == ["holdfast"]
    assert json.loads(last("CMD")) == ["--help"]
    assert last("STOPSIGNAL") == "SIGTERM"


def test_the_ports_are_those_of_the_chart():
    ports = {
        VALUES["api"]["port"],
        VALUES["metrics"]["port"],
        VALUES["host"]["grpcPort"],
        VALUES["scaler"]["port"],
    }
    assert {int(port) for port in last("EXPOSE").split()} == ports


def test_what_is_copied_is_there_and_not_ignored():
    sources = [source for stage in stages() for source in copied(stage)]
    assert len(sources) >= 6
    for source in sources:
        assert (ROOT / source).exists()
        assert not ignored(source), source
    for secret in (".git/config", ".env", ".venv/bin/python", "tests/conftest.py", "src/holdfast/x.pyc"):
        assert ignored(secret), secret


def test_both_steps_install_the_same_extras():
    with (ROOT / "pyproject.toml").open("rb") as file:
        known = tomllib.load(file)["project"]["optional-dependencies"]
    runs = [words for stage in stages() for name, words in stage if name == "RUN" and "uv sync" in words]
    extras = [set(re.findall(r"--extra (\S+)", words)) for words in runs]
    assert len(extras) == 2
    assert extras[0] == extras[1] <= set(known)
    assert {"api", "postgres", "hosts", "kubernetes"} <= extras[0]


@pytest.mark.timeout(300)
def test_the_steps_of_the_build_give_a_holdfast_that_works(tmp_path):
    """The COPY and RUN lines of the build stage, in a folder that has nothing else in it."""
    uv = ROOT / ".tools" / "bin" / "uv"
    assert uv.exists(), "make setup brings uv"
    build, home = tmp_path / "build", tmp_path / "opt"
    build.mkdir()
    [stage] = [stage for stage in stages() if stage[0][1].endswith("AS build")]
    foreign = ("PYTHON", "HOLDFAST_", "VIRTUAL_ENV", "UV_PROJECT")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    environ |= {
        "UV_PROJECT_ENVIRONMENT": str(home),
        "UV_PYTHON": sys.executable,
        "UV_PYTHON_DOWNLOADS": "never",
    }
    for name, words in stage:
        if name == "COPY" and "--from=" not in words:
            *sources, target = words.split()
            for source in sources:
                place = build / target / ("" if (ROOT / source).is_dir() else source)
                copy(ROOT / source, place)
        elif name == "RUN":
            command = shlex.split(re.sub(r"--mount=\S+ ", "", words))
            done = subprocess.run(
                [str(uv), *command[1:], "-q"],
                cwd=build,
                env=environ,
                check=False,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr
    shutil.rmtree(build)  # what was installed must not need it
    for words in (
        ["--help"],
        ["render", "--help"],
        ["api", "--help"],
        ["host", "--help"],
        ["config", "check"],
    ):
        done = subprocess.run(
            [str(home / "bin" / "holdfast"), *words],
            cwd=tmp_path,
            env=environ,
            check=False,
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr
    assert (next(home.glob("lib/python*/site-packages/holdfast/chart")) / "Chart.yaml").is_file()


def copy(source: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, place, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    else:
        shutil.copy(source, place)


# -- compose


def composed() -> dict[str, dict[str, object]]:
    return yaml.safe_load(COMPOSE.read_text())


SERVICES = composed()["services"]
PROCESSES = [name for name in SERVICES if name not in {"redis", "postgres"}]


def filled(text: str) -> str:
    """A value with the defaults of its variables, as compose fills them in."""
    return re.sub(r"\$\{(\w+):-([^}]*)\}", r"\2", text)


def test_the_compose_file_is_what_compose_accepts():
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
        str(COMPOSE),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", PROCESSES)
def test_every_process_of_compose_understands_its_settings(name, tmp_path):
    service = SERVICES[name]
    known = {variable for row in setting_rows() for variable in row.env}
    assert set(service["environment"]) <= known
    (tmp_path / "holdfast.yaml").write_text("")
    environ = {variable: filled(value) for variable, value in service["environment"].items()}
    settings = load(tmp_path / "holdfast.yaml", environ).settings
    assert settings.redis.url == "redis://redis:6379/0"
    assert settings.database.url.endswith("@postgres:5432/holdfast")
    assert service["command"][0] in COMMANDS
    assert settings.api.open == (name == "api")


def test_compose_waits_for_what_exists_and_for_the_tables():
    for name in PROCESSES:
        needed = SERVICES[name]["depends_on"]
        assert set(needed) <= set(SERVICES)
        if name != "migrate":
            assert needed["migrate"] == {"condition": "service_completed_successfully"}
    for name in ("redis", "postgres"):
        assert SERVICES[name]["healthcheck"]["test"]


def test_compose_gives_processes_the_time_to_leave():
    settings = load(None, {}).settings
    for name in PROCESSES:
        if name != "migrate":
            grace = duration_seconds(SERVICES[name]["stop_grace_period"])
            assert grace >= settings.worker.drain_seconds + 15
    hosts = settings.hosts
    assert (
        duration_seconds(SERVICES["host"]["stop_grace_period"])
        >= hosts.stop_seconds * hosts.max_processes / 8 + 30
    )


def test_the_redis_of_compose_keeps_what_it_took():
    words = SERVICES["redis"]["command"]
    for option, value in (
        ("--appendonly", "yes"),
        ("--appendfsync", "everysec"),
        ("--maxmemory-policy", "noeviction"),
    ):
        assert words[words.index(option) + 1] == value
    assert "redis:/data" in SERVICES["redis"]["volumes"]


def test_compose_opens_nothing_beyond_this_machine():
    for service in SERVICES.values():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")
        assert not service.get("privileged")
        assert not service["image"].endswith(":latest")


def test_the_processes_of_compose_may_write_to_tmp_only():
    for name in set(PROCESSES) - {"migrate"}:
        service = SERVICES[name]
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
