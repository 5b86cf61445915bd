"""Writes the pages of docs/reference from the code: ``python -m holdfast.cli.reference [--check] [FOLDER]``.

A page is never edited by hand; ``--check`` fails when one differs from what the code says.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast import errors
from holdfast.config import settings_table
from holdfast.redis.datamodel import keys_table
from holdfast.telemetry.metric_types import SECONDS
from holdfast.telemetry.metrics import metrics_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

FOLDER: Final = Path("docs/reference")
NOTE: Final = "<!-- Generated from the code by `make docs`: change the code, not this page. -->"


def metrics_page() -> str:
    """The page of the metrics."""
    buckets = ", ".join(f"{bound:g}" for bound in SECONDS)
    return f"""# Metrics

{NOTE}

A process serves these at `/metrics` when `metrics.port` is set, beside its own `holdfast_process_*`
(memory, processor time, open files). `agent` is the name of an agent that the process knows, else
`other`; `queue` is a configured queue, `producer` and `rollout` are names that a program gives; the other
labels have a fixed set of values.
Durations of runs and of their waiting have the buckets {buckets} seconds.

{metrics_table()}
"""


def keys_page() -> str:
    """The page of the Redis keys."""
    return f"""# Keys in Redis

{NOTE}

The keys of a queue named `agent-queue`, without `redis.key_prefix`. The normal lane has the queue's plain
name; its companions carry the name as a hash tag, so one queue lives in one cluster slot.

{keys_table()}
"""


def errors_page() -> str:
    """The page of the exceptions."""
    rows = "\n".join(
        f"| `{error.__name__}` | `{error.__base__.__name__ if error.__base__ else ''}` | {_sentence(error)} |"
        for error in vars(errors).values()
        if inspect.isclass(error) and error.__module__ == errors.__name__
    )
    tree = inspect.cleandoc(errors.__doc__ or "").partition("::\n")[2]
    return f"""# Errors

{NOTE}

Everything Holdfast raises on purpose is a `HoldfastError` and lives in `holdfast.errors`.

```
{inspect.cleandoc(tree)}
```

| error | is a | when |
|---|---|---|
{rows}
"""


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "settings": settings_table,
    "metrics": metrics_page,
    "keys": keys_page,
    "errors": errors_page,
}


def pages() -> dict[str, str]:
    """Every page as the code has it now, by its file name."""
    return {f"{name}.md": page().rstrip("\n") + "\n" for name, page in PAGES.items()}


def write(texts: Mapping[str, str], folder: Path) -> list[str]:
    """Write the pages that differ; returns their names."""
    changed = stale(texts, folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in changed:
        (folder / name).write_text(texts[name], encoding="utf-8")
    return changed


def stale(texts: Mapping[str, str], folder: Path) -> list[str]:
    """Names of the pages that are missing or differ from what the code says."""
    return [name for name, text in texts.items() if _read(folder / name) != text]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the pages; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.cli.reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page is stale")
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    options = parser.parse_args(arguments)
    folder: Path = options.folder
    if not options.check:
        for name in write(pages(), folder):
            sys.stdout.write(f"wrote {folder / name}\n")
        return 0
    old = stale(pages(), folder)
    for name in old:
        sys.stderr.write(f"{folder / name} is not what the code says: run `make docs`\n")
    return 1 if old else 0


def _sentence(error: type) -> str:
    return " ".join(inspect.cleandoc(error.__doc__ or "").split("\n\n")[0].split()).replace("``", "`")


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
