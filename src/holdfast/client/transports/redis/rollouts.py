"""The roll-outs in Redis: whoever operates sets them, every producer reads them again within a second."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from holdfast.client.rollout import Rollout, checked_percent, checked_rollout
from holdfast.errors import InputError, NotFound, RedisUnavailable
from holdfast.redis.client import REFUSALS, TROUBLE
from holdfast.redis.command import command
from holdfast.redis.keys import rollout_key, rollouts_key
from holdfast.redis.outages import redis_outages
from holdfast.redis.scripts import load
from holdfast.runs.run import checked_id
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from holdfast.redis.client import Redis
    from holdfast.reliability.breaker import Breaker

_SET = load(__package__, "rollout")
_TENANT: Final = "tenant:"
_CENTURY_MS: Final = 4.1e12
_log = get_logger(__name__)


class Rollouts:
    """All roll-outs of one Redis."""

    def __init__(self, redis: Redis, *, prefix: str = "") -> None:
        self._redis = redis
        self._prefix = prefix

    async def get(self, name: str) -> Rollout:
        """Read one; one that nobody has set is off for everybody."""
        return _rollout(name, await self._fields(name))

    async def known(self, name: str) -> Rollout:
        """Read one that was set, else NotFound with those that were."""
        if fields := await self._fields(name):
            return _rollout(name, fields)
        names = await self.names()
        raise NotFound(
            f"no roll-out {name!r} was set: " + (f"known are {', '.join(names)}" if names else "none was")
        )

    async def all(self) -> list[Rollout]:
        """Read every roll-out that was set, by name."""
        found: list[Rollout] = []
        for name in await self.names():
            try:
                fields = await self._fields(name)
            except (InputError, *REFUSALS) as exc:  # one that somebody damaged must not hide the others
                _log.warning("roll-out can't be read, so it is off", rollout=name[:200], error=str(exc))
                continue
            if fields:
                found.append(_rollout(name, fields))
        return found

    async def names(self) -> list[str]:
        """Read the names of those that were set, sorted."""
        names: Iterable[bytes] = await command(self._redis, "SMEMBERS", rollouts_key(prefix=self._prefix))
        return sorted(name.decode(errors="replace") for name in names)

    async def set(
        self,
        name: str,
        percent: float | None = None,
        *,
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        clear: Iterable[str] = (),
        reason: str = "",
    ) -> Rollout:
        """Change the percentage, or what is said of single tenants; return what it is now."""
        key, shown = self._key(name), "" if percent is None else f"{checked_percent(percent):g}"
        words = {**dict.fromkeys(clear, ""), **dict.fromkeys(allow, "on"), **dict.fromkeys(deny, "off")}
        told = [part for tenant, word in words.items() for part in (_TENANT + _tenant(tenant), word)]
        # The index first: a name in it without a roll-out is passed over, the other way one would be hidden.
        await command(self._redis, "SADD", rollouts_key(prefix=self._prefix), name)
        pairs: list[bytes] = await _SET(self._redis, [key], [shown, reason, *told])
        return _rollout(name, dict(zip(pairs[::2], pairs[1::2], strict=True)))

    async def remove(self, name: str) -> None:
        """Forget one: it is off for everybody, as if it had never been set."""
        await self.known(name)
        await command(self._redis, "DEL", self._key(name))
        await command(self._redis, "SREM", rollouts_key(prefix=self._prefix), name)

    async def _fields(self, name: str) -> dict[bytes, bytes]:
        return await command(self._redis, "HGETALL", self._key(name))

    def _key(self, name: str) -> str:
        return rollout_key(checked_rollout(name), prefix=self._prefix)


class LiveRollout:
    """One roll-out as this process last read it, read again when that is ``refresh_seconds`` ago.

    While Redis can't be asked it stays as it was; None until it was read for the first time.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        name: str,
        breaker: Breaker,
        *,
        refresh_seconds: float,
        patience_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._rollouts = rollouts
        self._breaker = breaker
        self._refresh_seconds = refresh_seconds
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._turn = asyncio.Lock()
        self._asked_at: float | None = None
        self._last: Rollout | None = None
        self._missing = False
        self._outages = redis_outages(f"roll-out {name}", "the last one that was read stays")

    async def now(self) -> Rollout | None:
        """Return it as it is, at most ``refresh_seconds`` old unless Redis is away."""
        wanted_at = self._clock()
        if not self._fresh(wanted_at):
            async with self._turn:
                # Whoever had the turn before has asked for us too.
                if not self._fresh(wanted_at):
                    await self._ask()
        return self._last

    def _fresh(self, at: float) -> bool:
        return self._asked_at is not None and at - self._asked_at < self._refresh_seconds

    async def _ask(self) -> None:
        asked_at = self._clock()
        try:
            # The timeout is inside the guard: a Redis that is silent counts as one that failed.
            with self._breaker.guard():
                async with asyncio.timeout(self._patience_seconds):
                    self._last = await self._rollouts.get(self.name)
        except (RedisUnavailable, *TROUBLE) as exc:
            if not self._outages.failed(exc) and not self._missing:
                why = str(exc) or type(exc).__name__
                _log.warning("roll-out can't be read, the last one stays", rollout=self.name, error=why)
            self._missing = True
        else:
            self._outages.answered()
            self._missing = False
        self._asked_at = asked_at


def _tenant(tenant: str) -> str:
    return checked_id(tenant, "tenant")


def _rollout(name: str, fields: Mapping[bytes, bytes]) -> Rollout:
    """Read the hash, which operators may have written by hand; what can't be read is off."""
    said = {key.decode(errors="replace"): value.decode(errors="replace") for key, value in fields.items()}
    by_word: dict[str, set[str]] = {"on": set(), "off": set()}
    for key, word in said.items():
        if key.startswith(_TENANT) and word in by_word:
            by_word[word].add(key.removeprefix(_TENANT))
    return Rollout(
        name=name,
        percent=_percent(name, said.get("percent", "")),
        allowed=frozenset(by_word["on"]),
        denied=frozenset(by_word["off"]),
        reason=said.get("reason", ""),
        changed_at=_moment(said.get("changed_at", "")),
    )


def _moment(text: str) -> float:
    """Read ms since 1970; what is none of this century is none."""
    at = _number(text)
    return at / 1000 if at is not None and 0 <= at < _CENTURY_MS else 0.0


def _percent(name: str, text: str) -> float:
    percent = _number(text or "0")
    if percent is None or not 0 <= percent <= 100:
        _log.warning("roll-out has no readable percent, so it is off", rollout=name, percent=text[:40])
        return 0.0
    return percent


def _number(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)  # Python alone reads 1_000
    except ValueError:
        return None
