"""``holdfast render``: writes the chart as plain manifests, a file per part, for clusters without Helm.

The chart is the only source: a file that differs from it is an edit that the next rendering takes away.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
import typer
import yaml

from holdfast.cli import options, output
from holdfast.cli.root import COMMANDS, FAILED, say
from holdfast.config import load
from holdfast.errors import ConfigError, InputError
from holdfast.packages import missing_extra

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

NOTE: Final = "# Rendered by `holdfast render`: change the chart or the values, not this file.\n"
OUT: Final = Path("deploy/kubernetes")
VALUES: Final = "values.yaml"
RELEASE: Final = "holdfast"
"""The release, and its namespace."""
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,51}[a-z0-9])?")
_KUSTOMIZATION: Final = "kustomization.yaml"
_SETTINGS: Final = "configmap.yaml"
_SECONDS: Final = 60
_HELM: Final = (
    missing_extra("holdfast render", "helm", "render")
    + "; or put one of https://helm.sh/docs/intro/install on the PATH"
)

Profile = Literal["metrics-api", "external-push", "redis-streams", "none"]


class Rendered(msgspec.Struct, frozen=True):
    """What was written or looked at, and which files of it were not current."""

    out: str
    files: list[str]
    changed: list[str]


def add_to(root: typer.Typer) -> None:
    """Add the command."""
    root.command("render", help=COMMANDS["render"])(render)


def render(
    values: Annotated[
        list[Path] | None,
        typer.Option(
            "--values",
            metavar="FILE",
            help="Values for the chart, later ones win; else values.yaml of --out.",
        ),
    ] = None,
    profile: Annotated[
        Profile | None, typer.Option("--profile", help="How workers are scaled: keda.profile of the chart.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help=f"Where the manifests go: {OUT}; with --values, a folder of yours.",
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 when a file is not current.")
    ] = False,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The release's name.")] = RELEASE,
    namespace: Annotated[
        str, typer.Option("--namespace", metavar="NAME", help="The namespace of everything.")
    ] = RELEASE,
    json: options.Json = False,
) -> None:
    """Render the chart with helm, one file for each of its parts."""
    if values and out is None:
        raise InputError(f"--values needs --out FOLDER: {OUT} has the manifests of its own {VALUES}")
    again = _command(values or (), profile, out, name, namespace)
    out = out or OUT
    given = tuple(values) if values else _values_beside(out)
    files = manifests(given, profile=profile, name=name, namespace=namespace)
    changed = stale(files, out)
    if not check:
        write(files, changed, out)
    if json:
        output.document(Rendered(str(out), sorted(files), changed))
    else:
        _tell(out, changed, again if check else "")
    if check and changed:
        raise typer.Exit(FAILED)


def manifests(
    values: Sequence[Path],
    *,
    profile: Profile | None = None,
    name: str = RELEASE,
    namespace: str = RELEASE,
) -> dict[str, str]:
    """Render the chart; the text of each file by its name."""
    for option, given in (("--name", name), ("--namespace", namespace)):
        if not _NAME.fullmatch(given):  # helm would take one that begins with - for an option
            raise InputError(f"{option} {given!r}: lower-case letters, digits and - between them, at most 53")
    for file in values:
        if not file.is_file():
            raise InputError(f"--values {file}: there is no such file")
    with tempfile.TemporaryDirectory(prefix="holdfast-render-") as folder:
        command = [find_helm(), "template", name, str(chart_folder())]
        command += ["--namespace", namespace, "--output-dir", folder]
        command += [word for file in values for word in ("--values", str(file))]
        command += ["--set", f"keda.profile={profile}"] if profile else []
        _call(command)
        parts = sorted(Path(folder).glob("*/templates/*.yaml"))
        _check_settings(parts, Path(folder))
        files = {part.name: NOTE + _tidy(part.read_text(encoding="utf-8")) for part in parts}
    return files | {_KUSTOMIZATION: _kustomization(files)}


def find_helm() -> str:
    """Where helm is: on the PATH, or beside the Python that runs us."""
    beside = Path(sys.executable).with_name("helm")
    found = shutil.which("helm") or (str(beside) if beside.exists() else None)
    if found is None:
        raise ConfigError(_HELM)
    return found


def chart_folder() -> Path:
    """Where the chart is: in the package when it was installed, in the repository when it was cloned."""
    package = Path(__file__).parents[1]
    places = (package / "chart", package.parents[1] / "deploy" / "helm" / "holdfast")
    found = next((place for place in places if (place / "Chart.yaml").is_file()), None)
    if found is None:
        raise ConfigError(f"the chart is neither in {places[0]} nor in {places[1]}: install holdfast again")
    return found


def stale(files: Mapping[str, str], out: Path) -> list[str]:
    """Names of the files that are missing or differ, and of those that we wrote once and would not now."""
    differ = [name for name, text in files.items() if _read(out / name) != text]
    ours = (path for path in out.glob("*.yaml") if (_read(path) or "").startswith(NOTE))
    return sorted({*differ, *(path.name for path in ours if path.name not in files)})


def write(files: Mapping[str, str], changed: Sequence[str], out: Path) -> None:
    """Write what changed, and remove what is not rendered any more; files of others stay."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in changed:
            if name in files:
                (out / name).write_text(files[name], encoding="utf-8")
            else:
                (out / name).unlink()
    except OSError as exc:
        raise InputError(f"--out {out} can't be written to: {exc.strerror}") from exc


