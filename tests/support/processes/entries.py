"""What the children of these tests do; imported by their zygote, never by a test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import select
import signal
import subprocess
import sys
from pathlib import Path


def willing(payload, control):
    control.ready(payload=payload, fence=control.fence, labels=control.labels, pid=os.getpid())
    control.stop.wait()


def by_event_loop(payload, control):
    async def main():
        control.ready()
        await asyncio.gather(control.stopped(), control.stopped())

    asyncio.run(main())


def by_select(payload, control):
    control.ready()
    select.select([control], [], [])


def stubborn(payload, control):
    """Ignores SIGTERM and the wish to stop."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    control.ready()
    while True:
        signal.pause()


def own_handler(payload, control):
    """Has another use for SIGTERM, and for other signals."""
    signal.signal(signal.SIGTERM, lambda *_: None)

    def heard(*_):
        readable, _, _ = select.select([control], [], [], 0.5)
        control.report("heard", stopping=bool(readable))

    signal.signal(signal.SIGUSR1, heard)
    control.ready()
    while not control.stop.wait(0.01):
        pass


def own_loop(payload, control):
    """Its event loop takes over SIGTERM and the descriptor that signals wake."""

    async def main():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)
        control.ready()
        await control.stopped()

    asyncio.run(main())


def family(payload, control):
    """Has a child in its group, and a daemon that has left it; neither hears a wish."""
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    child = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE)
    child.stdout.readline()
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writing, str(os.getpid()).encode())
            while True:
                signal.pause()
        os._exit(0)
    daemon = int(os.read(reading, 100))
    os.wait()
    control.ready(family=[child.pid, daemon])
    how = payload.get("how")
    control.stop.wait()
    if how == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)


def forked(payload, control):
    """A plain fork that shares every descriptor and goes on."""
    pid = os.fork()
    if pid == 0:
        while True:
            signal.pause()
    control.ready(family=[pid])
    control.stop.wait()


def quits(payload, control):
    """Ends by itself after it was ready, as often as it is started."""
    control.ready()
    if "raise" in payload:
        raise RuntimeError(payload["raise"])
    os._exit(payload["code"])


def quits_again(payload, control):
    """Is ready the first time; never later."""
    marker = Path(payload["marker"])
    if marker.exists():
        raise RuntimeError("not this time")
    marker.touch()
    control.ready()
    control.stop.wait()


def early(payload, control):
    """Does something instead of getting ready."""
    match payload["do"]:
        case "raise":
            raise ValueError("the constructor has failed")
        case "exit":
            sys.exit(0)
        case "abort":
            print("about to abort")
            signal.signal(signal.SIGABRT, signal.SIG_DFL)
            os.abort()
        case "hang":
            signal.pause()
        case "kill the zygote":
            os.kill(os.getppid(), signal.SIGKILL)
            signal.pause()


def eats(payload, control):
    control.ready()
    control.stop.wait(0.01)
    kept = []
    while True:
        kept.append(bytearray(8 * 1024 * 1024))


def confesses(payload, control):
    """Tells what it has inherited."""
    handled = {
        number: str(signal.getsignal(number))
        for number in signal.valid_signals() - {signal.SIGTERM, signal.SIGINT, signal.SIGPIPE}
        if signal.getsignal(number) not in {signal.SIG_DFL, None}
    }
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            links.append(str(descriptor.readlink()))
    control.ready(
        blocked=[int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        handled=handled,
        links=links,
        group=os.getpgrp(),
        session=os.getsid(0),
        random=random.random(),
        nice=os.nice(0),
        argv=sys.argv,
        prepared=sys.modules["tests.support.processes.preloaded"].prepared,
        modules=[
            name for name in ("redis", "grpc", "tests.support.processes.preloaded") if name in sys.modules
        ],
    )
    control.stop.wait()


def talks(payload, control):
    for text in payload.get("print", []):
        print(text)
    for text in payload.get("errors", []):
        print(text, file=sys.stderr)
    for kind, data in payload.get("reports", []):
        control.report(kind, **data)
    control.ready()
    control.stop.wait()
    print("goodbye", end="")


def floods(payload, control):
    control.ready()
    line = b"x" * 60 + b"\n"
    while not control.stop.is_set():
        os.write(1, line * 1000)
        control.report("flood", text="y" * 1000)


def speaks_nonsense(payload, control):
    os.write(3, b"this is no JSON\n[1]\n{}\n" + b'{"kind":"report"}\n' + b"z" * 1_000_000 + b"\n")
    for wrong in ({"value": object()}, {"value": "x" * 1_000_000}):
        try:
            control.report("wrong", **wrong)
        except (TypeError, ValueError) as error:
            control.report("refused", error=str(error))
    control.ready()
    control.stop.wait()


class Willing:
    def __init__(self, spec):
        self.spec = spec

    def start(self):
        print(f"started {self.spec['id']}")

    def stop(self):
        print(f"stopped {self.spec['id']}")


class Faulty:
    def __init__(self, spec):
        raise ValueError("this agent can't be made")
