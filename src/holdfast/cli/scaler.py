"""``holdfast scaler``: one external scaler of KEDA."""

from __future__ import annotations

from holdfast.cli.service_args import ServiceArgumentParser, serving
from holdfast.packages import needs_extra


def run(arguments: list[str]) -> int:
    """Answer KEDA until SIGTERM or Ctrl-C."""
    given = parser().parse_args(arguments)
    from holdfast.config import load

    settings = load(given.config).settings
    with needs_extra("the scaler", "scaler"):
        from holdfast.services.scaler import run_scaler
    with serving(settings, json=given.json) as settings:
        return run_scaler(settings)


def parser() -> ServiceArgumentParser:
    """Return the parser of the command."""
    return ServiceArgumentParser("scaler")
