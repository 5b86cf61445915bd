"""What each way into the package loads: a library without use there costs CPU and memory in every process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest

from holdfast.cli.root import COMMANDS
from holdfast.packages import hidden, version

TERMINAL = {"typer", "click", "rich", "pydantic"}
WEB = {"fastapi", "starlette", "uvicorn", "aiohttp", "httpx", "http.client"}
RPC = {"grpc", "google.protobuf"}
SQL = {"sqlite3", "psycopg"}
REDIS = {"redis", "hiredis"}
TELEMETRY = {"structlog", "prometheus_client", "opentelemetry"}
SDK = {"opentelemetry.sdk.metrics", "opentelemetry.trace", "psutil"}
SETTINGS = {"holdfast.config", "yaml", "msgspec"}
CLUSTER = {"lightkube", "httpx2"}
LOOP = {"asyncio", "uvloop"}
# Only a worker with agents in processes of their own starts any.
PROCESSES = {"holdfast.processes.zygote_client", "holdfast.processes.attempts"}

NOTHING_OF_OTHERS = TERMINAL | WEB | RPC | SQL | REDIS | TELEMETRY | SDK | SETTINGS | CLUSTER | LOOP

HELP = """
import contextlib, io
from holdfast.cli import main
def help_of(*words):
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        main([*words, "--help"])
    assert "sage: holdfast" in printed.getvalue(), (words, printed.getvalue())
"""


def loaded_by(*statements: str, before: str = "") -> dict[str, set[str]]:
    """Run statements in one fresh interpreter, and return the modules that each of them has loaded."""
    program = f"""
import sys, json
{before}
found, known = {{}}, set()
for statement in {statements!r}:
    exec(statement)
    found[statement] = sorted(set(sys.modules) - known)
    known |= set(sys.modules)
print(json.dumps(found))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {statement: set(modules) for statement, modules in json.loads(done.stdout).items()}


def unwanted(loaded: dict[str, set[str]], forbidden: set[str]) -> dict[str, list[str]]:
    return {
        statement: sorted(found) for statement, modules in loaded.items() if (found := modules & forbidden)
    }


@pytest.mark.parametrize("module", ["holdfast", "holdfast.processes.zygote", "holdfast.processes.child"])
def test_the_package_and_its_zygote_load_no_library(module: str):
    assert unwanted(loaded_by(f"import {module}"), NOTHING_OF_OTHERS) == {}


def test_an_app_is_declared_without_a_connection():
    loaded = loaded_by("from holdfast import App, Context, SyncContext, RetryLater")
    assert unwanted(loaded, TERMINAL | WEB | RPC | SQL | REDIS | SDK | CLUSTER | {"yaml", "uvloop"}) == {}


def test_the_list_of_commands_loads_its_parser_only():
    loaded = loaded_by("help_of()", before=HELP)
    assert unwanted(loaded, NOTHING_OF_OTHERS - {"typer"} | {"importlib.metadata", "zoneinfo"}) == {}


def test_help_of_a_command_loads_nothing_that_the_command_works_with():
    # These two read YAML, and describe what they read in their help.
    reading_files = {"render", "simulate"}
    commands = sorted(COMMANDS, key=lambda name: name in reading_files)
    loaded = loaded_by(*(f"help_of({name!r})" for name in commands), before=HELP)
    parsing = {"typer", "pydantic", "click", "msgspec"}
    forbidden = NOTHING_OF_OTHERS - parsing
    described = {f"help_of({name!r})" for name in reading_files}
    assert unwanted({s: found for s, found in loaded.items() if s not in described}, forbidden) == {}
    assert unwanted(loaded, forbidden - {"yaml", "holdfast.config"}) == {}


def test_a_service_loads_what_it_serves_with_only():
    """In the order of what each may load."""
    background = [
        f"import holdfast.services.{name}"
        for name in ("worker", "scheduler", "janitor", "relay", "autoscaler")
    ]
    loaded = loaded_by(*background, "from holdfast.config import load; load(environ={})")
    others = TERMINAL | WEB - {"http.client"} | RPC | SQL | SDK | CLUSTER | PROCESSES | {"yaml"}
    assert unwanted(loaded, others) == {}


def test_a_host_and_a_scaler_add_grpc_only():
    loaded = loaded_by("import holdfast.services.scaler", "import holdfast.services.host")
    assert unwanted(loaded, TERMINAL | WEB - {"http.client"} | SQL | SDK | CLUSTER | {"yaml"}) == {}


def test_a_client_loads_no_service():
    loaded = loaded_by("from holdfast import Client, SyncClient, Producer")
    assert unwanted(loaded, TERMINAL | WEB | SQL | SDK | CLUSTER | {"yaml", "prometheus_client"}) == {}


def test_every_public_name_is_listed_before_it_is_loaded():
    loaded = loaded_by(
        "import holdfast; assert set(holdfast.__all__) <= set(dir(holdfast))", "from holdfast import *"
    )
    assert "holdfast.client" in loaded["from holdfast import *"]


def test_metrics_of_redis_py_work_without_the_sdk_that_is_kept_from_it():
    program = """
import sys
import holdfast.redis.library
assert "opentelemetry.sdk.metrics" not in sys.modules
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider(metric_readers=[reader]))
from redis.observability import MetricGroup, OTelConfig, get_observability_instance
from redis.observability import recorder
get_observability_instance().init(OTelConfig(metric_groups=[MetricGroup.COMMAND]))
recorder.record_operation_duration(command_name="GET", duration_seconds=0.1)
names = [m.name for r in reader.get_metrics_data().resource_metrics for s in r.scope_metrics for m in s.metrics]
assert "db.client.operation.duration" in names, names
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_hidden_module_is_not_found_by_this_thread_and_found_by_others():
    name = "wsgiref.handlers"
    sys.modules.pop(name, None)
    found: list[str] = []

    def look() -> None:
        import wsgiref.handlers

        found.append(wsgiref.handlers.__name__)

    with hidden(name):
        with pytest.raises(ModuleNotFoundError, match=name):
            look()
        other = threading.Thread(target=look)
        other.start()
        other.join()
        look()  # loaded by the other thread, so nothing hides it any more
    assert found == [name, name]
    assert not any(type(finder).__module__ == "holdfast.packages" for finder in sys.meta_path)


def test_the_version_is_that_of_the_installed_package():
    from importlib import metadata

    assert version() == metadata.version("holdfast")
