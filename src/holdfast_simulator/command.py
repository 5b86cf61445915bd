"""``holdfast simulate``: scaling policies on a trace, side by side; ``record`` makes one of what happened."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
import typer

from holdfast.cli import options, output
from holdfast.cli.formatting import span
from holdfast.cli.output import Column
from holdfast.cli.parser import CommandParser
from holdfast.cli.root import COMMANDS
from holdfast.cli.session import Session, in_session, meant
from holdfast.config.durations import duration_seconds
from holdfast.config.names import checked_queue
from holdfast.errors import ConfigError, InputError, NotFound
from holdfast.redis.keys import QueueKeys
from holdfast.scaling.policy import slots_of
from holdfast_simulator.drawing import (
    braille,
    columns,
    highest,
    replicas_of,
    scale_of,
    svg,
    waiting_of,
)
from holdfast_simulator.marking import lag_of
from holdfast_simulator.policies import NAMED, policies_of
from holdfast_simulator.recording import recorded
from holdfast_simulator.scaledobject import Target, scaled_object, to_yaml
from holdfast_simulator.spec import Metric
from holdfast_simulator.synthetic import PREFIX, synthetic_trace
from holdfast_simulator.traces import Row, read_trace, write_trace
from holdfast_simulator.world import World, parse_spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.config import QueueSettings, Settings
    from holdfast.config.scaling import ScalingSettings
    from holdfast_simulator.outcome import Outcome
    from holdfast_simulator.policies import Policy
    from holdfast_simulator.traces import Trace

simulate = CommandParser(help=COMMANDS["simulate"], rich_markup_mode=None)

_COLUMNS: Final = (
    Column("POLICY"),
    Column("REPLICAS", number=True),
    Column("MAX", number=True),
    Column("QUEUE MAX", number=True),
    Column("WAIT P50", number=True),
    Column("P95", number=True),
    Column("P99", number=True),
    Column("HOURS", number=True),
    Column("COST", number=True),
    Column("USED", number=True),
    Column("UP/DOWN", number=True),
    Column("HANDED BACK", number=True),
    Column("UNFINISHED", number=True),
)
_CHART_WIDTH: Final = 72
_CHART_HEIGHT: Final = 4
_RELEASE: Final = "holdfast"
"""The release and the namespace of the manifests in deploy/kubernetes."""
_NAMES: Final = ", ".join([*NAMED, "fixed:N"])


TraceName = Annotated[
    str,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Runs as CSV or JSON lines (arrival,duration[,queue]), or synthetic:poisson?rate=2&duration=30 "
        "(also diurnal, burst, step).",
    ),
]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy", metavar="POLICY", help=f"A file, a ScaledObject, or one of {_NAMES}; repeatable."
    ),
]
Slots = Annotated[
    int | None, typer.Option("--slots", min=1, max=100_000, help="Runs that one worker does at once.")
]
Least = Annotated[int | None, typer.Option("--min", min=0, max=100_000, help="Workers at least.")]
Most = Annotated[int | None, typer.Option("--max", min=1, max=100_000, help="Workers at most.")]
Scheduling = Annotated[
    str,
    typer.Option(
        "--scheduling", metavar="TIME", help="From the wish for a pod to its node: 1s, 1s..60s or 8s~0.4."
    ),
]
Startup = Annotated[
    str, typer.Option("--startup", metavar="TIME", help="From there until it takes runs, likewise.")
]
Drain = Annotated[
    str | None, typer.Option("--drain", metavar="TIME", help="How long a leaving worker may finish its runs.")
]
Resume = Annotated[
    Literal["checkpoint", "scratch"],
    typer.Option("--resume", help="Where a run goes on that was handed back or reclaimed."),
]
Crashes = Annotated[float, typer.Option("--crashes", min=0, help="Crashes of one worker an hour.")]
DeletionCost = Annotated[
    bool,
    typer.Option(
        "--deletion-cost/--no-deletion-cost",
        help="Whether busy workers' pods are marked, so that idle ones leave first.",
    ),
]
Outages = Annotated[
    list[str] | None,
    typer.Option("--outage", metavar="FROM..TO", help="When the metric can't be read: 10m..20m; repeatable."),
]
Price = Annotated[float, typer.Option("--price", min=0, help="What a worker costs an hour.")]
Seed = Annotated[int, typer.Option("--seed", help="The same seed gives the same outcome.")]
Plot = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", help="Write a picture of all policies as SVG.")
]
Chart = Annotated[bool, typer.Option("--chart/--no-chart", help="Whether to draw under the table.")]
Emit = Annotated[
    str | None,
    typer.Option("--emit", metavar="FILE", help="Write the policy as a ScaledObject; - prints it."),
]
Deployment = Annotated[
    str, typer.Option("--deployment", metavar="NAME", help="Whose replicas the ScaledObject decides about.")
]


@simulate.callback(invoke_without_command=True)
def simulate_policies(
    context: typer.Context,
    trace: TraceName = "",
    policy: Policies = None,
    queue: options.OneQueue = None,
    slots: Slots = None,
    least: Least = None,
    most: Most = None,
    scheduling: Scheduling = "1s",
    startup: Startup = "5s",
    drain: Drain = None,
    resume: Resume = "checkpoint",
    crashes: Crashes = 0.0,
    deletion_cost: DeletionCost = True,
    outage: Outages = None,
    price: Price = 0.0,
    seed: Seed = 1,
    plot: Plot = None,
    chart: Chart = True,
    emit: Emit = None,
    deployment: Deployment = "holdfast-worker-default",
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Let each policy work off the trace, and compare how long runs wait and what that takes."""
    if context.invoked_subcommand is not None:
        return
    settings = options.read_settings(config)
    runs = _trace(trace, queue or "", seed) if trace or emit is None else None
    queue_settings = _queue_settings(settings, queue, runs.queue if runs else "")
    world = World(
        slots=slots or slots_of(queue_settings),
        scaling=_bounded(queue_settings, least, most),
        scheduling=parse_spread(scheduling, "--scheduling"),
        startup=parse_spread(startup, "--startup"),
        drain_seconds=_seconds(drain, "--drain", settings.worker.drain_seconds),
        lease_seconds=settings.lease.ttl_seconds,
        checkpoints=resume == "checkpoint",
        crashes_per_hour=crashes,
        deletion_cost=deletion_cost,
        cost_lag=lag_of(settings),
        price_per_hour=price,
        outages=tuple(_outage(text) for text in outage or ()),
        seed=seed,
    )
    if queue is None and runs and runs.queue == queue_settings.name:
        output.note(
            f"as {queue_settings.name}, {world.slots} {'slot' if world.slots == 1 else 'slots'}", json=json
        )
    policies = [found for text in policy or ["depth"] for found in policies_of(text, world)]
    if emit is not None:
        _emit(emit, policies, queue_settings, settings, deployment)
        if emit != "-":  # not into what is printed: with a trace, that is a table or JSON
            output.note(f"the ScaledObject of {policies[0].name} written to {emit}", json=json)
    if runs is not None:
        outcomes = _simulated(runs, policies, world, json=json)
        _report(outcomes, plot, priced=price > 0, chart=chart, json=json)


