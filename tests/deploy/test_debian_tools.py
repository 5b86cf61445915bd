"""promtool and amtool: out of a package, once; and a sentence where that is not possible."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.tools import debian
from tests.support.tools.missing import Missing

APT = """#!/bin/sh
echo "$@" >> '{log}'
case "$*" in
  *update*) touch '{updated}';;
  *download*) if [ -e '{updated}' ]; then touch package.deb; else echo "E: Unable to locate package"; fi;;
esac
"""
DPKG = """#!/bin/sh
mkdir -p "$3/usr/bin" && echo "#!/bin/sh" > "$3/usr/bin/promtool" && chmod +x "$3/usr/bin/promtool"
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with an empty PATH but for a shell's tools, and nothing fetched; ``machine(name, script)`` adds a program."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("touch", "mkdir", "chmod", "sh"):
        (programs / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(debian, "FOLDER", tmp_path / "debian")

    def add(name: str, script: str) -> None:
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)

    return add


def test_what_the_path_has_is_used(machine):
    machine("promtool", "#!/bin/sh\n")
    assert debian.find("promtool") == Path(os.environ["PATH"]) / "promtool"


def test_without_apt_it_says_what_to_install(machine):
    assert debian.find("promtool") is None
    with pytest.raises(Missing, match="no apt-get to fetch it with; install prometheus"):
        debian.fetch("promtool")


def test_it_is_fetched_with_lists_of_our_own_where_there_are_none(machine, tmp_path):
    log = tmp_path / "log"
    machine("apt-get", APT.format(log=log, updated=tmp_path / "updated"))
    machine("dpkg-deb", DPKG)
    debian.fetch("promtool")
    assert debian.find("promtool") == debian.FOLDER / "usr" / "bin" / "promtool"
    asked = log.read_text().splitlines()
    assert [line.split()[-1] for line in asked] == ["prometheus", "update", "prometheus"]
    assert "Dir::State::lists" in asked[1]
    assert "Dir::State::lists" in asked[2]


def test_what_apt_says_is_told_when_it_can_not(machine):
    machine("apt-get", "#!/bin/sh\necho 'E: the mirror is away'\n")
    machine("dpkg-deb", DPKG)
    with pytest.raises(Missing, match="fetching it failed: E: the mirror is away; install prometheus"):
        debian.fetch("promtool")
