"""Outages of Redis as this process observes them: the reported text, and advice for operators."""

from __future__ import annotations

from typing import Final

from holdfast.errors import RedisUnavailable
from holdfast.outages import Outage, OutageReporter
from holdfast.redis.client import DISCONNECTS, takes_no_writes
from holdfast.redis.connections import PasswordRefused

_REDIS: Final = Outage("Redis")

_ADVICE: Final = {
    "MISCONF": (
        "it takes no writes while it can't save its data: free or repair its disk (INFO persistence shows "
        "the failed save), or set stop-writes-on-bgsave-error to no"
    ),
    "NOREPLICAS": "it takes no writes with so few replicas: start them, or lower its min-replicas-to-write",
    "OOM": "its memory is full: raise its maxmemory, or shorten queue.retention_seconds",
    "READONLY": "it is a replica: redis.url must lead to the master, which a failover may have moved",
    "UNBLOCKED": "it became a replica, or the stream was deleted: redis.url must lead to the master",
    "LOADING": "it is reading its data: wait until it has started",
    "BUSY": "a script occupies it: SCRIPT KILL ends one that has written nothing",
    "CLUSTERDOWN": "slots of its cluster have no server: see CLUSTER INFO",
    "MASTERDOWN": "it is a replica without its master: see INFO replication",
}


def redis_outages(held_up: str, meanwhile: str = "") -> OutageReporter:
    """Return a reporter for the calls of one loop to Redis."""
    return OutageReporter(_REDIS, held_up, meanwhile, is_outage=is_outage, explain=explain, cause=_cause)


def is_outage(exc: BaseException) -> bool:
    """Return whether an error is of the server and not of the command: the same command may succeed later."""
    return isinstance(exc, (*DISCONNECTS, RedisUnavailable)) or takes_no_writes(exc)


def explain(exc: BaseException) -> str:
    """Return the text of an error, with advice if Redis itself has answered with the error."""
    text = " ".join(str(exc).split()) or type(exc).__name__
    advice = advice_on(exc)
    return f"{text} ({advice})" if advice else text


def advice_on(exc: BaseException) -> str:
    """Return the advice on a refusal of the whole server; empty if Redis did not answer at all."""
    return _ADVICE.get(_code(exc), "")


def _cause(exc: BaseException) -> str:
    """Return the cause that an operator has to fix; empty if Redis does not answer, or is starting."""
    if isinstance(exc, PasswordRefused):
        return "password"
    code = _code(exc)
    return code if code in _ADVICE and code != "LOADING" else ""


def _code(exc: BaseException) -> str:
    # redis-py removes the code from the text of an error, and keeps it as an attribute.
    return getattr(exc, "status_code", None) or str(exc).partition(" ")[0]
