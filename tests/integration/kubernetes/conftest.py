"""A Kubernetes API over real HTTP, found by a kubeconfig as outside of a cluster."""

from __future__ import annotations

import pytest

from tests.support.kubernetes.api_server import KubeApi


@pytest.fixture
async def kube(tmp_path, monkeypatch):
    async with KubeApi().serving() as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path)))
        yield api
