"""The pods of one namespace: read one by one, listed and watched, and annotated with their deletion cost.

Only :meth:`Pods.get` returns the current state: without a version it is read from the API's own storage. A
list or a watch may be outdated when it arrives, and proves nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

import httpx2
import msgspec

from holdfast.errors import KubernetesUnavailable
from holdfast.kubernetes.client import Api
from holdfast.kubernetes.pod import COST, RULES, Pod, cost_of, in_words

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from contextlib import AbstractContextManager

    from lightkube import KubeConfig

WATCH_SECONDS: Final = 60
"""The duration of one watch; a watch that the API has dropped is noticed a little later."""
_LATE_SECONDS: Final = 10
_CONNECT_SECONDS: Final = 5.0
_MERGE: Final = "application/merge-patch+json"
_NOT_FOUND: Final = 404
_INVALID: Final = 422
_PAGE: Final = 500
_MOST_PAGES: Final = 1000
_RESPONSE_SECONDS: Final = 10.0
"""The timeout of a whole response: one that arrives byte by byte never exceeds the timeout of a read."""
_LIST_SECONDS: Final = 60.0


Answer = TypeVar("Answer")


class _Metadata(msgspec.Struct):
    name: str
    uid: str
    annotations: dict[str, str] | None = None
    deletion: str | None = msgspec.field(default=None, name="deletionTimestamp")


class _PodStatus(msgspec.Struct):
    phase: str = "Unknown"


class _KubePod(msgspec.Struct):
    metadata: _Metadata
    status: _PodStatus | None = None

    def seen(self) -> Pod:
        status = self.status or _PodStatus()
        return Pod(
            name=self.metadata.name,
            uid=self.metadata.uid,
            phase=status.phase,
            deleting=self.metadata.deletion is not None,
            cost=cost_of(self.metadata.annotations or {}),
        )


class _ListMetadata(msgspec.Struct):
    version: str = msgspec.field(name="resourceVersion")
    more: str = msgspec.field(default="", name="continue")


class _PodList(msgspec.Struct):
    metadata: _ListMetadata
    items: list[_KubePod]


class _Cause(msgspec.Struct):
    field: str = ""


class _Details(msgspec.Struct):
    kind: str = ""
    causes: list[_Cause] | None = None


class _Failure(msgspec.Struct):
    reason: str = ""
    message: str = ""
    code: int = 0
    details: _Details | None = None


class _Change(msgspec.Struct):
    type: str
    object: msgspec.Raw


class Pods:
    """The pods of a namespace; ``labels`` select the pods of lists and watches, not of ``get``."""

    def __init__(
        self,
        setting: str,
        *,
        namespace: str = "",
        labels: Sequence[str] = (),
        config: KubeConfig | None = None,
    ) -> None:
        self._api = Api(setting, config, namespace=namespace)
        self._http = self._api.plain()
        self._selector = ",".join(labels)

    @property
    def namespace(self) -> str:
        """The namespace of the pods."""
        return self._api.namespace

    async def close(self) -> None:
        """Close the connection."""
        await self._http.aclose()

    async def get(self, name: str) -> Pod | None:
        """Return the current pod of that name; None if there is none."""
        with self._request("get"):
            async with asyncio.timeout(_RESPONSE_SECONDS):
                response = await self._http.get(self._path(name))
            if _is_not_found(response):
                return None
            return _read(response, _KubePod).seen()

    async def list(self) -> tuple[list[Pod], str]:
        """Return every pod with the labels, and the version from which to watch."""
        params: dict[str, Any] = {"labelSelector": self._selector, "limit": _PAGE}
        pods: list[Pod] = []
        with self._request("list"):
            async with asyncio.timeout(_LIST_SECONDS):
                for _ in range(_MOST_PAGES):
                    page = _read(await self._http.get(self._path(), params=params), _PodList)
                    pods += [each.seen() for each in page.items]
                    if not page.metadata.more:
                        return pods, page.metadata.version
                    params["continue"] = page.metadata.more
        raise KubernetesUnavailable(f"the list of {self._what} does not end.", kind="odd")

    async def watch(self, version: str) -> AsyncGenerator[tuple[Pod, bool]]:
        """Yield each change after ``version``, for WATCH_SECONDS: a pod, and whether it still exists."""
        params: dict[str, Any] = {
            "watch": "true",
            "labelSelector": self._selector,
            "resourceVersion": version,
            "timeoutSeconds": WATCH_SECONDS,
        }
        # guard: pod-watch-timeout
        timeout = httpx2.Timeout(_CONNECT_SECONDS, read=WATCH_SECONDS + _LATE_SECONDS)
        with self._request("watch"):
            async with self._http.stream("GET", self._path(), params=params, timeout=timeout) as response:
                if response.is_error:
                    await response.aread()
                response.raise_for_status()
                async for line in response.aiter_lines():
                    change = msgspec.json.decode(line, type=_Change)
                    if change.type == "ERROR":
                        failure = msgspec.json.decode(change.object, type=_Failure)
                        raise KubernetesUnavailable(
                            f"the watch of {self._what} has ended: {failure.message} ({failure.code}).",
                            kind="refused",
                            status=failure.code,
                        )
                    pod = msgspec.json.decode(change.object, type=_KubePod).seen()
                    yield pod, change.type != "DELETED"

    async def set_cost(self, pod: Pod, cost: int) -> Pod | None:
        """Write the deletion cost of this pod; return None if it is gone, or another pod has its name."""
        # A pod of that name with another uid refuses the patch.
        patch = {"metadata": {"uid": pod.uid, "annotations": {COST: str(cost)}}}  # guard: pod-cost-uid
        with self._request("patch"):
            async with asyncio.timeout(_RESPONSE_SECONDS):
                response = await self._http.patch(
                    self._path(pod.name), content=msgspec.json.encode(patch), headers={"Content-Type": _MERGE}
                )
            if _is_not_found(response) or _is_another_pod(response):  # guard: pod-gone-status
                return None
            return _read(response, _KubePod).seen()

    def _path(self, name: str = "") -> str:
        return f"api/v1/namespaces/{self.namespace}/pods" + (f"/{name}" if name else "")

    @property
    def _what(self) -> str:
        return f"pods in namespace {self.namespace}"

    def _request(self, verb: str) -> AbstractContextManager[None]:
        return self._api.asking(verb, self._what, in_words(RULES[0]))


def _read(response: httpx2.Response, kind: type[Answer]) -> Answer:
    response.raise_for_status()
    return msgspec.json.decode(response.content, type=kind)


def _is_not_found(response: httpx2.Response) -> bool:
    """Return whether the API itself reports that there is no such pod: a 404 may come from a proxy."""
    details = _details(response, _NOT_FOUND, "NotFound")
    return details is not None and details.kind == "pods"


def _is_another_pod(response: httpx2.Response) -> bool:
    """Return whether the patch is rejected for its uid: a webhook may send 422 for the right pod, too."""
    details = _details(response, _INVALID, "Invalid")
    return details is not None and any(cause.field == "metadata.uid" for cause in details.causes or ())


def _details(response: httpx2.Response, code: int, reason: str) -> _Details | None:
    """Return the details of that error of the API; None for another error, or one of a proxy."""
    if response.status_code != code:
        return None
    try:
        failure = msgspec.json.decode(response.content, type=_Failure)
    except msgspec.MsgspecError:
        return None  # guard: pod-not-found-body
    return failure.details if failure.reason == reason else None
