from __future__ import annotations

import pytest

from holdfast import errors
from holdfast.cli.reference import errors_page, main, metrics_page, pages, stale, write


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "docs" / "reference"


def test_what_was_written_is_current(folder):
    assert main([str(folder)]) == 0
    assert {page.name for page in folder.iterdir()} == {"settings.md", "metrics.md", "keys.md", "errors.md"}
    assert main(["--check", str(folder)]) == 0


def test_a_missing_page_and_a_changed_page_are_stale_and_named(folder, capsys):
    write(pages(), folder)
    (folder / "keys.md").unlink()
    (folder / "metrics.md").write_text("by hand")
    assert main(["--check", str(folder)]) == 1
    told = capsys.readouterr().err
    assert "keys.md" in told
    assert "metrics.md" in told
    assert "settings.md" not in told


def test_checking_writes_nothing(folder):
    assert main(["--check", str(folder)]) == 1
    assert not folder.exists()


def test_only_pages_that_differ_are_written(folder):
    write({"a.md": "1\n", "b.md": "1\n"}, folder)
    assert write({"a.md": "1\n", "b.md": "2\n"}, folder) == ["b.md"]
    assert stale({"a.md": "1\n", "b.md": "2\n"}, folder) == []


def test_every_error_is_on_its_page_in_the_tree_and_in_the_table():
    page = errors_page()
    tree, _, table = page.partition("| error |")
    for name, error in vars(errors).items():
        if isinstance(error, type):
            assert f" {name}" in tree or f"\n{name}\n" in tree
            assert f"| `{name}` | `{error.__base__.__name__}` |" in table


def test_a_table_of_the_reference_has_as_many_cells_in_every_row():
    for page in pages().values():
        for table in page.split("\n\n"):
            rows = [row for row in table.splitlines() if row.startswith("|")]
            assert len({row.replace("\\|", "").count("|") for row in rows}) <= 1


def test_the_metrics_page_names_the_buckets():
    assert "0.005" in metrics_page()
    assert "3600 seconds" in metrics_page()
