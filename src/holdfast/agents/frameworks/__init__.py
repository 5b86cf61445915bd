"""Agents of other frameworks, made durable: what ``app.register`` does with a graph or an agent object.

Nothing of a framework is imported here: an object that belongs to one has imported it already.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from holdfast.agents.frameworks.current import current_context

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.agents.context import Context

    Adapted = Callable[[Context, Any], Awaitable[Any]]

__all__ = ["adapt", "current_context"]

# The class that makes an object one of a framework's: its name and where it is defined -> our adapter.
_KNOWN = {
    "Pregel": ("langgraph.", "langgraph", "LangGraphAgent"),
    "StateGraph": ("langgraph.", "langgraph", "LangGraphAgent"),
    "AbstractAgent": ("pydantic_ai.", "pydantic_ai", "PydanticAIAgent"),
    "Agent": ("agents.agent", "openai_agents", "OpenAIAgent"),
}


def adapt(target: object) -> Adapted | None:
    """Return an agent function for an object of a framework that is known here, None for any other."""
    for ancestor in type(target).__mro__:
        place, module, adapter = _KNOWN.get(ancestor.__name__, ("?", "", ""))
        if ancestor.__module__.startswith(place):
            return getattr(importlib.import_module(f"{__name__}.{module}"), adapter)(target)
    return None
