"""The command line: one module per noun, which parses, loads the settings and calls.

Exit codes: 0 well, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

from holdfast.cli.root import main

__all__ = ["main"]
