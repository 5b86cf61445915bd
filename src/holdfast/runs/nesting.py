"""The limit of the nesting of a JSON document: some parsers overflow their stack where others do not."""

from __future__ import annotations

import re

DEEPEST = 200
_MARKS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]')


def too_deep(document: bytes) -> bool:
    """Return whether a document is nested more than ``DEEPEST`` levels deep."""
    if document.count(b"[") + document.count(b"{") <= DEEPEST:
        return False
    depth = 0
    for mark in _MARKS.finditer(document):
        first = document[mark.start()]
        if first in b"[{":
            depth += 1
            if depth > DEEPEST:
                return True
        elif first in b"]}":
            depth -= 1
    return False
