"""Names that callers write, and how each is checked."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta

# ``must`` completes "<field> must ..." in the error for a name that does not match.
NAMED: Final = {"must": "be letters, digits and _ . : / -, beginning with a letter, a digit or _"}

Name: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=200, pattern="^[A-Za-z0-9_][A-Za-z0-9_.:/-]*$", extra=NAMED)
]
"""The name of an agent or of a schedule."""
Tenant: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=100,
        pattern="^[A-Za-z0-9_.-]+$",
        extra={"must": "be letters, digits and . _ -"},
    ),
]
