"""What a caller is told of an agent that did not start, and of a Redis that does not let us in."""

from __future__ import annotations

import traceback

import pytest

from holdfast.api.problems import answer, problem_of
from holdfast.errors import ProcessFailed
from holdfast.redis.connections import PasswordRefused


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
    failed = ProcessFailed("agent 'a' was not created: its zygote ended repeatedly")
    assert problem_of(failed, request_id="r", candid=False).detail == str(failed)


def test_a_password_that_was_changed_is_an_outage():
    """Fails if it is told as a setting that is wrong: a caller can't mend that, and need only come again."""
    told = answer(PasswordRefused("Redis at secret.host:1 refuses our password"), redis_url="redis://x")
    assert (told.status_code, told.headers["retry-after"]) == (503, "5")
    assert b"secret.host" not in told.body
