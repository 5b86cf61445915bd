"""All operations of one caller, by noun."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from holdfast.operations.agents import AgentOperations
from holdfast.operations.dead_letters import DeadLetterOperations
from holdfast.operations.hosts import HostOperations
from holdfast.operations.queues import QueueOperations
from holdfast.operations.residents import ResidentOperations
from holdfast.operations.runs import RunOperations
from holdfast.operations.schedules import ScheduleOperations
from holdfast.operations.undelivered import UndeliveredOperations
from holdfast.views.members import MemberList, MemberView

if TYPE_CHECKING:
    from holdfast.operations.caller import Caller
    from holdfast.operations.system import System


class Operations:
    """What one caller can ask of a system."""

    def __init__(self, system: System, caller: Caller) -> None:
        self.system = system
        self.caller = caller

    @cached_property
    def runs(self) -> RunOperations:
        """Submit, find, explain and steer runs."""
        return RunOperations(self.system, self.caller)

    @cached_property
    def queues(self) -> QueueOperations:
        """Read, pause, drain and resume queues."""
        return QueueOperations(self.system, self.caller)

    @cached_property
    def dead_letters(self) -> DeadLetterOperations:
        """List, read, replay and drop dead letters."""
        return DeadLetterOperations(self.system, self.caller)

    @cached_property
    def schedules(self) -> ScheduleOperations:
        """Make, find, explain and steer schedules."""
        return ScheduleOperations(self.system, self.caller)

    @cached_property
    def undelivered(self) -> UndeliveredOperations:
        """List undelivered events, and have them delivered again."""
        return UndeliveredOperations(self.system, self.caller)

    @cached_property
    def agents(self) -> AgentOperations:
        """List and read registered agents."""
        return AgentOperations(self.system, self.caller)

    @cached_property
    def hosts(self) -> HostOperations:
        """List and read hosts."""
        return HostOperations(self.system, self.caller)

    @cached_property
    def residents(self) -> ResidentOperations:
        """Start, read, move and stop residents, and send them messages."""
        return ResidentOperations(self.system, self.caller)

    async def members(self) -> MemberList:
        """List every live process; not for a caller of one tenant."""
        self.caller.require_every_tenant()
        found = await self.system.members.all(self.system.redis)
        return MemberList([MemberView(each.kind, each.name, each.typed_fields()) for each in found])
