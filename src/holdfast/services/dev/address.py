"""The API of ``holdfast dev``: whether it can run, on which port, and how to call it.

Invariant: the port is open from the start until dev ends. While the API is started again, connections wait in
the backlog of the socket that dev holds, and the next API accepts them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shlex
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.config import ApiSettings

_PACKAGES: Final = ("fastapi", "uvicorn", "httptools", "aiohttp")
_BACKLOG: Final = 2048
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is opened here


@dataclass(frozen=True, slots=True)
class ApiAddress:
    """The address of the API; ``refused`` is the reason why it is not the configured port."""

    host: str
    port: int
    refused: str = ""
    listener: socket.socket | None = field(default=None, compare=False)

    @property
    def url(self) -> str:
        """The address to call from this machine."""
        host = _EVERYWHERE.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def missing_packages() -> list[str]:
    """Return the packages of the extra ``api`` that are not installed."""
    return [name for name in _PACKAGES if importlib.util.find_spec(name) is None]


@contextlib.contextmanager
def opened(settings: ApiSettings, *, asked: bool = False) -> Generator[ApiAddress]:
    """Open the configured port for a child, or a free one if that is in use and not ``asked`` for explicitly.

    A free one rather than none: a second dev on the same machine works, too, and prints its port.
    """
    _require_safety(settings)
    with contextlib.ExitStack() as stack:
        try:
            listener, refused = stack.enter_context(_listening(settings.host, settings.port)), ""
        except OSError as exc:
            refused = exc.strerror or str(exc)
            try:
                listener = stack.enter_context(_listening(settings.host, 0))
            except OSError as worse:
                raise ConfigError(
                    f"api.host (HOLDFAST_API_HOST) {settings.host!r} can't be listened on: {worse}"
                ) from worse
            if asked:
                raise ConfigError(
                    f"port {settings.port} can't be opened ({refused}): choose another with --port or "
                    "api.port (HOLDFAST_API_PORT), where 0 is a free one"
                ) from exc
        yield ApiAddress(settings.host, listener.getsockname()[1], refused, listener)


def _require_safety(settings: ApiSettings) -> None:
    """Raise the error that the child would raise at every start."""
    from holdfast.api.auth import check_exposure  # noqa: PLC0415  an extra that may be missing

    check_exposure(settings)


def _listening(host: str, port: int) -> socket.socket:
    """Return a listening socket, in which callers wait for the child; nothing is accepted here."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def submit_line(agent: str, example: Any) -> str:
    """Return the command that submits a run and follows it."""
    given = "" if example is None else f" {shlex.quote(json.dumps(example))}"
    return f"holdfast submit {agent}{given} --follow"


def curl_line(address: ApiAddress, agent: str, example: Any, *, keyed: bool) -> str:
    """Return the command that submits a run over HTTP."""
    body = {"agent_id": agent} if example is None else {"agent_id": agent, "input": example}
    key = " -H 'Authorization: Bearer KEY'" if keyed else ""
    return f"curl {address.url}/execute{key} -d {shlex.quote(json.dumps(body))}"
