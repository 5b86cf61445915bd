from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest

from holdfast import AppError
from holdfast.agents.loader import load_app

ONE_APP = """
    from holdfast import App
    app = App("one")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working directory; what tests import from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


@pytest.fixture
def write(folder):
    def write(path: str, text: str) -> Path:
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
        return file

    return write


@pytest.mark.parametrize(
    "reference",
    ["hf_shop.main:app", "hf_shop.main", "hf_shop/main.py:app", "hf_shop/main.py", "./hf_shop/main.py"],
)
@pytest.mark.parametrize("is_package", [True, False])
def test_an_app_is_found_by_module_and_by_file(write, reference, is_package):
    if is_package:
        write("hf_shop/__init__.py", "")
    write("hf_shop/main.py", ONE_APP)
    assert load_app(reference).name == "one"


def test_a_nested_name_is_found(write):
    write("hf_nested.py", "from holdfast import App\nclass Holder:\n    app = App('held')\n")
    assert load_app("hf_nested:Holder.app").name == "held"


def test_a_file_imports_its_neighbours(write):
    write("sub/hf_neighbour.py", "NAME = 'neighbour'")
    write("sub/hf_main.py", "from holdfast import App\nfrom hf_neighbour import NAME\napp = App(NAME)")
    assert load_app("sub/hf_main.py").name == "neighbour"


def test_a_file_of_a_package_uses_relative_imports(write):
    write("hf_pack/__init__.py", "")
    write("hf_pack/names.py", "NAME = 'relative'")
    write("hf_pack/main.py", "from holdfast import App\nfrom .names import NAME\napp = App(NAME)")
    assert load_app("hf_pack/main.py").name == "relative"


def test_a_file_named_like_a_known_module_is_still_loaded(write):
    write("json.py", ONE_APP)
    assert load_app("./json.py").name == "one"
    assert sys.modules["json"] is json


def test_a_file_loaded_twice_gives_the_same_app(write):
    write("hf_twice.py", ONE_APP)
    assert load_app("hf_twice.py") is load_app("hf_twice.py:app")


def test_one_app_under_two_names_is_one_app(write):
    write("hf_alias.py", "from holdfast import App\napp = application = App('one')\n")
    assert load_app("hf_alias").name == "one"


REFUSED = [
    ("nothing", "", "", "names no module"),
    ("no module", "", ":app", "names no module"),
    (
        "missing module",
        "",
        "hf_missing.main:app",
        r"no module 'hf_missing.main' \(looked in .*start from the folder",
    ),
    ("missing file", "", "missing/main.py:app", r"no file .*missing/main.py"),
    ("a folder", "", "./", "no file"),
    ("missing name", ONE_APP, "hf_bad:ap", "has no 'ap'; did you mean 'app'"),
    ("not an app", ONE_APP + "    other = 5\n", "hf_bad:other", "is a int, not an App; write hf_bad:app"),
    ("the class", ONE_APP, "hf_bad:App", "is the class App, not an App"),
    ("no app", "x = 1", "hf_bad", "holds no App: add"),
    (
        "two apps",
        "from holdfast import App\na = App('a')\nb = App('b')",
        "hf_bad",
        "several Apps; write hf_bad:a or hf_bad:b",
    ),
    ("missing dependency", "import hf_not_installed", "hf_bad:app", "needs the module 'hf_not_installed'"),
    (
        "missing framework",
        "raise ModuleNotFoundError('no', name='pydantic_ai.models')",
        "hf_bad:app",
        r"needs pydantic_ai.models, which is not installed: pip install 'holdfast\[pydantic-ai\]'",
    ),
    (
        "missing OpenAI Agents SDK, or a file of that name",
        "raise ModuleNotFoundError('no', name='agents')",
        "hf_bad:app",
        r"needs the module 'agents', .*OpenAI Agents SDK: pip install 'holdfast\[openai-agents\]'",
    ),
    ("error at import", "raise KeyError('boom')", "hf_bad:app", "can't be imported: KeyError: 'boom' \\("),
    ("the line of it", "import json\n\njson.loads('x')", "hf_bad:app", "hf_bad.py, line 3\\)"),
    ("syntax error", "def (:", "hf_bad:app", "can't be imported: SyntaxError"),
    ("exits at import", "import sys; sys.exit(1)", "hf_bad:app", "ended the process.*__main__"),
    ("error in a file", "raise KeyError('boom')", "hf_bad.py:app", "hf_bad.py can't be imported: KeyError"),
    ("exit in a file", "raise SystemExit", "hf_bad.py", "ended the process"),
]


@pytest.mark.parametrize(
    ("text", "reference", "message"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_what_cannot_be_loaded_is_explained(write, text, reference, message):
    if text:
        write("hf_bad.py", text)
    with pytest.raises(AppError, match=message):
        load_app(reference)


def test_a_file_that_failed_can_be_loaded_once_it_is_mended(write):
    write("hf_mended.py", "raise KeyError")
    with pytest.raises(AppError):
        load_app("hf_mended.py")
    write("hf_mended.py", ONE_APP)
    assert load_app("hf_mended.py").name == "one"
