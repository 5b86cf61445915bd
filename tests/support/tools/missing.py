"""What this machine does not have, why, and what becomes of the tests that need it."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

OPT_OUT = "TOOLS_MAY_BE_MISSING"


class Missing(Exception):
    """There is no such tool here, and no way to fetch it; the message is the reason."""


def skip_or_fail(what: str) -> NoReturn:
    """Skip the test that needs it; fail it where CI is true and nobody has said that tools may be missing."""
    if os.environ.get("CI", "").lower() in {"true", "1"} and not os.environ.get(OPT_OUT):
        pytest.fail(f"{what}; or set {OPT_OUT}=1 if this CI is to do without", pytrace=False)
    pytest.skip(what)
