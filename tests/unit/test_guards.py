"""Every marker of src and every row of a table of mistakes still fit each other; see tests/support/mistakes.py for what they are."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mistakes import SOURCE, KnownMistakes, Mistake, Source, instead, removed, replaced
from tests.support.paths import TESTS

TEST = "tests/unit/test_guards.py::test_every_row_of_every_table_applies"
PYTHON = """\
import os

class Desk:
    def settle(self, fence, word):
        if fence != self.fence and word:  # guard: settle-fence
            return None
        # guard: settle-once
        # Said twice, it would be done twice.
        self.done = os.fspath(
            word,
        )
        return "done"
"""
LUA = """\
local have = redis.call('GET', KEYS[1])
if have ~= fence then return 'stale' end -- guard: stale-fence
-- guard: stale-owner
return have
"""


def all_mistakes() -> Iterator[Mistake]:
    for path in sorted(TESTS.rglob("test_*_mistakes.py")):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for each in vars(module).values():
            if isinstance(each, type) and issubclass(each, KnownMistakes) and each is not KnownMistakes:
                yield from each.mistakes


def test_every_row_of_every_table_applies():
    problems = Source(SOURCE).problems(all_mistakes())
    assert not problems, "\n".join(["tables of mistakes and markers of src differ:", *problems])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "desk.py").write_text(PYTHON)
    (tmp_path / "settle.lua").write_text(LUA)
    return tmp_path


def without_markers(text: str) -> str:
    lines = (
        line
        for line in text.splitlines(keepends=True)
        if not line.strip().startswith(("# guard", "-- guard"))
    )
    return "".join(lines).replace("  # guard: settle-fence", "").replace(" -- guard: stale-fence", "")


@pytest.mark.parametrize(
    ("change", "old", "new"),
    [
        (
            replaced("settle-fence", "fence != self.fence and ", ""),
            "if fence != self.fence and word",
            "if word",
        ),
        (removed("settle-once"), "self.done = os.fspath(\n            word,\n        )", "pass"),
        (replaced("settle-once", "word", "os"), "            word,", "            os,"),
        (
            instead("settle-once", "if word:\n    self.done = word"),
            "self.done = os.fspath(\n            word,\n        )",
            "if word:\n            self.done = word",
        ),
        (
            removed("settle-fence"),
            "if fence != self.fence and word:\n            return None",
            "pass",
        ),
        (removed("stale-fence"), "if have ~= fence then return 'stale' end", ""),
        (replaced("stale-owner", "have", "nil"), "return have", "return nil"),
    ],
)
def test_a_row_changes_the_marked_statement_and_nothing_else(source, change, old, new):
    tree = Source(source)
    mistake = Mistake("it is not checked", change, TEST)
    tree.check(mistake)
    [(path, text)] = tree.mutate(mistake).items()
    whole = without_markers(PYTHON if path.suffix == ".py" else LUA)
    assert whole.count(old) == 1
    assert text == whole.replace(old, new)


def test_several_changes_of_one_file_are_made_together(source):
    both = (removed("settle-once"), replaced("settle-fence", "fence != self.fence", "True"))
    [text] = Source(source).mutate(Mistake("nothing is checked", both, TEST)).values()
    assert "if True and word:" in text
    assert "fspath" not in text


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (removed("settle-fense"), "src has 0 markers 'settle-fense' instead of one"),
        (replaced("settle-fence", "owner", "True"), "'owner' occurs 0 times"),
        (replaced("settle-fence", "fence", "True"), "'fence' occurs 2 times"),
        (replaced("settle-fence", "return None", "pass"), "'return None' occurs 0 times"),
        (
            replaced("settle-fence", "fence != self.fence", "fence !="),
            "the result is no Python: invalid syntax",
        ),
        (replaced("settle-fence", "word", "wird"), "there is no 'wird' in desk.py"),
        (replaced("settle-fence", "self.fence", "self.fense"), "there is no 'fense' in desk.py"),
        (instead("stale-owner", "return heve"), "there is no 'heve' in settle.lua"),
        (replaced("stale-owner", "have", "have"), "it changes nothing"),
    ],
)
def test_a_row_that_does_not_apply_is_named(source, change, problem):
    rows = [
        Mistake("a row", change, TEST),
        *rows_for("settle-fence", "settle-once", "stale-fence", "stale-owner"),
    ]
    [found] = Source(source).problems(rows)
    assert found.startswith(f"'a row': {problem}")


def rows_for(*guards: str) -> list[Mistake]:
    return [Mistake(f"without {guard}", removed(guard), TEST) for guard in guards]


def test_a_marker_that_is_there_twice_or_that_no_row_names_is_found(source):
    (source / "copy.lua").write_text("return 1 -- guard: stale-fence\nreturn 2 -- guard: Not_a_slug\n")
    assert Source(source).problems(rows_for("settle-fence", "settle-once", "stale-fence", "stale-owner")) == [
        "'without stale-fence': src has 2 markers 'stale-fence' instead of one",
        "the marker 'stale-fence' is there more than once: copy.lua:1, settle.lua:2",
        "no row names the marker 'Not_a_slug': copy.lua:2",
        "the marker 'Not_a_slug' is not written like-this: copy.lua:2",
    ]


def test_a_row_without_its_test_is_found(source):
    rows = [
        *rows_for("settle-fence", "settle-once", "stale-fence"),
        Mistake("a row", removed("stale-owner"), f"{TEST}_not"),
    ]
    assert Source(source).problems(rows) == [f"'a row': there is no test {TEST}_not"]
