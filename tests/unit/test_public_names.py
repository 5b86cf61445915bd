"""What programs import: everything they touch is in ``holdfast``, and the pages and examples import from there."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import errors

ROOT = Path(__file__).parents[2]
PACKAGE = Path(holdfast.__file__).parent
BLOCK = re.compile(r"^```py(?:thon)?\n(.*?)^```", re.MULTILINE | re.DOTALL)

PUBLIC = {f"holdfast.{name}" for name in holdfast.__all__}

DEEPER = {
    "holdfast.agents.frameworks.langgraph": "an adapter imports its framework",
    "holdfast.agents.frameworks.openai_agents": "an adapter imports its framework",
    "holdfast.agents.frameworks.pydantic_ai": "an adapter imports its framework",
    "holdfast.compat.location_registry": "a document prescribes the interface",
    "holdfast.compat.placement_service": "a document prescribes the interface",
    "holdfast.compat.process_manager": "a document prescribes the interface",
    "holdfast.compat.rustic": "a document prescribes the interface",
    "holdfast.telemetry": "traces.start and traces.finish, for a program that sends its own spans",
}
"""What a page or an example may import from below ``holdfast``, and why."""

DEMO = {
    "holdfast.cli": "its output looks like that of the commands",
    "holdfast.hosts.agent": "it counts residents by their status",
    "holdfast.hosts.server": "it is loaded before the demo starts the clock",
    "holdfast.packages": "it says which extra is missing, as the commands do",
    "holdfast.redis.client": "it reads Redis itself, to prove what the system says",
    "holdfast.redis.embedded": "it has servers of its own, which it stops and starts",
    "holdfast.redis.keys": "it reads Redis itself, to prove what the system says",
    "holdfast.services.dev.leash": "its processes end with it",
    "holdfast.services.signals": "it is a command of holdfast",
    "holdfast.config": "it shows the settings that it has changed",
}
"""What ``holdfast demo`` may import beside: it is a command, not a program to learn from."""


def lazily() -> dict[str, str]:
    return vars(holdfast)["_LOADED_ON_FIRST_USE"]


def test_every_error_is_public():
    raised = {name for name, each in vars(errors).items() if inspect.isclass(each)}
    assert raised <= set(holdfast.__all__)


def test_the_list_of_public_names_is_whole_and_in_order():
    raised = {name for name in holdfast.__all__ if hasattr(errors, name)}
    assert set(holdfast.__all__) == raised | set(lazily())
    assert not raised & set(lazily())
    assert list(holdfast.__all__) == sorted(holdfast.__all__)


def test_a_type_checker_finds_each_name_where_it_is_loaded_from():
    (guarded,) = [node for node in ast.parse((PACKAGE / "__init__.py").read_text()).body if is_guard(node)]
    found = {alias.name: node.module for node in guarded.body for alias in node.names}
    assert found == lazily()
    assert all(
        getattr(holdfast, name) is getattr(importlib.import_module(at), name) for name, at in found.items()
    )


def is_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def test_type_checkers_are_told_that_the_package_has_types():
    assert (PACKAGE / "py.typed").is_file()


def code() -> Iterator[tuple[str, str]]:
    """Every block of Python in a page, and every module of an example, by its place."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    for page in sorted(pages):
        for number, block in enumerate(BLOCK.findall(page.read_text()), 1):
            yield f"{page.relative_to(ROOT)}:{number}", block
    for module in sorted((ROOT / "examples").rglob("*.py")):
        yield str(module.relative_to(ROOT)), module.read_text()


CODE = dict(code())


def imported(source: str) -> set[str]:
    modules = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and not node.level:
            modules.add(node.module or "")
            if node.module == "holdfast":
                modules |= {f"holdfast.{alias.name}" for alias in node.names} - PUBLIC
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return {module for module in modules if module.startswith("holdfast.")}


@pytest.mark.parametrize("place", CODE)
def test_pages_and_examples_import_from_holdfast_itself(place: str):
    allowed = DEEPER | DEMO if place.startswith("examples/demo/") else DEEPER
    deeper = sorted(imported(CODE[place]) - set(allowed))
    assert not deeper, f"{place} imports {', '.join(deeper)}: import from holdfast, or make it public there"


def test_nothing_is_allowed_that_nobody_imports():
    everywhere = set[str]().union(*map(imported, CODE.values()))
    prescribed = {module for module in DEEPER if module.startswith("holdfast.compat.")}
    assert (DEEPER.keys() | DEMO.keys()) - prescribed <= everywhere


def test_a_deeper_import_is_noticed():
    lines = ("import holdfast", "from holdfast.runs.run import Run", "from holdfast import App, config")
    assert imported("\n".join(lines)) == {"holdfast.runs.run", "holdfast.config"}
