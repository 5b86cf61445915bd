"""What ``src`` uses of other libraries beside their public interfaces is in one table, with a reason and a bound."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.tools.bounds import bounds_of, requirements, without_bounds

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "holdfast"
BESIDE = ROOT / "src" / "holdfast_simulator"
PAGE = ROOT / "docs" / "private-names.md"
ROW = re.compile(r"^\| ([\w-]+) \| (.+?) \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
WORD = re.compile(r"`([^`]+)`")

DOCUMENTED = {"_exit", "_current_frames"}
"""These have an underscore, and a page in Python's manual."""
ACCESSORS = {"getattr", "setattr", "hasattr", "delattr"}
OURS = ("holdfast", "holdfast_simulator", "holdfast_demo")
# Their subclasses of ours have private names of our own, and none of theirs.
HARMLESS = {
    "Struct",
    "Section",
    "Protocol",
    "NamedTuple",
    "TypedDict",
    "Enum",
    "StrEnum",
    "Exception",
    "Generic",
}
WITHOUT_INTERNALS = {"builtins", "abc", "enum", "typing", "msgspec"}


# It imports every framework, which takes a busy machine a while.
pytestmark = pytest.mark.timeout(600)


class Row(NamedTuple):
    library: str
    names: set[str]
    files: set[str]
    version: str


def rows() -> list[Row]:
    found = ROW.findall(PAGE.read_text())[1:]  # the first is the head of the table
    return [
        Row(library, set(WORD.findall(names)), set(WORD.findall(files)), version)
        for library, names, files, _, _, version in found
    ]


def is_private(name: str) -> bool:
    return name.startswith("_") and name.strip("_") != "" and not name.startswith("__")


Nodes = list[ast.AST]


def modules(folder: Path) -> dict[str, Nodes]:
    """The nodes of every module that people write, by its path: those that protoc writes are protoc's."""
    paths = [path for path in sorted(folder.rglob("*.py")) if path.parent.name != "proto"]
    return {str(path.relative_to(folder)): parsed(path.read_text()) for path in paths}


def parsed(text: str) -> Nodes:
    return list(ast.walk(ast.parse(text)))


# -- what one module says of itself


