"""The guide for those who come from Ray does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rustic_ai.core.guild.metastore import Metastore

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "rustic.md"
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def own_metastore(monkeypatch):
    """The guide begins with none, and a process has one."""
    for name in ("_engine", "_initialized"):
        monkeypatch.setattr(Metastore, name, None)


@pytest.mark.usefixtures("own_metastore")
def test_the_guide(hosts, folder, valkey, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    names = {"__name__": "guide"}
    for number, block in enumerate(FENCE.findall(GUIDE.read_text()), 1):
        if block.startswith("# myagents.py"):
            (folder / "myagents.py").write_text(block)
            continue
        # Hosts may be anywhere: the file of the database has a place that all know.
        here = block.replace("6379", str(valkey.port)).replace("///guilds.db", f"///{tmp_path}/guilds.db")
        exec(compile(here, f"{GUIDE.name}:{number}", "exec"), names)
    assert names["engine"].get_agents_in_guild("office") == {}
    Metastore.get_engine().dispose()
