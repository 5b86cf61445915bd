"""The path of Rustic AI's engine that guilds have stored; the engine is in ``holdfast.compat.rustic``."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("holdfast.compat.rustic"), name)
