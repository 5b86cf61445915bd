"""The system as one caller sees it, tenant and roles included: what routes, commands and clients call."""

from holdfast.operations.caller import Caller
from holdfast.operations.operations import Operations
from holdfast.operations.system import QueueAccess, System

__all__ = ["Caller", "Operations", "QueueAccess", "System"]
