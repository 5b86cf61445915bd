"""The two ways to watch the demo: a calm live picture in a terminal, plain lines everywhere else."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast_demo.account import (
    ASKING,
    CANCELLED,
    DELAYED,
    FAILED,
    RUNNING,
    SUCCEEDED,
    TIMED_OUT,
    WAITING,
)
from holdfast_demo.program import AGENTS, HOSTS, REPLICAS, SCHEDULERS, WORKERS, short
from holdfast_demo.receiver import UP

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Generator

    from rich.console import RenderableType

    from holdfast_demo.account import Event, Told
    from holdfast_demo.processes import Watched
    from holdfast_demo.stage import Act, Stage

_WIDEST = 98
_WIDE_ENOUGH_FOR_NATURES = 96
_MOST_EVENTS = 6

_COLUMNS = (
    ("waiting", (WAITING,), "white"),
    ("running", (RUNNING,), "cyan"),
    ("delayed", (DELAYED,), "yellow"),
    ("asking", (ASKING,), "blue"),
    ("succeeded", (SUCCEEDED,), "green"),
    ("dead", (FAILED, TIMED_OUT), "red"),
    ("cancelled", (CANCELLED,), "magenta"),
)
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_RECEIVER = {UP: "green"}
_STYLES = {
    "started": "cyan",
    "retrying": "yellow",
    "reclaimed": "bold yellow",
    "handed_back": "bold yellow",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "magenta",
    "interrupted": "blue",
    "resumed": "blue",
}


class LivePicture:
    """A picture that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False)

    def show(self, stage: Stage) -> None:
        """Draw the stage as it is now."""
        size = self._console.size
        self._live.update(picture(stage, size.width, size.height), refresh=True)

    @contextlib.contextmanager
    def on(self) -> Generator[None]:
        """Draw in place for as long as this lasts; the last picture stays."""
        with self._live:
            yield


class PlainLines:
    """A line whenever an act has ended, and one every two seconds about the runs."""

    EVERY_SECONDS = 2.0

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: set[str] = set()
        self._next = 0.0

    def show(self, stage: Stage) -> None:
        """Print what is new."""
        for act in stage.acts:
            if act.ended and act.title not in self._said:
                self._said.add(act.title)
                self._print(f"{act.ended:5.1f} s  {act.title:<8} {act.text}")
        if stage.seconds >= self._next and stage.account.runs:
            self._next = stage.seconds + self.EVERY_SECONDS
            states = stage.account.states()
            counts = ", ".join(f"{_count(states, keys)} {name}" for name, keys, _ in _COLUMNS)
            self._print(f"{stage.seconds:5.1f} s  {'runs':<8} {counts}")

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    @contextlib.contextmanager
    def on(self) -> Generator[None]:
        """Nothing to set up."""
        yield


def picture(stage: Stage, width: int, height: int) -> RenderableType:
    """Draw everything that fits: first the events go, then the air, then the processes."""
    width = min(width - 2, _WIDEST)
    parts = [_title(stage, width), _agents(stage, width), _acts(stage, width), _processes(stage, width)]
    processes = 2 + len(WORKERS) + len(SCHEDULERS) + len(REPLICAS) + len(HOSTS)
    room = height - 1 - (1 + (2 + len(AGENTS)) + len(stage.acts) + processes)
    if (events := min(_MOST_EVENTS, room - len(parts) - 1)) > 0:
        parts.append(_events(stage, width, events))
        room -= 1 + events
    if room < 0:
        parts.pop()
        room += processes
    spaced = [line for part in parts for line in (part, "")][:-1] if room >= len(parts) - 1 else parts
    return Padding(Group(*spaced), (0, 1), expand=False)


