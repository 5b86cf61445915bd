"""The image and the compose file, without Docker: what they say is checked, and the steps of the build are done."""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from holdfast.cli.root import COMMANDS
from holdfast.config import duration_seconds, load, setting_rows
from tests.support.deploy.charts import CHART, ROOT
from tests.support.deploy.dockerfile import copied, instructions, stages
from tests.support.tools.environments import clean_environ
from tests.support.tools.fetching import IMAGE, needed

COMPOSE = ROOT / "deploy" / "compose" / "docker-compose.yml"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


# -- the Dockerfile


FINAL = stages()[-1]


def last(name: str) -> str:
    return [words for each, words in FINAL if each == name][-1]


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


def names(folder: Path) -> set[str]:
    """The files below a folder, as paths from there."""
    # Not by their suffix: what is being compiled has another one until it is complete.
    files = (path for path in folder.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    return {str(path.relative_to(folder)) for path in files}


@pytest.fixture(scope="module")
def image() -> Path:
    """What the COPY and RUN lines of the build stage have made."""
    return needed(IMAGE)


def test_the_steps_of_the_build_install_every_file_and_the_chart(image):
    [packages] = image.glob("lib/python*/site-packages")
    chart = {f"chart/{name}" for name in names(CHART)}
    assert names(packages / "holdfast") == names(ROOT / "src" / "holdfast") | chart
    assert names(packages / "holdfast_simulator") == names(ROOT / "src" / "holdfast_simulator")
    demo = names(ROOT / "examples" / "demo" / "holdfast_demo")
    assert names(packages / "holdfast_demo") == demo | {"support_desk.py"}


@pytest.mark.parametrize("words", ["--help", "render --help", "api --help", "host --help", "config check"])
def test_what_the_image_has_is_enough(image, words, tmp_path):
    """The sources of now, with what the image has beside them: its own copy may be older."""
    done = subprocess.run(
        [str(image / "bin" / "holdfast"), *words.split()],
        cwd=tmp_path,
        env=clean_environ() | {"PYTHONPATH": str(ROOT / "src")},
        check=False,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr


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
