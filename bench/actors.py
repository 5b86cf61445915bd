"""``python -m bench.actors``: for each line, Ray starts a fresh actor of the same kind; says how long."""

from __future__ import annotations

import os
import sys
import time

os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray

from bench.residents import Echo


class Actor:
    """A resident of Ray's."""

    def __init__(self) -> None:
        self.echo = Echo()

    def ready(self) -> bool:
        return True


def main() -> None:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    kind = ray.remote(num_cpus=0)(Actor)
    print("ready", flush=True)
    actors = []
    for _ in sys.stdin:
        began = time.monotonic()
        actor = kind.remote()
        ray.get(actor.ready.remote())
        print(time.monotonic() - began, flush=True)
        actors.append(actor)
    ray.shutdown()


if __name__ == "__main__":
    main()
