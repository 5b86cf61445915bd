"""The pages are true: their code runs, their links lead somewhere, their commands and settings exist."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import re
import resource
import shlex
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import grpc
import msgspec
import pytest
from opentelemetry import environment_variables
from opentelemetry.sdk import environment_variables as sdk_environment_variables

from holdfast import App
from holdfast.agents.loader import load_app
from holdfast.api.shapes import ExecuteRequest
from holdfast.cli import main
from holdfast.config.connection import CONNECTION
from holdfast.runs.execution.emit import RESERVED
from holdfast.runs.run import Status
from holdfast.services.api import ApiProcess
from tests.support.api.server import RunningApi
from tests.support.runs.system import System

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
ELSEWHERE = {"rustic.md"}  # runs in tests/rustic: it needs another Python
WITH_CODE = [page for page in PAGES if "```python" in page.read_text() and page.name not in ELSEWHERE]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)

VARIABLE = re.compile(r"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)(?:=.*|_?\*)?")
DOTTED = re.compile(
    r"(?:redis|messaging|lease|queues?|sender|worker|janitor|log|metrics|event_api|relay|database|api|client|hosts|scaler)(?:\.[a-z_]+)+"
)
WITH_UNIT = re.compile(r"(?!holdfast_)[a-z_]+_(?:seconds|ms|minutes|bytes)")
GRPC_CODES = {code.name for code in grpc.StatusCode}
METRIC = re.compile(r"holdfast_(?!simulator\b|demo\b)[a-z_]+")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    return [body for word, body in FENCE.findall(page.read_text()) if word == language]


def spans(page: Path) -> list[str]:
    return SPAN.findall(FENCE.sub("", page.read_text()))


# -- code


@pytest.fixture
async def system(redis, redis_settings, tmp_path, monkeypatch):
    monkeypatch.setenv("REDIS_URL", redis_settings.url)
    monkeypatch.chdir(tmp_path)
    # A page that imports a framework keeps the worker from its leases for a while: both are in this process.
    async with System(redis_settings, slots=8, ttl=30.0) as system:
        yield system


def readme_app(folder: Path) -> App:
    [code] = [body for body in blocks(ROOT / "README.md", "python") if body.startswith("# agents.py")]
    (folder / "agents.py").write_text(code)
    return load_app(f"{folder / 'agents.py'}:app")


async def test_the_readmes_first_agent_runs(system, tmp_path):
    await system.worker(readme_app(tmp_path))
    run_id = await system.submit("triage", {"id": 7})
    run = await system.ended(run_id)
    assert run.result == {"answer": "ticket 7 is in good hands"}
    assert await system.events(run_id) == ["submitted", "started", "thinking", "succeeded"]


@pytest.mark.parametrize("page", WITH_CODE, ids=name)
async def test_every_python_block_runs(page, system, tmp_path, redis_url):
    await system.worker(readme_app(tmp_path))
    shared: dict[str, Any] = {"__name__": "docs"}
    serving = msgspec.structs.replace(system.settings.api, port=0, linger_seconds=0.0)
    process = ApiProcess(msgspec.structs.replace(system.settings, api=serving))
    api = await RunningApi(process).ready()
    try:
        await run_blocks(
            page, shared, {"redis://localhost:6379/0": redis_url, "http://localhost:8080": api.url}
        )
    finally:
        await api.close()


async def run_blocks(page: Path, shared: dict[str, Any], places: dict[str, str]) -> None:
    for number, body in enumerate(blocks(page, "python"), 1):
        here = body
        for written, real in places.items():
            here = here.replace(written, real)
        code = compile(
            here, f"{name(page)}:{number}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
        )
        async with asyncio.timeout(60):
            await asyncio.to_thread(execute, code, shared)


def execute(code: CodeType, names: dict[str, Any]) -> None:
    """Run a block as a script, or inside an event loop if it awaits at its top."""
    result = eval(code, names)
    if inspect.iscoroutine(result):
        asyncio.run(result)


async def test_the_guides_agents_do_what_the_guide_says(system, tmp_path):
    path = tmp_path / "guide_to_agents.py"  # a file, which the process of an attempt can load
    path.write_text("\n".join(blocks(ROOT / "docs/guides/agents.md", "python")))
    app = load_app(str(path))
    await system.worker(app)
    asked = {
        "greet": ({"name": "Ada"}, "Hello Ada"),
        "triage": ({"id": 7}, {"answer": "restart it"}),
        "invoice": ({"pages": 3}, {"pages": 3}),
        "draft": ({"name": "Ada"}, ["Dear", "Ada"]),
        "book": ({"passenger": "Ada"}, "booked"),
        "research": ({"sources": 2}, {"read": 2, "complete": True}),
    }
    asked["solve"] = ({"id": 7}, {"done": {"restart": 7}})
    asked["chat"] = ("hello", 1)
    asked["answer"] = ({"id": 7}, {"id": 7, "text": "restart it"})
    asked["convert"] = ({"name": "a letter"}, {"pages": 3})
    assert set(app.agents) == {*asked, "charge", "refund", "parent"}
    ids = {agent: await system.submit(agent, given) for agent, (given, _) in asked.items()}
    for agent, (_, expected) in asked.items():
        assert (await system.ended(ids[agent])).result == expected
    charge = await system.submit("charge", {"amount": 5})
    assert (await system.ended(charge)).result == f"{charge}:charge"
    refund = await system.submit("refund", {"amount": 5})
    await system.reaches(refund, Status.INTERRUPTED)
    await system.queue.resume_run(refund, "yes")
    assert (await system.ended(refund)).result == "refunded"
    nobody = await system.ended(await system.submit("book", {}))
    assert (nobody.status, nobody.attempt, nobody.error.kind) == ("failed", 1, "invalid")


def test_the_guide_names_every_event_type_that_an_agent_cant_emit():
    (told,) = re.findall(
        r"own event types can't be emitted(.*?)\n\n", (ROOT / "docs/guides/agents.md").read_text(), re.DOTALL
    )
    assert sorted({*SPAN.findall(told)} - {"emit", "InputError"}) == sorted(RESERVED)


# -- links


@cache
def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings."""
    plain = (
        re.sub(r"[^\w\- ]", "", text.lower()) for text in HEADING.findall(FENCE.sub("", page.read_text()))
    )
    return {text.strip().replace(" ", "-") for text in plain}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_relative_link_leads_somewhere(page):
    broken = []
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:"):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


