"""``holdfast scaler``: one external scaler of KEDA."""

from __future__ import annotations

from holdfast.cli.serving import Parser, serving
from holdfast.errors import ConfigError


def run(arguments: list[str]) -> int:
    """Answer KEDA until SIGTERM or Ctrl-C."""
    given = Parser("scaler").parse_args(arguments)
    from holdfast.config import load

    settings = load(given.config).settings
    try:
        from holdfast.services.scaler import run_scaler  # gRPC is an extra
    except ModuleNotFoundError as exc:
        raise ConfigError(
            f"the scaler needs {exc.name}, which is not installed: install holdfast[scaler]"
        ) from exc
    with serving(settings, json=given.json) as settings:
        return run_scaler(settings)
