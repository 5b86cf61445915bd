from __future__ import annotations

import http.client
import socket
import threading
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.config import MetricsSettings
from holdfast.errors import ConfigError
from holdfast.telemetry.exporter import CLIENT_TIMEOUT_SECONDS, Exporter
from holdfast.telemetry.metrics import Metrics
from tests.support.redis.valkey_process import free_port


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def metrics():
    return Metrics(["triage"])


def get(port, path, method="GET", timeout=10, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.headers["Content-Type"], response.read().decode()
    finally:
        connection.close()


def serve(metrics, port, ready=lambda: True):
    return Exporter(metrics, MetricsSettings(port=port), ready)


def test_metrics_are_served_as_prometheus_reads_them(metrics, port):
    metrics.runs("q", "triage").finished("succeeded", 1)
    with serve(metrics, port):
        status, kind, body = get(port, "/metrics")
    assert status == 200
    assert kind.startswith("text/plain")
    names = {family.name for family in text_string_to_metric_families(body)}
    assert {"holdfast_runs_finished", "holdfast_process_resident_memory_bytes"} <= names


def test_a_scraper_may_ask_for_openmetrics(metrics, port):
    with serve(metrics, port):
        _, kind, body = get(port, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert body.endswith("# EOF\n")


def test_health_answers_and_readiness_follows_the_process(metrics, port):
    ready = threading.Event()
    with serve(metrics, port, ready.is_set):
        assert get(port, "/healthz")[0] == 200
        assert get(port, "/readyz")[0] == 503
        ready.set()
        assert get(port, "/readyz?verbose=1")[0] == 200


def test_a_readiness_check_that_fails_is_not_ready(metrics, port):
    def broken():
        raise RuntimeError("no")

    with serve(metrics, port, broken):
        assert get(port, "/readyz")[0] == 503
        assert get(port, "/healthz")[0] == 200


def test_a_gauge_that_fails_does_not_end_the_server(metrics, port):
    metrics.runs_running.labels("q").set_function(lambda: 1 / 0)
    with serve(metrics, port):
        assert get(port, "/metrics")[0] == 500
        assert get(port, "/healthz")[0] == 200


def test_other_paths_and_methods_are_refused(metrics, port):
    with serve(metrics, port):
        assert get(port, "/secrets")[0] == 404
        assert get(port, "/metrics", method="POST")[0] == 501
        assert get(port, "/healthz", method="HEAD")[2] == ""


def test_a_silent_client_does_not_keep_others_waiting(metrics, port):
    with serve(metrics, port), socket.create_connection(("127.0.0.1", port)) as silent:
        silent.send(b"GET /met")
        assert get(port, "/healthz", timeout=CLIENT_TIMEOUT_SECONDS - 1)[0] == 200


def test_a_port_in_use_is_an_error_that_names_the_setting(metrics, port):
    with serve(metrics, port), pytest.raises(ConfigError, match=rf"METRICS_PORT\) {port} can't be opened"):
        serve(metrics, port).start()


def test_a_host_that_does_not_exist_is_an_error_that_names_the_setting(metrics, port):
    with pytest.raises(ConfigError, match=r"metrics\.host 'nowhere\.invalid'"):
        Exporter(metrics, MetricsSettings(port=port, host="nowhere.invalid"), lambda: True).start()


def test_port_0_serves_nothing(metrics):
    before = set(threading.enumerate())
    with serve(metrics, 0):
        assert set(threading.enumerate()) <= before  # those of other tests may end meanwhile


def test_stopping_frees_the_port_and_the_thread_at_once(metrics, port):
    exporter, took = serve(metrics, port), []
    for _ in range(10):  # one of them is not interrupted, however busy the machine is
        exporter.start()
        exporter.start()
        assert get(port, "/healthz")[0] == 200
        began = time.monotonic()
        exporter.stop()
        exporter.stop()
        took.append(time.monotonic() - began)
    assert min(took) < 0.4
    assert not [thread for thread in threading.enumerate() if thread.name == "holdfast-metrics"]
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1)
