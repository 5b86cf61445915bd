"""``python -m bench [--quick] [part …]``: measures, prints a table, writes bench/results.json.

One that is not quick also renews its parts of bench/report.md. A missed goal is no error; a part that
can't be measured is.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from bench import (
    drain,
    emit,
    hosts,
    http,
    instructions,
    latency,
    leases,
    memory,
    outside,
    partitions,
    recovery,
    report,
    scaling,
    schedules,
    simulating,
    steps,
    submit,
)
from bench.harness import Plan

if TYPE_CHECKING:
    from bench.figures import Figure

PARTS = {
    "drain": drain,
    "instructions": instructions,
    "partitions": partitions,
    "submit": submit,
    "latency": latency,
    "memory": memory,
    "recovery": recovery,
    "leases": leases,
    "emit": emit,
    "http": http,
    "steps": steps,
    "relay": outside,
    "schedules": schedules,
    "hosts": hosts,
    "scaling": scaling,
    "simulate": simulating,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench", description="Measure speed and memory beside raw redis-py."
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all if none is named"
    )
    parser.add_argument("--quick", action="store_true", help="a short look, too short to judge by")
    parser.add_argument(
        "--results", type=Path, default=report.RESULTS, metavar="FILE", help="where the numbers go, as JSON"
    )
    given = parser.parse_args()
    for unknown in set(given.parts) - set(PARTS):
        parser.error(f"there is no part {unknown!r}; there are {', '.join(PARTS)}")
    return asyncio.run(_measure(given.parts or list(PARTS), Plan(given.quick), given.results))


async def _measure(wanted: list[str], plan: Plan, results: Path) -> int:
    seen = await report.conditions()
    parts: dict[str, list[Figure]] = {}
    for name in wanted:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            parts[name] = await PARTS[name].measure(plan)
        except Exception:
            traceback.print_exc()
    print(report.table([figure for figures in parts.values() for figure in figures]))
    report.write_results(results, parts, seen)
    if len(parts) == len(wanted) and not plan.quick:
        report.write_report(parts, seen)
    return 0 if len(parts) == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
