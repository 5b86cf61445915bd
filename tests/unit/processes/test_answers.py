"""Outcomes come out of a process as they went in; deaths are told in words."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.agents.failures import Failure, FailureClass
from holdfast.agents.outcome import Cancelled, Failed, Interrupted, Lost, Succeeded, Yielded
from holdfast.processes import outcome_codec, wire
from holdfast.processes.attempts import death
from holdfast.processes.info import AgentProcessInfo
from holdfast.processes.limits import Limits

FAILURE = Failure(FailureClass.THROTTLED, "ö: too much", 2.5, "Traceback …", exact=True)
OUTCOMES = [
    Interrupted(3, b'{"what":null}'),
    Yielded("it leaves"),
    Cancelled("not wanted"),
    Failed(FAILURE),
    Lost(),
]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
def test_an_outcome_arrives_as_it_was(outcome):
    pieces = [part for part, _ in outcome_codec.parts(outcome_codec.answer(outcome, 7))]
    found = outcome_codec.joined(pieces)
    assert (found.outcome, found.events) == (outcome, 7)


@pytest.mark.parametrize("size", [0, 1, 179_000, 180_000, 1_000_000])
def test_a_result_of_any_size_arrives_in_messages_that_are_allowed(size):
    result = b'"' + "é".encode() * size + b'"'
    parts = list(outcome_codec.parts(outcome_codec.answer(Succeeded(msgspec.Raw(result)), 0)))
    assert [last for _, last in parts] == [False] * (len(parts) - 1) + [True]
    for part, last in parts:
        message = {"kind": "report", "report": outcome_codec.REPORT, "data": {"part": part, "last": last}}
        assert len(wire.encode(message)) < wire.MAX_REPORT_BYTES
    outcome = outcome_codec.joined([part for part, _ in parts]).outcome
    assert isinstance(outcome, Succeeded)
    assert bytes(outcome.result) == result


@pytest.mark.parametrize(
    ("code", "limits", "said"),
    [
        (0, Limits(), "exited with code 0 before its agent had ended"),
        (-11, Limits(), "ended by signal 11 (SIGSEGV); it had 64 MiB at most"),
        (-6, Limits(memory_bytes=128 << 20), "(SIGABRT); it had 64 MiB at most, and memory_mb is 128"),
        (-9, Limits(), "but the kernel does so when memory is short"),
        (-63, Limits(), "signal 63 (without a name)"),
        (None, Limits(), "was lost: its zygote ended"),
    ],
)
def test_a_death_is_told_in_words(code, limits, said):
    gone = AgentProcessInfo("x", "", 0, False, 0.0, exit_code=code, last_error="its zygote ended", max_rss_bytes=64 << 20)  # fmt: skip
    assert said in death(gone, limits)
