"""Names of a tenant: its threads, keys and idempotency keys are its own, whichever door it comes in by.

Inside, a name carries its tenant; whatever people see has the name that they gave.
"""

from __future__ import annotations

from typing import Final

_NAMED: Final = ("thread:", "key:")


def scoped(tenant: str, name: str) -> str:
    """Return what a tenant's thread, limit or idempotency key is called among those of all tenants."""
    return f"{_owner(tenant)}/{name}" if tenant and name else name


def unscoped(tenant: str, name: str) -> str:
    """Return the name as the tenant gave it."""
    return name.removeprefix(f"{_owner(tenant)}/") if tenant else name


def shown_limit(tenant: str, limit: str) -> str:
    """Return a limit's name, such as ``thread:7``, as the tenant knows it."""
    for kind in _NAMED:
        if limit.startswith(kind):
            return kind + unscoped(tenant, limit.removeprefix(kind))
    return limit


def _owner(tenant: str) -> str:
    """Tenants must not reach each other's names by a slash in their own; limits.lua writes the same."""
    return tenant.replace("%", "%25").replace("/", "%2F")
