"""Hides the passwords and tokens of URLs in what people read: settings, error messages and log lines.

Invariant: what is hidden in one of them is hidden in all. Too much is hidden rather than too little.
"""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "***"

_NAMES: Final = "|".join(
    (
        *("passw(?:or)?d", "passphrase", "pwd", "secret", "token", "signature", "credential"),
        *("api[_-]?key", "access[_-]?key", "[?&]key", "[?&]sig"),
    )
)
# A quoted value may hold blanks: password='a b' in the words of libpq.
_PARAMETER = re.compile(rf"((?:{_NAMES})=)(?:'[^']*'|\"[^\"]*\"|[^&\s'\"]+)", re.IGNORECASE)

# Greedy up to the last @: a password may itself hold /, ?, # or @.
_WHOLE_USERINFO = re.compile(r"(?<=://)(.*)@", re.DOTALL)
# In a text: up to the last @ of the word, or of the line if the colon is followed by a password and no port.
_USERINFO = re.compile(r"(?<=://)(?:(?::|[^\s/:@]+:(?!\d+(?:[^\w%@]|\Z)))(?:(?!://)[^\n])*@|\S*@)")


def redact(text: str) -> str:
    """Return a text in which the credentials of every URL are hidden, user names included."""
    if "://" in text:
        text = _USERINFO.sub(f"{HIDDEN}@", text)
    return _hide_parameters(text)


def redact_url(url: str) -> str:
    """Return a URL with its password hidden, whatever it holds; its user name stays."""
    if "://" in url:
        return _hide_parameters(_WHOLE_USERINFO.sub(_hide_password, url))
    # A URL whose scheme was forgotten or mistyped still has its password before the @.
    _, at, host = url.rpartition("@")
    return _hide_parameters(f"{HIDDEN}@{host}" if at else url)


def _hide_parameters(text: str) -> str:
    return _PARAMETER.sub(rf"\1{HIDDEN}", text) if "=" in text else text


def _hide_password(match: re.Match[str]) -> str:
    user, _, password = match[1].partition(":")
    return f"{user}:{HIDDEN}@" if password else f"{HIDDEN}@"  # without a password the user name is a token
