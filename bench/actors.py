"""``python -m bench.actors COUNT``: how long Ray takes for fresh actors of the same kind, as JSON."""

from __future__ import annotations

import json
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
    took, actors = [], []
    for _ in range(int(sys.argv[1])):
        began = time.monotonic()
        actor = kind.remote()
        ray.get(actor.ready.remote())
        took.append(time.monotonic() - began)
        actors.append(actor)
    print(json.dumps(took), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