def _title(stage: Stage, width: int) -> RenderableType:
    row = Table.grid()
    row.add_column(width=width // 2, no_wrap=True)
    row.add_column(width=width // 2, justify="right", no_wrap=True)
    row.add_row(
        Text.assemble(("Holdfast", "bold"), ("  runs agents that finish", "dim")),
        Text(f"{len(stage.account.runs)} runs   {stage.seconds:4.1f} s", style="dim"),
    )
    return row


def _agents(stage: Stage, width: int) -> RenderableType:
    table = _table()
    table.add_column("agent", width=10)
    natures = width >= _WIDE_ENOUGH_FOR_NATURES
    if natures:
        table.add_column("", width=26, style="dim")
    for name, _, _ in _COLUMNS:
        table.add_column(name, justify="right", width=max(len(name), 5))
    for agent, nature in AGENTS.items():
        table.add_row(agent, *([nature] if natures else []), *_cells(stage.account.states(agent)))
    table.add_row(Text("all", style="bold"), *([""] if natures else []), *_cells(stage.account.states()))
    return table


def _cells(states: Counter[str]) -> list[Text]:
    cells: list[Text] = []
    for _, keys, style in _COLUMNS:
        count = _count(states, keys)
        cells.append(Text(str(count), style=style) if count else Text("·", style="dim"))
    return cells


def _count(states: Counter[str], keys: tuple[str, ...]) -> int:
    return sum(states[key] for key in keys)


def _acts(stage: Stage, width: int) -> RenderableType:
    table = _table(header=False)
    table.add_column(width=1)
    table.add_column(width=8)
    table.add_column(width=width - 13, no_wrap=True, overflow="ellipsis")
    for act in stage.acts:
        table.add_row(
            _mark(act, stage), Text(act.title, style=_act_style(act)), Text(act.text, style=_act_style(act))
        )
    return table


def _mark(act: Act, stage: Stage) -> Text:
    if act.ended:
        return Text("✓", style="green")
    if act.began or act.text:
        return Text(_SPINNER[int(stage.seconds * 8) % len(_SPINNER)], style="cyan")
    return Text("·", style="dim")


def _act_style(act: Act) -> str:
    return "default" if act.ended or act.text else "dim"


def _processes(stage: Stage, width: int) -> RenderableType:
    system, receiver = stage.system, stage.system.receiver
    table = _table()
    table.add_column("process", width=10)
    table.add_column("pid", width=8, justify="right")
    table.add_column("state", width=12)
    table.add_column("", width=width - 36, no_wrap=True, overflow="ellipsis")
    started = {**system.workers, **system.schedulers, **system.replicas, **system.hosts}
    for name in (*WORKERS, *SCHEDULERS, *REPLICAS, *HOSTS):
        process = started.get(name)
        if process is None:
            table.add_row(Text(name, style="dim"), "", "", "")
            continue
        does = _held(stage, process) if process.kind == "worker" else Text(_place(process))
        table.add_row(name, Text(str(process.process.pid), style="dim"), _state(process), does)
    state = Text(receiver.state, style=_RECEIVER.get(receiver.state, "red"))
    refused = f", {receiver.refused} refused" if receiver.refused else ""
    table.add_row("Event API", "", state, f"{len(receiver.taken)} events taken{refused}")
    return table


def _place(process: Watched) -> str:
    return process.url if process.kind == "api" and process.lives else ""


def _state(process: Watched) -> Text:
    if process.lives:
        if process.fate:
            return Text("leaving", style="yellow")
        return Text("working", style="green") if process.ready else Text("starting", style="dim")
    return Text("killed -9", style="red") if process.fate == "kill -9" else Text("left", style="dim")


def _held(stage: Stage, worker: Watched) -> Text:
    held = stage.account.held_by(worker.name)
    runs = "  ".join(agent if count == 1 else f"{agent} x{count}" for agent, count in sorted(held.items()))
    return Text(
        runs if worker.lives or not runs else f"leases run out: {runs}", style="" if worker.lives else "red"
    )


def _events(stage: Stage, width: int, count: int) -> RenderableType:
    table = _table()
    table.add_column("run", width=10, style="dim", no_wrap=True)
    table.add_column("agent", width=10)
    table.add_column("last events", width=12)
    table.add_column("", width=width - 36, style="dim", no_wrap=True, overflow="ellipsis")
    shown = list(stage.account.recent)[-count:]
    for event in shown:
        table.add_row(*_event(event, stage.account.runs[event.run_id]))
    for _ in range(count - len(shown)):
        table.add_row("")
    return table


def _event(event: Event, run: Told) -> tuple[RenderableType, ...]:
    return (
        short(event.run_id),
        run.agent,
        Text(event.type, style=_STYLES.get(event.type, "default")),
        _detail(event.data),
    )


def _detail(data: dict[str, object]) -> str:
    return " ".join(f"{key} {value}" for key, value in data.items() if not isinstance(value, dict))


def _table(*, header: bool = True) -> Table:
    return Table(box=None, show_header=header, header_style="dim", padding=(0, 1, 0, 0), pad_edge=False)
