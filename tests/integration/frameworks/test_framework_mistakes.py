"""The known mistakes around agents of frameworks, each put back: the test named after it fails."""

from __future__ import annotations

from tests.support.mistakes import KnownMistakes, Mistake

ALL = "tests/integration/frameworks/test_every_framework.py"
FROZEN = "tests/chaos/test_frameworks.py::test_a_frozen_worker_that_wakes_up_adds_nothing"
WAKES = f"{ALL}::test_an_attempt_that_wakes_up_behind_another_adds_nothing"
FRAMEWORKS = ("pydantic_ai", "openai_agents", "langgraph")
NO_FENCE = (
    "store/fences.py",
    "WHERE run = :run AND fence = :fence AND owner = :owner {share}",
    "WHERE run = :run {share}",
)
UNFENCED_EVENTS = (
    "runs/lua/emit.lua",
    "if have[1] == owner and have[2] == ARGV[at + 1] then",
    "if true then",
)

MISTAKES = [
    *(
        Mistake(f"{framework}: what a zombie writes is taken", *NO_FENCE, f"{WAKES}[{framework}]")
        for framework in FRAMEWORKS
    ),
    # Each of the three keeps a worker that wakes up from doing more, so all are taken away.
    *(
        Mistake(
            f"{framework}: a frozen worker goes on, and what it writes and says is taken",
            "leases/keeper.py",
            "self._guard.reschedule(0.0)",
            "pass",
            f"{FROZEN}[{framework}]",
            also=(NO_FENCE, UNFENCED_EVENTS),
        )
        for framework in FRAMEWORKS
    ),
    Mistake(
        "a framework hides that the lease is lost",
        "agents/frameworks/replay.py",
        "        except LeaseLost as exc:\n            self.unwinding = exc\n            raise\n",
        "        except LeaseLost:\n            raise\n",
        f"{WAKES}[openai_agents]",
    ),
    Mistake(
        "a tool of Pydantic AI gives null for NaN",
        "agents/frameworks/pydantic_ai.py",
        "        self.replay.written(_inside(value), name)\n",
        "",
        "tests/integration/frameworks/test_pydantic_ai.py::test_what_json_does_not_have_is_refused_as_a_step_refuses_it",
    ),
    Mistake(
        "a tool of the Agents SDK gives null for NaN",
        "agents/frameworks/openai_journal.py",
        "replay.written(_plain(value), tool.name)",
        "msgspec.json.encode(_plain(value))",
        "tests/integration/frameworks/test_openai_agents.py::test_what_json_does_not_have_is_refused_as_a_step_refuses_it",
    ),
]


class TestMistakes(KnownMistakes):
    mistakes = MISTAKES
