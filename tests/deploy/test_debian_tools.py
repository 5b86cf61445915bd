"""The tools that tests fetch: out of a package, once; and a sentence where that is not possible."""

from __future__ import annotations

import os

import pytest

from tests.support.deploy import debian_tools

APT = """#!/bin/sh
echo "$@" >> {log}
case "$*" in
  *update*) touch {updated};;
  *download*) if [ -e {updated} ]; then touch package.deb; else echo "E: Unable to locate package"; fi;;
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
    monkeypatch.setattr(debian_tools, "FOLDER", tmp_path / "debian")

    def add(name: str, script: str) -> None:
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)

    return add


def test_what_the_path_has_is_used(machine):
    machine("promtool", "#!/bin/sh\n")
    assert debian_tools.find("promtool").parent == debian_tools.Path(os.environ["PATH"])


def test_without_apt_it_says_what_to_install(machine):
    with pytest.raises(debian_tools.Missing, match=r"promtool: install it \(Debian: prometheus\)"):
        debian_tools.find("promtool")


def test_it_is_fetched_once_with_lists_of_our_own_where_there_are_none(machine, tmp_path):
    log = tmp_path / "log"
    machine("apt-get", APT.format(log=log, updated=tmp_path / "updated"))
    machine("dpkg-deb", DPKG)
    found = debian_tools.find("promtool")
    assert found == debian_tools.FOLDER / "usr" / "bin" / "promtool"
    asked = log.read_text().splitlines()
    assert [line.split()[-1] for line in asked] == ["prometheus", "update", "prometheus"]
    assert "Dir::State::lists" in asked[1]
    assert "Dir::State::lists" in asked[2]
    assert debian_tools.find("promtool") == found
    assert log.read_text().splitlines() == asked


def test_what_apt_says_is_told_when_it_can_not(machine, tmp_path):
    machine("apt-get", "#!/bin/sh\necho 'E: the mirror is away'\n")
    machine("dpkg-deb", DPKG)
    with pytest.raises(debian_tools.Missing, match="fetching it failed: E: the mirror is away"):
        debian_tools.find("promtool")


def test_a_test_without_its_tool_is_skipped_by_name(machine, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="amtool: install it"):
        debian_tools._tool("amtool")


def test_in_a_ci_a_test_without_its_tool_fails_and_says_what_to_do(machine, monkeypatch):
    monkeypatch.setenv("CI", "true")
    monkeypatch.delenv(debian_tools.OPT_OUT, raising=False)
    with pytest.raises(
        pytest.fail.Exception, match=r"amtool: install it .*; or set TOOLS_MAY_BE_MISSING=1 if this CI"
    ):
        debian_tools._tool("amtool")


def test_a_ci_may_say_that_it_does_without(machine, monkeypatch):
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv(debian_tools.OPT_OUT, "1")
    with pytest.raises(pytest.skip.Exception, match="amtool: install it"):
        debian_tools._tool("amtool")
