"""Error translation: errors of redis-py become errors of Holdfast, with advice."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from holdfast.errors import ConfigError, HoldfastError, RedisUnavailable
from holdfast.redaction import redact, redact_url
from holdfast.redis.client import DISCONNECTS
from holdfast.redis.library import InvalidResponse, RedisError
from holdfast.redis.outages import advice_on

if TYPE_CHECKING:
    from collections.abc import Generator

_RETRY_SECONDS = 1.0


@contextlib.contextmanager
def translate_errors(url: str) -> Generator[None]:
    """Translate all errors of redis-py that calls to the Redis at ``url`` raise."""
    try:
        yield
    except ConfigError:
        raise  # the text about a refused password has its own advice
    except DISCONNECTS as exc:
        raise RedisUnavailable(_unavailable(url, exc), retry_after=_RETRY_SECONDS) from exc
    except InvalidResponse as exc:
        raise HoldfastError(
            f"the server at {redact_url(url)} is not Redis ({_why(exc)}): "
            "check the host and the port of redis.url (REDIS_URL)"
        ) from exc
    except RedisError as exc:
        raise HoldfastError(f"Redis at {redact_url(url)} refused a command: {_why(exc)}") from exc


def _unavailable(url: str, exc: Exception) -> str:
    """Describe an outage: a server that refuses commands needs other advice than one that does not answer."""
    if advice := advice_on(exc):
        return f"Redis at {redact_url(url)} answers, but refuses this now ({_why(exc)}): {advice}"
    return (
        f"Redis at {redact_url(url)} does not answer ({_why(exc)}): "
        "check that it runs and that redis.url (REDIS_URL) is right"
    )


def _why(exc: Exception) -> str:
    return redact(" ".join(str(exc).split())).rstrip(".") or type(exc).__name__
