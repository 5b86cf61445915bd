"""A resident: a long-lived agent, a class whose ``receive`` is called for one message after the other.

``start`` and ``stop`` frame its life, ``health`` is asked now and then; all three may be missing, and each
may be async or not.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, Final

from holdfast.agents.models import InputType, input_type
from holdfast.agents.spec import describe
from holdfast.errors import AppError

_OPTIONAL: Final = ("start", "stop", "health")
_SIGNATURE: Final = "`async def receive(self, ctx, message)`"


@dataclasses.dataclass(frozen=True, slots=True)
class ResidentSpec:
    """A resident as an app knows it: the class, and what one message may cost."""

    name: str
    make: type[Any]
    options: dict[str, Any]
    input_type: InputType | None = None
    """What a message is made into, if the annotation of ``receive`` is a model."""
    made_with: InputType | None = None
    """What the input of the class is made into, if the annotation of ``__init__`` is a model."""

    def arguments(self, payload: Any) -> tuple[Any, ...]:
        """Return what to make the class with; InputError if the input is not what it takes."""
        if payload is None:
            return ()
        return (payload if self.made_with is None else self.made_with.read(payload),)


def describe_resident(name: str, make: object, **options: Any) -> ResidentSpec:
    """Look at a class and say what is missing for a resident."""
    if not isinstance(make, type):
        raise AppError(f"resident {name!r} must be a class with {_SIGNATURE}")
    receive = getattr(make, "receive", None)
    if not callable(receive) or len(inspect.signature(receive).parameters) != 3:
        raise AppError(f"resident {name!r} needs {_SIGNATURE}")
    for method in _OPTIONAL:
        own = getattr(make, method, None)
        if own is not None and (not callable(own) or len(inspect.signature(own).parameters) != 1):
            raise AppError(f"resident {name!r}: {method} takes only self")
    describe(name, _receive, **options)  # what is wrong with the options is said here
    message = [*inspect.signature(receive).parameters.values()][-1]
    return ResidentSpec(
        name,
        make,
        options,
        input_type(name, f"resident {name!r}", receive, message),
        _made_with(name, make),
    )


def _made_with(name: str, make: type[Any]) -> InputType | None:
    """Return the type of the first parameter of ``__init__``, None if it is no model."""
    call: Any = make.__init__
    try:
        parameters = [*inspect.signature(call).parameters.values()][1:]
    except (ValueError, TypeError):
        return None
    whose = f"the class of resident {name!r}"
    return input_type(name, whose, call, parameters[0]) if parameters else None


async def _receive(ctx: object, message: object) -> None:
    del ctx, message
