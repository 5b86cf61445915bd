"""The demo as a whole: it plays to its end by itself, proves what it says, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "holdfast.cli.demo"]


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
    assert submitted == succeeded + dead + cancelled == 41
    assert (dead, cancelled) == (4, 1)
    assert re.search(r"recovery +\d\.\d+ s from kill -9", printed)
    assert re.search(r"duplicates +0\n", printed)
    assert re.search(r"worker-\w hands \w{6} back, exit 0", printed)
    assert "\x1b" not in printed  # no terminal, no colours
    assert list(short_dir.iterdir()) == []


@pytest.mark.timeout(60)
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
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []
    assert list(short_dir.iterdir()) == []


@pytest.mark.timeout(60)
def test_a_killed_demo_leaves_no_process(short_dir: Path):
    demo = subprocess.Popen(COMMAND, cwd=ROOT, env=environment(short_dir), stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    for line in demo.stdout:
        if "start " in line:
            break
    family = psutil.Process(demo.pid).children(recursive=True)
    demo.kill()
    demo.communicate(timeout=10)
    deadline = time.monotonic() + 15
    while [p for p in psutil.process_iter() if p in family or _uses(p, short_dir)]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _uses(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and str(folder) in " ".join(process.cmdline())
    except psutil.Error:
        return False
