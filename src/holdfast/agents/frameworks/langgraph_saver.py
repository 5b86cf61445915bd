"""A LangGraph checkpointer in Holdfast's own store: one per run, every write under the run's fence.

A paused worker that wakes up after its run moved on writes no checkpoint: it gets LeaseLost.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, cast

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
)

from holdfast.store.checkpoints import Checkpoint as Row
from holdfast.store.checkpoints import Write

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata

    from holdfast.store.checkpoints import Checkpoints

_NULL_TASK = "00000000-0000-0000-0000-000000000000"
_RESUME = "__resume__"
_DELTAS = "counters_since_delta_snapshot"


class FencedSaver(BaseCheckpointSaver[str]):
    """Keeps the checkpoints of one run's thread."""

    def __init__(self, rows: Checkpoints) -> None:
        super().__init__()
        self._rows = rows

    def get_next_version(self, current: str | int | None, channel: None) -> str:  # type: ignore[override]
        """Return a version that sorts after the current one, as LangGraph's own savers make them."""
        del channel
        number = 0 if current is None else int(str(current).split(".")[0])
        return f"{number + 1:032}.{random.random():016}"  # noqa: S311 - only to tell forks apart

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint, or the last one of the thread."""
        thread, ns = _place(config)
        row = await self._rows.find(thread, ns, get_checkpoint_id(config) or "")
        return None if row is None else self._tuple(row, thread)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """List checkpoints, the last one first; ``filter`` is on their metadata."""
        where = {} if config is None else config.get("configurable", {})
        thread = where.get("thread_id")
        rows = await self._rows.select(
            thread,
            ns=where.get("checkpoint_ns"),
            checkpoint_id=where.get("checkpoint_id") or "",
            before=(get_checkpoint_id(before) if before else None) or "",
            limit=None if filter else limit,
        )
        for row in rows:
            found = self._tuple(row, row.thread if thread is None else str(thread))
            if filter and any(found.metadata.get(key) != value for key, value in filter.items()):
                continue
            if limit is not None:
                if limit <= 0:
                    return
                limit -= 1
            yield found

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,  # noqa: ARG002 - a checkpoint is kept whole
    ) -> RunnableConfig:
        """Write a checkpoint; LeaseLost if the run has moved on."""
        thread, ns = _place(config)
        kind, value = self.serde.dumps_typed(checkpoint)
        metadata_kind, described = self.serde.dumps_typed(get_checkpoint_metadata(config, metadata))
        parent = get_checkpoint_id(config) or ""
        await self._rows.put(
            Row(thread, ns, checkpoint["id"], parent, "", kind, value, metadata_kind, described)
        )
        return _config(thread, ns, checkpoint["id"])

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Write down what a task wrote; LeaseLost if the run has moved on."""
        thread, ns = _place(config)
        rows = [
            Write(
                task_id, WRITES_IDX_MAP.get(channel, at), channel, *self.serde.dumps_typed(value), task_path
            )
            for at, (channel, value) in enumerate(writes)
        ]
        await self._rows.put_writes(thread, ns, get_checkpoint_id(config) or "", rows)

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete everything of a thread."""
        await self._rows.delete(thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep only the last checkpoint of each namespace, or with ``delete`` none."""
        for thread in thread_ids:
            if strategy == "delete":
                await self._rows.delete(thread)
            elif await self._prunable(thread):
                await self._rows.prune(thread)

    # -- what the adapter asks beyond LangGraph

    async def began(self, thread: str) -> bool:
        """Tell whether the last checkpoint of the thread is one of this run."""
        row = await self._rows.find(thread, "")
        return row is not None and row.run == self._rows.run

    async def answers(self, thread: str) -> int:
        """Count the answers to interrupts that tasks of the thread have taken and not yet finished with."""
        taken = await self._rows.writes(thread, _RESUME)
        values = [
            self.serde.loads_typed((each.kind, each.value)) for each in taken if each.task != _NULL_TASK
        ]
        return sum(len(cast("list[Any]", value)) if isinstance(value, list) else 1 for value in values)

    async def finish(self, thread: str) -> None:
        """Drop what a run that ended leaves behind."""
        if await self._prunable(thread):
            await self._rows.prune(thread, ended=True)

    async def _prunable(self, thread: str) -> bool:
        """A channel that is kept as deltas needs all checkpoints back to its last snapshot."""
        row = await self._rows.find(thread, "")
        return row is not None and not self.serde.loads_typed((row.metadata_kind, row.metadata)).get(_DELTAS)

    def _tuple(self, row: Row, thread: str) -> CheckpointTuple:
        return CheckpointTuple(
            config=_config(thread, row.ns, row.id),
            checkpoint=self.serde.loads_typed((row.kind, row.value)),
            metadata=self.serde.loads_typed((row.metadata_kind, row.metadata)),
            parent_config=_config(thread, row.ns, row.parent) if row.parent else None,
            pending_writes=[
                (each.task, each.channel, self.serde.loads_typed((each.kind, each.value)))
                for each in row.writes
            ],
        )


def _place(config: RunnableConfig) -> tuple[str, str]:
    where = config.get("configurable", {})
    return str(where["thread_id"]), where.get("checkpoint_ns", "")


def _config(thread: str, ns: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}}
