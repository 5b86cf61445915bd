"""``python -m holdfast.cli.demo``: the demo by itself; KEEP=1 keeps the system up."""

from __future__ import annotations

import os
import sys

from holdfast.cli.demo import run_demo
from holdfast.errors import HoldfastError

if __name__ == "__main__":
    try:
        sys.exit(run_demo(keep=os.environ.get("KEEP", "") not in {"", "0"}))
    except HoldfastError as exc:
        sys.exit(f"holdfast: {exc}")
