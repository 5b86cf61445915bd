"""Agents in cgroups: with a folder that looks like a delegated one, and with the real one where this host has it."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from holdfast.processes.cgroups import Cgroups
from holdfast.processes.limits import Limits
from tests.support.processes.child_processes import PATIENCE
from tests.support.waiting import wait_until

MANY = 512 << 20
FILES = ("memory.max", "memory.swap.max", "memory.oom.group", "pids.max")


class Fake:
    """A cgroup tree of plain files, in which those that the kernel would make appear by themselves."""

    def __init__(self, root: Path, name: str = "/", controllers: str = "cpu memory pids") -> None:
        self.mount, self.own, self.membership = (
            root / "cgroup",
            root / "cgroup" / name.lstrip("/"),
            root / "membership",
        )
        self.own.mkdir(parents=True)
        self.membership.write_text(f"0::{name}\n")
        for folder in {self.mount, self.own}:
            (folder / "cgroup.controllers").write_text(controllers + "\n")
        for file in ("cgroup.type", "cgroup.procs", "cgroup.subtree_control"):
            (self.own / file).write_text("")

    def cgroups(self) -> Cgroups:
        return Cgroups(self.mount, self.membership)

    @property
    def agents(self) -> list[Path]:
        return sorted(self.own.glob("agent-*"))


@pytest.fixture
def fake(tmp_path, monkeypatch):
    make, remove = Path.mkdir, Path.rmdir

    def mkdir(path, *args, **options):
        make(path, *args, **options)
        if path.name.startswith("agent-"):
            for file in FILES:
                (path / file).write_text("max")

    def rmdir(path):
        return shutil.rmtree(path) if tmp_path in path.parents else remove(path)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(Path, "rmdir", rmdir)
    return lambda *args, **options: Fake(tmp_path, *args, **options)


def test_nothing_is_touched_before_the_first_limit(fake):
    tree = fake()
    before = sorted(tree.mount.rglob("*"))
    assert tree.cgroups().make(Limits(nice=3)) is None
    assert sorted(tree.mount.rglob("*")) == before


def test_the_host_makes_room_and_each_agent_gets_its_limits(fake):
    tree = fake()
    cgroups = tree.cgroups()
    made = Path(cgroups.make(Limits(memory_bytes=MANY, processes=20)))
    assert (tree.own / "cgroup.subtree_control").read_text() == "+memory +pids"
    assert (tree.own / "host").is_dir()
    assert {file: (made / file).read_text() for file in FILES} == {
        "memory.max": str(MANY),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "20",
    }
    other = Path(cgroups.make(Limits(processes=5)))
    assert ((other / "memory.max").read_text(), (other / "pids.max").read_text()) == ("max", "5")
    assert tree.agents == sorted([made, other])
    assert not cgroups.end(str(made))
    (other / "memory.events").write_text("low 0\nmax 4\noom 1\noom_kill 1\n")
    assert cgroups.end(str(other)), "the kernel killed it"
    assert tree.agents == []


def test_what_a_dead_host_left_is_removed(fake):
    tree = fake()
    (tree.own / "agent-1-1").mkdir()
    made = tree.cgroups().make(Limits(memory_bytes=MANY))
    assert [str(each) for each in tree.agents] == [made]


def _no_memory(tree: Fake) -> None:
    (tree.own / "cgroup.controllers").write_text("cpu pids\n")


def _of_the_machine(tree: Fake) -> None:
    (tree.own / "cgroup.type").unlink()


def _version_1(tree: Fake) -> None:
    tree.membership.write_text("4:memory:/x\n")


def _hybrid(tree: Fake) -> None:
    (tree.mount / "cgroup.controllers").unlink()


def _crowded(tree: Fake) -> None:
    (tree.own / "cgroup.procs").write_text(str(os.getpid()))  # plain files: nobody can leave


def _unseen(tree: Fake) -> None:
    tree.membership.write_text("0::/../other\n")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_no_memory, "has no memory controller"),
        (_of_the_machine, "is the root cgroup of the machine"),
        (_version_1, "in no v2 cgroup"),
        (_hybrid, "is not a mount of cgroup v2"),
        (_crowded, "still has processes after"),
        (_unseen, "is not visible under"),
    ],
)
def test_where_it_is_not_allowed_that_is_said_once_and_nothing_is_made(fake, log_lines, spoil, why):
    tree = fake()
    spoil(tree)
    cgroups = tree.cgroups()
    assert [cgroups.make(Limits(memory_bytes=MANY)) for _ in range(3)] == [None] * 3
    said = [line for line in log_lines() if line["event"].startswith("cgroups unavailable")]
    assert len(said) == 1
    assert why in said[0]["why"]
    assert tree.agents == []


def test_being_able_to_write_is_not_being_allowed(fake, log_lines):
    tree = fake("/system.slice/agents.service")
    assert tree.cgroups().make(Limits(memory_bytes=MANY)) is None
    assert "Delegate=yes" in log_lines()[0]["why"]
    try:
        os.setxattr(tree.own, "user.delegate", b"1")
    except OSError:
        pytest.skip("a cgroup that systemd delegates (the file system of tmp_path has no user attributes)")
    assert tree.cgroups().make(Limits(memory_bytes=MANY)) is not None


def test_a_child_enters_its_cgroup_and_its_end_is_explained(fake, make):
    """Fails if the child does not enter it: the file of its members stays empty."""
    tree = fake()
    processes = make(cgroups=tree.cgroups())
    info = processes.spawn("a", "willing", limits=Limits(memory_bytes=MANY)).result(PATIENCE)
    [cgroup] = tree.agents
    assert (cgroup / "cgroup.procs").read_text() == "0"
    data_limit = Path(f"/proc/{info.pid}/limits").read_text().split("Max data size")[1].split()[0]
    assert data_limit == "unlimited", "its cgroup limits it, not its process"
    (cgroup / "memory.events").write_text("oom_kill 1\n")
    os.kill(info.pid, signal.SIGKILL)
    wait_until(lambda: (now := processes.get("a")).status == "running" and now.pid != info.pid)
    assert processes.get("a").last_error == "it exceeded its memory limit, was killed by SIGKILL"
    assert len(tree.agents) == 1, "that of its first process is gone"
    processes.stop("a").result(PATIENCE)
    assert tree.agents == []


def test_without_cgroups_a_child_has_the_limit_of_its_process(fake, make):
    tree = fake(controllers="cpu")
    processes = make(cgroups=tree.cgroups())
    info = processes.spawn("a", "willing", limits=Limits(memory_bytes=MANY)).result(PATIENCE)
    assert f"Max data size             {MANY}" in Path(f"/proc/{info.pid}/limits").read_text()


def test_a_real_cgroup_ends_an_agent_with_all_that_it_forked(make, log_lines):
    cgroups = Cgroups()
    made = cgroups.make(Limits(memory_bytes=MANY))
    if made is None:
        pytest.skip(f"limits by real cgroups ({log_lines()[0]['why']})")
    cgroups.end(made)
    processes = make(cgroups=cgroups)
    info = processes.spawn("a", "willing", limits=Limits(memory_bytes=MANY)).result(PATIENCE)
    [line] = Path(f"/proc/{info.pid}/cgroup").read_text().splitlines()
    mine = Path("/sys/fs/cgroup", line.removeprefix("0::/"))
    assert (mine / "memory.max").read_text().strip() == str(MANY)
    processes.stop("a").result(PATIENCE)
    assert not mine.exists()
