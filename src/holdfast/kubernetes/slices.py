"""The EndpointSlices of a service: the addresses of its pods, and which of them are ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lightkube.resources.discovery_v1 import EndpointSlice

from holdfast.kubernetes.client import Api

if TYPE_CHECKING:
    from lightkube import KubeConfig

_SERVICE_LABEL: Final = "kubernetes.io/service-name"
_NEEDS: Final = "apiGroups [discovery.k8s.io], resources [endpointslices], verbs [list]"


class Slices:
    """The slices of one service, listed at each call."""

    def __init__(
        self, setting: str, service: str, config: KubeConfig | None = None, *, namespace: str = ""
    ) -> None:
        self._api = Api(setting, config, namespace=namespace)
        self._service = service
        self._client = self._api.typed()

    async def list(self) -> list[EndpointSlice]:
        """Return the current slices; raises KubernetesUnavailable."""
        namespace = self._api.namespace
        what = f"the EndpointSlices of service {self._service} in namespace {namespace}"
        with self._api.asking("list", what, _NEEDS):
            found = self._client.list(  # pyright: ignore[reportUnknownMemberType]  selectors of any type
                EndpointSlice, namespace=namespace, labels={_SERVICE_LABEL: self._service}
            )
            return [each async for each in found]

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()
