"""Every store there is, each under the same tests."""

from __future__ import annotations

import contextlib

import pytest

from holdfast.config import DatabaseSettings
from holdfast.store.open import open_store


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path) -> DatabaseSettings:
    if request.param == "sqlite":
        return DatabaseSettings(path=str(tmp_path / "deep" / "store.sqlite"))
    return DatabaseSettings(url=request.getfixturevalue("postgres_url"))


@pytest.fixture
async def open_another(database):
    """Open stores on the same database, as other processes would."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(**options):
            return await stack.enter_async_context(await open_store(database, migrate=True, **options))

        yield start


@pytest.fixture
async def store(open_another):
    return await open_another()
