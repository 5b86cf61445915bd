"""Hosts by the EndpointSlices of their service, from the Kubernetes API: one list for each look.

The caller's service account needs one right: ``list`` of ``endpointslices`` (``discovery.k8s.io``) where the
service is. Outside of a cluster a kubeconfig says where and who.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lightkube.resources.discovery_v1 import EndpointSlice

from holdfast.errors import KubernetesUnavailable, NoHost
from holdfast.hosts.directory import AskedDirectory, joined
from holdfast.kubernetes.client import Api

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lightkube import KubeConfig
    from lightkube.models.discovery_v1 import Endpoint

    from holdfast.config import HostSettings
    from holdfast.hosts.remote import RemoteCalls

_SERVICE_LABEL: Final = "kubernetes.io/service-name"
_PORT_NAME: Final = "grpc"
_NEEDS: Final = "apiGroups [discovery.k8s.io], resources [endpointslices], verbs [list]"


class KubernetesDirectory(AskedDirectory):
    """The pods of a service that are ready, each asked how it is."""

    def __init__(self, calls: RemoteCalls, settings: HostSettings, config: KubeConfig | None = None) -> None:
        super().__init__(calls)
        # As in DNS: service, service.namespace, or the whole name.
        self._service, _, rest = settings.service_name.partition(".")
        self._port = settings.grpc_port
        self._api = Api("hosts.directory = kubernetes", config, namespace=rest.partition(".")[0])
        self._client = self._api.typed()

    async def addresses(self) -> Sequence[str]:
        """List the slices of the service, and take from them what is ready."""
        namespace = self._api.namespace
        what = f"the EndpointSlices of service {self._service} in namespace {namespace}"
        try:
            with self._api.asking("list", what, _NEEDS):
                found = self._client.list(  # pyright: ignore[reportUnknownMemberType]  selectors of any type
                    EndpointSlice, namespace=namespace, labels={_SERVICE_LABEL: self._service}
                )
                return ready_addresses([each async for each in found], self._port)
        except KubernetesUnavailable as exc:
            raise NoHost(str(exc)) from exc

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()


def ready_addresses(slices: Iterable[EndpointSlice], default_port: int) -> list[str]:
    """Where the ready endpoints of a service are: of those that leave, none."""
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
    # What is not said is ready, and does not leave.
    return conditions is None or (conditions.ready is not False and not conditions.terminating)


def _port(each: EndpointSlice, default: int) -> int:
    """The port that is named grpc; or the only one; or that of the settings."""
    ports = {port.name or "": port.port for port in each.ports or () if port.port}
    if _PORT_NAME in ports:
        return ports[_PORT_NAME]
    return next(iter(ports.values())) if len(ports) == 1 else default
