"""What the Dockerfile says, instruction by instruction."""

from __future__ import annotations

import re

from tests.support.paths import ROOT

DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"

Stage = list[tuple[str, str]]


def instructions() -> Stage:
    """Every instruction, with its arguments on one line."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    whole = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in whole.splitlines() if line.strip()]


def stages() -> list[Stage]:
    found: list[Stage] = []
    for name, words in instructions():
        if name == "FROM":
            found.append([])
        if found:
            found[-1].append((name, words))
    return found


def build_stage() -> Stage:
    """The stage that installs Holdfast."""
    [stage] = [stage for stage in stages() if stage[0][1].endswith("AS build")]
    return stage


def copied(stage: Stage) -> list[str]:
    """What a stage takes from the folder of the build."""
    mine = [words for name, words in stage if name == "COPY" and "--from=" not in words]
    return [source for words in mine for source in words.split()[:-1]]
