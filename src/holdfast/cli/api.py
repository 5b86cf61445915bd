"""``holdfast api``: one api process; ``holdfast api new-key`` makes a key for it."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.cli.service_args import ServiceArgumentParser, serving
from holdfast.errors import InputError
from holdfast.packages import needs_extra

if TYPE_CHECKING:
    from holdfast.config import Settings


def run(arguments: list[str]) -> int:
    """Serve HTTP until SIGTERM or Ctrl-C, or make a key."""
    if arguments[:1] == ["new-key"]:
        return _new_key(arguments[1:])
    return _serve(parser().parse_args(arguments))


def parser() -> ServiceArgumentParser:
    """Return the parser of the command."""
    parser = ServiceArgumentParser("api")
    parser.epilog = "`holdfast api new-key NAME` makes a key for it"
    parser.add_argument(
        "--app",
        metavar="APP",
        help="the agents, package.module:app or path/to/file.py:app: runs of others are refused; without it "
        "any name is queued",
    )
    parser.add_argument("--host", metavar="HOST", help="the address to listen on, instead of api.host")
    parser.add_argument(
        "--port", metavar="PORT", type=int, help="the port, instead of api.port; 0 is a free one"
    )
    parser.add_argument(
        "--fd",
        metavar="FD",
        type=int,
        help="the number of a listening socket that the parent process has opened, instead of host and port: "
        "the parent keeps it open while the API is restarted",
    )
    return parser


def _serve(given: Any) -> int:
    from holdfast.agents.loader import load_app
    from holdfast.config import load
    from holdfast.telemetry import traces

    inherited = None
    if given.fd is not None:
        if given.host is not None or given.port is not None:
            raise InputError("--fd has its own host and port: leave out --host and --port")
        inherited = _inherited(given.fd)
        given.host, given.port = inherited.getsockname()[:2]
    settings = _placed(load(given.config).settings, given.host, given.port)
    with needs_extra("the API", "api"):
        from holdfast.services.api import run_api
    with serving(settings, json=given.json) as settings:
        app = load_app(given.app) if given.app else None
        traces.start("api")
        return run_api(settings, app, inherited=inherited)


def _inherited(number: int) -> socket.socket:
    """Return the listening socket of that number; InputError if it is something else."""
    try:
        found = socket.socket(fileno=number)
        listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except (OSError, ValueError) as exc:
        raise InputError(f"--fd {number} is not an open socket: {exc}") from exc
    if not listens or found.family not in {socket.AF_INET, socket.AF_INET6}:
        raise InputError(f"--fd {number} must be a TCP socket that listens")
    found.set_inheritable(False)
    found.settimeout(0)
    return found


def _placed(settings: Settings, host: str | None, port: int | None) -> Settings:
    if port is not None and not 0 <= port <= 65535:
        raise InputError(f"--port must be a port between 0 and 65535, got {port}")
    if host is not None and not host.strip():
        raise InputError("--host must be an address or a host name")
    changes = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    return msgspec.structs.replace(settings, api=msgspec.structs.replace(settings.api, **changes))


def new_key_parser() -> ServiceArgumentParser:
    """Return the parser of ``holdfast api new-key``."""
    parser = ServiceArgumentParser("api")
    parser.prog, parser.description = "holdfast api new-key", "Make a key and print it, once."
    parser.add_argument("name", metavar="NAME", help="whose key it is; shown in logs and errors")
    parser.add_argument(
        "--tenant", default="*", metavar="TENANT", help="the only tenant it sees; * is every one"
    )
    parser.add_argument(
        "--roles", default="read+submit", metavar="ROLES", help="what it may do: of read+submit+operate"
    )
    return parser


def _new_key(arguments: list[str]) -> int:
    given = new_key_parser().parse_args(arguments)
    with needs_extra("the API", "api"):
        from holdfast.api.auth import new_key
    key, line = new_key(given.name, tenant=given.tenant, roles=given.roles)
    if given.json:
        text = msgspec.json.encode({"key": key, "line": line}).decode()
    else:
        text = (
            f"key:  {key}\n\n"
            "It is not shown again. Add this line to api.keys in holdfast.yaml, or to HOLDFAST_API_KEYS:\n\n"
            f"  - {line}"
        )
    sys.stdout.write(f"{text}\n")
    return 0
