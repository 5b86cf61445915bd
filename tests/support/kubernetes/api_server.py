"""A Kubernetes API in the test's process, over real HTTP: pods with resourceVersions, lists in pages, watches, patches.

It can refuse a verb, hang, forget its history (410), answer a list from an old cache, end all watches, and be restarted.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.support.redis.valkey_process import free_port

NAMESPACE = "agents"
WORKER = {"app.kubernetes.io/name": "holdfast", "app.kubernetes.io/component": "worker"}
COST = "controller.kubernetes.io/pod-deletion-cost"


class KubeApi:
    """The pods of one namespace."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.version = 1000
        self.oldest = 0
        """Watches from before this version are answered with 410 Gone."""
        self.old_list: list[dict[str, Any]] | None = None
        """What a list shows instead of the truth."""
        self.forbidden: set[str] = set()
        self.hanging: set[str] = set()
        self.garbled: set[str] = set()
        self.unwanted: set[str] = set()
        """Pods whose patches an admission webhook denies, with 422."""
        self.page = 2
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.patches: list[tuple[str, int]] = []
        self._history: list[tuple[int, str, dict[str, Any]]] = []
        self._moved = asyncio.Condition()
        self._watches: set[asyncio.Event] = set()
        self._runner: web.AppRunner | None = None
        self.port = 0

    # -- what happens to pods

    async def put(
        self,
        name: str,
        *,
        uid: str = "",
        phase: str = "Running",
        labels: dict[str, str] | None = None,
        **annotations: str,
    ) -> None:
        pod = {
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "uid": uid or f"uid-{name}",
                "labels": WORKER if labels is None else labels,
                "annotations": annotations or None,
            },
            "spec": {"containers": [{"name": "worker", "image": "holdfast"}]},
            "status": {"phase": phase},
        }
        await self._change("MODIFIED" if name in self.pods else "ADDED", name, pod)

    async def phase(self, name: str, phase: str) -> None:
        pod = copy.deepcopy(self.pods[name])
        pod["status"]["phase"] = phase
        await self._change("MODIFIED", name, pod)

    async def terminate(self, name: str) -> None:
        pod = copy.deepcopy(self.pods[name])
        pod["metadata"]["deletionTimestamp"] = "2025-01-01T00:00:00Z"
        await self._change("MODIFIED", name, pod)

    async def delete(self, name: str) -> None:
        await self._change("DELETED", name, self.pods[name])

    def cost(self, name: str) -> str | None:
        return (self.pods[name]["metadata"]["annotations"] or {}).get(COST)

    def end_watches(self) -> None:
        for ended in self._watches:
            ended.set()

    def verbs(self) -> set[str]:
        return {verb for verb, _, _ in self.asked}

    async def _change(self, kind: str, name: str, pod: dict[str, Any]) -> None:
        async with self._moved:
            self.version += 1
            pod = copy.deepcopy(pod)
            pod["metadata"]["resourceVersion"] = str(self.version)
            if kind == "DELETED":
                del self.pods[name]
            else:
                self.pods[name] = pod
            self._history.append((self.version, kind, pod))
            self._moved.notify_all()

    # -- serving

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[KubeApi]:
        await self.start()
        try:
            yield self
        finally:
            await self.stop()

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get(f"/api/v1/namespaces/{NAMESPACE}/pods", self._collection)
        app.router.add_get(f"/api/v1/namespaces/{NAMESPACE}/pods/{{name}}", self._get)
        app.router.add_patch(f"/api/v1/namespaces/{NAMESPACE}/pods/{{name}}", self._patch)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        self.port = self.port or free_port()  # it stays ours while the server is away
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()

    async def stop(self) -> None:
        self.end_watches()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def kubeconfig(self, folder: Path) -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        path = folder / "kubeconfig"
        path.write_text(json.dumps(config))
        return path

    async def _refuse(self, verb: str, request: web.Request) -> web.Response | None:
        self.asked.append((verb, request.match_info.get("name", ""), dict(request.query)))
        if verb in self.hanging:
            await asyncio.Event().wait()
        if verb in self.garbled:
            return web.Response(status=404, text="<html>", content_type="text/html")
        if verb in self.forbidden:
            return _status(403, "Forbidden", f'pods is forbidden: User "x" cannot {verb} resource "pods"')
        return None

    async def _get(self, request: web.Request) -> web.Response:
        if refused := await self._refuse("get", request):
            return refused
        name = request.match_info["name"]
        return _document(self.pods[name]) if name in self.pods else _not_found(name)

    async def _collection(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._refuse("watch", request) or await self._watch(request)
        if refused := await self._refuse("list", request):
            return refused
        shown = list(self.pods.values()) if self.old_list is None else self.old_list
        shown = [pod for pod in shown if _selected(pod, request)]
        start = int(request.query.get("continue", "0"))
        end = start + self.page
        metadata = {"resourceVersion": str(self.version)}
        if shown[end:]:
            metadata["continue"] = str(end)
        return _document(
            {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": shown[start:end]}
        )

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        at = int(request.query["resourceVersion"])
        if at < self.oldest:
            return _status(410, "Expired", f"too old resource version: {at} ({self.oldest})")
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        ended = asyncio.Event()
        self._watches.add(ended)
        try:
            while not ended.is_set():
                for version, kind, pod in list(self._history):
                    if version > at and _selected(pod, request):
                        await answer.write(json.dumps({"type": kind, "object": pod}).encode() + b"\n")
                        at = version
                if at < self.oldest:
                    error = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
                    await answer.write(json.dumps({"type": "ERROR", "object": error}).encode() + b"\n")
                    return answer
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wait(at), 0.05)
        finally:
            self._watches.discard(ended)
        return answer

    async def _wait(self, at: int) -> None:
        async with self._moved:
            await self._moved.wait_for(lambda: self.version > at)

    async def _patch(self, request: web.Request) -> web.Response:
        if refused := await self._refuse("patch", request):
            return refused
        name, patch = request.match_info["name"], await request.json()
        if request.content_type != "application/merge-patch+json":
            return _status(415, "UnsupportedMediaType", request.content_type)
        if name not in self.pods:
            return _not_found(name)
        pod = copy.deepcopy(self.pods[name])
        if patch["metadata"].get("uid", pod["metadata"]["uid"]) != pod["metadata"]["uid"]:
            said = f'Pod "{name}" is invalid: metadata.uid: Invalid value: field is immutable'
            cause = {"reason": "FieldValueInvalid", "message": "Invalid value", "field": "metadata.uid"}
            details = {"name": name, "kind": "Pod", "causes": [cause]}
            return _status(422, "Invalid", said, details=details)
        if name in self.unwanted:
            return _status(422, "Invalid", f'admission webhook "w.example" denied the request: {name}')
        pod["metadata"]["annotations"] = (pod["metadata"]["annotations"] or {}) | patch["metadata"][
            "annotations"
        ]
        self.patches.append((name, int(patch["metadata"]["annotations"][COST])))
        await self._change("MODIFIED", name, pod)
        return _document(self.pods[name])


def _selected(pod: dict[str, Any], request: web.Request) -> bool:
    wanted = [label.split("=", 1) for label in request.query.get("labelSelector", "").split(",") if label]
    return all(pod["metadata"]["labels"].get(key) == value for key, value in wanted)


def _not_found(name: str) -> web.Response:
    return _status(404, "NotFound", f'pods "{name}" not found', details={"name": name, "kind": "pods"})


def _status(code: int, reason: str, message: str, **more: Any) -> web.Response:
    said = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    return _document({**said, "reason": reason, "code": code, **more}, code)


def _document(value: dict[str, Any], status: int = 200) -> web.Response:
    """As the API sends it: a Content-Type without a charset."""
    return web.Response(body=json.dumps(value), status=status, headers={"Content-Type": "application/json"})
