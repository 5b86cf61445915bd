"""A pytest plugin: one line for each thing that could not be tested here, with the reason and how many tests that is."""

from __future__ import annotations

from collections import Counter

import pytest

_PROPERTY = "stands for"


def stands_for(request: pytest.FixtureRequest, tests: int) -> None:
    """Count this test as so many: it runs others in an environment of their own."""
    request.node.user_properties.append((_PROPERTY, tests))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in not_tested(terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_line(line, yellow=True)


def not_tested(skipped: list[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    """The lines, with the reasons of most tests first."""
    counts: Counter[str] = Counter()
    for report in skipped:
        counts[_reason(report)] += dict(getattr(report, "user_properties", ())).get(_PROPERTY, 1)
    return [
        f"not tested here: {reason}: {count} test{'s' if count > 1 else ''}"
        for reason, count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    ]


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    longrepr = report.longrepr
    reason = longrepr[2] if isinstance(longrepr, tuple | list) else str(longrepr)
    return str(reason).removeprefix("Skipped: ")