# -- commands


@cache
def help_of(*path: str) -> str:
    """What ``--help`` of a command prints; there is no such command if it fails."""
    said = io.StringIO()
    code: object = 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main([*path, "--help"])
        except SystemExit as exc:
            code = exc.code
    assert code in (0, None), f"holdfast {' '.join(path)}: {said.getvalue()}"
    return said.getvalue()


def commands(page: Path) -> list[str]:
    """Every command that a page mentions: in its shell blocks, also inside a pod, and in code spans."""
    scripts = blocks(page, "sh") + blocks(page, "bash")
    script = re.sub(r"\s+# .*", "", "\n".join(scripts).replace("\\\n", " "))
    found = [part.strip().rpartition(" -- ")[2] for part in re.split(r"[|;\n]|&&", script)]
    return [text for text in [*found, *spans(page)] if text.startswith("holdfast ")]


def check_command(text: str) -> None:
    words = shlex.split(text.replace("…", ""), comments=True)[1:]
    path = words[:1]
    for word in words[1:]:
        # A service has options of its own, and may hold a noun beside them.
        holds_more = "COMMAND [ARGS]" in help_of(*path) or [*path, word] == ["relay", "undelivered"]
        if not holds_more or word.startswith("-"):
            break
        path.append(word)
    known = set(re.findall(r"(?<!\w)--?[a-z][a-z-]*", help_of(*path)))
    wanted = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert wanted <= known, f"{text!r} has options that don't exist: {sorted(wanted - known)}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_exists_with_its_options(page):
    for text in commands(page):
        check_command(text)


def test_the_check_of_commands_finds_what_is_wrong():
    with pytest.raises(AssertionError, match="--nothing"):
        check_command("holdfast runs list --nothing")
    with pytest.raises(AssertionError, match="No such command"):
        check_command("holdfast runs forget RUN")
    with pytest.raises(AssertionError, match="No such command"):
        check_command("holdfast fly")
    assert len(commands(ROOT / "docs/operate/workers.md")) > 20
    assert "holdfast queues list" in commands(ROOT / "docs/operate/kubernetes.md")


# -- names


@cache
def reference(page: str) -> frozenset[str]:
    text = (ROOT / "docs/reference" / page).read_text()
    return frozenset(span for span in SPAN.findall(text))


LOG_FIELDS = ("duration_seconds", "elapsed_seconds")


def is_setting(text: str) -> bool:
    settings = reference("settings.md") | set(CONNECTION)
    if match := VARIABLE.fullmatch(text):
        variable = match[1]
        if variable in GRPC_CODES or hasattr(resource, variable):
            return True
        if variable.startswith("OTEL_"):
            theirs = {*dir(environment_variables), *dir(sdk_environment_variables)}
            return any(
                name == variable or (text.endswith("*") and name.startswith(variable)) for name in theirs
            )
        return variable in settings or (text.endswith("*") and any(s.startswith(variable) for s in settings))
    if DOTTED.fullmatch(text):
        return any(s == text or s.startswith(f"{text}.") for s in settings)
    if WITH_UNIT.fullmatch(text):
        return text in {*ExecuteRequest.__struct_fields__, *LOG_FIELDS} or any(
            s.endswith(f".{text}") for s in settings
        )
    return True


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_setting_and_metric_exists(page):
    assert not [text for text in spans(page) if not is_setting(text)]
    metrics = {metric for text in spans(page) for metric in METRIC.findall(text)}
    named = {metric.removesuffix("_bucket") for metric in metrics if not metric.endswith("_")}
    assert named <= reference("metrics.md")


def test_the_check_of_settings_finds_what_is_wrong():
    wrong = ["HOLDFAST_NOTHING", "worker.nothing", "nothing_seconds", "MAX_PENDING", "NO_SUCH_*"]
    right = [
        "HOLDFAST_DRAIN_SECONDS",
        "DRY_RUN=true",
        "REDIS_SEND_MESSAGE_*",
        "queue.backoff",
        "drain_seconds",
    ]
    assert [text for text in wrong if is_setting(text)] == []
    assert [text for text in right if not is_setting(text)] == []
