"""The catalogue of registered agents: what each process with an app announces, and what readers make of it.

A process writes what its agents are into Redis once, under a digest that its member record names.
Who serves an agent is read from the records alone, so that nothing here outlives a process.
"""

from __future__ import annotations

import hashlib
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.agents.schemas import input_schema, result_schema
from holdfast.config.queues import MAILBOX
from holdfast.errors import UnknownAgent
from holdfast.telemetry.logs import get_logger
from holdfast.views.agents import AgentEntry, AgentList, AgentView

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.agents.schemas import Schema
    from holdfast.agents.spec import AgentSpec
    from holdfast.redis.client import Redis
    from holdfast.redis.members import Member, Members

_LONGEST_DESCRIPTION: Final = 1000
_SCHEMA_BYTES: Final = 16 << 10
_CATALOGUE_BYTES: Final = 256 << 10
_MOST_NAMES: Final = 100
"""How many workers are named; all are counted."""
_KINDS: Final = ("worker", "api", "scheduler")
"""Processes with an app; a host's record has a number where these have names."""

_log = get_logger(__name__)


class Catalogue(msgspec.Struct, frozen=True):
    """What a process writes: the entries of its agents, and their digest."""

    digest: str
    data: bytes


_entries = msgspec.json.Decoder(list[AgentEntry])


# -- what is announced


def catalogue_of(agents: Mapping[str, AgentSpec]) -> Catalogue:
    """Describe the agents of an app, in a size that Redis and its readers can bear."""
    entries, size = list[bytes](), 0
    for _, spec in sorted(agents.items()):
        entry = _entry(spec)
        data = msgspec.json.encode(entry)
        if size + len(data) > _CATALOGUE_BYTES:
            data = msgspec.json.encode(msgspec.structs.replace(entry, input_schema=None, result_schema=None))
        if size + len(data) > _CATALOGUE_BYTES:
            _log.warning(
                "too many agents to describe them all: the others are listed by name", first=spec.name
            )
            break
        entries.append(data)
        size += len(data) + 1
    data = b"[" + b",".join(entries) + b"]"
    return Catalogue(hashlib.sha256(data).hexdigest()[:32], data)


def _entry(spec: AgentSpec) -> AgentEntry:
    return AgentEntry(
        name=spec.name,
        description=spec.description[:_LONGEST_DESCRIPTION],
        input_schema=_of_bearable_size(spec.name, input_schema(spec)),
        result_schema=_of_bearable_size(spec.name, result_schema(spec)),
        isolation=spec.isolation,
        timeout_seconds=spec.timeout_seconds,
        max_attempts=spec.max_attempts,
        concurrency=spec.concurrency,
    )


def _of_bearable_size(agent: str, schema: Schema | None) -> Schema | None:
    size = 0 if schema is None else len(msgspec.json.encode(schema))
    if size <= _SCHEMA_BYTES:
        return schema
    _log.warning("a schema is too large to be announced", agent=agent, bytes=size, most=_SCHEMA_BYTES)
    return None


# -- what is read


async def list_agents(redis: Redis, members: Members) -> AgentList:
    """Read every agent that a live process has registered."""
    alive = await members.all(redis)
    digests = sorted({each.fields["catalogue"] for each in alive if each.fields.get("catalogue")})
    written = await members.catalogues(redis, digests)
    return listing(alive, {digest: _read(data) for digest, data in written.items()})


def listing(members: Iterable[Member], catalogues: Mapping[str, Mapping[str, AgentEntry]]) -> AgentList:
    """Put together what live processes announce; of two descriptions the one of the newest worker counts."""
    announcing = sorted((each for each in members if _announces(each)), key=_rank)
    entries: dict[str, AgentEntry] = {}
    serving: dict[str, list[Member]] = {}
    for member in announcing:
        described = catalogues.get(member.fields.get("catalogue", ""), {})
        for name in _names(member, "agents"):
            entries[name] = described.get(name) or entries.get(name) or AgentEntry(name=name)
            serving.setdefault(name, []).extend([member] if _serves(member) else [])
    agents = [_info(entries[name], serving[name]) for name in sorted(entries)]
    return AgentList(agents, _note(agents, announcing))


def find_agent(found: AgentList, name: str) -> AgentView:
    """The agent of that name, else UnknownAgent with the names that come close."""
    for agent in found.agents:
        if agent.name == name:
            return agent
    names = [agent.name for agent in found.agents]
    close = get_close_matches(name[:200], names, n=1)
    there_are = f"did you mean {close[0]!r}?" if close else found.note or f"there are {', '.join(names[:20])}"
    raise UnknownAgent(
        f"no live process has an agent {name[:200]!r}: {there_are} "
        "(long-lived agents are residents: `holdfast residents show ID`, GET /residents/ID)"
    )


def _announces(member: Member) -> bool:
    queues = _names(member, "queues")
    # A resident reads its mailbox as a worker does, but no run can be submitted to it by an agent's name.
    return member.kind in _KINDS and not (queues and all(each.startswith(MAILBOX) for each in queues))


def _serves(member: Member) -> bool:
    return member.kind == "worker" and member.fields.get("state") != "draining"


def _rank(member: Member) -> tuple[bool, float]:
    """Workers after all others, the newest last: that one says what an agent is."""
    try:
        since = float(member.fields.get("since", ""))
    except ValueError:
        since = 0.0
    return _serves(member), since


def _info(entry: AgentEntry, workers: list[Member]) -> AgentView:
    return AgentView(
        **msgspec.structs.asdict(entry),
        queues=sorted({queue for worker in workers for queue in _names(worker, "queues")}),
        served_by=sorted(worker.name for worker in workers)[:_MOST_NAMES],
        workers=len(workers),
    )


def _note(agents: list[AgentView], announcing: list[Member]) -> str:
    serving = any(_serves(member) for member in announcing)
    if agents:
        return "" if serving else "no worker is alive: runs of these agents wait for one"
    if serving:
        return "the live workers have no agents: register one with @app.agent"
    return "no agents are known, since no worker is alive: start one with `holdfast worker --app APP`"


def _names(member: Member, field: str) -> list[str]:
    return [name for name in member.fields.get(field, "").split(",") if name]


def _read(data: bytes) -> dict[str, AgentEntry]:
    try:
        return {entry.name: entry for entry in _entries.decode(data)}
    except msgspec.DecodeError:
        return {}  # not ours, or of a version that we don't know: names are in the records
