"""``python -m bench.spawning``: starts a resident by spawn for each line, and says how long it took.

A process of its own: spawn imports the main module again in every child, and this one is small.
"""

from __future__ import annotations

import multiprocessing
import sys
import time

from bench import residents


def main() -> None:
    context = multiprocessing.get_context("spawn")
    for number, _ in enumerate(sys.stdin):
        ready, told = context.Pipe(duplex=False)
        waits, stop = context.Pipe(duplex=False)
        process = context.Process(target=residents.spawned, args=(f"spawned-{number}", told, waits))
        began = time.monotonic()
        process.start()
        ready.recv()
        took = time.monotonic() - began
        stop.send("stop")
        process.join()
        print(took, flush=True)


if __name__ == "__main__":
    main()
