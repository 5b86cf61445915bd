from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.processes.options import ProcessOptions
from holdfast.processes.output import Output


def test_more_lines_than_the_rate_allows_are_counted(log_lines: Callable[[], list[dict[str, Any]]]):
    options = ProcessOptions(entries={}, output_lines_per_second=2)
    output = Output("a", {}, options)
    output.feed(b"".join(b"%d\n" % number for number in range(1000)))
    output.end()
    *lines, last = log_lines()
    assert [line["event"] for line in lines] == [str(number) for number in range(10)]
    assert (last["level"], last["dropped_lines"], last["agent_id"]) == ("warning", 990, "a")
    assert output.tail() == "5\n6\n7\n8\n9"
