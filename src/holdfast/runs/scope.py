"""Names of a tenant: its threads, concurrency keys and idempotency keys are separate from those of others.

A stored name has the tenant as prefix; users see the name that they gave.
"""

from __future__ import annotations

from typing import Final

_NAMED: Final = ("thread:", "key:")


def scoped(tenant: str, name: str) -> str:
    """Return the stored name of a tenant's thread, limit or idempotency key."""
    return f"{_owner(tenant)}/{name}" if tenant and name else name


def unscoped(tenant: str, name: str) -> str:
    """Return the name as the tenant gave it."""
    return name.removeprefix(f"{_owner(tenant)}/") if tenant else name


def shown_limit(tenant: str, limit: str) -> str:
    """Return a limit's name, such as ``thread:7``, as the tenant gave it."""
    for kind in _NAMED:
        if limit.startswith(kind):
            return kind + unscoped(tenant, limit.removeprefix(kind))
    return limit


def _owner(tenant: str) -> str:
    """Escape the slash of a tenant, or it would reach names of another tenant; limits.lua does the same."""
    return tenant.replace("%", "%25").replace("/", "%2F")
