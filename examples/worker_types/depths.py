"""Three answers to "how deep is the queue?": its length, what is pending, and the work that is there.

python depths.py    # in this folder, beside `holdfast dev app.py --autoscale`
"""

from __future__ import annotations

import json
import os
import sys
import urllib.parse
import urllib.request
from typing import Any, NamedTuple, cast

import redis

from holdfast import HoldfastError, Settings, load_settings, locate_redis

API_URL = "http://127.0.0.1:8080"


class Answers(NamedTuple):
    """What each way of counting says of one queue."""

    xlen: int
    """Also what was done long ago, if it was not deleted: it never comes down."""
    pending: int
    """Only what a worker has: 0 for a queue that nobody serves, however long it is."""
    need: dict[str, Any]
    """Undelivered, weighted by age, and in flight and due; and the workers that this is worth."""


def answers(settings: Settings, client: redis.Redis, api_url: str, queue: str) -> Answers:
    """Ask all three ways: Redis for the length and what is pending, the API for the depth."""
    group = settings.queue_named(queue).group
    length = cast("int", client.xlen(queue))
    pending = cast("dict[str, Any]", client.xpending(queue, group))["pending"]
    path = f"/internal/scaling/{urllib.parse.quote(queue, safe='')}"
    with urllib.request.urlopen(api_url + path, timeout=10) as response:
        return Answers(length, pending, json.load(response))


def main() -> None:
    """Print the answers for every configured queue."""
    settings = load_settings()
    api_url = os.environ.get("HOLDFAST_API_URL", API_URL)
    with redis.Redis.from_url(locate_redis(settings)) as client:
        print(f"{'queue':14} {'XLEN':>6} {'pending':>8} {'depth':>8} {'workers wanted':>15}")
        for name in settings.queue_names():
            found = answers(settings, client, api_url, name)
            depth, wanted = found.need["depth"], found.need["wanted"]
            print(f"{name:14} {found.xlen:6} {found.pending:8} {depth:8g} {wanted:15}")


if __name__ == "__main__":
    try:
        main()
    except (HoldfastError, OSError) as exc:
        sys.exit(str(exc))
