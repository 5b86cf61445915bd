"""What a host may use, by the cgroups that it is in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.hosts.container_limits import ContainerLimits, allotted

MACHINE = ContainerLimits(
    os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), float(len(os.sched_getaffinity(0)))
)
MIB = 2**20
HALF = {"cpu.cfs_quota_us": "50000\n", "cpu.cfs_period_us": "100000\n"}


def seen(folder: Path, membership: str, files: dict[str, dict[str, str]]) -> ContainerLimits:
    for cgroup, limits in files.items():
        (folder / cgroup).mkdir(parents=True, exist_ok=True)
        for name, text in limits.items():
            (folder / cgroup / name).write_text(text)
    (folder / "membership").write_text(membership)
    return allotted(folder, folder / "membership")


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        pytest.param("0::/\n", {"": {"memory.max": f"{64 * MIB}\n"}}, (64 * MIB, None), id="memory"),
        pytest.param("0::/\n", {"": {"cpu.max": "50000 100000\n"}}, (None, 0.5), id="half a core"),
        pytest.param(
            "0::/\n", {"": {"cpu.max": "max 100000\n", "memory.max": "max\n"}}, (None, None), id="max"
        ),
        pytest.param(
            "0::/pod/host\n",
            {
                "pod": {"memory.max": f"{64 * MIB}\n", "cpu.max": "20000 100000\n"},
                "pod/host": {"memory.max": "max\n"},
            },
            (64 * MIB, 0.2),
            id="of the one above",
        ),
        pytest.param(
            "0::/../../kubepods/pod\n",
            {"": {"memory.max": f"{64 * MIB}\n"}},
            (64 * MIB, None),
            id="not visible",
        ),
        pytest.param(
            "4:memory:/pod\n1:cpu,cpuacct:/pod\n",
            {"memory/pod": {"memory.limit_in_bytes": f"{32 * MIB}\n"}, "cpu,cpuacct/pod": HALF},
            (32 * MIB, 0.5),
            id="version 1",
        ),
        pytest.param(
            "4:memory:/kubepods/pod\n1:cpu:/kubepods/pod\n",
            {"memory": {"memory.limit_in_bytes": f"{32 * MIB}\n"}, "cpu": HALF},
            (32 * MIB, 0.5),
            id="version 1 in a container",
        ),
        pytest.param(
            "4:memory:/\n1:cpu:/\n",
            {
                "memory": {"memory.limit_in_bytes": "9223372036854771712\n"},
                "cpu": {"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"},
            },
            (None, None),
            id="version 1 without limits",
        ),
        pytest.param(
            "0::/\n", {"": {"cpu.max": "what?", "memory.max": "much"}}, (None, None), id="unreadable"
        ),
    ],
)
def test_a_host_may_use_what_its_container_is_given(
    tmp_path: Path,
    membership: str,
    files: dict[str, dict[str, str]],
    expected: tuple[int | None, float | None],
):
    memory, cpus = expected
    wanted = ContainerLimits(memory or MACHINE.memory_bytes, MACHINE.cpus if cpus is None else cpus)
    assert seen(tmp_path, membership, files) == wanted


def test_a_limit_above_what_the_machine_has_is_none(tmp_path: Path):
    files = {"": {"memory.max": str(2**60), "cpu.max": "100000000 100000"}}
    assert seen(tmp_path, "0::/\n", files) == MACHINE


def test_without_cgroups_it_is_the_machine(tmp_path: Path):
    assert allotted(tmp_path, tmp_path / "nothing") == MACHINE
