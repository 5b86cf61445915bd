from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli.dev_command import Dev, StartDev, version


@pytest.fixture
def start_dev(short_dir: Path) -> Iterator[StartDev]:
    started: list[Dev] = []
    (short_dir / "desk.py").write_text(version("Hello"))

    def start(*options: str, **environ: Any) -> Dev:
        started.append(Dev(short_dir, *options, **environ))
        return started[-1]

    yield start
    for dev in started:
        dev.close()
