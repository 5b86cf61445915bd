"""Plain agents for the hosts of tests. Each agent's process imports this module, so it imports little itself."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any


class Idle:
    """An agent that waits to be stopped."""

    def __init__(self, spec: dict[str, Any]) -> None:
        if spec.get("fails"):
            raise ValueError("this agent does not like its spec")
        time.sleep(spec.get("sleeps", 0))
        until_used = time.process_time() + spec.get("burns", 0)
        while time.process_time() < until_used:
            pass
        if spec.get("exits"):
            os._exit(int(spec["exits"]))


def wait_for(file: str) -> None:
    """Wait for the test, which makes this file when it has seen enough."""
    while not Path(file).exists():
        time.sleep(0.01)


class Troubled:
    """``does`` says what it does."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.does, self.spec = spec.get("does", ""), spec
        match self.does:
            case "hang":
                threading.Event().wait()
            case "wait":
                wait_for(spec["file"])
            case "eat":
                self.eaten = [bytes(2**20) for _ in range(1000)]
            case "fork":
                pids = [
                    subprocess.Popen(["sleep", "1000"], start_new_session=own).pid for own in (True, False)
                ]
                Path(spec["file"]).write_text(" ".join(map(str, pids)))

    def start(self) -> None:
        match self.does:
            case "leave":
                threading.Thread(target=self._leave, daemon=True).start()
            case "deaf":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def _leave(self) -> None:
        wait_for(self.spec["file"])
        os._exit(0)

    def stop(self) -> None:
        if self.does == "deaf":
            threading.Event().wait()


class Listener:
    """Appends a line for each number that comes over a channel of Redis."""

    def __init__(self, spec: dict[str, Any]) -> None:
        import redis

        self._redis = redis.Redis.from_url(spec["redis"])
        self._channel = spec["channel"]
        self._file = os.open(spec["file"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def start(self) -> None:
        self._messages = self._redis.pubsub()
        self._messages.subscribe(self._channel)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for message in self._messages.listen():
            if message["type"] == "message":
                os.write(self._file, b"done %d %d\n" % (int(message["data"]), os.getpid()))
