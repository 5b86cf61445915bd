"""Write what KEDA gets with each profile of the chart, a file each, for Deployments that are not ours.

python deploy/keda/build.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from holdfast.cli.render import NOTE, Profile, manifests

FOLDER: Final = Path(__file__).parent
VALUES: Final = FOLDER.parent / "kubernetes" / "values.yaml"
NEVER_ZERO: Final = FOLDER / "redis-streams.values.yaml"
PROFILES: Final[tuple[Profile, ...]] = ("metrics-api", "external-push", "redis-streams")
_NOTE: Final = "# Rendered by `make keda` from the chart: change that or its values, not this file.\n"


def texts() -> dict[Path, str]:
    """What each file should have in it."""
    return {FOLDER / f"{profile}.yaml": _text(profile) for profile in PROFILES}


def _text(profile: Profile) -> str:
    values = (VALUES, NEVER_ZERO) if profile == "redis-streams" else (VALUES,)
    return _NOTE + manifests(values, profile=profile)["keda.yaml"].removeprefix(NOTE)


def main(words: list[str]) -> int:
    """Write all files, or say which are not current."""
    stale = {file: text for file, text in texts().items() if not file.exists() or file.read_text() != text}
    for file, text in stale.items():
        if "--check" in words:
            print(f"{file.name} is not what the chart says: run `make keda`")
        else:
            file.write_text(text)
            print(f"{file.name} written")
    return 1 if stale and "--check" in words else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