def defined_in(nodes: Nodes) -> Iterator[str]:
    """Names that this code makes: functions, classes, variables, and attributes of ``self``."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            yield node.attr


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}


def imported_from_others(nodes: Nodes) -> set[str]:
    """Names by which a module knows what it has imported from other libraries."""
    found = set[str]()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {
                (alias.asname or alias.name).partition(".")[0] for alias in node.names if is_other(alias.name)
            }
        elif isinstance(node, ast.ImportFrom) and is_other(node.module or ""):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def is_other(module: str) -> bool:
    return module.partition(".")[0] not in OURS


def imported_private(nodes: Nodes) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and not node.level and is_other(node.module or ""):
            yield from filter(
                is_private, [*(node.module or "").split("."), *(each.name for each in node.names)]
            )
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield from filter(is_private, alias.name.split(".") if is_other(alias.name) else ())


def used_in(nodes: Nodes, ours: set[str]) -> Iterator[str]:
    """Private names of others that are imported, read of an object, or asked for by ``getattr``."""
    others = imported_from_others(nodes)
    yield from imported_private(nodes)
    for node in nodes:
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            if node.attr not in ours or root_of(node) in others:
                yield node.attr
        elif (
            isinstance(node, ast.Call) and (name := asked_for(node)) and is_private(name) and name not in ours
        ):
            yield name


def root_of(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def asked_for(call: ast.Call) -> str:
    if isinstance(call.func, ast.Name) and call.func.id in ACCESSORS and len(call.args) > 1:
        name = call.args[1]
        return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else ""
    return ""


# -- what a class of ours shares with one of theirs


def shared_with_bases(kind: type) -> set[str]:
    """Private names in the body of a class that a base of another library has, too."""
    bases = [base for base in kind.__mro__[1:] if has_internals(base)]
    if not bases:
        return set()
    nodes = parsed(textwrap.dedent(source_of(kind)))
    mine = {*filter(is_private, defined_in(nodes))}
    mine |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and is_private(node.attr)}
    return {
        name
        for name in mine
        for base in bases
        if name in vars(base) or re.search(rf"\bself\.{name}\b", source_of(base))
    }


def has_internals(base: type) -> bool:
    return is_other(base.__module__) and base.__module__.partition(".")[0] not in WITHOUT_INTERNALS


def source_of(kind: type) -> str:
    try:
        file = inspect.getsourcefile(kind)
    except TypeError:  # written in C
        return ""
    return bodies(file).get(kind.__name__, "") if file else ""


@cache
def bodies(file: str) -> dict[str, str]:
    """The text of every class in a file; ``inspect.getsource`` would read the file again for each."""
    text = Path(file).read_text()
    lines, found = text.splitlines(), (node for node in parsed(text) if isinstance(node, ast.ClassDef))
    return {node.name: "\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in found}


def classes(sources: dict[str, Nodes]) -> Iterator[type]:
    """The classes of the modules in which one has a base that may be of another library."""
    for file in (file for file, nodes in sources.items() if any(map(has_a_base, nodes))):
        name = "holdfast." + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as exc:
            assert exc.name is not None
            assert exc.name.startswith("rustic_ai"), f"{name}: {exc}"  # it needs another Python
            continue
        yield from (
            each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == name
        )


def has_a_base(node: ast.AST) -> bool:
    bases = (
        [ast.unparse(base).partition("[")[0] for base in node.bases] if isinstance(node, ast.ClassDef) else []
    )
    return any(base.rpartition(".")[2] not in HARMLESS for base in bases)


def found_in_source() -> dict[str, set[str]]:
    """Every private name of another library, and the files that use it."""
    sources = modules(SOURCE)
    ours = {name for nodes in sources.values() for name in defined_in(nodes)}
    found = defaultdict[str, set[str]](set)
    for file, nodes in (*sources.items(), *modules(BESIDE).items()):
        for name in used_in(nodes, ours | {*defined_in(nodes)}):
            found[name].add(file)
    for kind in classes(sources):
        for name in shared_with_bases(kind):
            found[name].add(str(Path(inspect.getfile(kind)).relative_to(SOURCE)))
    return {name: files for name, files in found.items() if name not in DOCUMENTED}


# -- the tests


@pytest.fixture(scope="module")
def found() -> dict[str, set[str]]:
    return found_in_source()


def test_every_private_name_of_another_library_is_in_the_table(found):
    listed = {(name, file) for row in rows() for name in row.names for file in row.files}
    missing = sorted({(name, file) for name, files in found.items() for file in files} - listed)
    assert not missing, f"write a row into {PAGE.name}, or find a public way: {missing}"


def test_the_table_has_nothing_that_is_not_used(found):
    for row in rows():
        for name in row.names:
            used = found.get(name, set()) if is_private(name) else files_with(name, row.files)
            assert used & row.files, f"{row.library}: {name} is not used in {row.files}"
        assert all((SOURCE / file).is_file() for file in row.files)


def files_with(word: str, files: Iterable[str]) -> set[str]:
    return {file for file in files if re.search(rf"\b{word}\b", (SOURCE / file).read_text())}


@pytest.mark.parametrize("library", sorted({row.library for row in rows()} - {"Python"}))
def test_a_library_whose_private_names_are_used_has_an_upper_bound(library):
    bounds = bounds_of(requirements())[library]
    assert bounds
    assert all("<" in each for each in bounds), f"{library} {bounds}: add an upper bound to pyproject.toml"


def test_the_newest_versions_are_tried_without_the_bounds():
    tried = {each.partition(">")[0] for each in without_bounds()}
    assert {row.library for row in rows()} - {"Python", "rusticai-redis"} <= tried, (
        "Rustic AI has its own environment"
    )
    assert not [each for each in without_bounds() if "<" in each]
    workflow = (ROOT / ".github" / "workflows" / "newest.yml").read_text()
    assert "python -m tests.support.tools.bounds" in workflow


def test_the_versions_of_the_table_are_those_of_the_lock():
    locked = {
        each["name"]: each["version"] for each in tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pythons = [line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r":: 3\.\d+$", line)]
    locked["Python"] = f"{pythons[0]} to {pythons[-1]}"
    for row in rows():
        assert row.version == locked[row.library], (
            f"{row.library}: read what has changed, then write {locked[row.library]}"
        )


@pytest.mark.parametrize(
    "line",
    [
        "from redis._parsers import Parser",
        "from redis.client import _Parser",
        "import redis._parsers",
        "redis._cache.clear()",
        "def use(client): client._cache.clear()",
        "def use(client): getattr(client, '_cache', None)",
        "class Mine:\n  _cache = 1\nredis._cache",
    ],
)
def test_a_private_name_is_found(line):
    nodes = parsed(f"import redis\n{line}")
    assert set(used_in(nodes, {*defined_in(nodes)})) & {"_parsers", "_Parser", "_cache"}


def test_a_private_name_of_our_own_is_none():
    nodes = parsed(
        "class Mine:\n  def __init__(self): self._cache = 1\ndef use(mine): mine._cache, mine.__dict__"
    )
    assert not set(used_in(nodes, {*defined_in(nodes)}))


def test_a_private_method_that_a_subclass_overrides_is_found():
    class Mine(textwrap.TextWrapper):
        def _split(self, text):
            return super()._split(text)

        def _own(self): ...

    assert shared_with_bases(Mine) == {"_split"}