def _report(outcomes: Sequence[Outcome], plot: Path | None, *, priced: bool, chart: bool, json: bool) -> None:
    if plot is not None:
        _write(plot, svg(outcomes, span))
    if json:
        output.document({"outcomes": outcomes})
        return
    _show(outcomes, priced=priced)
    if chart:
        _chart(outcomes)


def _trace(text: str, queue: str, seed: int) -> Trace:
    if not text:
        raise InputError("--trace FILE is missing: a trace of runs, or synthetic:poisson?rate=2&duration=30")
    if text.startswith(PREFIX):
        return synthetic_trace(text, seed)
    return read_trace(Path(text), queue=queue)


def _queue_settings(settings: Settings, given: str | None, traced: str) -> QueueSettings:
    """The queue that was named, else the one that all runs of the trace name, if it is configured."""
    known = settings.queue_names()
    if given is None:
        return settings.queue_named(traced if traced in known else settings.messaging.queue)
    name = checked_queue(given)
    if name not in (*known, traced):
        raise NotFound(f"no queue {name!r} is configured{meant(name, known)}")
    return settings.queue_named(name)


def _simulated(trace: Trace, policies: Sequence[Policy], world: World, *, json: bool) -> list[Outcome]:
    from holdfast_simulator.engine import Simulation

    outcomes: list[Outcome] = []
    for policy in policies:
        if sys.stderr.isatty():
            output.note(f"{policy.name}: {len(trace):,} runs", json=json)
        outcomes.append(Simulation(trace, policy, world).run())
    return outcomes


def _bounded(queue: QueueSettings, least: int | None, most: int | None) -> ScalingSettings:
    scaling = queue.scaling
    low = scaling.min_workers if least is None else least
    high = max(scaling.max_workers, low) if most is None else most
    if low > high:
        raise InputError(f"--min {low} is more than --max {high}")
    return msgspec.structs.replace(scaling, min_workers=low, max_workers=high)


def _seconds(text: str | None, option: str, otherwise: float) -> float:
    if text is None:
        return otherwise
    try:
        return duration_seconds(text)
    except ConfigError as exc:
        raise InputError(f"{option} {exc}") from exc


