"""Every setting as a row, for the command line and for the generated reference page."""

from __future__ import annotations

from itertools import groupby
from typing import Final

import msgspec

from holdfast.config.schema import Leaf, leaves

_INTRODUCTION: Final = """\
# Settings

<!-- Generated from the code by `make docs`: change the code, not this page. -->

Settings come from one file and the environment: environment beats file beats default. The file is the one
given on the command line, else the one that `HOLDFAST_CONFIG` names, else `holdfast.yaml` in the current
directory. An unknown or invalid setting stops start-up, and all problems are reported at once.
`holdfast config show` prints the source of each value.

- Durations are numbers in the unit of the setting's name, or have their own unit: `500ms`, `30s`, `5m`,
  `2h`, `1d`, `1h30m`. A variable whose name ends with `_MS`, `_SECONDS` or `_MINUTES` counts in that unit.
- The settings of schedules (`redis.scheduler`, `redis.agent`) have hyphens in their names, and count in
  milliseconds where they end with `-ms`: a configuration that was written with these names for another
  scheduler is read as it is. All other settings have underscores.
- An empty variable counts as not set. Two variables for one setting must agree.
- `queue` holds the defaults of every queue; `queues.<name>` overrides any of them for one queue, in the
  file only. The variables of `queue` are defaults too, and for the default queue they also beat
  `queues.<name>`. A queue that a worker serves without a description has the defaults.
- `queue.group` and `queue.deadletter` belong to the default queue; the other queues don't inherit them.

```yaml
redis:
  url: rediss://redis.example:6379/0
queue:
  timeout_seconds: 30m
queues:
  media:
    slots: 16
    backoff: {cap_seconds: 10m}
worker:
  queues: [agent-queue, media]
```
"""


class SettingRow(msgspec.Struct, frozen=True):
    """The row of a setting, as text."""

    path: str
    env: tuple[str, ...]
    type: str
    default: str
    allowed: str
    description: str


def setting_rows() -> tuple[SettingRow, ...]:
    """Return every setting, in the order of the tree."""
    return tuple(
        SettingRow(
            path=leaf.path,
            env=leaf.env,
            type=_type(leaf),
            default=leaf.default_text,
            allowed=leaf.allowed,
            description=leaf.description,
        )
        for leaf in leaves()
    )


def settings_table() -> str:
    """Return the reference page of the settings, in Markdown."""
    sections = groupby(setting_rows(), key=lambda row: row.path.partition(".")[0])
    return _INTRODUCTION + "".join(_section(name, tuple(rows)) for name, rows in sections)


def _section(name: str, rows: tuple[SettingRow, ...]) -> str:
    lines = [
        f"\n## {name}\n",
        "| setting | environment | type | default | allowed | what it does |",
        "|---|---|---|---|---|---|",
        *(_line(row) for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _line(row: SettingRow) -> str:
    env = "<br>".join(f"`{name}`" for name in row.env)
    default = "empty" if row.default == '""' else row.default
    cells = (f"`{row.path}`", env, row.type, default, row.allowed, row.description)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _type(leaf: Leaf) -> str:
    if leaf.unit is not None:
        return "duration"
    return "secret" if leaf.secret else leaf.kind
