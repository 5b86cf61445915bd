"""What all frameworks need of a run's journal: calls done once, and questions that keep their answers.

A framework is resumed by running it again: a call whose result is in the journal returns that result, and the
first one without is where the run goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.agents.context import scope_of
from holdfast.agents.steps import as_json, awaited
from holdfast.errors import HandBack, InputError, LeaseLost
from holdfast.leases.trust import Trusted
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator, Mapping

    from holdfast.agents.context import Context

T = TypeVar("T")

_log = get_logger(__name__)


@functools.cache
def warn_that_it_can_not_stream(model: str) -> None:
    """Log once for each kind of model that its answers are asked for as a whole."""
    _log.warning("the model can't stream, so its answers come without chunks (stream=False)", model=model)


class Replay:
    """The journal of one attempt, under the names of one framework."""

    def __init__(self, ctx: Context, framework: str) -> None:
        self.ctx = ctx
        self._scope = scope_of(ctx)
        self._journal = self._scope.journal
        self._prefix = f"{framework}:"
        self._used: Counter[str] = Counter()
        self.unwinding: BaseException | None = None
        """What ended the attempt early: a framework may wrap it in a group, or in an error of its own."""

    def name(self, call: str) -> str:
        """Return the journal's name of a call: used again, it is numbered by the order of use."""
        self._used[call] += 1
        return self.at(call, self._used[call])

    def at(self, call: str, number: int) -> str:
        """Return the journal's name of the n-th use of a call."""
        return f"{self._prefix}{call}" if number == 1 else f"{self._prefix}{call}#{number}"

    @property
    def used(self) -> dict[str, int]:
        """How often each call was used so far: what a checkpoint must remember to go on counting from."""
        return dict(self._used)

    def go_on_from(self, used: Mapping[str, int]) -> None:
        """Count on from a checkpoint."""
        self._used = Counter(used)

    async def get(self, name: str) -> bytes | None:
        """Return what the journal has under such a name."""
        return await self._journal.get(name)

    async def put(self, name: str, value: bytes) -> None:
        """Write a result down; LeaseLost if this attempt is no longer the run's."""
        with self.unwinding_if_lost():
            await self._journal.put(name, value)

    def written(self, value: Any, tool: str) -> bytes:
        """Write what a tool gave as JSON, or refuse it as a step does: NaN would come back as null."""
        try:
            return as_json(value, f"what tool {tool!r} gave")
        except InputError as exc:
            self.unwinding = exc
            raise

    async def once(self, call: str, work: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the journal's result of a call, or do it now and write that down."""
        name = self.name(call)
        value = await self.get(name)
        if value is None:
            value = await self.leased(work)
            await self.put(name, value)
        return value

    async def leased(self, work: Callable[[], Awaitable[T]]) -> T:
        """Call a model or a tool, and await it for as long as the lease is trusted; then LeaseLost."""
        with self.unwinding_if_lost():
            self._scope.require_open()  # else a coroutine would be made that nobody awaits
            # guard: framework-call-needs-lease
            return await Trusted(awaited(work()), self._scope.signals.trust)

    async def leased_stream(self, stream: AsyncIterable[T]) -> AsyncGenerator[T]:
        """Yield what a model streams, each piece awaited only while the lease is trusted.

        A provider that tries again between two pieces would ask its model a second time.
        """
        pieces = aiter(stream)
        while True:
            try:
                piece = await self.leased(pieces.__anext__)
            except StopAsyncIteration:
                return
            yield piece

    @contextlib.contextmanager
    def unwinding_if_lost(self) -> Generator[None]:
        """Remember a lost lease, whatever the framework makes of the exception."""
        try:
            yield
        except LeaseLost as exc:
            self.unwinding = exc  # guard: replay-keeps-lost-lease
            raise

    @contextlib.contextmanager
    def ending_as_unwound(self) -> Generator[None]:
        """Raise what ended the attempt early, instead of what the framework has made of it."""
        try:
            yield
        except BaseException as exc:
            # guard: lost-body-ends-as-it-is
            if self.unwinding is None or self._scope.signals.trust.ends_with(exc):
                raise
            raise self.unwinding from None

    def before_model_call(self) -> None:
        """Hand the run back if its worker wants to go."""
        if self.ctx.draining:  # between two calls nothing is lost by that
            self.unwinding = HandBack("its worker is leaving, and the agent is between two calls")
            raise self.unwinding


class Questions:
    """Interrupts by what they ask: the same question has the same answer in every attempt.

    ``ctx.interrupt`` hands out its answers in order. A framework that goes on from a checkpoint does not ask
    its first questions again, so the journal tells which answer belonged to which question.
    """

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._asked: list[str] | None = None
        self._answers: list[Any] = []
        self._turn = asyncio.Lock()

    async def ask(self, question: str, payload: Any, read: Callable[[Any], T]) -> T:
        """Return the answer to a question, as ``read`` understands it; it is asked again if that can't.

        Without an answer the run leaves its worker here, until one is given.
        """
        for number in itertools.count(1):
            try:
                return read(await self._answer(f"{question} {number}", payload))
            except InputError as exc:
                payload = {"problem": str(exc), "question": payload}
        raise AssertionError

    async def _answer(self, question: str, payload: Any) -> Any:
        async with self._turn:
            asked = await self._load()
            known = question in asked
            number = asked.index(question) + 1 if known else len(asked) + 1
            while len(self._answers) < number:
                self._answers.append(await self._interrupt(payload))
            if not known:
                await self._replay.put(self._replay.at("question", number), msgspec.json.encode(question))
                asked.append(question)
            return self._answers[number - 1]

    async def _load(self) -> list[str]:
        if self._asked is None:
            self._asked = []
            while (
                value := await self._replay.get(self._replay.at("question", len(self._asked) + 1))
            ) is not None:
                self._asked.append(msgspec.json.decode(value, type=str))
        return self._asked

    async def _interrupt(self, payload: Any) -> Any:
        try:
            return await self._replay.ctx.interrupt(payload)
        except BaseException as exc:
            self._replay.unwinding = exc
            raise
