"""Hosts by the EndpointSlices of their service, from the Kubernetes API: one list call for each lookup.

The caller's service account needs one right: ``list`` of ``endpointslices`` (``discovery.k8s.io``) where the
service is. Outside of a cluster a kubeconfig has the API server and the user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.errors import KubernetesUnavailable, NoHost
from holdfast.hosts.directory import AskedDirectory, joined
from holdfast.kubernetes.slices import Slices

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lightkube import KubeConfig
    from lightkube.models.discovery_v1 import Endpoint
    from lightkube.resources.discovery_v1 import EndpointSlice

    from holdfast.config import HostSettings
    from holdfast.hosts.remote import RemoteCalls

_PORT_NAME: Final = "grpc"


class KubernetesDirectory(AskedDirectory):
    """The ready pods of a service, by their Health call."""

    def __init__(self, calls: RemoteCalls, settings: HostSettings, config: KubeConfig | None = None) -> None:
        super().__init__(calls)
        # As in DNS: service, service.namespace, or the whole name.
        service, _, rest = settings.service_name.partition(".")
        self._port = settings.grpc_port
        self._slices = Slices(
            "hosts.directory = kubernetes", service, config, namespace=rest.partition(".")[0]
        )

    async def addresses(self) -> Sequence[str]:
        """Return the ready addresses of the service's slices."""
        try:
            return ready_addresses(await self._slices.list(), self._port)
        except KubernetesUnavailable as exc:
            raise NoHost(str(exc)) from exc

    async def close(self) -> None:
        """Close the connection."""
        await self._slices.close()


def ready_addresses(slices: Iterable[EndpointSlice], default_port: int) -> list[str]:
    """Return the addresses of a service's ready endpoints, without those that terminate."""
    return sorted(
        {
            joined(endpoint.addresses[0], _port(each, default_port))
            for each in slices
            if each.addressType in {"IPv4", "IPv6"}
            for endpoint in each.endpoints or ()
            if endpoint.addresses and _is_ready(endpoint)
        }
    )


def _is_ready(endpoint: Endpoint) -> bool:
    conditions = endpoint.conditions
    # A missing condition means ready and not terminating.
    # guard: terminating-endpoints
    return conditions is None or (conditions.ready is not False and not conditions.terminating)


def _port(each: EndpointSlice, default: int) -> int:
    """Return the port that is named grpc, or the only port, or the port of the settings."""
    ports = {port.name or "": port.port for port in each.ports or () if port.port}
    if _PORT_NAME in ports:
        return ports[_PORT_NAME]
    return next(iter(ports.values())) if len(ports) == 1 else default
