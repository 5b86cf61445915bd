"""Where hosts are looked up, other than in Redis: a list, DNS, and a Kubernetes API that speaks its real JSON."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web
from lightkube import KubeConfig

from holdfast.config import HostSettings
from holdfast.errors import ConfigError, NoHost
from holdfast.hosts import directory as directory_module
from holdfast.hosts.directory import DnsDirectory, StaticDirectory
from holdfast.hosts.engine import HostEngine
from holdfast.hosts.kubernetes import KubernetesDirectory
from holdfast.hosts.remote import RemoteCalls
from tests.support.hosts.host_processes import agent, cluster_of
from tests.support.redis.valkey_process import free_port

CERTIFICATES = Path(__file__).parents[2] / "certificates"


@pytest.fixture(autouse=True)
def _empty(redis):
    """Every test has an empty Redis."""


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """A host that is without CPU for two seconds is no host that is away."""
    monkeypatch.setattr(directory_module, "_HEALTH_TIMEOUT_SECONDS", 30.0)


@pytest.fixture
async def calls():
    calls = RemoteCalls(HostSettings())
    yield calls
    await calls.close()


def parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


# -- a list, and DNS


async def test_a_list_has_those_that_answer(redis_settings, calls):
    async with cluster_of(redis_settings, "a", "b") as cluster:
        addresses = [child.address for child in cluster.children.values()]
        found = await StaticDirectory(calls, [*addresses, f"127.0.0.1:{free_port()}"]).hosts()
        assert sorted(host.name for host in found) == ["a", "b"]
        assert [host.capacity for host in found] == [100, 100]
        twice = StaticDirectory(calls, [addresses[0], addresses[0].replace("127.0.0.1", "localhost")])
        assert len(await twice.hosts()) == 1, "one host by two addresses is one host"


async def test_every_address_of_a_headless_service_is_a_host(redis_settings, calls, monkeypatch):
    port = free_port()
    records = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port))
        for ip in ("127.0.0.2", "127.0.0.1", "127.0.0.3")
    ]
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda name, *rest, **more: records if name == "agents.test" else resolve(name, *rest, **more),
    )
    async with cluster_of(redis_settings) as cluster:
        await cluster.start("a", GRPC_PORT=str(port), HOLDFAST_HOSTS_LISTEN="127.0.0.1")
        await cluster.start("b", GRPC_PORT=str(port), HOLDFAST_HOSTS_LISTEN="127.0.0.2")
        directory = DnsDirectory(calls, "agents.test", port)
        assert list(await directory.addresses()) == [f"127.0.0.{n}:{port}" for n in (1, 2, 3)]
        assert sorted(host.name for host in await directory.hosts()) == ["a", "b"], "nobody is at the third"
        engine = HostEngine(cluster.engine.registry, directory, calls, HostSettings())
        assert {(await engine.run(agent(f"r{n}"))).host for n in range(2)} == {"a", "b"}


async def test_a_name_that_means_nothing_has_no_hosts(calls):
    assert await DnsDirectory(calls, "nobody.invalid", 50051).hosts() == []


# -- Kubernetes


def endpoint(address: str, **conditions: bool) -> dict:
    return {
        "addresses": [address],
        "conditions": conditions or {"ready": True, "serving": True, "terminating": False},
        "nodeName": "node-1",
        "targetRef": {"kind": "Pod", "namespace": "agents", "name": "agent-host-1", "uid": "u"},
    }


def endpoint_slice(*endpoints: dict, port: int = 50051, family: str = "IPv4", ports=None) -> dict:
    return {
        "metadata": {
            "name": "agent-host-x7k2p",
            "namespace": "agents",
            "labels": {"kubernetes.io/service-name": "agent-host"},
        },
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": ports
        if ports is not None
        else [
            {"name": "metrics", "protocol": "TCP", "port": 8080},
            {"name": "grpc", "protocol": "TCP", "port": port},
        ],
    }


def document(value: dict, status: int = 200) -> web.Response:
    """As the API sends it: a Content-Type without a charset."""
    return web.Response(body=json.dumps(value), status=status, headers={"Content-Type": "application/json"})


class Api:
    """A Kubernetes API that knows one path, one token, and who may list."""

    def __init__(self) -> None:
        self.slices: list[dict] = []
        self.token = "first"
        self.allowed = True
        self.asked: list[tuple[str, str, str]] = []
        self.garbage: web.Response | None = None

    async def answer(self, request: web.Request) -> web.Response:
        token = request.headers.get("Authorization", "")
        self.asked.append((request.path, request.query.get("labelSelector", ""), token))
        if self.garbage is not None:
            return self.garbage
        if token != f"Bearer {self.token}":
            return self.status(401, "Unauthorized", "Unauthorized")
        if not self.allowed:
            said = (
                "endpointslices.discovery.k8s.io is forbidden: User "
                '"system:serviceaccount:agents:default" cannot list resource "endpointslices" in API group '
                '"discovery.k8s.io" in the namespace "agents"'
            )
            return self.status(403, "Forbidden", said)
        # In two pages, as a real one answers when there are many.
        first = "continue" not in request.query
        half = (len(self.slices) + 1) // 2
        more = {"continue": "abc"} if first and self.slices[half:] else {}
        return document(
            {
                "kind": "EndpointSliceList",
                "apiVersion": "discovery.k8s.io/v1",
                "metadata": {"resourceVersion": "1234", **more},
                "items": self.slices[:half] if first else self.slices[half:],
            }
        )

    @staticmethod
    def status(code: int, reason: str, message: str) -> web.Response:
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        }
        return document(status, code)

    @contextlib.asynccontextmanager
    async def serving(self, tls: ssl.SSLContext | None = None):
        app = web.Application()
        app.router.add_get("/{path:.*}", self.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        try:
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()


@pytest.fixture
async def api():
    return Api()


@pytest.fixture
async def directory(api, calls, tmp_path, monkeypatch):
    """A directory that found the API by a kubeconfig, as outside of a cluster."""
    async with api.serving() as port, kubernetes(calls, port, tmp_path, monkeypatch) as directory:
        yield directory


@contextlib.asynccontextmanager
async def kubernetes(calls, port, tmp_path, monkeypatch, **settings):
    (tmp_path / "token").write_text("first")
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "agents"}}],
        "users": [{"name": "u", "user": {"tokenFile": str(tmp_path / "token")}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    directory = KubernetesDirectory(calls, HostSettings(**settings))
    try:
        yield directory
    finally:
        await directory.close()


async def test_ready_endpoints_are_hosts_and_the_others_are_not(api, directory):
    api.slices = [
        endpoint_slice(
            endpoint("10.0.0.1"),
            endpoint("10.0.0.2", ready=False, serving=False, terminating=False),
            endpoint("10.0.0.3", ready=False, serving=True, terminating=True),
            endpoint("10.0.0.4", ready=True, serving=True, terminating=True),  # publishNotReadyAddresses
            {"addresses": ["10.0.0.5"]},
        ),
        endpoint_slice(endpoint("10.0.0.1"), endpoint("10.0.0.6")),
        endpoint_slice(endpoint("fd00::7"), family="IPv6"),
        endpoint_slice(endpoint("10.0.0.8"), ports=[{"port": 6000}]),
        endpoint_slice(endpoint("10.0.0.9"), ports=[{"name": "x", "port": 1}, {"name": "y", "port": 2}]),
        endpoint_slice(endpoint("host.example"), family="FQDN"),
        {**endpoint_slice(), "endpoints": None},
    ]
    assert await directory.addresses() == [
        "10.0.0.1:50051",
        "10.0.0.5:50051",
        "10.0.0.6:50051",
        "10.0.0.8:6000",
        "10.0.0.9:50051",
        "[fd00::7]:50051",
    ]
    path, selector, _ = api.asked[0]
    assert path == "/apis/discovery.k8s.io/v1/namespaces/agents/endpointslices"
    assert selector == "kubernetes.io/service-name=agent-host"
    assert len(api.asked) == 2, "both pages"


async def test_agents_run_on_what_kubernetes_names(redis_settings, api, directory, calls):
    async with cluster_of(redis_settings, "a", "b") as cluster:
        places = [parts(child.address) for child in cluster.children.values()]
        api.slices = [endpoint_slice(endpoint(host), port=port) for host, port in places]
        api.slices.append(
            endpoint_slice(endpoint("127.0.0.1"), port=free_port())
        )  # ready, but does not answer
        engine = HostEngine(cluster.engine.registry, directory, calls, HostSettings())
        assert sorted(host.name for host in await engine.hosts()) == ["a", "b"]
        assert {(await engine.run(agent(f"r{n}"))).host for n in range(2)} == {"a", "b"}


async def test_a_service_that_is_not_there_has_no_hosts(api, directory):
    assert await directory.hosts() == []


async def test_another_namespace_is_named_as_in_dns(api, calls, tmp_path, monkeypatch):
    async with api.serving() as port:
        for name in ("agent-host.other", "agent-host.other.svc.cluster.local"):
            async with kubernetes(calls, port, tmp_path, monkeypatch, service_name=name) as directory:
                assert await directory.addresses() == []
    assert {asked[:2] for asked in api.asked} == {
        ("/apis/discovery.k8s.io/v1/namespaces/other/endpointslices", "kubernetes.io/service-name=agent-host")
    }


async def test_a_missing_right_is_named(api, directory, redis):
    api.allowed = False
    with pytest.raises(NoHost) as caught:
        await directory.hosts()
    said = str(caught.value)
    assert "EndpointSlices of service agent-host in namespace agents" in said
    assert "apiGroups [discovery.k8s.io], resources [endpointslices], verbs [list]" in said
    assert 'User "system:serviceaccount:agents:default" cannot list' in said


async def test_a_token_that_is_not_known_is_said_and_a_new_one_is_read(api, directory, tmp_path):
    api.slices = [endpoint_slice(endpoint("10.0.0.1"))]
    assert await directory.addresses() == ["10.0.0.1:50051"]
    api.token = "second"
    with pytest.raises(NoHost, match=r"rejects the credentials .*automountServiceAccountToken"):
        await directory.addresses()
    (tmp_path / "token").write_text("second")  # as the kubelet does
    assert await directory.addresses() == ["10.0.0.1:50051"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (web.Response(status=503, text="no"), r"refuses to list .*: Service Unavailable \(503\)"),
        (web.json_response({"message": "by a proxy"}, status=502), r"by a proxy \(502\)"),
        (web.Response(text="<html>", content_type="text/html"), "sent no valid Kubernetes response"),
        (
            web.Response(status=404, body=b"no json", headers={"Content-Type": "application/json"}),
            "sent no valid Kubernetes response",
        ),
        (Api.status(404, "NotFound", "the server could not find it"), r"could not find it \(404\)"),
    ],
)
async def test_what_is_no_list_is_said(api, directory, answer, words):
    api.garbage = answer
    with pytest.raises(NoHost, match=words):
        await directory.hosts()


async def test_an_api_that_is_away_is_said_and_leaves_no_agent_behind(
    redis, calls, tmp_path, monkeypatch, redis_settings
):
    port = free_port()
    async with (
        cluster_of(redis_settings) as cluster,
        kubernetes(calls, port, tmp_path, monkeypatch) as directory,
    ):
        engine = HostEngine(cluster.engine.registry, directory, calls, HostSettings())
        with pytest.raises(NoHost, match=rf"the Kubernetes API at http://127.0.0.1:{port} does not respond"):
            await engine.run(agent())
        assert [each async for each in engine.registry.all()] == []


async def test_in_a_pod_its_service_account_says_who_and_where(api, calls, tmp_path, monkeypatch):
    for name, text in {"token": "first", "namespace": "agents"}.items():
        (tmp_path / name).write_text(text)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")
    api.slices = [endpoint_slice(endpoint("10.0.0.1"))]
    async with api.serving(tls) as port:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
        for authority in ("ca.pem", "other-ca.pem"):
            (tmp_path / "ca.crt").write_bytes((CERTIFICATES / authority).read_bytes())
            config = KubeConfig.from_service_account(tmp_path)
            directory = KubernetesDirectory(calls, HostSettings(), config)
            if authority == "ca.pem":
                assert await directory.addresses() == ["10.0.0.1:50051"]
            else:
                with pytest.raises(NoHost, match="CERTIFICATE_VERIFY_FAILED"):
                    await directory.addresses()
            await directory.close()


async def test_outside_of_a_cluster_without_a_kubeconfig_is_said(calls, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="neither a service account nor a kubeconfig"):
        KubernetesDirectory(calls, HostSettings())


def test_without_its_client_the_extra_is_named():
    code = (
        "import sys; sys.modules['lightkube'] = None\n"
        "from holdfast.config import HostSettings\n"
        "from holdfast.hosts.directory import asked_directory\n"
        "asked_directory(HostSettings(directory='kubernetes'), None)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert "ConfigError: hosts.directory = kubernetes needs lightkube" in ran.stderr
    assert "holdfast[kubernetes]" in ran.stderr
