"""The benchmarks can be run; what they find is no matter of a test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("part", "line"),
    [
        ("submit", "| submit_many"),
        ("simulate", "| simulate a day of"),
        ("scaling", "| GetMetrics, p50"),
        ("partitions", "| Redis CPU a run, busiest server"),
    ],
)
def test_a_part_of_the_benchmarks_runs_and_prints_its_table(tmp_path: Path, part: str, line: str) -> None:
    results = tmp_path / "results.json"
    command = [sys.executable, "-m", "bench", "--quick", "--results", str(results), part]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)

    assert done.returncode == 0, done.stderr
    assert line in done.stdout
    figures = json.loads(results.read_text())["parts"][part]
    assert all(figure["value"] > 0 for figure in figures)
