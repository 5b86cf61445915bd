"""``holdfast cleanup``: one pass of the janitor, now; with ``--dry-run`` it only says what it would do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from holdfast.cli import options, output
from holdfast.cli.formatting import span
from holdfast.cli.output import Column
from holdfast.cli.root import COMMANDS
from holdfast.cli.session import Session, in_session
from holdfast.errors import InputError

if TYPE_CHECKING:
    from holdfast.config import JanitorSettings
    from holdfast.runs.cleanup import Ghost
    from holdfast.runs.partition import Partition
    from holdfast.runs.podproof import PodProofs
    from holdfast.runs.retention import RetentionPass
    from holdfast.telemetry.metrics import Metrics

_COLUMNS = (
    Column("QUEUE", free=True),
    Column("CONSUMER"),
    Column("IDLE", number=True),
    Column("ENTRIES", number=True),
    Column("WHAT"),
)
_WORDS = {
    "removed": "removed, its entries released",
    "would_remove": "would be removed, its entries released",
    "busy": "kept: one of its leases has not ended",
    "waiting": "kept: not idle for long enough",
    "pod_lives": "kept: its pod lives",
}


@dataclass(frozen=True)
class Pass:
    """What one pass over one queue did, or would have done."""

    queue: str
    dry_run: bool
    ghosts: list[Ghost]
    retention: RetentionPass


def add_to(root: typer.Typer) -> None:
    """Add the command."""
    root.command("cleanup", help=COMMANDS["cleanup"])(cleanup)


def cleanup(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    idle: Annotated[
        str | None,
        typer.Option("--idle", metavar="TIME", help="Instead of janitor.idle_threshold_seconds: 30m, 1h."),
    ] = None,
    queue: options.AnyQueue = None,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Remove dead workers' consumers, releasing what they hold, and what retention no longer keeps."""
    settings = options.read_settings(config)
    janitor = _patient(settings.janitor, idle)
    only_look = dry_run or janitor.dry_run

    async def work(session: Session) -> list[Pass]:
        from holdfast.services.pod_watch import looking_at_pods
        from holdfast.telemetry.metrics import Metrics

        queues = [await session.queue(queue)] if queue is not None else session.queues()
        partitions = [partition for each in queues for partition in await each.all_partitions()]
        metrics = Metrics(())
        async with looking_at_pods(settings, session.members(), session.redis, metrics) as pods:
            return [await _clean(session, each, janitor, metrics, pods, only_look) for each in partitions]

    passes = in_session(settings, work)
    if json:
        output.document({"passes": passes})
    else:
        _tell(passes)


def _patient(settings: JanitorSettings, idle: str | None) -> JanitorSettings:
    from holdfast.config.durations import parse_duration

    if idle is None:
        return settings
    seconds = parse_duration(idle, unit="s")
    if seconds is None or seconds < 0:
        raise InputError(f"--idle must be a duration like 30m or 1h, got {idle!r}")
    return msgspec.structs.replace(settings, idle_threshold_seconds=seconds)


async def _clean(
    session: Session,
    queue: Partition,
    janitor: JanitorSettings,
    metrics: Metrics,
    pods: PodProofs | None,
    dry_run: bool,
) -> Pass:
    from holdfast.runs.cleanup import Cleanup
    from holdfast.runs.retention import Retention

    ttl = session.settings.lease.ttl_seconds
    ghosts = Cleanup(queue, session.members(), janitor, metrics, ttl_seconds=ttl, pods=pods)
    retention = Retention(queue, metrics, ttl_seconds=ttl)
    cleaned = await ghosts.run_once(dry_run=dry_run)
    swept = await retention.run_once(dry_run=dry_run)
    return Pass(queue.settings.stream, dry_run, cleaned.ghosts, swept)


def _tell(passes: list[Pass]) -> None:
    rows = [(each.queue, ghost) for each in passes for ghost in each.ghosts]
    output.table(_COLUMNS, [_row(queue, ghost) for queue, ghost in rows], empty="no dead consumers")
    for each in passes:
        swept = each.retention
        would = "would be " if each.dry_run else ""
        output.line(
            f"{each.queue}: {swept.left + swept.forgotten} expired runs {would}removed, "
            f"{swept.trimmed} done entries {would}trimmed, "
            f"{len(swept.restored)} lost runs {would}queued again"
            + ("" if swept.whole else "; more is left, run it again")
        )


def _row(queue: str, ghost: Ghost) -> tuple[str, ...]:
    consumer = ghost.consumer
    return (queue, consumer.name, span(consumer.idle_seconds), str(consumer.entries), _WORDS[ghost.fate])
