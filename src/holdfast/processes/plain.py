"""The plain entry: runs the class that an agent's spec names, for agents that need only a process.

``Class(spec)``, then ``start()`` if it has one, ready, and ``stop()`` at the end. Residents and other
frameworks have entries of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.errors import InputError
from holdfast.processes.entries import allowed_class

if TYPE_CHECKING:
    from holdfast.processes.control import ChildControl


def run(payload: dict[str, Any], control: ChildControl) -> None:
    """Run the agent until it is asked to stop."""
    spec: dict[str, Any] = payload["agent_spec"]
    path = spec.get("class_name")
    if not isinstance(path, str):
        raise InputError(f"agent_spec needs a 'class_name', such as package.module.Class; it has {path!r}")
    agent = allowed_class(path, control.class_prefixes)(spec)
    if hasattr(agent, "start"):
        agent.start()
    control.ready()
    control.stop.wait()
    if hasattr(agent, "stop"):
        agent.stop()
