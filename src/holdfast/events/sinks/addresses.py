"""Validation of the addresses of URLs from submitters: private networks are not allowed."""

from __future__ import annotations

import ipaddress
import re
from typing import TypeAlias
from urllib.parse import urlsplit

Ip: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_IPV4_IN_IPV6 = tuple(ipaddress.IPv6Network(each) for each in ("64:ff9b::/96", "::/96"))
"""NAT64, and the old IPv4-compatible addresses: the last 32 bits are an IPv4 address."""
_PRIVATE_DOMAINS = frozenset({"localhost", "local", "internal", "svc", "lan", "home.arpa"})
"""Domains that the public DNS does not have; a Kubernetes Service is below ``svc`` or ``cluster.local``."""
_NUMERAL = re.compile(r"(?:0x[0-9a-f]*|[0-9]*)(?:\.(?:0x[0-9a-f]*|[0-9]*))*", re.IGNORECASE)


def is_public(host: str) -> bool:
    """Return whether an IP address is public, also if it is an IPv4 address in IPv6 notation."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return all(each.is_global and not each.is_multicast for each in (address, *_within(address)))


def leads_inside(url: str) -> bool:
    """Return whether a URL has a private address, or a name of a private network.

    Names are not resolved: a slow DNS server would delay submissions, and the result would reveal to the
    caller which names the private network has.
    """
    try:
        host = (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return False
    if is_literal(host):
        return not is_public(host)
    return bool(host) and _is_private_name(host)  # guard: webhook-private-names


def _is_private_name(host: str) -> bool:
    """Return whether a lower-case name has no domain, or a domain of private networks only."""
    labels = host.split(".")
    if len(labels) == 1:
        return True
    return labels[-1] in _PRIVATE_DOMAINS or ".".join(labels[-2:]) in _PRIVATE_DOMAINS


def _within(address: Ip) -> list[Ip]:
    """Return the IPv4 addresses that an IPv6 address contains."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    found = [address.ipv4_mapped, address.sixtofour, address.teredo[1] if address.teredo else None]
    if any(address in each for each in _IPV4_IN_IPV6):
        found.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [each for each in found if each is not None]


def is_literal(host: str) -> bool:
    """Return whether a host is an IP address, in any notation, rather than a name."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        # C libraries read 127.1, 0x7f000001 and 2130706433 as loopback, and no name has this form.
        return bool(host) and _NUMERAL.fullmatch(host) is not None
    return True
