"""Every exception Holdfast raises, in one tree.

::

    HoldfastError
    ├── ConfigError                 a setting is unknown, invalid or contradictory
    │   └── StoreMismatch           the process has another store than its system
    ├── AppError                    an app or agent is declared or imported wrongly
    │   └── UnknownAgent            the app has no agent of that name
    ├── InputError                  the caller sent something that can't be accepted
    │   ├── PayloadTooLarge
    │   └── MalformedMessage
    ├── Refused                     not now: try again after ``retry_after`` seconds
    │   ├── QueueFull
    │   ├── QueuePaused
    │   ├── RedisUnavailable        Redis can't be reached, or the breaker is open
    │   ├── NoHost                  no host can take this agent now
    │   ├── HostUnavailable         the host of this agent can't be reached, or fails to answer
    │   ├── ApiUnavailable          the HTTP API can't be reached, or fails to answer
    │   ├── KubernetesUnavailable   the Kubernetes API can't be reached, or denies access
    │   └── StoreUnavailable        the database can't be reached, is locked, full or damaged
    ├── AccessDenied                the API key is unknown, or does not allow this
    ├── NotFound                    no such run, queue, dead letter
    │   └── EventsExpired           the run exists, but its events are not kept any more
    ├── Conflict                    the present state does not allow this
    ├── RunError                    a run that was waited for ended without a result
    │   ├── RunFailed
    │   ├── RunTimedOut
    │   └── RunCancelled
    ├── ResultTimeout               the run still runs; only the waiting ended
    ├── RetryLater                  raised by an agent: run this again later
    ├── GiveUp                      raised by an agent: running this again won't help
    ├── HandBack                    raised by an agent: let another worker continue this run
    ├── StepMismatch                a finished step has a value that the code can't read any more
    ├── LeaseLost                   another owner may hold the lease: stop at once
    │   └── ThreadTaken             another run of the thread has used the store since
    ├── ProcessError                an agent's process can't be started or kept
    │   ├── ProcessesFull           as many run as the host allows
    │   ├── ProcessFailed           the agent ended before it was ready; ``traceback`` has the reason
    │   │   └── AgentRefused        the requested class or spec is invalid: no host will start it
    │   └── NotAllowed              the host does not allow that entry or class
    ├── ClientClosed                a SyncClient was used after it was closed
    ├── EmbeddedServerError         no embedded server could be found or started
    └── ScriptError                 a Lua script is missing, or includes a missing fragment
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta


class HoldfastError(Exception):
    """Root of every error that Holdfast raises on purpose."""


class ConfigError(HoldfastError):
    """A setting is unknown, invalid or contradictory; the message has its name and what is allowed."""


class StoreMismatch(ConfigError):
    """The process has another store than its system: finished steps would be repeated."""


class AppError(HoldfastError):
    """An app or an agent is declared or imported wrongly."""


class UnknownAgent(AppError):
    """The app has no agent of that name."""


class InputError(HoldfastError):
    """The caller sent something that can't be accepted; sending it again won't help."""


class PayloadTooLarge(InputError):
    """The message is larger than the queue's ``max_payload_bytes``."""


class MalformedMessage(InputError):
    """A stream entry can't be read as a run."""


class Refused(HoldfastError):
    """Not now: the same call may succeed after ``retry_after`` seconds."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueFull(Refused):
    """The queue holds as many runs as ``max_depth`` allows."""


class QueuePaused(Refused):
    """The queue is paused or draining and takes no new runs."""


class RedisUnavailable(Refused):
    """Redis can't be reached, or the circuit breaker is open."""


class NoHost(Refused):
    """No host can take this agent now; the message has the reason of each host."""


class HostUnavailable(Refused):
    """The host of this agent can't be reached, or fails to answer."""


class ApiUnavailable(Refused):
    """The HTTP API can't be reached, or fails to answer; the message names it and its setting."""


class KubernetesUnavailable(Refused):
    """The Kubernetes API can't be reached, or denies access; the message has the missing permission."""

    def __init__(self, message: str, *, kind: str, status: int = 0) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status


class StoreUnavailable(Refused):
    """The database can't be reached, is locked, full or damaged; the message names it and its setting."""


class AccessDenied(HoldfastError):
    """The API key is unknown, or does not allow this."""


class NotFound(HoldfastError):
    """There is no run, queue or dead letter of that name."""


class EventsExpired(NotFound):
    """The run ended so long ago that only its record is kept, without its events."""


class Conflict(HoldfastError):
    """The present state does not allow this."""


class RunError(HoldfastError):
    """A run that was waited for ended without a result."""

    def __init__(self, message: str, *, run_id: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id


class RunFailed(RunError):
    """The run was given up; its last error is in the message and in the dead letters."""


class RunTimedOut(RunError):
    """The run passed its deadline."""


class RunCancelled(RunError):
    """The run was cancelled."""


class ResultTimeout(HoldfastError):
    """The run still runs; only the waiting for its result ended."""


class RetryLater(HoldfastError):
    """Raised by an agent: run this again, after the time ``after`` (seconds or ``"5m"``) if given.

    The attempt counts, so a run that always asks for another ends at ``max_attempts``.
    """

    def __init__(
        self, reason: str = "the agent asked to run later", *, after: float | str | timedelta | None = None
    ) -> None:
        super().__init__(reason)
        self.after = after


class GiveUp(HoldfastError):
    """Raised by an agent: running this again won't help, so fail the run now."""


class HandBack(HoldfastError):
    """Raised by an agent whose worker shuts down: run this elsewhere, at once; the attempt does not count."""


class StepMismatch(HoldfastError):
    """A finished step has a value that the code can't read any more."""


class LeaseLost(HoldfastError):
    """Another owner may hold the lease: stop at once and write nothing more."""


class ThreadTaken(LeaseLost):
    """Another run of the thread has used the store since, or has rolled this one back: nothing is written."""


class ProcessError(HoldfastError, RuntimeError):
    """An agent's process can't be started or kept."""


class ProcessesFull(ProcessError):
    """As many processes run as ``max_processes`` allows: another host may have a free one."""


class ProcessFailed(ProcessError):
    """The agent ended before it was ready; ``traceback`` has its last lines."""

    def __init__(self, message: str, *, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


class AgentRefused(ProcessFailed, InputError):
    """The agent's class is missing or not allowed, or its spec is incomplete: no host will start it."""


class NotAllowed(ProcessError):
    """The host does not allow that entry or class; the message has what it allows."""


class ClientClosed(HoldfastError):
    """The client was closed before this call was over; a run that was submitted goes on."""


class EmbeddedServerError(HoldfastError):
    """No embedded server could be found or started."""


class ScriptError(HoldfastError):
    """A Lua script is missing, or includes a missing fragment."""
