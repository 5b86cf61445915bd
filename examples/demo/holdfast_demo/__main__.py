"""``python -m holdfast_demo``: the demo by itself; KEEP=1 keeps the system up."""

from __future__ import annotations

import os
import sys

from holdfast import HoldfastError
from holdfast.packages import needs_extra

if __name__ == "__main__":
    try:
        with needs_extra("the demo", "api,embedded,hosts"):
            from holdfast_demo.run import play_demo
        sys.exit(play_demo(keep=os.environ.get("KEEP", "") not in {"", "0"}))
    except HoldfastError as exc:
        sys.exit(f"holdfast: {exc}")
