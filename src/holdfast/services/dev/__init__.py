"""``holdfast dev``: every process of a system in one command, on the embedded server, with reload."""

from __future__ import annotations

from holdfast.services.dev.run import run_dev

__all__ = ["run_dev"]
