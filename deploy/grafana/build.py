"""The dashboards, written once here: ``build.py`` writes their JSON, ``build.py --check`` fails if one is not current."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from pages import DASHBOARDS

FOLDER = Path(__file__).parent


def texts() -> dict[Path, str]:
    """What each file should have in it."""
    return {
        FOLDER / f"{dashboard.uid}.json": json.dumps(dashboard.model(), indent=2, ensure_ascii=False) + "\n"
        for dashboard in DASHBOARDS
    }


def main(words: list[str]) -> int:
    """Write all files, or say which are not current."""
    wanted = texts()
    stale = [file for file, text in wanted.items() if not file.exists() or file.read_text() != text]
    stale += [file for file in sorted(FOLDER.glob("*.json")) if file not in wanted]
    if "--check" in words:
        for file in stale:
            print(f"{file.name} is not what build.py writes: run python deploy/grafana/build.py")
        return 1 if stale else 0
    for file in stale:
        if file in wanted:
            file.write_text(wanted[file])
        else:
            file.unlink()
        print(f"{file.name} written" if file in wanted else f"{file.name} removed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
