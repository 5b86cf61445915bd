"""The demo as a whole: it plays to its end by itself, proves what it says, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "holdfast_demo"]


def environment(tmp: Path, **more: str) -> dict[str, str]:
    # A setting that would break the demo if it reached it, and a folder in which leftovers are seen.
    return {**os.environ, "TMPDIR": str(tmp), "MESSAGING_QUEUE_NAME": "elsewhere", "KEEP": "", **more}


@pytest.mark.timeout(180)
def test_the_demo_plays_to_its_end_and_proves_that_nothing_was_lost(short_dir: Path):
    done = subprocess.run(
        COMMAND,
        cwd=ROOT,
        env=environment(short_dir),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    printed = done.stdout
    assert done.returncode == 0, printed + done.stderr
    assert "✗" not in printed
    assert "All runs are accounted for." in printed
    submitted, succeeded, dead, cancelled = map(
        int,
        re.search(
            r"(\d+) submitted = (\d+) succeeded \+ (\d+) in the dead letters \+ (\d+) cancelled", printed
        ).groups(),
    )
    assert submitted == succeeded + dead + cancelled == 43
    assert (dead, cancelled) == (4, 1)
    assert re.search(r"recovery +\d+\.\d+ s from kill -9", printed)
    assert re.search(r"duplicates +0\n", printed)
    assert re.search(r"worker-\w hands \w{6} back, exit 0", printed)
    check_steps(printed)
    check_answer(printed)
    check_stream(printed)
    check_outage(printed)
    check_turns(printed)
    assert "\x1b" not in printed  # no terminal, no colours
    assert list(short_dir.iterdir()) == []


def check_steps(printed: str) -> None:
    told = re.search(
        r"kill -9  worker-\w dies; \w{6} goes on with step (\d+) on worker-\w \d+\.\d s later", printed
    )
    assert told is not None
    assert int(told[1]) > 3  # it was killed after three of them
    proved = re.search(
        r"✓ (\d+) steps of 2 runs were finished when their workers went: none was done", printed
    )
    assert proved is not None
    assert int(proved[1]) >= 5


def check_answer(printed: str) -> None:
    assert re.search(r'ask +"Pay 40 EUR to Ada\?" holds no worker; "yes" ends it in', printed)
    assert '✓ asked "Pay 40 EUR to Ada?", answered "yes": {"paid":40}' in printed
    assert re.search(r"answer  .* waited [1-9]\d*\.\d s without a worker", printed)


def check_stream(printed: str) -> None:
    told = re.search(
        r"stream   api-a dies after (\d+) events of draft \w{6}; api-b sends (\d+) to (\d+)", printed
    )
    proved = re.search(
        r"✓ (\d+) \+ (\d+) events followed over two replicas: none missed, none seen twice", printed
    )
    assert told is not None
    assert proved is not None
    before, after, last = map(int, told.groups())
    assert 20 <= before < after == before + 1 < last
    assert (before, last - before) == tuple(map(int, proved.groups()))
    assert last >= 4 * 12  # the words of the letter


def check_turns(printed: str) -> None:
    told = re.search(r"schedule digest had (\d+) turns, none in [\d.]+ s of pause; tidy ran by hand", printed)
    proved = re.search(
        r"✓ (\d+) turns of digest, each one run: none doubled, none while it was paused", printed
    )
    assert told is not None
    assert proved is not None
    assert int(told[1]) == int(proved[1]) >= 4


def check_outage(printed: str) -> None:
    told = re.search(
        r"outage   down, then 500, for ([\d.]+) s; the (\d+) waiting events came in [\d.]+ s", printed
    )
    proved = re.search(r"✓ (\d+) events reached the Event API(, \d+ of them twice)?: all, in order", printed)
    assert told is not None
    assert proved is not None
    assert float(told[1]) >= 3
    assert 0 < int(told[2]) < int(proved[1])
    assert re.search(r"outage  .* [1-9]\d* runs ended, [1-9]\d* deliveries refused meanwhile", printed)


def test_an_interrupted_demo_leaves_no_process_and_no_file(short_dir: Path):
    demo = subprocess.Popen(
        COMMAND,
        cwd=ROOT,
        env=environment(short_dir),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert demo.stdout is not None
    for line in demo.stdout:
        if "cancel " in line:
            break
    family = psutil.Process(demo.pid).children(recursive=True)
    assert len(family) >= 2
    demo.send_signal(signal.SIGTERM)
    rest, _ = demo.communicate(timeout=40)
    assert demo.returncode == 130, rest
    assert "Traceback" not in rest
    _, alive = psutil.wait_procs(family, timeout=30)
    assert alive == []
    assert list(short_dir.iterdir()) == []


def test_a_killed_demo_leaves_no_process(short_dir: Path):
    demo = subprocess.Popen(COMMAND, cwd=ROOT, env=environment(short_dir), stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    for line in demo.stdout:
        if "start " in line:
            break
    family = psutil.Process(demo.pid).children(recursive=True)
    demo.kill()
    demo.communicate(timeout=30)
    wait_until(
        lambda: [p for p in psutil.process_iter() if p in family or _uses(p, short_dir)],
        lambda left: not left,
        what="the end of the demo's processes",
    )


def _uses(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and str(folder) in " ".join(process.cmdline())
    except psutil.Error:
        return False
