"""A producer without Holdfast: redis-py and one ``XADD``, the job's fields as they are.

``correlation_id`` is the only word of ours. With it the job id is the run's id, and the same job twice is one
run; without it the entry is read all the same, and the same job twice is done once by ``results.py``.
"""

from __future__ import annotations

import argparse
import os
import sys

import redis

from .schema import flat, new_job

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    options = parser.parse_args()
    if not (url := os.environ.get("REDIS_URL")):
        sys.exit("REDIS_URL is not set: it is the url that `holdfast dev` prints behind Redis")
    stream = os.environ.get("CLUSTER_STREAM_KEY", "streams:media.cluster")
    with redis.Redis.from_url(url) as client:
        for _ in range(options.count):
            job = new_job()
            print(client.xadd(stream, {**flat(job), "correlation_id": job["job_id"]}).decode(), job["job_id"])
