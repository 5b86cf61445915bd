"""The end-to-end check on a real cluster: scale from zero, lose a pod, lose nothing, and scale back to zero.

It needs kubectl, and a cluster with KEDA where the chart is installed with ``deploy/e2e/values.yaml``;
``.github/workflows/e2e.yml`` makes one with kind.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ENDED = {"succeeded", "failed", "timed_out", "cancelled"}
_FORWARDED = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")


class Failed(Exception):
    """The check did not pass, and why."""


@dataclass(frozen=True)
class Cluster:
    """What the check asks Kubernetes."""

    namespace: str
    release: str

    @property
    def workers(self) -> str:
        """The Deployment that KEDA scales."""
        return f"{self.release}-worker-default"

    def kubectl(self, *words: str) -> str:
        """Run kubectl in the namespace and return what it prints."""
        done = subprocess.run(
            ["kubectl", "--namespace", self.namespace, *words], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Failed(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def replicas(self) -> int:
        """How many workers there should be, as KEDA and the HPA have said."""
        return int(self.kubectl("get", "deployment", self.workers, "--output=jsonpath={.spec.replicas}") or 0)

    def running_pods(self) -> list[str]:
        """The workers' pods that are ready."""
        selector = f"--selector=app.kubernetes.io/instance={self.release},app.kubernetes.io/component=worker"
        pods = json.loads(self.kubectl("get", "pods", selector, "--output=json"))["items"]
        return [pod["metadata"]["name"] for pod in pods if _is_ready(pod)]

    def kill(self, pod: str) -> None:
        """End a pod with no time to say goodbye, as a node that dies would."""
        self.kubectl("delete", "pod", pod, "--grace-period=0", "--force", "--wait=false")

    @contextlib.contextmanager
    def api(self) -> Iterator[str]:
        """Forward a free port of this machine to the API."""
        words = [
            "kubectl",
            "--namespace",
            self.namespace,
            "port-forward",
            f"service/{self.release}-api",
            ":80",
        ]
        forward = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        try:
            assert forward.stdout is not None
            match = _FORWARDED.match(forward.stdout.readline())
            if match is None:
                raise Failed("kubectl port-forward says no port")
            yield f"http://127.0.0.1:{match[1]}"
        finally:
            forward.kill()
            forward.wait()


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


@dataclass(frozen=True)
class Api:
    """What the check asks Holdfast."""

    url: str
    key: str

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Make a request and return its answer."""
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)  # noqa: S310 - our own address
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - the same
            return json.load(answer)

    def status(self, run_id: str) -> str:
        """Where a run is now."""
        return str(self.ask("GET", f"/runs/{run_id}")["status"])

    def depth(self, queue: str) -> int:
        """How much a queue holds."""
        return int(self.ask("GET", f"/queues/{queue}")["depth"])

    def dead(self) -> int:
        """How many runs were given up."""
        return len(self.ask("GET", "/deadletters")["letters"])


@dataclass(frozen=True)
class Check:
    """The story, step by step; each step fails with a sentence."""

    cluster: Cluster
    api: Api
    runs: int
    seconds_each: float
    patience: float
    queue: str = "agent-queue"

    def run(self) -> None:
        """Tell it from the beginning to the end."""
        self.until("there is no worker", lambda: self.cluster.replicas() == 0)
        ids = self.submit()
        self.until("KEDA wants workers", lambda: self.cluster.replicas() > 0)
        self.until("there are at least two", lambda: len(self.cluster.running_pods()) > 1)
        self.until("they work", lambda: any(self.api.status(run) == "running" for run in ids))
        victim = self.cluster.running_pods()[0]
        say(f"killing {victim}")
        self.cluster.kill(victim)
        self.until("every run has ended", lambda: all(self.api.status(run) in ENDED for run in ids))
        self.verify(ids)
        self.until("there is no worker again", lambda: self.cluster.replicas() == 0)

    def submit(self) -> list[str]:
        """Ask for all runs at once, each under an id of ours."""
        wanted = {"sources": 10, "seconds_each": self.seconds_each / 10}
        ids = [f"e2e-{time.time_ns()}-{number}" for number in range(self.runs)]
        runs = [{"agent_id": "research", "input": wanted, "correlation_id": run} for run in ids]
        answered = self.api.ask("POST", "/execute/batch", {"runs": runs})["runs"]
        refused = [each for each in answered if each["code"] not in {200, 202}]
        if refused:
            raise Failed(f"{len(refused)} of {self.runs} runs were refused: {refused[0]}")
        say(f"{len(ids)} runs submitted")
        return ids

    def verify(self, ids: list[str]) -> None:
        """Every run succeeded, nothing is left, nothing was given up."""
        others = {run: status for run in ids if (status := self.api.status(run)) != "succeeded"}
        if others:
            raise Failed(f"runs that did not succeed: {others}")
        if left := self.api.depth(self.queue):
            raise Failed(f"{left} runs are left in {self.queue}")
        if dead := self.api.dead():
            raise Failed(f"{dead} runs are among the dead letters")
        say(f"all {len(ids)} runs succeeded, nothing was lost")

    def until(self, what: str, is_so: Callable[[], bool]) -> None:
        """Look every second until it is so."""
        began = time.monotonic()
        while not is_so():
            if time.monotonic() - began > self.patience:
                raise Failed(f"{what}: not within {self.patience:g} s")
            time.sleep(1)
        say(f"{what} (after {time.monotonic() - began:.0f} s)")


def say(text: str) -> None:
    """Tell whoever watches."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


def main() -> int:
    """Run the check; 0 if all is well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namespace", default="holdfast")
    parser.add_argument("--release", default="holdfast")
    parser.add_argument("--key", default="change-me", help="a key of the API")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--seconds-each", type=float, default=10.0, help="how long a run takes")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds that each step may take")
    given = parser.parse_args()
    cluster = Cluster(given.namespace, given.release)
    try:
        with cluster.api() as url:
            Check(cluster, Api(url, given.key), given.runs, given.seconds_each, given.patience).run()
    except (Failed, OSError) as exc:
        say(f"FAILED: {exc}")
        return 1
    say("well")
    return 0


if __name__ == "__main__":
    sys.exit(main())
