"""Turning an autoscaler on or off by an upgrade keeps the workers that there are: helm looks them up in the cluster.

Helm removes a field that the last manifest had and the next has not, and the API server then sets `replicas` to 1.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.support.deploy.charts import Manifest, helm, of_kind, parsed, values_file
from tests.support.deploy.clusters import cluster

WORKER, API, HOST = "holdfast-worker-default", "holdfast-api", "agent-host"


def upgraded(live: dict[str, Manifest], values: str) -> dict[str, Manifest]:
    """The Deployments that an upgrade with these values writes in a cluster that has others."""
    with cluster(*live.values()) as words:
        done = helm("--is-upgrade", "--values", str(values_file("trial")), "--set", values, *words)
    assert done.returncode == 0, done.stderr
    return {each["metadata"]["name"]: each for each in of_kind(parsed(done.stdout), "Deployment")}


def scaled(deployments: dict[str, Manifest], replicas: int) -> dict[str, Manifest]:
    """The same as the cluster has them after somebody has scaled all of them."""
    live = copy.deepcopy(deployments)
    for each in live.values():
        each["spec"]["replicas"] = replicas
    return live


def replicas(deployments: dict[str, Manifest], *names: str) -> list[Any]:
    return [deployments[name]["spec"].get("replicas") for name in names]


OFF = "keda.profile=none,api.autoscaling.enabled=false,host.autoscaling.enabled=false"
ON = "keda.profile=metrics-api,api.autoscaling.enabled=true,host.autoscaling.enabled=true"


def test_an_autoscaler_that_is_turned_on_begins_with_the_replicas_that_there_are():
    off = upgraded({}, OFF)
    on = upgraded(scaled(off, 4), ON)
    assert replicas(on, WORKER, API, HOST) == [4, 4, 4]
    # The next upgrade, too: a field that is left out again would be removed, and be 1.
    again = upgraded(scaled(on, 7), ON)
    assert replicas(again, WORKER, API, HOST) == [7, 7, 7]


def test_what_an_autoscaler_has_owned_from_the_start_is_left_to_it():
    installed = upgraded({}, ON)
    assert replicas(installed, WORKER, API, HOST) == [None, None, None]
    assert replicas(upgraded(scaled(installed, 9), ON), WORKER, API, HOST) == [None, None, None]


def test_a_system_that_is_at_zero_stays_there():
    on = upgraded(scaled(upgraded({}, OFF), 0), ON)
    assert replicas(on, WORKER) == [0]


def test_an_autoscaler_of_workers_that_is_turned_off_leaves_as_many_as_there_are():
    on = upgraded({}, ON)
    assert replicas(upgraded(scaled(on, 6), OFF), WORKER) == [6]
    assert replicas(upgraded(scaled(on, 0), OFF), WORKER) == [1], "else nobody would serve the queue"
    assert replicas(upgraded(scaled(on, 6), f"{OFF},workers.default.scaling.min=8"), WORKER) == [8]


@pytest.mark.parametrize(("live", "expected"), [({}, 3), ({"replicas": 9}, 3)])
def test_replicas_that_are_given_are_those(live, expected):
    installed = scaled(upgraded({}, OFF), 9) if live else {}
    found = upgraded(installed, f"{OFF},workers.default.replicas=3,api.replicas=3,host.replicas=3")
    assert replicas(found, WORKER, API, HOST) == [expected] * 3
