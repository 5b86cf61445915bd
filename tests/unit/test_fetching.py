"""What tests need beside .venv: fetched before the tests, once; what can't be had is written down and said."""

from __future__ import annotations

import pytest

from tests.support.tools import environments, fetching
from tests.support.tools.fetching import Tool
from tests.support.tools.missing import OPT_OUT, Missing


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """A tool that can't be fetched until the file ``there`` exists; ``fetches`` counts how often it was tried."""
    monkeypatch.setattr(fetching, "REASONS", tmp_path / ".tools" / "missing")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv(OPT_OUT, raising=False)

    def fetch() -> None:
        with (tmp_path / "fetches").open("a") as fetches:
            fetches.write(".")
        if not (tmp_path / "there").exists():
            raise Missing("the network is away")
        (tmp_path / "fetched").touch()

    made = Tool("tool", "The tool", lambda: next(tmp_path.glob("fetched"), None), fetch)
    monkeypatch.setattr(fetching, "ALL", ((made,),))
    return made


def test_it_is_fetched_once(tool, tmp_path):
    (tmp_path / "there").touch()
    assert fetching.fetch_all() == {}
    assert fetching.fetch_all() == {}
    assert (tmp_path / "fetches").read_text() == "."
    assert fetching.needed(tool) == tmp_path / "fetched"


def test_a_test_without_its_tool_is_skipped_with_the_reason(tool):
    assert fetching.fetch_all() == {"The tool": "the network is away"}
    with pytest.raises(pytest.skip.Exception, match=r"^The tool \(the network is away\)$"):
        fetching.needed(tool)


def test_what_could_not_be_had_is_tried_again(tool, tmp_path):
    fetching.fetch_all()
    (tmp_path / "there").touch()
    assert fetching.fetch_all() == {}
    assert fetching.needed(tool) == tmp_path / "fetched"
    assert not (fetching.REASONS / "tool").exists()


def test_a_test_that_was_started_without_make_says_what_to_do(tool):
    with pytest.raises(pytest.skip.Exception, match="it has not been fetched: make tools does that"):
        fetching.needed(tool)


def test_in_a_ci_a_test_without_its_tool_fails_and_says_what_to_do(tool, monkeypatch):
    monkeypatch.setenv("CI", "true")
    fetching.fetch_all()
    with pytest.raises(
        pytest.fail.Exception, match=r"The tool \(the network is away\); or set TOOLS_MAY_BE_MISSING=1"
    ):
        fetching.needed(tool)


def test_a_ci_may_say_that_it_does_without(tool, monkeypatch):
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv(OPT_OUT, "1")
    with pytest.raises(pytest.skip.Exception, match="The tool"):
        fetching.needed(tool)


def test_an_environment_is_current_as_long_as_what_it_was_made_from_and_its_python_are_there(tmp_path):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.touch()
    assert not environments.is_current(tmp_path, "the lock")
    environments.mark_current(tmp_path, "the lock")
    assert environments.is_current(tmp_path, "the lock")
    assert not environments.is_current(tmp_path, "another lock")
    python.unlink()
    assert not environments.is_current(tmp_path, "the lock")


UV = r"""#!/bin/sh
cat >&2 <<'END'
error: Failed to download `x==1`
  cause: Request failed after 1 retries
  cause: failed to lookup address information: Temporary failure in name
         resolution

hint: `x` was included because holdfast depends on it
END
exit 1
"""


def test_why_uv_can_not_install_is_one_line(tmp_path, monkeypatch):
    uv = tmp_path / "uv"
    uv.write_text(UV)
    uv.chmod(0o755)
    monkeypatch.setattr(environments, "UV", uv)
    with pytest.raises(Missing) as raised:
        environments.make_checkov()
    assert str(raised.value) == (
        "uv could not install it: error: Failed to download `x==1`: "
        "failed to lookup address information: Temporary failure in name resolution"
    )
