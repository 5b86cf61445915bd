"""``make stress``: run the tests again and again in random orders while busy processes take the CPU away.

It ends with a table of every test that failed at least once, how often, under which seeds, and where its log is.
``make stress ROUNDS=20 BUSY=3 ARGS='tests/integration/events'`` runs a part of the tests.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.paths import ROOT

LOGS = ROOT / ".stress"
# Ends when the other end of its standard input does: with the process that started it, whatever ends that.
BUSY = """
import sys, threading, os
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
while True: pass
"""


@dataclass
class Failures:
    """What one test did in all rounds."""

    seeds: list[int] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep so many processes busy."""
    command = [sys.executable, "-I", "-S", "-c", BUSY]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.communicate()


def run_once(folder: Path, seed: int, arguments: list[str]) -> list[tuple[str, Path]]:
    """Run the tests in one order; return those that failed, each with its log."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "--seed", str(seed), f"--hypothesis-seed={seed}"]
    command += [f"--junitxml={report}", "-o", "junit_logging=all", "-o", "junit_family=xunit1", *arguments]
    with (folder / "output.log").open("w") as output:
        ended = subprocess.run(command, cwd=ROOT, stdout=output, stderr=output, check=False).returncode
    if ended == 0:
        return []
    if ended != 1 or not report.exists():  # not one test, but pytest itself
        return [(f"pytest exited with code {ended}", folder / "output.log")]
    none = (f"pytest exited with code {ended}, no test failed", folder / "output.log")
    return list(failed_tests(report, folder)) or [none]


def failed_tests(report: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    for number, case in enumerate(ET.parse(report).iter("testcase")):
        wrong = [part for part in case if part.tag in ("failure", "error")]
        if wrong:
            log = folder / f"{number}.log"
            outputs = [part for part in case if part.tag in ("system-out", "system-err")]
            log.write_text("\n".join(part.text or "" for part in [*wrong, *outputs]))
            yield _name(case), log


def _name(case: ET.Element) -> str:
    """As pytest takes it on its command line."""
    file = case.get("file", "")
    classes = case.get("classname", "").removeprefix(file.removesuffix(".py").replace("/", ".")).split(".")
    return "::".join([file, *filter(None, classes), case.get("name", "")])


def stress(rounds: int, busy: int, arguments: list[str]) -> tuple[int, dict[str, Failures]]:
    """Return how many rounds came to their end, all unless interrupted, and every test that failed in them."""
    found, done = dict[str, Failures](), 0
    session = LOGS / time.strftime("%Y%m%d-%H%M%S")
    with contextlib.suppress(KeyboardInterrupt), busy_processes(busy):
        for number in range(1, rounds + 1):
            seed = random.randrange(1_000_000)
            folder = session / f"seed-{seed}"
            folder.mkdir(parents=True)
            print(f"round {number} of {rounds}, seed {seed}, {busy} busy processes", end=" ", flush=True)
            began = time.monotonic()
            failed = run_once(folder, seed, arguments)
            print(f"- {len(failed)} failed, {time.monotonic() - began:.0f} s", flush=True)
            for name, log in failed:
                failures = found.setdefault(name, Failures())
                failures.seeds.append(seed)
                failures.logs.append(log)
            done = number
    return done, found


def show(found: dict[str, Failures]) -> None:
    """Print a row per test that failed: how often, the seeds, its first log."""
    if not found:
        print("no test failed")
        return
    print("failed  test (seeds; log)")
    for name, failures in sorted(found.items(), key=lambda each: -len(each[1].seeds)):
        seeds = " ".join(map(str, failures.seeds))
        print(f"{len(failures.seeds):6}  {name}\n        seeds {seeds}; {failures.logs[0].relative_to(ROOT)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often the tests run")
    parser.add_argument("--busy", type=int, default=2, help="how many processes take the CPU away")
    options, arguments = parser.parse_known_args()
    done, found = stress(options.rounds, options.busy, arguments)
    if done < options.rounds:
        print(f"\ninterrupted after {done} of {options.rounds} rounds")
    show(found)
    return 130 if done < options.rounds else 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
