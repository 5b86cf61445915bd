"""Every key has a ttl or is listed as permanent: what a test leaves behind must fit the data model."""

from __future__ import annotations

import re

from holdfast.redis.client import Redis
from holdfast.redis.keys import DATA_MODEL
from holdfast.runs.run import ENDED

_FREE = {"<id>": r".+", "<key>": r".+", "<kind>": r"[a-z]+", "<name>": r".+"}


def _pattern(text: str) -> re.Pattern[str]:
    """A documented name as a pattern: `agent-queue` stands for any queue, with or without a prefix."""
    expression = re.escape(text)
    for word, free in _FREE.items():
        expression = expression.replace(re.escape(word), free)
    expression = expression.replace(re.escape("{agent-queue}"), r"\{[^{}]+\}").replace(
        re.escape("agent-queue"), r"[\w.:-]+"
    )
    return re.compile(rf"(?:[\w-]+:)?{expression}\Z")


# Longer names are more telling; the plain name of a queue fits nearly everything, so it is asked last.
MODEL = sorted(
    ((_pattern(doc.pattern), doc) for doc in DATA_MODEL),
    key=lambda row: (row[1].pattern == "agent-queue", -len(row[1].pattern)),
)


async def check_keys(redis: Redis) -> None:
    """Fail for a key that nobody documented, or that should have a ttl and has none."""
    for raw in await redis.keys("*"):
        key = raw.decode(errors="replace")
        doc = next((doc for pattern, doc in MODEL if pattern.match(key)), None)
        assert doc is not None, f"{key} is not in DATA_MODEL"
        kind = (await redis.type(raw)).decode()
        assert doc.type == kind or kind == "none", f"{key} is a {kind}, the data model says {doc.type}"
        if await _must_expire(redis, key, doc.stays):
            assert await redis.pttl(raw) != -1, f"{key} has no ttl, but stays {doc.stays}"


async def _must_expire(redis: Redis, key: str, stays: str) -> bool:
    if stays in {"permanent", "until resumed"}:
        return False
    if ":run:" not in key:
        return True
    status = await redis.hget(key.removesuffix(":events"), "status")
    cancelled_before_its_turn = status == b"cancelled"  # its entry is a tombstone until a worker meets it
    return status is not None and status.decode() in ENDED and not cancelled_before_its_turn
