"""The command line: one module per noun, which parses, loads the settings and calls.

A module imports at its top what declares its commands. What a command works with is imported in the function
that uses it: help and wrong usage are answered without the event loop, redis-py and the settings.

Exit codes: 0 well, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

from holdfast.cli.root import main

__all__ = ["main"]
