"""The known mistakes around agents of frameworks, each put back: the test named after it fails."""

from __future__ import annotations

from tests.support.mistakes import KnownMistakes, Mistake, instead, removed, replaced

ALL = "tests/integration/frameworks/test_every_framework.py"
FROZEN = "tests/chaos/test_frameworks.py::test_a_frozen_worker_that_wakes_up_adds_nothing"
WAKES = f"{ALL}::test_an_attempt_that_wakes_up_behind_another_adds_nothing"
LEASE = f"{ALL}::test_no_call_begins_after_the_end_of_the_lease"
OPENAI = "tests/integration/frameworks/test_openai_agents.py"
PYDANTIC = "tests/integration/frameworks/test_pydantic_ai.py"
ASKED = f"{ALL}::test_no_model_is_asked_after_the_end_of_the_lease"
OPENED_WITHOUT = replaced("stream-opening-needs-lease", "self._replay.leased(opening)", "opening()")
STREAMED_WITHOUT = replaced("openai-stream-needs-lease", "self._replay.leased_stream(pieces)", "pieces")
STREAMS = "test_a_model_that_streams_asks_nothing_more_after_the_end_of_the_lease"
FRAMEWORKS = ("pydantic_ai", "openai_agents", "langgraph")
NO_FENCE = replaced("store-write-fence", " AND fence = :fence AND owner = :owner", "")

MISTAKES = [
    *(
        Mistake(f"{framework}: what a zombie writes is taken", NO_FENCE, f"{WAKES}[{framework}]")
        for framework in FRAMEWORKS
    ),
    # Each of the four keeps a worker that wakes up from doing more, so all are taken away.
    *(
        Mistake(
            f"{framework}: a frozen worker goes on, and what it writes and says is taken",
            (
                removed("expired-lease-stops-body"),
                replaced("trust-by-clock", "boot_time() < self.until()", "True"),
                NO_FENCE,
                replaced("emit-fence", "have[1] == owner and have[2] == ARGV[at + 1]", "true"),
            ),
            f"{FROZEN}[{framework}]",
        )
        for framework in FRAMEWORKS
    ),
    *(
        Mistake(
            f"{framework}: a tool goes on after the end of the lease",
            replaced(
                "framework-call-needs-lease",
                "await Trusted(awaited(work()), self._scope.signals.trust)",
                "await work()",
            ),
            f"{LEASE}[{framework}]",
        )
        for framework in ("pydantic_ai", "openai_agents")
    ),
    *(
        Mistake(f"{framework}: a model is asked after the end of the lease", change, f"{ASKED}[{framework}]")
        for framework, change in (("pydantic_ai", OPENED_WITHOUT), ("openai_agents", STREAMED_WITHOUT))
    ),
    Mistake(
        "openai_agents: a stream goes on after the end of the lease",
        STREAMED_WITHOUT,
        f"{OPENAI}::{STREAMS}",
    ),
    Mistake(
        "pydantic_ai: a stream is opened though the lease ends meanwhile",
        OPENED_WITHOUT,
        f"{PYDANTIC}::{STREAMS}[0-one]",
    ),
    Mistake(
        "pydantic_ai: a stream goes on after the end of the lease",
        removed("pydantic-stream-needs-lease"),
        f"{PYDANTIC}::{STREAMS}[2-one]",
    ),
    Mistake(
        "openai_agents: a model that can't stream is asked after the end of the lease",
        replaced("whole-response-needs-lease", "self._replay.leased(request)", "request()"),
        "tests/integration/frameworks/test_openai_agents.py"
        "::test_a_model_that_can_not_stream_is_not_asked_after_the_end_of_the_lease",
    ),
    Mistake(
        "langgraph: a node begins after the end of the lease",
        instead("graph-node-needs-lease", "pass"),
        "tests/integration/frameworks/test_langgraph.py::test_no_node_begins_after_the_end_of_the_lease[async]",
    ),
    Mistake(
        "langgraph: a fake model loses the answer that it can't stream",
        replaced("fake-model-not-streamed", '(invocation_params or {}).get("_type") == _FAKE', "False"),
        "tests/integration/frameworks/test_langgraph.py"
        "::test_a_fake_model_that_calls_a_tool_loses_no_answer_to_a_try_at_streaming[GenericFakeChatModel-]",
    ),
    Mistake(
        "langgraph: a run that is cancelled while it writes a chunk leaves its nodes running",
        replaced("graph-closed-with-run", "contextlib.aclosing(chunks)", "contextlib.AsyncExitStack()"),
        f"{ALL}::test_a_run_that_is_cancelled_while_it_writes_a_chunk_leaves_no_node_behind[langgraph]",
    ),
    Mistake(
        "a framework hides that the lease is lost",
        removed("replay-keeps-lost-lease"),
        f"{WAKES}[openai_agents]",
    ),
    Mistake(
        "a tool of Pydantic AI gives null for NaN",
        removed("pydantic-tool-value-json"),
        "tests/integration/frameworks/test_pydantic_ai.py::test_what_json_does_not_have_is_refused_as_a_step_refuses_it",
    ),
    Mistake(
        "a tool of the Agents SDK gives null for NaN",
        replaced(
            "openai-tool-value-json",
            "replay.written(_plain(value), tool.name)",
            "msgspec.json.encode(_plain(value))",
        ),
        "tests/integration/frameworks/test_openai_agents.py::test_what_json_does_not_have_is_refused_as_a_step_refuses_it",
    ),
]


class TestMistakes(KnownMistakes):
    mistakes = MISTAKES
