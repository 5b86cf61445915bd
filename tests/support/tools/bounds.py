"""The upper bounds of pyproject.toml: ``python -m tests.support.tools.bounds`` prints what is bounded, without its bound.

That is what uv takes as overrides, in the workflow ``newest``.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable

from tests.support.paths import ROOT

_REQUIREMENT = re.compile(r"([\w-]+)(?:\[.*?\])?([^;]*)")
_UPPER = re.compile(r",?<[^,]*")


def bounds_of(requirements: Iterable[str]) -> dict[str, set[str]]:
    """What each library is asked for with, by every place that names it."""
    found = defaultdict[str, set[str]](set)
    for each in requirements:
        match = _REQUIREMENT.match(each)
        assert match, each
        found[match[1]].add(match[2].strip())
    return found


def requirements(*, of_users: bool = False) -> list[str]:
    """Everything that is asked for: only what users install, or also what developers do."""
    written = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, groups = written["project"], written["dependency-groups"]
    extras = [
        each for name, each in project["optional-dependencies"].items() if name != "dev" or not of_users
    ]
    lists = [project["dependencies"], *extras, *([] if of_users else groups.values())]
    return [each for some in lists for each in some]


def without_bounds() -> list[str]:
    """What users install with an upper bound, without it."""
    bounded = bounds_of(each for each in requirements(of_users=True) if "<" in each)
    return sorted(name + _UPPER.sub("", min(bounds)) for name, bounds in bounded.items())


if __name__ == "__main__":
    print("\n".join(without_bounds()))
