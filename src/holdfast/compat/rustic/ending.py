"""Ends an agent of Rustic AI after its current message, so that none is lost or repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from queue import Queue


def finish(backend: Any) -> bool:
    """Receive no more messages from Redis and finish the current one; return False for any other backend.

    The backend's own shutdown waits for threads that poll twice a second, and for the one whose message stops
    this agent. Queued messages were not counted as received and are delivered again; connections end with the
    process.
    """
    try:
        manager = backend._pubsub_manager  # noqa: SLF001
        lock, stopping = manager.lock, manager.shutdown_event
        topics, queues = manager._topic_client_ids, manager._client_queues  # noqa: SLF001
    except AttributeError:
        return False
    stopping.set()
    with lock:
        topics.clear()  # no client gets later messages
        waiting: list[Queue[Any]] = list(queues.values())
    for queue in waiting:
        with queue.mutex:
            queue.unfinished_tasks -= len(queue.queue)
            queue.queue.clear()
        queue.join()
    return True


class OwnAgent:
    """The agent of this process, if it is one: an agent that stops itself must not wait for its own end."""

    agent_id: ClassVar[str] = ""
    """Set once by the entry, in the child that the zygote has forked."""
