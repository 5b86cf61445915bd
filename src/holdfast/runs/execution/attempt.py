"""The life of one attempt: prepare, start, perform under the lease, decide, settle, report."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from holdfast.agents.deadlines import Deadlines
from holdfast.agents.failures import classify
from holdfast.agents.outcome import Failed, Lost, Outcome, StopReason
from holdfast.errors import LeaseLost, ThreadTaken
from holdfast.runs.execution.preparation import log_context_of, prepare
from holdfast.runs.execution.settle import SettleReply
from holdfast.runs.execution.settlement import settlement_of, with_retry
from holdfast.runs.run import Status
from holdfast.telemetry.logs import speaking_of

if TYPE_CHECKING:
    import asyncio
    import concurrent.futures
    from collections.abc import Awaitable, Callable

    from structlog.typing import FilteringBoundLogger

    from holdfast.agents.app import App
    from holdfast.agents.invoke import Invocation
    from holdfast.agents.memory import MemoryStore
    from holdfast.config import QueueSettings
    from holdfast.leases.keeper import Keeper
    from holdfast.leases.streams import StreamLeases
    from holdfast.processes.attempts import Attempts
    from holdfast.runs.execution.claim import Claimed
    from holdfast.runs.execution.emit import Emitter
    from holdfast.runs.execution.settle import Settler
    from holdfast.runs.execution.settlement import Settlement
    from holdfast.telemetry.metrics import Metrics

LEAVING = "the worker is shutting down"


class Attempt:
    """One claimed run under one fence; ``on_settled`` is called when Redis has confirmed its settlement."""

    __slots__ = (
        "_began",
        "_hand_back",
        "_log_context",
        "_on_settled",
        "_resources",
        "_run",
        "_seconds",
        "hold",
        "invocation",
        "performing",
    )

    def __init__(
        self,
        resources: AttemptResources,
        run: Claimed,
        requested_at: float,
        on_settled: Callable[[Attempt], None],
        *,
        hand_back: bool = False,
    ) -> None:
        self._began = time.monotonic()
        self._resources = resources
        self._run = run
        self._on_settled = on_settled
        self._hand_back = hand_back
        self._seconds = 0.0
        self._log_context: dict[str, Any] = {}
        self.invocation: Invocation | None = None
        self.performing = False
        """Whether its agent is called now."""
        resources.metrics.runs(resources.settings.name, run.agent).claimed(time.time() - run.entry_ms / 1000)
        self.hold = resources.keeper.hold(
            resources.leases, run.lease(resources.owner), granted_at=requested_at, on_stop=self._cancel
        )

    async def run(self) -> None:
        """Run from the claim to the settlement; ``_settled`` is called when Redis has confirmed it."""
        prepared = self._prepare()
        if isinstance(prepared, Failed):
            outcome = prepared
        else:
            self._start(prepared)
            outcome = await self._perform(prepared)
        self._settle(self._decide(outcome))

    def _prepare(self) -> Invocation | Failed:
        """Make the agent's invocation; a message that can't be decoded, or has no agent, fails the run."""
        resources, run = self._resources, self._run
        try:
            prepared = prepare(resources, run, resources.emitter.for_run(run), self.hold.trusted_until)
        except Exception as exc:
            # Raised here, the error would end this worker, and then each other one that claims the run.
            prepared = Failed(classify(exc))
        if isinstance(prepared, Failed):
            self._log_context = log_context_of(resources, run)
        return prepared

    def _start(self, invocation: Invocation) -> None:
        self.invocation = invocation
        self._log_context = invocation.log_context
        with speaking_of(self._log_context):
            self._resources.log.info("run started")
        self.performing = True
        if self._hand_back:
            self.stop(StopReason.DRAIN, LEAVING)

    async def _perform(self, invocation: Invocation) -> Outcome:
        """Call the agent while the lease is held; before that, roll back the writes of cancelled runs."""
        try:
            async with self.hold:
                for run_id in self._run.rollback:
                    await invocation.scope.memory.rollback(run_id)
                return await invocation.run()
        except ThreadTaken as exc:
            return Failed(classify(exc))
        except LeaseLost:
            return Lost()
        except Exception as exc:
            return Failed(classify(exc))  # an error of the rollback: those of the agent are outcomes already
        finally:
            self.performing = False
            self._log_context = invocation.log_context  # now with the trace of the agent's span

    def _decide(self, outcome: Outcome) -> Settlement:
        """Decide whether the run is retried, and return the settlement."""
        self._seconds = time.monotonic() - self._began
        if isinstance(outcome, Lost):
            with speaking_of(self._log_context):
                seconds = round(self._seconds, 4)
                self._resources.log.warning("run lost: its lease was lost", duration_seconds=seconds)
        run, lease, settings = self._run, self.hold.lease, self._resources.settings
        try:
            spec = self._resources.app.agents.get(run.agent)
            return settlement_of(with_retry(outcome, run, spec, settings), run, lease, settings)
        except Exception as exc:
            return settlement_of(Failed(classify(exc)), run, lease, settings)

    def _settle(self, settlement: Settlement) -> None:
        self._resources.settler.add(settlement, self._settled)

    def _settled(self, settlement: Settlement, verdict: SettleReply) -> None:
        with speaking_of(self._log_context):
            self.hold.drop()
            self._on_settled(self)
            self._report(settlement, verdict)

    def _report(self, settlement: Settlement, verdict: SettleReply) -> None:
        """Count and log how the attempt ended."""
        status = Status.CANCELLED if verdict is SettleReply.CANCELLED else settlement.status
        seconds = round(self._seconds, 4)
        ending = {"status": status or "handed_back", "seconds": seconds, "duration_seconds": seconds}
        log, fault = self._resources.log, settlement.fault
        if verdict is SettleReply.STALE:
            log.warning("result refused: the run has a newer fence", **ending)
            return
        self._count(settlement, status)
        if fault is None or status is Status.CANCELLED:
            log.info("run settled", **ending)
        else:
            log.warning("run failed", **ending, error=fault.message, traceback=fault.traceback)

    def _count(self, settlement: Settlement, status: Status | None) -> None:
        metrics, queue = self._resources.metrics, self._resources.settings.name
        meter = metrics.runs(queue, self._run.agent)
        if status is Status.DELAYED:
            meter.retried(settlement.reason)
        elif status is not None and status is not Status.INTERRUPTED:
            meter.finished(status, self._seconds)
            if status in {Status.FAILED, Status.TIMED_OUT}:
                metrics.runs_dead_lettered.labels(queue, settlement.reason).inc()

    # -- for the executor

    @property
    def key(self) -> tuple[str, int]:
        """Its run id and fence: a run may be claimed again while its lost attempt still unwinds."""
        return key_of(self._run)

    @property
    def agent(self) -> str:
        """The name of its agent."""
        return self._run.agent

    def stop(self, reason: StopReason, text: str) -> bool:
        """Stop the agent, if it is called now; return whether this is the first request that stops it."""
        return self.performing and self.invocation is not None and self.invocation.stop(reason, text)

    def _cancel(self) -> None:
        self.stop(StopReason.CANCEL, "cancelled by request")

    @property
    def lingering(self) -> bool:
        """Whether the agent ignored its stop, and continues after its run has ended."""
        return self.invocation is not None and self.invocation.lingering is not None


def key_of(run: Claimed) -> tuple[str, int]:
    """Return the key of an attempt: run id and fence."""
    return run.run_id, run.fence  # guard: attempt-by-fence


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResources:
    """The objects that all attempts of a partition's worker share."""

    app: App
    settings: QueueSettings
    owner: str
    keeper: Keeper
    leases: StreamLeases
    emitter: Emitter
    settler: Settler
    metrics: Metrics
    log: FilteringBoundLogger
    draining: asyncio.Event
    """Set when the worker shuts down: agents may end early."""
    threads: concurrent.futures.Executor
    """Runs agents that are not coroutines."""
    processes: Attempts | None = None
    """Runs agents with isolation="process"."""
    store: MemoryStore | None = None
    answer: Callable[[str, int], Awaitable[bytes | None]] | None = None
    """Reads the n-th answer that an interrupted run was given."""
    trusted_until: Callable[[], float] | None = None
    """Returns until when the lease of the process is trusted, if it has one: no run is trusted for longer."""
    deadlines: Deadlines = dataclasses.field(default_factory=Deadlines)
