"""The producer: on image ingest it publishes a job, by the roll-out to the stream or to the HTTP service.

python -m media_clustering.auth_service --count 200 --tenants 40 --every 0.1
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections import Counter

from holdfast import Exporter, Metrics, Producer, Settings, load_settings
from holdfast.telemetry import traces

from .schema import new_job
from .tracing import ingest_span

ROLLOUT = "redis_streams_media_cluster_enabled"
HTTP_URL = "http://127.0.0.1:8081/jobs"


def ingest(settings: Settings, metrics: Metrics, fallback: str = "", *, patience: float = 2.0) -> Producer:
    """The producer of the auth-service; ``MEDIA_CLUSTER_HTTP_URL`` empty is the time after the roll-out.

    A job that the queue has not taken within ``patience`` seconds goes to the HTTP service.
    """
    url = fallback or os.environ.get("MEDIA_CLUSTER_HTTP_URL", HTTP_URL)
    return Producer(
        "auth-service",
        agent="cluster",
        rollout=ROLLOUT,
        fallback=url or None,
        patience=patience,
        settings=settings,
        metrics=metrics,
    )


async def main(count: int, tenants: int, every: float) -> None:
    """Ingest so many images of so many tenants, and say which way they went."""
    settings, metrics = load_settings(), Metrics()
    went: Counter[str] = Counter()
    with Exporter(metrics, settings.metrics, ready=lambda: True):
        async with ingest(settings, metrics) as producer:
            for number in range(count):
                with ingest_span():  # the job names its trace, and the run continues it
                    job = new_job()
                    sent = await producer.send(job, tenant=f"tenant-{number % tenants}", run_id=job["job_id"])
                went[f"{sent.path} {sent.reason}".strip()] += 1
                print(f"{job['job_id']} tenant-{number % tenants} {sent.path} {sent.reason}", flush=True)
                await asyncio.sleep(every)
    print(dict(went))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--tenants", type=int, default=10)
    parser.add_argument("--every", type=float, default=0.1, metavar="SECONDS")
    options = parser.parse_args()
    traces.start("auth-service")
    try:
        asyncio.run(main(options.count, options.tenants, options.every))
    finally:
        traces.finish()
