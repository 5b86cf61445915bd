"""A number that Python and Lua both must know is the same in both."""

from __future__ import annotations

import re
from pathlib import Path

import holdfast.runs
from holdfast.config.queues import MOST_PARTITIONS


def test_the_script_believes_in_as_many_partitions_as_the_settings_allow():
    script = Path(holdfast.runs.__path__[0], "lua", "partitions.lua").read_text()
    assert re.findall(r"^local MOST = (\d+)$", script, re.MULTILINE) == [str(MOST_PARTITIONS)]
