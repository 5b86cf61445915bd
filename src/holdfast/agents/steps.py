"""Steps: work of an agent that is done once, whatever crashes. What a step gave is read back, not made again.

A value comes back as it was written, also the first time, so an agent sees the same on every attempt.
"""

from __future__ import annotations

import inspect
import time
import typing
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.agents.finite import require_finite
from holdfast.agents.models import dumped, dumped_to_keep, read_kept
from holdfast.agents.unawaited import forgotten
from holdfast.errors import InputError, StepMismatch
from holdfast.leases.trust import Trusted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.agents.context import RunInfo, Signals
    from holdfast.agents.memory import Memory

_LONGEST_NAME = 200
_LARGEST_VALUE = 16 * 1024 * 1024


class Journal:
    """The steps of one attempt by name, as they are: for frameworks that number their work themselves."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    async def get(self, name: str) -> bytes | None:
        """Return what was put under that name, by this attempt or one before."""
        return await self._memory.step(name)

    async def put(self, name: str, value: bytes, *, seconds: float = 0.0) -> None:
        """Remember a value for all attempts to come; LeaseLost if the run has moved on."""
        await self._memory.put_step(name, value, seconds=seconds)


class Steps:
    """Runs the steps of one attempt; a name that comes again is another step: ``fetch``, ``fetch#2``."""

    def __init__(self, memory: Memory, info: RunInfo, signals: Signals) -> None:
        self._memory = memory
        self._info = info
        self._signals = signals
        self._calls: Counter[str] = Counter()

    async def run(self, name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return what the step gave when it was done, doing it now if it was not."""
        require_function(name, call)
        key = self.number(name)
        found = await self.find(key)
        if found is None:
            began = time.monotonic()
            # A worker that was frozen may be here, after another one has done this step.
            self._signals.require_open(self._info)  # guard: step-needs-lease
            value = call(*args, **kwargs)
            if inspect.isawaitable(value):
                value = await Trusted(awaited(value), self._signals.trust)  # guard: step-trusts-its-lease
            found = await self.keep(key, value, time.monotonic() - began)
        return read_back(key, found, call)

    def number(self, name: str) -> str:
        """Return the name under which this call of the step is kept."""
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:  # pyright: ignore[reportUnnecessaryIsInstance]
            shown = repr(name)[:60]
            raise InputError(
                f"the name of a step must be text of 1 to {_LONGEST_NAME} characters, got {shown}"
            )
        self._calls[name] += 1
        count = self._calls[name]
        return name if count == 1 else f"{name}#{count}"

    async def find(self, key: str) -> bytes | None:
        """Return what the step gave, if it was done."""
        return await self._memory.step(key)

    async def keep(self, key: str, value: Any, seconds: float) -> bytes:
        """Write down what a step gave, and return that."""
        data = as_json(value, f"what step {key!r} gave", dumped_to_keep)
        if len(data) > _LARGEST_VALUE:
            raise InputError(
                f"what step {key!r} gave has {len(data)} bytes, more than {_LARGEST_VALUE}: "
                "store it elsewhere and return a reference"
            )
        await self._memory.put_step(key, data, seconds=seconds)
        return data


async def awaited(value: Awaitable[Any]) -> Any:
    """Await anything, as a coroutine."""
    return await value


def require_function(name: str, call: object) -> None:
    """Raise InputError if a step was given what its function gives, and not the function."""
    if callable(call):
        return
    made = call.__name__ if inspect.iscoroutine(call) else "function"
    forgotten(call)
    raise InputError(
        f"step {name!r} got a {type(call).__name__}: pass the function, not its call: "
        f"ctx.step({name!r}, {made}, ...)"
    )


def as_json(value: Any, what: str, enc_hook: Callable[[Any], Any] = dumped) -> bytes:
    """Write a value as JSON, pydantic models too, or say what can't be."""
    try:
        data = msgspec.json.encode(value, enc_hook=enc_hook)
        require_finite(value, data, what, enc_hook)
    except (TypeError, ValueError, RecursionError, OverflowError) as exc:
        if coroutine := forgotten(value):
            raise InputError(f"{what} {coroutine}") from exc
        raise InputError(f"{what} can't be written as JSON: {exc}") from exc
    return data


def read_back(key: str, data: bytes, call: Callable[..., Any]) -> Any:
    """Read what a step gave as the type its function promises; StepMismatch if that has changed since."""
    wanted = _promised(call)
    try:
        if hasattr(wanted, "model_validate_json"):
            return read_kept(wanted, data)
        return msgspec.json.decode(data, type=wanted)
    except (msgspec.ValidationError, ValueError) as exc:
        raise StepMismatch(
            f"step {key!r} was done with a value that is not of type {_name(wanted)} ({exc}): "
            "the code has changed since; give the step a new name to do it again"
        ) from exc


def _promised(call: Callable[..., Any]) -> Any:
    """The return annotation, if it is one that JSON can be read as."""
    wanted: Any
    try:
        wanted = typing.get_type_hints(call).get("return", Any)
    except Exception:
        return Any  # names that can't be looked up, or a callable without hints
    if wanted is None or hasattr(wanted, "model_validate_json"):
        return wanted
    try:
        msgspec.json.Decoder(wanted)
    except (TypeError, RuntimeError):
        return Any
    return wanted


def _name(wanted: Any) -> str:
    return getattr(wanted, "__name__", str(wanted))
