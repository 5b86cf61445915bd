"""Variables that would say, behind the chart's back, what it decides or counts on: all of their names are refused.

The chart's tables are compared with the settings of the code, so that a new name of a setting is not forgotten.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.cli.render import find_helm
from holdfast.config import setting_rows
from holdfast.config.environment import CONFIG_VARIABLE
from tests.support.deploy.charts import (
    ALL,
    CHART,
    FOREIGN,
    environment,
    one,
    processes,
    rendered,
    values_file,
)

LOGGING = {"log.level", "log.format"}  # harms nobody: one worker type may log more than the others


def guarded(tmp_path: Path, table: str) -> dict[str, Any]:
    """A table of the chart, by the path of the setting, as helm reads it."""
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart, dirs_exist_ok=True)
    (chart / "templates" / "shown.yaml").write_text(f'{{{{ include "{table}" . }}}}\n')
    command = [find_helm(), "template", "x", str(chart), "--values", str(values_file("trial"))]
    done = subprocess.run(
        [*command, "--show-only", "templates/shown.yaml"], check=True, capture_output=True, text=True
    )
    return yaml.safe_load(done.stdout)


def variables_of(path: str) -> set[str]:
    rows = [row for row in setting_rows() if row.path == path or row.path.startswith(f"{path}.")]
    assert rows, f"{path} is no setting"
    return {name for row in rows for name in row.env}


def test_every_variable_of_what_the_chart_decides_is_refused(tmp_path):
    owned = guarded(tmp_path, "holdfast.owned")
    assert set(owned.pop("config")["env"]) == {CONFIG_VARIABLE}
    for path, entry in owned.items():
        assert set(entry["env"]) == (set() if path in LOGGING else variables_of(path)), path


def test_every_variable_of_what_the_chart_reads_in_the_settings_is_refused(tmp_path):
    read = guarded(tmp_path, "holdfast.read")
    assert {"messaging.queue", "queue.max_pending", "queue.partitions", "queue.delete_after_ack"} <= set(read)
    assert "redis.key_prefix" in read
    for path, names in read.items():
        assert set(names) == variables_of(path), path


@pytest.mark.parametrize(("name", "profile"), ALL)
def test_every_setting_that_the_chart_writes_is_one_that_it_decides(name, profile, tmp_path):
    """Whatever pods are told, by a variable or by the file, nobody else may tell them."""
    manifests = rendered(name, profile)
    owned = guarded(tmp_path, "holdfast.owned")
    refused = {variable for entry in owned.values() for variable in entry["env"]}
    for container in processes(manifests):
        assert set(environment(container)) - FOREIGN <= refused
    written = yaml.safe_load(one(manifests, "ConfigMap", "holdfast")["data"]["holdfast.yaml"])
    given = yaml.safe_load(values_file(name).read_text()).get("settings", {})
    for section in set(written) - {"queues"}:
        paths = {f"{section}.{key}" for key in set(written[section]) - set(given.get(section, {}))}
        assert paths <= set(owned), paths - set(owned)
