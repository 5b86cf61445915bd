"""A caller: its tenant and its roles, which decide what it sees and what it may do."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.errors import AccessDenied, InputError

READ: Final = "read"
SUBMIT: Final = "submit"
OPERATE: Final = "operate"
ROLES: Final = (READ, SUBMIT, OPERATE)
EVERY_TENANT: Final = "*"


class Caller(msgspec.Struct, frozen=True):
    """The sender of a request; an empty tenant means every tenant."""

    name: str
    tenant: str
    roles: frozenset[str]

    @property
    def operates(self) -> bool:
        """Whether it is an operator of the whole system, who may read addresses and tracebacks."""
        return not self.tenant and OPERATE in self.roles  # guard: server-address-for-operators

    def sees(self, tenant: str) -> bool:
        """Whether what belongs to ``tenant`` exists for this caller."""
        return not self.tenant or self.tenant == tenant  # guard: tenant-sees-own

    def tenant_for(self, asked: str) -> str:
        """Return the tenant of what this caller makes; a key of one tenant makes nothing for another."""
        if self.tenant and asked and asked != self.tenant:
            raise InputError(f"tenant: the key belongs to {self.tenant!r}, not to {asked!r}; leave it out")
        return self.tenant or asked

    def require(self, role: str) -> None:
        """Raise AccessDenied unless the caller has this role."""
        if role not in self.roles:  # guard: route-role
            has = "+".join(each for each in ROLES if each in self.roles)
            raise AccessDenied(f"the key {self.name!r} has the role {has}; this needs the role {role}")

    def require_every_tenant(self) -> None:
        """Raise AccessDenied for a tenant's own key: some things belong to no tenant."""
        if self.tenant:
            raise AccessDenied(
                f"the key {self.name!r} belongs to the tenant {self.tenant!r}; this concerns every tenant "
                f"and needs a key whose tenant is {EVERY_TENANT}"
            )


OPERATOR: Final = Caller("", "", frozenset(ROLES))
"""The caller of an API without keys, and of commands that reach Redis themselves."""
