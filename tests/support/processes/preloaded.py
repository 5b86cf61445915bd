"""A module to preload; what it does is said by an environment variable that its test sets."""

from __future__ import annotations

import os
import signal
import threading
import time


def start_thread(*_: object) -> None:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


prepared: list[str] = []


def prepare(what: str) -> None:
    prepared.append(what)
    if what == "thread":
        start_thread()
    if what == "fail":
        raise RuntimeError("this can't be prepared")


match os.environ.get("HOLDFAST_TEST_PRELOAD"):
    case "thread":
        start_thread()
    case "thread on signal":
        signal.signal(signal.SIGUSR1, start_thread)
    case "fail":
        raise RuntimeError("this module can't be imported")
    case _:
        pass
