"""What the bot's broker does: redis-py and one ``XADD``, an entry whose one field is ``json``.

python publish.py tankpit:jobs t1    # in this folder, beside `holdfast dev`, or with REDIS_URL set
"""

from __future__ import annotations

import json
import sys

import redis

from holdfast import HoldfastError, locate_redis

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python publish.py STREAM ID")
    stream, job_id = sys.argv[1:]
    try:
        url = locate_redis()  # all that is ours here: where the server is
    except HoldfastError as exc:
        sys.exit(str(exc))
    job = {"id": job_id, "type": stream.partition(":")[0]}
    with redis.Redis.from_url(url) as client:
        print(client.xadd(stream, {"json": json.dumps(job)}).decode())
