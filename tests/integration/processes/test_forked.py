"""Programs of tests that are forked from a template: what a test sees of them is what subprocess shows."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.processes import forked


@pytest.mark.parametrize("start", [subprocess.run, forked.run], ids=["subprocess", "forked"])
def test_output_arguments_environment_folder_and_exit_code_are_those_of_a_program(start, tmp_path):
    code = (
        "import os, sys; print(sys.argv[1:], os.environ['WORD'], os.getcwd(), sys.stdin.read()); sys.exit(3)"
    )
    done = start(
        [sys.executable, "-c", code, "a", "b c"],
        cwd=tmp_path,
        env={**os.environ, "WORD": "here"},
        input="text",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, f"['a', 'b c'] here {tmp_path} text\n", "")


def test_a_process_whose_pid_is_gone_has_a_return_code():
    """Fails within 1,000 rounds if the template reaps a process before it reports its end: poll() returned None."""
    for _ in range(50):
        process = forked.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        process.kill()
        while Path(f"/proc/{process.pid}").exists():
            pass  # the time between the two was microseconds
        assert process.poll() == -signal.SIGKILL


def test_a_template_that_has_ended_is_started_again():
    """Its socket is still there and refuses connections: the next template could not bind to that name."""
    with forked.templates([]):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as ended:
            ended.bind(str(Path(os.environ[forked.FOLDER]) / "holdfast"))
        done = forked.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def test_a_test_module_that_can_t_be_imported_is_tried_again_by_the_forked_processes(tmp_path):
    """Left half imported, it would be a module without tests for them, and the run green."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_broken.py").write_text("import nothing_of_that_name\n")
    code = (
        "import sys; from tests.support.processes.forked import _import_tests; _import_tests(sys.argv[1:])\n"
        "print('tests.test_broken' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "tests")]
    done = forked.run(command, template="frameworks", cwd=ROOT, capture_output=True, text=True, check=True)
    assert "No module named 'nothing_of_that_name'" in done.stderr
    assert done.stdout == "False\n"
