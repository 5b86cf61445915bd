"""Loads Lua scripts from the files beside their owners and calls them by their hash.

Invariant: a script that a server has lost (restart, failover, SCRIPT FLUSH) is loaded again once,
however many concurrent calls need it, and none of them fails.
"""

# redis-py types execute_command loosely.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import logging
import re
import time
import weakref
from collections import defaultdict
from importlib import resources
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.errors import ScriptError
from holdfast.redis.library import NoScriptError, RedisCluster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.redis.client import Redis

_SHARED = "holdfast.redis"
_INCLUDE = re.compile(r"^[ \t]*--[ \t]*@include\b[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9_-]+")
# Markers of the tests (tests/support/mistakes.py), which are not sent to the server.
_MARKER = re.compile(r"^[ \t]*-- guard: \S+\n|[ \t]+-- guard: \S+$", re.MULTILINE)


_QUIET_SECONDS = 10.0
"""How long no further lost scripts, and no further EVALs of a script, are logged."""

_log = logging.getLogger(__name__)
_loaded: defaultdict[str, set[str]] = defaultdict(set)


@dataclasses.dataclass(slots=True)
class _Loading:
    """The last load of a script on one server, as a number that grows with every load."""

    last: int = 0
    turn: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)


class Script:
    """A Lua script: its name, its source with all fragments, and its hash on the server."""

    __slots__ = ("_loaded_by", "_loads", "_servers", "_warned_at", "name", "sha", "source")

    warned_of_missing_at: ClassVar[float] = -_QUIET_SECONDS
    """When lost scripts were logged last; shared by all scripts of the process."""

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = source
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        self._loads = 0
        self._loaded_by: weakref.WeakSet[Redis] = weakref.WeakSet()
        self._warned_at = -_QUIET_SECONDS
        self._servers: weakref.WeakKeyDictionary[Redis, dict[str, _Loading]] = weakref.WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"Script({self.name!r}, sha={self.sha})"

    async def __call__(self, redis: Redis, keys: Sequence[Any] = (), args: Sequence[Any] = ()) -> Any:
        """Run the script; its keys must share one hash tag."""
        loads = self._loads
        try:
            reply = await redis.execute_command("EVALSHA", self.sha, len(keys), *keys, *args)
        except NoScriptError:  # nothing was executed, so calling again is safe
            return await self._load_and_run(redis, keys, args, loads)
        if redis not in self._loaded_by:
            self._loaded_by.add(redis)
        return reply

    async def many(self, redis: Redis, calls: Sequence[tuple[Sequence[Any], Sequence[Any]]]) -> list[Any]:
        """Run the script with each of these keys and args, in one round trip; the first error is raised."""
        if len(calls) == 1:
            return [await self(redis, *calls[0])]
        loads = self._loads
        async with redis.pipeline(transaction=False) as pipeline:
            for keys, args in calls:
                pipeline.execute_command("EVALSHA", self.sha, len(keys), *keys, *args)
            replies = await pipeline.execute(raise_on_error=False)
        for index, reply in enumerate(replies):
            if isinstance(reply, NoScriptError):
                replies[index] = await self._load_and_run(redis, *calls[index], loads)
            elif isinstance(reply, Exception):
                raise reply
        return replies

    async def _load_and_run(self, redis: Redis, keys: Sequence[Any], args: Sequence[Any], loads: int) -> Any:
        await self._load(redis, keys, loads)
        try:
            return await redis.execute_command("EVALSHA", self.sha, len(keys), *keys, *args)
        except NoScriptError:  # lost again, or its keys are moving to another server
            self._warn_of_eval()
            return await redis.execute_command("EVAL", self.source, len(keys), *keys, *args)

    async def _load(self, redis: Redis, keys: Sequence[Any], loads: int) -> None:
        """Load the script on the server of its keys, unless that was done since the caller read ``loads``."""
        # redis-py would send it to all servers of a cluster, and wait for one that hangs.
        # guard: script-loaded-where-missing
        node = redis.get_node_from_key(keys[0]) if isinstance(redis, RedisCluster) and keys else None
        server, target = (node.name, {"target_nodes": node}) if node else ("", {})
        loading = self._servers.setdefault(redis, {}).setdefault(server, _Loading())
        async with loading.turn:
            if loading.last <= loads:
                # On a server of a cluster it may be missing because it was never loaded there.
                self._log_missing(forgotten=bool(loading.last) or (not server and redis in self._loaded_by))
                await redis.execute_command("SCRIPT LOAD", self.source, **target)
                self._loads += 1
                loading.last = self._loads
        self._loaded_by.add(redis)

    def _log_missing(self, *, forgotten: bool) -> None:
        """Log that a server does not have the script; a warning only if it had it before."""
        _log.debug("script %s loaded", self.name)
        # A restarted Redis has lost all scripts: one line is enough for all.
        # guard: forgotten-script-told
        if forgotten and time.monotonic() - Script.warned_of_missing_at > _QUIET_SECONDS:
            Script.warned_of_missing_at = time.monotonic()
            _log.warning(
                "script %s lost by Redis (restart, failover, SCRIPT FLUSH): it is loaded again, and so "
                "is every other missing script",
                self.name,
            )

    def _warn_of_eval(self) -> None:
        if time.monotonic() - self._warned_at < _QUIET_SECONDS:
            return
        self._warned_at = time.monotonic()
        _log.warning(
            "script %s lost by Redis again: its source is sent by EVAL, which is slower",
            self.name,
        )


def loaded_from(package: str | None) -> int:
    """Return how many scripts of a package are in use."""
    return len(_loaded[package or ""])


def load(package: str | None, name: str) -> Script:
    """Read ``lua/<name>.lua`` of ``package``; fragments come from there or from ``holdfast/redis/lua``."""
    if not package:
        raise ScriptError(f"lua/{name}.lua was requested without a package.")
    script = Script(name, _assemble(package, name, (), set()))
    _loaded[package].add(name)
    return script


def _assemble(package: str, name: str, path: tuple[str, ...], seen: set[str]) -> str:
    if name in path:
        raise ScriptError(f"Lua fragments include each other: {' -> '.join((*path, name))} ({package}).")
    seen.add(name)
    path = (*path, name)

    def fragment(line: re.Match[str]) -> str:
        wanted = line[1]
        if not _NAME.fullmatch(wanted):
            raise ScriptError(f"{package} lua/{name}.lua: {line[0].strip()!r} names no fragment.")
        if wanted in seen and wanted not in path:
            return ""  # included above already
        return _assemble(package, wanted, path, seen)

    return _INCLUDE.sub(fragment, _read(package, name, path))


def _read(package: str, name: str, path: tuple[str, ...]) -> str:
    for owner in (package, _SHARED) if len(path) > 1 else (package,):
        try:
            text = resources.files(owner).joinpath("lua", f"{name}.lua").read_text("utf-8")
        except (FileNotFoundError, ModuleNotFoundError, NotADirectoryError):
            continue
        return _MARKER.sub("", text)
    where = f"{package} nor in {_SHARED}" if len(path) > 1 else package
    raise ScriptError(f"There is no lua/{name}.lua in {where} (wanted by {' -> '.join(path)}).")
