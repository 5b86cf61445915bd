"""The settings of the environment. An empty variable counts as not set."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from holdfast.config.parse import Given
from holdfast.config.problems import unknown_variable
from holdfast.config.schema import leaves, unit_of

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG_VARIABLE: Final = "HOLDFAST_CONFIG"
_PREFIX: Final = "HOLDFAST_"

# Kubernetes sets variables for each Service of the namespace in every pod: for a Service "holdfast-api"
# HOLDFAST_API_PORT=tcp://10.0.0.7:80 and more. They are not settings and must not stop a pod.
_SERVICE_NAME = re.compile(
    r"[A-Z0-9_]+_(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_SERVICE_VALUE = re.compile(r"(?:tcp|udp|sctp)://\S+")


def variables(environ: Mapping[str, str]) -> dict[str, list[Given]]:
    """Return the given values of each setting's path, in the order of the setting's names."""
    found: dict[str, list[Given]] = {}
    for leaf in leaves():
        given = [
            Given(raw=environ[name], source=f"environment {name}", unit=unit_of(name))
            for name in leaf.env
            if environ.get(name, "").strip() and not _is_service_link(name, environ[name])
        ]
        if given:
            found[leaf.path] = given
    return found


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a problem for every unknown variable with the prefix of Holdfast."""
    known = {name for leaf in leaves() for name in leaf.env} | {CONFIG_VARIABLE}
    ours = (name for name in sorted(environ) if name.startswith(_PREFIX) and name not in known)
    return [unknown_variable(name) for name in ours if not _is_service_link(name, environ[name])]


def _is_service_link(name: str, value: str) -> bool:
    if name.endswith("_PORT") and _SERVICE_VALUE.fullmatch(value):
        return True
    return _SERVICE_NAME.fullmatch(name) is not None
