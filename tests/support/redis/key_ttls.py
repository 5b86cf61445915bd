"""Every key has a ttl or is listed as permanent: what a test leaves behind must fit the data model."""

from __future__ import annotations

import re

from holdfast.redis.client import Redis
from holdfast.redis.datamodel import DATA_MODEL
from holdfast.runs.run import ENDED

_SCHEDULES_TAG = re.compile(r"(?<=\w)\{[^{}]+\}")
"""A queue's tag comes first in a name; that of the schedules comes after the base, if there is one."""

_FREE = {"<id>": r".+", "<digest>": r"[0-9a-f]+", "<key>": r".+", "<kind>": r"[a-z]+", "<name>": r".+"}


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
        plain = _SCHEDULES_TAG.sub("", key, count=1)
        doc = next((doc for pattern, doc in MODEL if pattern.match(key) or pattern.match(plain)), None)
        assert doc is not None, f"{key} is not in DATA_MODEL"
        kind = (await redis.type(raw)).decode()
        assert doc.type == kind or kind == "none", f"{key} is a {kind}, the data model says {doc.type}"
        if doc.stays in {"permanent", "until resumed"}:
            continue
        if ":run:" in key:
            await _check_run(redis, key.removesuffix(":events"))
        else:
            assert await redis.pttl(raw) != -1, f"{key} has no ttl, but stays {doc.stays}"


async def noted_ends(redis: Redis, ended: str) -> set[str]:
    """The runs that have their time to leave; those that succeeded together are noted together."""
    notes = [note.decode().split() for note in await redis.zrange(ended, 0, -1)]
    return {run_id for note in notes for run_id in (note[1:] or note)}


async def _check_run(redis: Redis, key: str) -> None:
    """An ended run has its time to leave; what belongs to no run at all would stay for ever."""
    status = await redis.hget(key, "status")
    assert status is not None, f"{key} is a feed without a run"
    tag, _, run_id = key.partition(":run:")
    noted = run_id in await noted_ends(redis, f"{tag}:ended")
    if status == b"cancelled":  # while its entry is a tombstone, it is not noted: a worker has yet to meet it
        return
    assert noted == (status.decode() in ENDED), f"{key} is {status.decode()}, noted as ended: {noted}"
