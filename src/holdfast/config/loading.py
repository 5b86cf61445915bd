"""Reads the settings once: environment beats file beats default, and every value has its source.

Settings are returned only if all are valid; all problems are reported in one ConfigError.
"""

from __future__ import annotations

import os
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import msgspec

from holdfast.config.environment import CONFIG_VARIABLE, unknown_variables, variables
from holdfast.config.problems import config_error
from holdfast.config.resolve import Draft, SettingsDocument
from holdfast.config.schema import Leaf, leaf_at, leaves, queue_leaves
from holdfast.config.tree import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.config.section import Section

DEFAULT_FILE: Final = Path("holdfast.yaml")


class Shown(msgspec.Struct, frozen=True):
    """A setting: its value, with secrets hidden, and its source."""

    path: str
    value: str
    source: str


class Loaded(msgspec.Struct, frozen=True):
    """The settings, and for each path ``default``, ``holdfast.yaml:LINE`` or ``environment NAME``."""

    settings: Settings
    sources: dict[str, str]
    file: Path | None

    def shown(self) -> tuple[Shown, ...]:
        """Return every setting to show; of a queue, those that differ from ``queue``."""
        general = [_show(leaf.path, leaf, self.settings, leaf.attributes, self.sources) for leaf in leaves()]
        for name in self.settings.queue_names():
            queue = self.settings.queue_named(name)
            for part in queue_leaves():
                path = f"queues.{name}.{part}"
                if path in self.sources:
                    general.append(_show(path, leaf_at(f"queue.{part}"), queue, part, self.sources))
        return tuple(general)


def load(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Loaded:
    """Read the settings from a file and the environment, or raise ConfigError with all problems."""
    environment = os.environ if environ is None else environ
    file = _find_file(path, environment)
    draft = Draft(document=_read(file), environment=variables(environment))
    draft.problems += [*draft.document.problems, *unknown_variables(environment)]
    settings = draft.settings()
    draft.contradictions(settings)
    if draft.problems:
        raise config_error(draft.problems)
    return Loaded(settings=settings, sources=draft.sources, file=file)


def load_settings(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from a file and the environment, as :func:`load`, without where they came from."""
    return load(path, environ).settings


def _find_file(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    if path is not None:
        return path
    named = environ.get(CONFIG_VARIABLE, "").strip()
    if named:
        return Path(named)
    return DEFAULT_FILE if DEFAULT_FILE.exists() else None


def _read(file: Path | None) -> SettingsDocument:
    if file is None:
        return SettingsDocument()
    from holdfast.config.document import read_document  # noqa: PLC0415 - most processes have no file to parse

    return read_document(file)


def _show(path: str, leaf: Leaf, section: Section, below: str, sources: Mapping[str, str]) -> Shown:
    value = cast("object", reduce(getattr, below.split("."), section))
    return Shown(path, leaf.show(value), sources[path])
