"""What the outside sees of live processes."""

from __future__ import annotations

from typing import Any

import msgspec


class MemberView(msgspec.Struct, frozen=True):
    """One live process, as it last described itself."""

    kind: str
    name: str
    fields: dict[str, Any]
    """Its record: ``pid``, ``load``, ``capacity`` and ``since`` (epoch seconds) are numbers."""


class MemberList(msgspec.Struct, frozen=True):
    """Every live process."""

    members: list[MemberView]
