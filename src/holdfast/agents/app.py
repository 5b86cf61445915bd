"""The App: the agents that one deployment knows, by name. A name means one agent only."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from holdfast.agents.place import declaring
from holdfast.agents.reference import resolve
from holdfast.agents.resident import describe_resident
from holdfast.agents.spec import describe, require_name
from holdfast.errors import AppError, InputError, UnknownAgent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import timedelta
    from typing import Unpack

    from holdfast.agents.resident import ResidentSpec
    from holdfast.agents.spec import AgentSpec, Isolation
    from holdfast.schedules.schedule import Schedule
    from holdfast.views.schedule_options import ScheduleKeywords

    AnyCallable = Callable[..., Any]

Agent = TypeVar("Agent", bound="AnyCallable")
Resident = TypeVar("Resident")


class App:
    """A named collection of agents."""

    def __init__(self, name: str) -> None:
        with declaring():
            require_name(name, "app name")
        self.name = name
        self.reference = ""
        """Where it was loaded from, for processes that load it too."""
        self._agents: dict[str, AgentSpec] = {}
        self._schedules: dict[str, Schedule] = {}
        self._residents: dict[str, ResidentSpec] = {}

    def __repr__(self) -> str:
        return f"App({self.name!r}, agents={sorted(self._agents)})"

    @property
    def agents(self) -> Mapping[str, AgentSpec]:
        """Every agent by its name, read-only."""
        return MappingProxyType(self._agents)

    @property
    def schedules(self) -> Mapping[str, Schedule]:
        """Every schedule by its name, read-only."""
        return MappingProxyType(self._schedules)

    @property
    def residents(self) -> Mapping[str, ResidentSpec]:
        """Every resident by its name, read-only."""
        return MappingProxyType(self._residents)

    @overload
    def agent(self, call: Agent, /) -> Agent: ...

    @overload
    def agent(
        self,
        /,
        *,
        name: str | None = None,
        timeout: float | str | timedelta | None = None,
        max_attempts: int | None = None,
        retry_programming_errors: bool | None = None,
        isolation: Isolation | None = None,
        description: str | None = None,
        concurrency: int | None = None,
        memory_mb: int | None = None,
        nice: int | None = None,
        log_fields: Iterable[str] | None = None,
    ) -> Callable[[Agent], Agent]: ...

    def agent(
        self,
        call: Any = None,
        /,
        *,
        name: str | None = None,
        **options: Any,
    ) -> Any:
        """Register a function as an agent, as ``@app.agent`` or ``@app.agent(timeout="30m")``.

        Async functions run on the event loop, sync functions in a thread, and both in a process of each
        attempt's own with ``isolation="process"``. A generator streams each value it yields as a ``chunk``
        event, and its result is the list of them.
        """

        def register(function: Agent) -> Agent:
            with declaring():
                _require_known(options)
                self._register(_name_of(function) if name is None else name, function, options)
            return function

        return register if call is None else register(call)

    def register(
        self,
        name: str,
        target: object,
        *,
        timeout: float | str | timedelta | None = None,
        max_attempts: int | None = None,
        retry_programming_errors: bool | None = None,
        isolation: Isolation | None = None,
        description: str | None = None,
        concurrency: int | None = None,
        memory_mb: int | None = None,
        nice: int | None = None,
        log_fields: Iterable[str] | None = None,
    ) -> AgentSpec:
        """Register a callable, or what ``package.module:name`` points at, as the agent ``name``."""
        options: dict[str, Any] = {"timeout": timeout, "max_attempts": max_attempts, "isolation": isolation}
        options |= {"description": description, "concurrency": concurrency}
        options |= {"memory_mb": memory_mb, "nice": nice, "log_fields": log_fields}
        options |= {"retry_programming_errors": retry_programming_errors}
        with declaring():
            return self._register(name, target, options)

    def _register(self, name: str, target: object, options: dict[str, Any]) -> AgentSpec:
        spec = describe(name, resolve(target) if isinstance(target, str) else target, **options)
        if name in self._agents:
            known = self._agents[name].call
            raise AppError(
                f"app {self.name!r} has an agent {name!r} already ({_place(known)}): choose another name"
            )
        self._agents[name] = spec
        return spec

    def schedule(
        self,
        call: None = None,
        /,
        *,
        name: str | None = None,
        **options: Unpack[ScheduleKeywords],
    ) -> Callable[[Agent], Agent]:
        """Run a function again and again, as ``@app.schedule(every="5m")`` or ``cron=…`` or ``at=…``.

        The function is an agent too. ``name`` is the schedule's; without one it has the agent's, so a second
        schedule of the same function needs one. ``target`` is a queue to submit runs to instead.
        """
        if call is not None:
            with declaring():
                raise AppError("a schedule needs to know when it is due: write @app.schedule(every=...)")

        def register(function: Agent) -> Agent:
            with declaring():
                self._add_schedule(name, function, dict(options))
            return function

        return register

    def _add_schedule(self, name: str | None, function: AnyCallable, options: dict[str, Any]) -> None:
        # Only an app with schedules loads what they need, and what they are is not this room's business.
        from holdfast.schedules.declaration import declared  # noqa: PLC0415

        known = next((spec.name for spec in self._agents.values() if spec.call is function), None)
        agent = known or _name_of(function)
        schedule = declared(name or agent, agent, options)
        if schedule.name in self._schedules:
            raise AppError(
                f"app {self.name!r} has a schedule {schedule.name!r} already: give this one its own name="
            )
        if known is None:
            self._register(agent, function, {})
        self._schedules[schedule.name] = schedule

    @overload
    def resident(self, make: type[Resident], /) -> type[Resident]: ...

    @overload
    def resident(
        self,
        /,
        *,
        name: str | None = None,
        timeout: float | str | timedelta | None = None,
        max_attempts: int | None = None,
        retry_programming_errors: bool | None = None,
    ) -> Callable[[type[Resident]], type[Resident]]: ...

    def resident(
        self,
        make: Any = None,
        /,
        *,
        name: str | None = None,
        timeout: float | str | timedelta | None = None,
        max_attempts: int | None = None,
        retry_programming_errors: bool | None = None,
    ) -> Any:
        """Register a class as a long-lived agent, as ``@app.resident`` or ``@app.resident(name="clerk")``.

        Hosts run it in a process of its own; ``receive(ctx, message)`` is called for one message at a time.
        """

        def register(found: Any) -> Any:
            with declaring():
                wanted = _name_of(found) if name is None else name
                require_name(wanted, "resident name")
                if wanted in self._residents:
                    raise AppError(
                        f"app {self.name!r} has a resident {wanted!r} already: choose another name"
                    )
                options = {"timeout": timeout, "max_attempts": max_attempts}
                options |= {"retry_programming_errors": retry_programming_errors}
                self._residents[wanted] = describe_resident(wanted, found, **options)
            return found

        return register if make is None else register(make)

    def complete(self) -> None:
        """Look up what was not known while the module was loaded; AppError says what is wrong with it."""
        residents = self._residents.values()
        types = [spec.input_type for spec in (*self._agents.values(), *residents)]
        types += [spec.made_with for spec in residents]
        for each in types:
            if each is not None:
                each.complete()
        for schedule in self._schedules.values():
            self._check_input(schedule)

    def _check_input(self, schedule: Schedule) -> None:
        takes = self._agents[schedule.agent].input_type
        if takes is None:
            return
        try:
            takes.read(schedule.input)
        except InputError as exc:
            raise AppError(f"schedule {schedule.name!r}: {exc}") from None

    def get(self, name: str) -> AgentSpec:
        """Return the agent of that name, or raise UnknownAgent with the names there are."""
        try:
            return self._agents[name]
        except KeyError:
            raise UnknownAgent(self._unknown(name)) from None

    def _unknown(self, name: str) -> str:
        close = get_close_matches(name, self._agents, n=1)
        if close:
            return f"app {self.name!r} has no agent {name!r}; did you mean {close[0]!r}?"
        there_are = ", ".join(sorted(self._agents)[:20]) or "none: register one with @app.agent"
        return f"app {self.name!r} has no agent {name!r}; its agents: {there_are}"


def _require_known(options: dict[str, Any]) -> None:
    parameters = inspect.signature(App.register).parameters.values()
    known = ["name", *(each.name for each in parameters if each.kind is each.KEYWORD_ONLY)]
    for option in options:
        if option not in known:
            close = get_close_matches(option, known, n=1)
            meant = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
            raise AppError(f"an agent has no option {option!r}: {meant}")


def _name_of(function: AnyCallable) -> str:
    name = getattr(function, "__name__", "")
    if not name or name == "<lambda>":
        raise AppError(f"{function!r} has no name to register it under: write @app.agent(name=…)")
    return name


def _place(call: AnyCallable) -> str:
    return f"{getattr(call, '__module__', '?')}.{getattr(call, '__qualname__', type(call).__name__)}"
