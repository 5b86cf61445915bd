"""The declaration of a setting: one annotation with its description, limits and names.

A section's repr never shows a secret.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, cast, get_args, get_origin

import msgspec
import msgspec.structs
from msgspec import Meta

from holdfast.config.redact import shown


def about(
    description: str,
    *env: str,
    ge: float | None = None,
    le: float | None = None,
    pattern: str | None = None,
    allowed: str = "",
    default: str = "",
    secret: bool = False,
    url: bool = False,
    regex: bool = False,
) -> Meta:
    """Describe a leaf: its description, its environment names, its limits and how to show it."""
    extra = {"env": env, "allowed": allowed, "default": default, "secret": secret, "url": url, "regex": regex}
    limits: dict[str, Any] = {"ge": ge, "le": le, "pattern": pattern}
    return Meta(description=description, extra=extra, **limits)


def meta_of(annotation: object) -> Meta | None:
    """Return the ``about`` of an annotation, or None for a section."""
    parts = cast("tuple[object, ...]", get_args(annotation)) if get_origin(annotation) is Annotated else ()
    return next((part for part in parts if isinstance(part, Meta)), None)


@cache
def fields_of(section: type[Section]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields of a section; evaluating their annotations takes a tenth of a command's start."""
    return msgspec.structs.fields(section)


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the tree; its repr hides secrets, so that a log line can't leak them."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._parts())})"

    def _parts(self) -> list[str]:
        parts: list[str] = []
        for field in fields_of(type(self)):
            meta, value = meta_of(field.type), cast("object", getattr(self, field.name))
            extra = (meta.extra if meta else None) or {}
            hides = bool(extra.get("secret") or extra.get("url"))
            text = shown(value, secret=bool(extra.get("secret")), url=True) if hides else repr(value)
            parts.append(f"{field.name}={text}")
        return parts
