"""What goes in and out of ``/residents``, as msgspec reads and writes it and OpenAPI tells."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from holdfast.api.shapes import NAMED, Tenant
from holdfast.views.runs import ErrorView
from holdfast.views.times import add_iso

_UNBROKEN: Final = {"must": "be printable characters without blanks"}
ResidentId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=300, pattern=r"^\S+$", extra=_UNBROKEN)]
Resident: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=200, pattern="^[A-Za-z0-9_][A-Za-z0-9_.:/-]*$", extra=NAMED)
]
Label: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=63,
        pattern="^[A-Za-z0-9][A-Za-z0-9._=/-]*$",
        extra={"must": "be letters, digits and . _ = / -, beginning with a letter or a digit"},
    ),
]
Labels: TypeAlias = Annotated[tuple[Label, ...], Meta(max_length=100)]


class NeedsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a resident asks of its host."""

    cpu: Annotated[float, Meta(ge=0, le=100_000, description="Cores.")] = 0.0
    memory_mb: Annotated[float, Meta(ge=0, le=100_000_000)] = 0.0
    near: Annotated[Labels, Meta(description="Labels that its host must have.")] = ()
    apart: Annotated[Labels, Meta(description="Labels of residents that its host must not hold yet.")] = ()
    labels: Annotated[Labels, Meta(description="Its own labels.")] = ()


class ResidentRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to start a resident."""

    id: Annotated[ResidentId, Meta(description="Its id; the same one again is the same resident.")]
    resident: Annotated[Resident, Meta(description="Its name in the app of the hosts.")]
    input: Annotated[Any, Meta(description="What its class is made with; null makes it without.")] = None
    needs: NeedsRequest = NeedsRequest()
    tenant: Annotated[Tenant | None, Meta(description="Forced to the key's own, if the key has one.")] = None


class ResidentRow(msgspec.Struct, frozen=True, kw_only=True):
    """A resident and its host, whose address is shown to operators only."""

    id: str
    name: str
    """The name of its class in the app."""
    entry: str
    tenant: str
    guild_id: str
    status: str
    host: str
    address: str
    pid: int
    fence: int
    restarts: int
    error: str
    """Why it last ended or did not start."""
    created_at: float
    started_at: float
    created_at_iso: str = ""
    started_at_iso: str = ""

    def __post_init__(self) -> None:
        add_iso(self, "created_at", "started_at")


class MailboxView(msgspec.Struct, frozen=True):
    """How many messages wait, are being received, are tried again later, or were given up."""

    queue: str
    waiting: int
    receiving: int
    delayed: int
    dead: int


class ResidentView(ResidentRow, frozen=True, kw_only=True):
    """Everything known of a resident; one of another framework has no input and no mailbox."""

    needs: NeedsRequest
    input: Any = None
    mailbox: MailboxView | None = None


class ResidentList(msgspec.Struct, frozen=True):
    """A page of residents, oldest first; without a cursor that was all."""

    residents: list[ResidentRow]
    cursor: str = ""


class MessageRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message for a resident."""

    message: Annotated[Any, Meta(description="What its receive() is given.")] = None
    timeout_seconds: Annotated[float, Meta(gt=0, le=31_536_000)] | None = None
    metadata: dict[str, Any] | None = None


class MessageView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message, which is a run of the mailbox: its result is the reply."""

    id: str
    run_id: str
    queue: str
    status: str
    result: Any = msgspec.UNSET
    error: ErrorView | None = None


class MoveRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a resident should go; without a host, to whichever is best."""

    host: Annotated[str, Meta(max_length=200, pattern="^[!-~]*$", extra=_UNBROKEN)] = ""
