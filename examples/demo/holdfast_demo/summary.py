"""The last page: the proof from Redis and the Event API, the figures, and where to look."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from holdfast_demo.program import milliseconds

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast_demo.figures import Figures
    from holdfast_demo.proof import Proof
    from holdfast_demo.system import System


def print_summary(console: Console, proof: Proof, figures: Figures, lease_seconds: float) -> None:
    """Print what was proved, and what was measured."""
    console.print()
    console.print(Text(" Read back from Redis and the Event API", style="bold"))
    for check in proof.checks:
        mark, style = ("✓", "green") if check.holds else ("✗", "red")
        console.print(Text.assemble(f" {'':2}", (mark, style), f" {check.claim}"), soft_wrap=True)
        for line in check.missing:
            console.print(Text(f"      {line}", style="red"), soft_wrap=True)
    console.print()
    for name, value in _figures(proof, figures, lease_seconds).items():
        console.print(Text.assemble((f" {name:>12}  ", "dim"), value), soft_wrap=True)
    console.print()
    verdict = (
        ("All runs are accounted for.", "bold green")
        if proof.holds
        else ("The proof does not hold.", "bold red")
    )
    console.print(Text.assemble(" ", verdict))
    console.print()


def _figures(proof: Proof, figures: Figures, lease_seconds: float) -> dict[str, str]:
    rows: dict[str, str] = {}
    if figures.recovery is not None:
        rows["recovery"] = (
            f"{figures.recovery:.2f} s from kill -9 to running elsewhere (leases last {lease_seconds:g} s)"
        )
    if figures.kept is not None:
        rows["residents"] = (
            f"{figures.kept.took:.2f} s from kill -9 of {figures.kept.victim} to all of its own elsewhere"
        )
    if figures.hand_back is not None:
        rows["hand-back"] = f"{milliseconds(figures.hand_back)} from handed back to running elsewhere"
    if figures.asked is not None:
        rows["answer"] = (
            f"{milliseconds(figures.asked.took)} from the answer to the end; "
            f"waited {figures.asked.waited:.1f} s without a worker"
        )
    if figures.outage is not None:
        outage = figures.outage
        rows["outage"] = (
            f"{outage.lasted:.1f} s without the Event API; {outage.runs} runs ended, "
            f"{outage.refused} deliveries refused meanwhile"
        )
    rows["attempts"] = f"{proof.attempts} for {proof.submitted} runs"
    rows["retries"] = str(proof.retries)
    rows["duplicates"] = str(proof.duplicates)
    rows["took"] = f"{figures.took:.1f} s"
    return rows


def print_invitation(console: Console, system: System) -> None:
    """Print how to look around while the system stays up."""
    holdfast = _command()
    url = next((each.url for each in system.replicas.values() if each.lives and each.ready), "")
    lines = (
        "The system stays up until Ctrl-C. In another terminal:",
        "",
        f"  export REDIS_URL={system.server.url}",
        f"  {holdfast} runs list",
        f"  {holdfast} dead list",
        f'  {holdfast} submit greet \'{{"name": "you"}}\' --follow',
        f'  curl {url}/execute -d \'{{"agent_id": "greet", "input": {{"name": "you"}}}}\'',
        f"  curl {url}/runs",
        "",
        f"HTTP: {url}/openapi.json   Logs: {system.folder}",
    )
    for line in lines:
        console.print(f" {line}".rstrip(), markup=False, highlight=False, soft_wrap=True)


def _command() -> str:
    """How to call the command line from here: by its name, or by its path if the shell does not know it."""
    path = Path(sys.executable).parent / "holdfast"
    return "holdfast" if shutil.which("holdfast") == str(path) else os.path.relpath(path)
