"""A Kubernetes API that has Deployments, for what the chart looks up in a cluster; read by the real helm over HTTP."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_APPS = {"name": "apps", "versions": [{"groupVersion": "apps/v1", "version": "v1"}]}
_DISCOVERY: dict[str, dict[str, Any]] = {
    "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [{**_APPS, "preferredVersion": _APPS["versions"][0]}],
    },
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [{"name": "secrets", "kind": "Secret", "namespaced": True, "verbs": ["get", "list"]}],
    },
    "/apis/apps/v1": {
        "kind": "APIResourceList",
        "groupVersion": "apps/v1",
        "resources": [
            {"name": "deployments", "kind": "Deployment", "namespaced": True, "verbs": ["get", "list"]}
        ],
    },
}


@contextlib.contextmanager
def cluster(*deployments: dict[str, Any]) -> Iterator[list[str]]:
    """A cluster that has these Deployments; yields the words that lead helm to it."""
    found = {
        f"/apis/apps/v1/namespaces/{each['metadata']['namespace']}/deployments/{each['metadata']['name']}": each
        for each in deployments
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            body = _DISCOVERY.get(path) or found.get(path)
            status = 200 if body else 404
            missing = {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "reason": "NotFound",
                "code": 404,
            }
            data = json.dumps(body or missing).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Say nothing: a test's output is its failures."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        yield ["--dry-run=server", "--kube-apiserver", address, "--disable-openapi-validation"]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
