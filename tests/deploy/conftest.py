"""Tools that check what is deployed."""

from pathlib import Path

import pytest

from tests.support.tools.fetching import AMTOOL, PROMTOOL, needed


@pytest.fixture(scope="session")
def promtool() -> Path:
    return needed(PROMTOOL)


@pytest.fixture(scope="session")
def amtool() -> Path:
    return needed(AMTOOL)
