"""``holdfast simulate``: a table, JSON, pictures, a ScaledObject, and traces of what really happened."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from holdfast.config import DatabaseSettings
from holdfast.store.archive import ArchivedRun
from holdfast.store.open import open_store
from tests.support.deploy import keda_types

GUIDE = Path(__file__).parents[3] / "docs/guides/scaling.md"
BURST = "synthetic:burst?rate=0.1&runs=60&duration=20&for=20m"


def test_policies_are_compared_in_one_table_and_drawn(cli):
    said = cli("simulate", "--trace", BURST, "--policy", "depth", "--policy", "local", "--price", "0.1")
    assert said.code == 0
    header, depth, local, *rest = said.out.splitlines()
    assert header.split("  ")[0] == "POLICY"
    assert [
        word for word in ("REPLICAS", "QUEUE MAX", "WAIT P50", "P99", "HOURS", "COST") if word not in header
    ] == []
    assert (depth.split()[0], local.split()[0]) == ("depth", "local")
    assert "depth: replicas, at most 10" in rest
    assert any("⣿" in line for line in rest)
    assert rest[-1].endswith("30m")
    plain = cli("simulate", "--trace", BURST, "--no-chart")
    assert len(plain.out.splitlines()) == 2
    assert "COST" not in plain.out


def test_json_has_every_figure_and_the_same_seed_the_same(cli):
    asked = (
        "simulate",
        "--trace",
        BURST,
        "--policy",
        "depth",
        "--policy",
        "fixed:2",
        "--json",
        "--startup",
        "1s..9s",
    )
    depth, fixed = cli(*asked).json["outcomes"]
    assert (depth["policy"], depth["runs"], depth["ended"]) == ("depth", fixed["runs"], depth["runs"])
    assert fixed["replicas_mean"] == 2
    assert set(depth["wait_seconds"]) == {"mean", "p50", "p95", "p99", "most"}
    assert len(depth["samples"]) > 500
    assert cli(*asked).json["outcomes"] == [depth, fixed]
    assert cli(*asked, "--seed", "2").json["outcomes"] != [depth, fixed]


def test_what_a_policy_leaves_is_said(cli):
    said = cli("simulate", "--trace", "synthetic:poisson?rate=1&for=5m", "--policy", "pending-entries")
    assert said.code == 0
    assert "UNFINISHED" in said.out
    assert "runs unfinished" in said.err
    at = said.out.splitlines().index("pending-entries: replicas, none")
    assert said.out.splitlines()[at + 1 : at + 3] == [
        "",
        f"pending-entries: waiting, at most {waiting_most(said.out)}",
    ]


def waiting_most(shown: str) -> str:
    return shown.splitlines()[1].split()[3]


def test_what_a_short_file_does_not_say_is_emitted_as_the_chart_has_it(cli, place):
    (place / "patient.yaml").write_text(
        "behavior: {scaleDown: {policies: [{type: Pods, value: 1, periodSeconds: 60}]}}"
    )
    chart = yaml.safe_load(cli("simulate", "--emit", "-").out)
    mine = yaml.safe_load(cli("simulate", "--policy", "patient.yaml", "--emit", "-").out)
    keda_types.check(mine)
    assert mine["spec"]["fallback"]["behavior"] == "currentReplicasIfHigher"
    assert mine["spec"]["advanced"]["restoreToOriginalReplicaCount"] is False
    down = mine["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    assert down["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 60}]
    chart["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]["policies"] = down[
        "policies"
    ]
    assert mine == chart


def test_the_settings_of_the_queue_count(cli, place):
    (place / "holdfast.yaml").write_text(
        "queues: {media: {slots: 5, scaling: {min_workers: 2, max_workers: 4}}}"
    )
    [media] = cli("simulate", "--trace", BURST, "--queue", "media", "--json").json["outcomes"]
    assert (media["slots"], media["replicas_most"]) == (5, 4)
    assert min(sample["replicas"] for sample in media["samples"]) == 2
    [wide] = cli(
        "simulate", "--trace", BURST, "--queue", "media", "--max", "9", "--slots", "2", "--json"
    ).json["outcomes"]
    assert (wide["slots"], wide["replicas_most"]) == (2, 9)


def test_the_queue_that_all_runs_of_a_trace_name_counts_if_it_is_configured(cli, place):
    (place / "holdfast.yaml").write_text("queues: {'nap:jobs': {slots: 2}, media: {slots: 5}}")
    (place / "naps.csv").write_text("0,5,nap:jobs\n1,5,nap:jobs\n")
    (place / "some.csv").write_text("0,5,nap:jobs\n1,5\n")
    (place / "else.csv").write_text("0,5,elsewhere\n")
    said = cli("simulate", "--trace", "naps.csv", "--json")
    assert (said.json["outcomes"][0]["slots"], said.err.strip()) == (2, '{"note":"as nap:jobs, 2 slots"}')
    for name in ("some.csv", "else.csv"):
        said = cli("simulate", "--trace", name, "--json")
        assert (said.json["outcomes"][0]["slots"], said.err) == (3, "")
    named = cli("simulate", "--trace", "else.csv", "--queue", "elsewhere", "--json")
    assert (named.json["outcomes"][0]["slots"], named.err) == (3, "")


def test_a_misspelt_queue_is_refused_with_the_name_that_was_meant(cli, place):
    (place / "holdfast.yaml").write_text("queues: {'nap:jobs': {slots: 2}}")
    for arguments in (("--emit", "-"), ("--trace", BURST)):
        said = cli("simulate", *arguments, "--queue", "nap:jbs")
        assert (said.code, said.out) == (1, "")
        assert "no queue 'nap:jbs' is configured: did you mean 'nap:jobs'?" in said.err


def test_a_picture_is_written(cli, place):
    said = cli("simulate", "--trace", BURST, "--policy", "depth", "--policy", "push", "--plot", "out.svg")
    assert said.code == 0
    assert ET.fromstring((place / "out.svg").read_text()).tag.endswith("svg")


def test_a_scaled_object_is_printed_or_written(cli, place):
    printed = cli("simulate", "--policy", "push", "--max", "30", "--emit", "-")
    manifest = yaml.safe_load(printed.out)
    keda_types.check(manifest)
    assert manifest["spec"]["maxReplicaCount"] == 30
    said = cli(
        "simulate", "--trace", BURST, "--policy", "push", "--max", "30", "--emit", "out.yaml", "--no-chart"
    )
    assert said.out.startswith("POLICY")
    assert "the ScaledObject of push written to out.yaml" in said.err
    assert yaml.safe_load((place / "out.yaml").read_text()) == manifest
    again = cli("simulate", "--trace", BURST, "--policy", "out.yaml", "--no-chart")
    assert again.out.splitlines()[1].split()[1:] == said.out.splitlines()[1].split()[1:]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--trace"),
        (("--trace", "nowhere.csv"), "nowhere.csv"),
        (("--trace", "bad.csv"), "bad.csv:2: 'soon'"),
        (("--trace", "synthetic:nothing"), "'nothing'"),
        (("--trace", BURST, "--policy", "nobody"), "nobody"),
        (("--trace", BURST, "--policy", "bad.yaml"), "bad.yaml:2"),
        (("--trace", BURST, "--slots", "0"), "--slots"),
        (("--trace", BURST, "--min", "5", "--max", "2"), "--min 5"),
        (("--trace", BURST, "--startup", "soon"), "--startup"),
        (("--trace", BURST, "--drain", "soon"), "--drain"),
        (("--trace", BURST, "--outage", "10m"), "--outage"),
        (("--trace", BURST, "--resume", "never"), "never"),
        (("--trace", BURST, "--plot", "no/such.svg"), "no/such.svg"),
        (("--emit", "-", "--policy", "local"), "local"),
        (("--emit", "-", "--policy", "depth", "--policy", "push"), "depth, push"),
        (("--emit", "-", "--policy", "lag-count"), "lagCount"),
        (("record",), "--out"),
        (("record", "--out", "t.csv"), "agent-queue"),
        (("record", "--out", "t.csv", "--since", "soon"), "--since"),
    ],
)
def test_wrong_words_give_a_sentence_and_exit_2(cli, place, arguments, said):
    (place / "bad.csv").write_text("0,1\n1,soon\n")
    (place / "bad.yaml").write_text("name: a\nmaxReplicas: 3\n")
    answer = cli("simulate", *arguments)
    assert answer.code == 2
    assert said in answer.err
    assert "Traceback" not in answer.err


def test_a_trace_is_recorded_from_live_and_archived_runs_and_simulated(cli, worker, place):
    for number in range(4):
        priority = "high" if number == 0 else "normal"
        cli("submit", "echo", str(number), "--run-id", f"r{number}", "--follow", "--priority", priority)
    cli("submit", "echo", "--run-id", "later", "--delay", "1h")

    async def archive() -> None:
        old = ArchivedRun(
            id="old",
            queue="agent-queue",
            agent="echo",
            status="succeeded",
            submitted_at=1_760_000_000.0,
            started_at=1_760_000_001.0,
            finished_at=1_760_000_031.5,
        )
        store = await open_store(DatabaseSettings())
        await store.archive([old])
        await store.aclose()

    asyncio.run(archive())
    said = cli("simulate", "record", "--out", "trace.csv")
    assert said.code == 0, said.err
    assert said.out.startswith("5 runs of agent-queue written to trace.csv (1 left out")
    lines = (place / "trace.csv").read_text().splitlines()
    assert lines[:2] == ["arrival,duration,queue,priority", "0.000,30.500,agent-queue,"]
    assert lines[2].endswith(",agent-queue,high")
    [outcome] = cli("simulate", "--trace", "trace.csv", "--json").json["outcomes"]
    assert (outcome["runs"], outcome["ended"]) == (5, 5)
    recent = cli("simulate", "record", "--out", "recent.csv", "--since", "1h", "--json").json
    assert (recent["runs"], recent["skipped"]) == (4, 1)


def test_the_guides_simulation_prints_what_the_guide_shows(cli, place):
    blocks = re.findall(r"^```\w*\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    at = next(number for number, block in enumerate(blocks) if block.startswith("# patient.yaml"))
    (place / "patient.yaml").write_text(blocks[at])
    command, shown = shlex.split(blocks[at + 1].replace("\\\n", " ")), blocks[at + 2].removesuffix("…\n")
    said = cli(*command[1:])
    assert said.out.startswith(shown)
