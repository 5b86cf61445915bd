"""What a caller is told of an agent that did not start."""

from __future__ import annotations

import traceback

import pytest

from holdfast.api.problems import problem_of
from holdfast.errors import ProcessFailed


def _trace(error: BaseException) -> str:
    try:
        raise error
    except type(error) as exc:
        return "".join(traceback.format_exception(exc))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no such desk"),
        ExceptionGroup("unhandled errors in a TaskGroup", [ValueError("no such desk")]),
    ],
    ids=["one", "group"],
)
def test_only_operators_are_told_paths_and_code(error):
    """Fails if a traceback is looked for by how it usually begins: that of a group begins otherwise."""
    failed = ProcessFailed(f"agent 'a' was not created: it exited with code 1\n{_trace(error)}")
    told = problem_of(failed, request_id="r", candid=False).detail
    assert told == "agent 'a' was not created: it exited with code 1: ValueError: no such desk"
    assert __file__ in problem_of(failed, request_id="r", candid=True).detail


def test_one_line_is_told_as_it_is():
    failed = ProcessFailed("agent 'a' was not created: its zygote ended again and again")
    assert problem_of(failed, request_id="r", candid=False).detail == str(failed)
