"""Patterns that several settings share, and their descriptions in messages."""

from __future__ import annotations

from typing import Final

# One {hash tag} at most: with more braces, Redis and Holdfast could compute different slots for a key.
_NAME: Final = r"[A-Za-z0-9._:-]"
_TAGGED: Final = rf"{_NAME}*(?:\{{{_NAME}+\}}{_NAME}*)?"
NAME_PATTERN: Final = rf"\A(?=.){_TAGGED}\Z"
NAME_ALLOWED: Final = "a name of letters, digits and . _ : - with at most one {hash tag}"
OPTIONAL_NAME: Final = rf"\A{_TAGGED}\Z"
# Whole groups of four, the last one padded: exactly the texts that can be decoded as base64.
_BASE64: Final = "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)"
WEBHOOK_SECRETS_PATTERN: Final = rf"\A\s*(?:(?:whsec_)?{_BASE64}(?:\s+|\Z))*\Z"
WEBHOOK_SECRETS_ALLOWED: Final = "empty, or whsec_ and a key in base64; several are separated by blanks"
URL_PATTERN: Final = r"\A(?:https?://[^\s/?#]+\S*)?\Z"
URL_ALLOWED: Final = "an http:// or https:// URL, or empty"