def _outage(text: str) -> tuple[float, float]:
    begin, dots, end = text.partition("..")
    if not dots:
        raise InputError(f"--outage {text[:40]!r} is not a span: write FROM..TO, like 10m..20m")
    span = _seconds(begin, "--outage", 0.0), _seconds(end, "--outage", 0.0)
    if span[0] >= span[1]:
        raise InputError(f"--outage {text[:40]!r} ends before it begins")
    return span


# -- what is shown


def _show(outcomes: Sequence[Outcome], *, priced: bool) -> None:
    unfinished = any(outcome.unfinished for outcome in outcomes)
    hidden = {"" if priced else "COST", "" if unfinished else "UNFINISHED"}
    shown = [at for at, column in enumerate(_COLUMNS) if column.title not in hidden]
    rows = [[_row(outcome)[at] for at in shown] for outcome in outcomes]
    output.table([_COLUMNS[at] for at in shown], rows, empty="no policies")
    for outcome in outcomes:
        if outcome.unfinished:
            output.note(f"{outcome.policy} left {outcome.unfinished:,} of {outcome.runs:,} runs unfinished")


def _row(outcome: Outcome) -> tuple[str, ...]:
    waits = outcome.wait_seconds
    return (
        outcome.policy,
        f"{outcome.replicas_mean:.1f}",
        str(outcome.replicas_most),
        f"{outcome.queue_most:,}",
        *(span(wait) for wait in (waits.p50, waits.p95, waits.p99)),
        f"{outcome.worker_hours:,.1f}",
        f"{outcome.cost:,.2f}",
        f"{outcome.used:.0%}",
        f"{outcome.scaled_up}/{outcome.scaled_down}",
        f"{outcome.handed_back:,}",
        f"{outcome.unfinished:,}",
    )


def _chart(outcomes: Sequence[Outcome]) -> None:
    """Draw everything to one scale, so that heights and times of policies compare."""
    scale = scale_of(outcomes)
    end = max(outcome.seconds for outcome in scale)
    for title, of in (("replicas", replicas_of), ("waiting", waiting_of)):
        top = highest(scale, of)
        for outcome in outcomes:
            output.line("")
            most = highest([outcome], of)
            if not most:
                output.line(f"{outcome.policy}: {title}, none")
                continue
            output.line(f"{outcome.policy}: {title}, at most {most:,.0f}")
            for line in braille(columns(outcome.samples, of, 2 * _CHART_WIDTH, end), top, _CHART_HEIGHT):
                output.line(line.rstrip("\N{BRAILLE PATTERN BLANK}"))
    output.line(f"{'0':<{_CHART_WIDTH - len(span(end))}}{span(end)}")


def _emit(
    place: str, policies: Sequence[Policy], queue: QueueSettings, settings: Settings, deployment: str
) -> None:
    if len(policies) != 1 or policies[0].keda is None:
        names = ", ".join(policy.name for policy in policies)
        raise InputError(f"--emit writes one policy of KEDA as a ScaledObject, not {names}")
    blind = any(trigger.metric is not Metric.DEPTH for trigger in policies[0].keda.triggers)
    if queue.partitions > 1 and blind:
        raise InputError(
            f"the queue {queue.name!r} has {queue.partitions} partitions, and KEDA's redis-streams trigger "
            "would see the first one only: emit depth or push"
        )
    target = Target(
        queue=queue.name,
        streams=QueueKeys.of(queue.name, prefix=settings.redis.key_prefix).lanes,
        deployment=deployment,
        release=_RELEASE,
        namespace=_RELEASE,
    )
    text = to_yaml(scaled_object(policies[0].keda, target))
    if place == "-":
        sys.stdout.write(text)
    else:
        _write(Path(place), text)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise InputError(f"{path} can't be written: {exc.strerror}") from exc


# -- recording


@simulate.command("record")
def record_trace(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the trace goes, as CSV.")],
    queue: options.OneQueue = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Only runs submitted in the last 24h, 7d.")
    ] = None,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Write when a queue's runs arrived and how long they took. Redis and the archive are read for that."""
    begin = 0.0 if since is None else time.time() - _seconds(since, "--since", 0.0)

    async def work(station: Session) -> tuple[str, list[Row], int]:
        found = await station.queue(queue)
        rows, others = await recorded(found, await station.store.found(), since=begin)
        return found.name, rows, others

    name, rows, others = in_session(options.read_settings(config), work)
    if not rows:
        raise InputError(f"queue {name!r} has no run that was started and has ended{_also(others)}")
    written = write_trace(out, rows)
    if json:
        output.document({"queue": name, "runs": written, "skipped": others, "out": str(out)})
    else:
        output.line(f"{written} runs of {name} written to {out}{_also(others)}")


def _also(others: int) -> str:
    return f" ({others} left out: not started, or not ended)" if others else ""