def _values_beside(out: Path) -> tuple[Path, ...]:
    if not (out / VALUES).is_file():
        where = (
            " and --out FOLDER, or run this in a clone of the repository, which has one" if out == OUT else ""
        )
        raise InputError(f"{out / VALUES} is not here: give your values with --values FILE{where}")
    return (out / VALUES,)


def _check_settings(parts: Sequence[Path], folder: Path) -> None:
    """Read the settings as the processes will: a word that is wrong would keep them from starting."""
    file = folder / "holdfast.yaml"
    [part] = [part for part in parts if part.name == _SETTINGS]
    manifest = yaml.safe_load(part.read_text(encoding="utf-8"))
    file.write_text(manifest["data"][file.name], encoding="utf-8")
    _check_loads("settings", file, {})
    for name, environ in _environments(parts):
        _check_loads(f"env of {name}", file, environ)


def _check_loads(what: str, file: Path, environ: Mapping[str, str]) -> None:
    try:
        load(file, environ)
    except ConfigError as exc:
        # Its lines are those of a file that nobody has: the path of the setting says enough.
        said = re.sub(rf" \({re.escape(str(file))}:\d+\)", "", str(exc)).replace(str(file), "settings")
        raise InputError(f"the {what} of these values can't be used: {said}") from exc


def _environments(parts: Sequence[Path]) -> Iterator[tuple[str, dict[str, str]]]:
    """What each process of ours is told in plain words; what comes from a Secret or the pod is empty."""
    for manifest in _deployments(parts):
        pod = manifest["spec"]["template"]["spec"]
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            if container.get("command", [""])[0] == "holdfast":
                environ = {each["name"]: str(each.get("value") or "") for each in container.get("env", ())}
                yield manifest["metadata"]["name"], environ


def _deployments(parts: Sequence[Path]) -> Iterator[dict[str, Any]]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the slow one would take longer than helm
    for part in parts:
        documents = yaml.load_all(part.read_text(encoding="utf-8"), loader)
        yield from (each for each in documents if each and each["kind"] == "Deployment")


def _call(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(  # noqa: S603  helm, with paths of ours
            command, check=False, capture_output=True, text=True, timeout=_SECONDS
        )
    except OSError as exc:
        raise ConfigError(f"{command[0]} can't be run ({exc.strerror}): {_HELM}") from exc
    except subprocess.TimeoutExpired as exc:
        raise ConfigError(f"{command[0]} did not end within {_SECONDS} s") from exc
    if done.returncode:
        raise InputError(f"the values can't be used: {_reason(done.stderr)}")


def _reason(said: str) -> str:
    """What helm objects to, without its own words around it."""
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith("Use --debug")]
    if lines and lines[0].startswith("Error: execution error"):
        return lines[0].partition("): ")[2]
    wrong = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
    return "; ".join(wrong) or "\n".join(lines)


def _tidy(text: str) -> str:
    """Without the separators and lines that templates leave behind."""
    documents = (part.strip("\n") for part in f"\n{text}\n".split("\n---\n"))
    return "---\n".join(f"{part}\n" for part in documents if part.strip())


def _kustomization(files: Mapping[str, str]) -> str:
    lines = "".join(f"  - {name}\n" for name in sorted(files))
    return f"{NOTE}apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n{lines}"


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def _command(
    values: Sequence[Path], profile: Profile | None, out: Path | None, name: str, namespace: str
) -> str:
    """What writes the files that were looked at."""
    words = [("--values", str(file)) for file in values]
    words += [("--profile", profile)] if profile else []
    words += [("--out", str(out))] if out else []
    words += [("--name", name)] if name != RELEASE else []
    words += [("--namespace", namespace)] if namespace != RELEASE else []
    return shlex.join(["holdfast", "render", *(word for pair in words for word in pair)])


def _tell(out: Path, changed: Sequence[str], again: str) -> None:
    if not changed:
        output.line(f"{out}: current")
    for name in changed:
        if again:
            say(f"{out / name} is not what the chart says: run `{again}`")
        else:
            output.line(f"{'wrote' if (out / name).exists() else 'removed'} {out / name}")
