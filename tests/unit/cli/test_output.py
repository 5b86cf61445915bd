"""Tables and records on a narrow terminal: ids and names stay whole, tracebacks stay as they are."""

from __future__ import annotations

import sys

import pytest

from holdfast.cli import output
from holdfast.cli.output import Column

COLUMNS = (
    Column("RUN"),
    Column("AGENT", free=True),
    Column("TRY", number=True, optional=True),
    Column("WHEN"),
)
ROW = ("0190f2c4-1111-7222-8333-444455556666", "summarize_conversation", "1", "12s ago")


@pytest.fixture
def terminal(monkeypatch, capsys):
    def of(columns: int) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("NO_COLOR", "1")

    return of


def test_optional_columns_are_left_out_before_names_are_cut(terminal, capsys):
    for columns, title, name in ((80, "TRY", ROW[1]), (72, "", ROW[1]), (60, "", "…")):
        terminal(columns)
        output.table(COLUMNS, [ROW], empty="none")
        shown = capsys.readouterr().out
        assert ("TRY" in shown) == bool(title), shown
        assert name in shown
        assert ROW[0] in shown


def test_text_of_several_lines_is_printed_below_as_it_is(terminal, capsys):
    terminal(40)
    frame = f'  File "/srv/{"x" * 60}.py", line 1, in agent'
    output.record(
        [("run", "a"), ("traceback", f"Traceback:\n{frame}\nKeyError: 1"), ("error", "KeyError: 1")]
    )
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["run    a", "error  KeyError: 1", "traceback", "Traceback:", frame, "KeyError: 1"]
