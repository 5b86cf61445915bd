"""A roll-out: which share of the tenants goes the new way. Pure: the same tenant always gets the same answer.

Invariant: raising the percentage only adds tenants, lowering it only takes some away.
"""

from __future__ import annotations

import hashlib
import math
import re
from typing import Final

import msgspec

from holdfast.errors import InputError

PLACES: Final = 10_000
"""Tenants are told apart to a hundredth of a percent."""
_NAME: Final = re.compile(r"[A-Za-z0-9._:-]{1,200}\Z")


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """A percentage flag as it is set; one that nobody has set is off."""

    name: str
    percent: float = 0.0
    allowed: frozenset[str] = frozenset()
    """Tenants that go the new way as soon as anybody does."""
    denied: frozenset[str] = frozenset()
    """Tenants that never do."""
    reason: str = ""
    changed_at: float = 0.0

    def includes(self, tenant: str) -> bool:
        """Whether this tenant goes the new way."""
        # 0 comes before the allowed ones: who rolls back must not have to remember them.
        if self.percent <= 0 or tenant in self.denied:
            return False
        return tenant in self.allowed or place_of(self.name, tenant) < self.percent * PLACES / 100


def place_of(name: str, tenant: str) -> int:
    """Where a tenant stands in this roll-out, from 0 to 9999; each roll-out begins with other tenants."""
    digest = hashlib.blake2b(f"{name}\0{tenant}".encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % PLACES


def checked_percent(value: float) -> float:
    """Return ``value`` if it can be a percentage."""
    if not (math.isfinite(value) and 0 <= value <= 100):
        raise InputError(f"percent must be a number from 0 to 100, got {value:g}")
    return round(value, 2)


def checked_rollout(name: str) -> str:
    """Return ``name`` if it can be the name of a roll-out."""
    if not _NAME.match(name):
        raise InputError(
            f"a roll-out must have a name of 1 to 200 letters, digits and . _ : -, got {name[:80]!r}"
        )
    return name
