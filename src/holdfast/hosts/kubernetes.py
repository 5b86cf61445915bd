"""Hosts by the EndpointSlices of their service, from the Kubernetes API: one list for each look.

The caller's service account needs one right: ``list`` of ``endpointslices`` (``discovery.k8s.io``) where the
service is. Outside of a cluster a kubeconfig says where and who.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

import httpx2
import msgspec
from lightkube import AsyncClient, KubeConfig
from lightkube.core.exceptions import ConfigError as KubeConfigError
from lightkube.resources.discovery_v1 import EndpointSlice

from holdfast.errors import ConfigError, NoHost
from holdfast.hosts.directory import AskedDirectory, joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lightkube.models.discovery_v1 import Endpoint

    from holdfast.config import HostSettings
    from holdfast.hosts.remote import RemoteCalls

_SERVICE_LABEL: Final = "kubernetes.io/service-name"
_PORT_NAME: Final = "grpc"
_TIMEOUT_SECONDS: Final = 5.0
_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403


class KubernetesDirectory(AskedDirectory):
    """The pods of a service that are ready, each asked how it is."""

    def __init__(self, calls: RemoteCalls, settings: HostSettings, config: KubeConfig | None = None) -> None:
        super().__init__(calls)
        # As in DNS: service, service.namespace, or the whole name.
        self._service, _, rest = settings.service_name.partition(".")
        self._namespace = rest.partition(".")[0]
        self._port = settings.grpc_port
        self._client = _client(config)

    async def addresses(self) -> Sequence[str]:
        """List the slices of the service, and take from them what is ready."""
        namespace = self._namespace or self._client.namespace
        try:
            found = self._client.list(  # pyright: ignore[reportUnknownMemberType]  selectors of any type
                EndpointSlice, namespace=namespace, labels={_SERVICE_LABEL: self._service}
            )
            return ready_addresses([each async for each in found], self._port)
        except httpx2.HTTPStatusError as exc:
            raise NoHost(self._refusal(namespace, exc.response)) from exc
        except httpx2.HTTPError as exc:
            raise NoHost(f"{self._api} does not answer: {exc or type(exc).__name__}.") from exc
        except (ValueError, KeyError, msgspec.MsgspecError) as exc:
            # KeyError too: the client takes for granted that every error says what type its text has.
            raise NoHost(f"{self._api} answers what no Kubernetes API does: {exc!r}.") from exc

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()

    @property
    def _api(self) -> str:
        return f"the Kubernetes API at {self._client.config.cluster.server}"

    def _refusal(self, namespace: str, response: httpx2.Response) -> str:
        code, said = response.status_code, _said(response)
        where = f"the EndpointSlices of service {self._service} in namespace {namespace}"
        if code == _FORBIDDEN:
            return (
                f"{self._api} does not let us list {where} ({said}): give the service account a Role with "
                "apiGroups [discovery.k8s.io], resources [endpointslices], verbs [list]."
            )
        if code == _UNAUTHORIZED:
            return (
                f"{self._api} does not know us ({said}): look whether the token of the service account is "
                "mounted (automountServiceAccountToken), or what the kubeconfig says."
            )
        return f"{self._api} does not list {where}: {said} ({code})."


class _Status(msgspec.Struct):
    """What the API says of an error."""

    message: str = ""


def _said(response: httpx2.Response) -> str:
    try:
        said = msgspec.json.decode(response.content, type=_Status).message
    except msgspec.MsgspecError:
        said = ""  # a proxy's words, not the API's
    return said or response.reason_phrase


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


def _client(config: KubeConfig | None) -> AsyncClient:
    try:
        return AsyncClient(config or KubeConfig.from_env(), timeout=httpx2.Timeout(_TIMEOUT_SECONDS))
    except KeyError as exc:
        raise ConfigError(f"hosts.directory = kubernetes: the environment has no {exc.args[0]}.") from exc
    except (KubeConfigError, OSError, ssl.SSLError) as exc:
        raise ConfigError(
            f"hosts.directory = kubernetes: neither a service account nor a kubeconfig can be used: {exc}."
        ) from exc
