"""The processes of pytest-xdist, forked like the programs that tests start."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

from execnet import gateway_base, gateway_io

from tests.support.processes import forked


class XdistProcess(gateway_io.Popen2IOMaster):
    """A process of pytest-xdist; each one by itself would spend ten seconds on importing frameworks and tests."""

    def __init__(self, command: Sequence[str], execmodel: Any) -> None:
        arguments = [argument for argument in command[1:] if argument != "-u"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.popen = forked.Popen([command[0], *arguments], template="tests", **pipes)
        gateway_base.Popen2IO.__init__(self, self.popen.stdin, self.popen.stdout, execmodel=execmodel)


def fork_processes() -> None:
    """Make pytest-xdist fork its processes."""
    gateway_io.Popen2IOMaster = XdistProcess
