"""A module to preload; what it does is said by an environment variable that its test sets."""

from __future__ import annotations

import os
import signal
import threading
import time


def start_thread(*_: object) -> None:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


match os.environ.get("HOLDFAST_TEST_PRELOAD"):
    case "thread":
        start_thread()
    case "thread on signal":
        signal.signal(signal.SIGUSR1, start_thread)
    case "fail":
        raise RuntimeError("this module can't be imported")
    case _:
        pass
