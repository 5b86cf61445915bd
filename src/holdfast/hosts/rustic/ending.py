"""How an agent of Rustic AI ends without losing or repeating a message: after the one that it has in hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queue import Queue


def finish(backend: Any) -> bool:
    """Take no more messages from Redis and wait for the one in hand; False for any other backend.

    Its own end would wait for threads that look up twice a second, and for the one whose message stops this
    agent. What waits in the queue was not counted as received and comes again; connections end with us.
    """
    try:
        manager = backend._pubsub_manager  # noqa: SLF001
        lock, stopping = manager.lock, manager.shutdown_event
        topics, queues = manager._topic_client_ids, manager._client_queues  # noqa: SLF001
    except AttributeError:
        return False
    stopping.set()
    with lock:
        topics.clear()  # nobody is given what comes from here on
        waiting: list[Queue[Any]] = list(queues.values())
    for queue in waiting:
        with queue.mutex:
            queue.unfinished_tasks -= len(queue.queue)
            queue.queue.clear()
        queue.join()
    return True
