"""Every leaf of the tree as a value, read from its annotation, which is the only declaration of a setting."""

from __future__ import annotations

from functools import cache
from typing import Final, Literal, cast, get_args, get_origin

import msgspec
from msgspec import Meta

from holdfast.config.durations import HOW_TO_WRITE, UNIT_SECONDS, human_duration
from holdfast.config.queues import QueueSettings
from holdfast.config.redact import shown
from holdfast.config.section import Section, fields_of, meta_of
from holdfast.config.tree import Settings

Kind = Literal["whole number", "number", "true or false", "text", "choice", "list of names"]

_UNITS: Final = {"_ms": "ms", "_seconds": "s", "_minutes": "m"}
_UNIT_WORDS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes"}
_KINDS: Final[dict[object, Kind]] = {
    int: "whole number",
    float: "number",
    bool: "true or false",
    str: "text",
    tuple: "list of names",
    Literal: "choice",
}


class Leaf(msgspec.Struct, frozen=True):
    """One setting: its path, its allowed values, and its environment names."""

    path: str
    kind: Kind
    annotation: object
    default: object
    default_text: str
    description: str
    env: tuple[str, ...]
    allowed: str
    choices: tuple[str, ...]
    unit: str | None
    secret: bool
    url: bool
    regex: bool = False

    @property
    def attributes(self) -> str:
        """The path as attributes of the tree: a key with hyphens is an attribute with underscores."""
        return self.path.replace("-", "_")

    def show(self, value: object) -> str:
        """Return a value of this setting to show, with secrets hidden."""
        return shown(value, secret=self.secret, url=self.url)


@cache
def leaves() -> tuple[Leaf, ...]:
    """Return every setting, in the order of the tree; a queue's are listed once, under ``queue``."""
    return tuple(_walk(Settings, ""))


@cache
def leaf_at(path: str) -> Leaf:
    """Return the setting of a known path."""
    return next(leaf for leaf in leaves() if leaf.path == path)


@cache
def queue_leaves() -> tuple[str, ...]:
    """Return the paths of a queue's settings, below the queue: ``slots``, ``backoff.jitter``."""
    return tuple(leaf.path for leaf in _walk(QueueSettings, ""))


def unit_of(name: str) -> str | None:
    """Return the unit at the end of a setting's or a variable's name."""
    lower = name.lower().replace("-", "_")
    return next((unit for ending, unit in _UNITS.items() if lower.endswith(ending)), None)


def _walk(section: type[Section], prefix: str) -> list[Leaf]:
    found: list[Leaf] = []
    for field in fields_of(section):
        path, meta = prefix + field.encode_name, meta_of(field.type)
        if meta is not None:
            found.append(_leaf(path, field.type, field.default, meta))
        elif isinstance(field.type, type) and issubclass(field.type, Section):
            found.extend(_walk(field.type, f"{path}."))
    return found


def _leaf(path: str, annotation: object, default: object, meta: Meta) -> Leaf:
    extra = meta.extra or {}
    inner = cast("tuple[object, ...]", get_args(annotation))[0]
    kind = _KINDS[get_origin(inner) or inner]
    choices = cast("tuple[str, ...]", get_args(inner)) if kind == "choice" else ()
    unit = unit_of(path)
    generated = "HOLDFAST_" + path.upper().replace(".", "_").replace("-", "_")
    return Leaf(
        path=path,
        kind=kind,
        annotation=annotation,
        default=default,
        default_text=extra["default"] or shown(default),
        description=meta.description or "",
        env=tuple(dict.fromkeys((*extra["env"], generated))),
        allowed=extra["allowed"]
        or ("a regular expression" if extra["regex"] else _allowed(kind, meta, unit, choices)),
        choices=choices,
        unit=unit,
        secret=extra["secret"],
        url=extra["url"],
        regex=extra["regex"],
    )


def _allowed(kind: Kind, meta: Meta, unit: str | None, choices: tuple[str, ...]) -> str:
    if kind == "choice":
        return f"{'one of ' if len(choices) > 1 else ''}{', '.join(choices)}"
    if kind in {"true or false", "text"}:
        return kind
    assert meta.ge is not None, "every number has a lower bound"
    assert meta.le is not None, "every number has an upper bound"
    if unit is None:
        return f"a {kind} from {shown(meta.ge)} to {shown(meta.le)}"
    low, high = (human_duration(bound * UNIT_SECONDS[unit]) if bound else "0" for bound in (meta.ge, meta.le))
    return f"a duration from {low} to {high}: a number of {_UNIT_WORDS[unit]}, or like {HOW_TO_WRITE}"
