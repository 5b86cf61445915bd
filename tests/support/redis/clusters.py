"""Redis as people run it: a cluster of several servers, and a primary with a replica under sentinels."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.redis.valkey_process import ValkeyProcess, free_port
from tests.support.waiting import wait_until

Start = Callable[..., ValkeyProcess]
SLOTS = 16384


def start_cluster(start: Start, *options: str, count: int = 3) -> list[ValkeyProcess]:
    """Start servers that share all slots evenly, and return when each knows all of them."""
    nodes: list[ValkeyProcess] = []
    for number in range(count):
        bus = free_port()  # the default, the port + 10000, may be none
        node = start("--cluster-enabled", "yes", "--cluster-port", str(bus), *options, append_only=False)
        nodes.append(node)
        first, last = SLOTS * number // count, SLOTS * (number + 1) // count - 1
        assert node.ask(f"CLUSTER ADDSLOTSRANGE {first} {last}").startswith("+OK")
        assert nodes[0].ask(f"CLUSTER MEET 127.0.0.1 {node.port} {bus}").startswith("+OK")
    for node in nodes:
        node.wait_for("CLUSTER INFO", "cluster_state:ok")
        node.wait_for("CLUSTER INFO", f"cluster_known_nodes:{count}")
    return nodes


def cluster_url(nodes: list[ValkeyProcess]) -> str:
    return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


def owner_of(nodes: list[ValkeyProcess], slot: int) -> int:
    """The number of the node that has a slot, as it was started."""
    return next(n for n in range(len(nodes)) if slot < SLOTS * (n + 1) // len(nodes))


class Guarded:
    """A primary and its replica, watched by three sentinels that elect the replica when the primary dies."""

    def __init__(self, start: Start) -> None:
        self.primary = start()
        self.replica = start()
        self.replica.ask(f"REPLICAOF 127.0.0.1 {self.primary.port}")
        self.replica.wait_for("INFO replication", "master_link_status:up")
        self.primary.wait_for("INFO replication", "state=online")
        self.sentinels = [start(sentinel=True) for _ in range(3)]
        # Not sooner: a primary that gets no CPU for a second is not dead, and would be replaced with all it has.
        down_after_ms = 3000
        for sentinel in self.sentinels:
            for told in (
                f"SENTINEL MONITOR main 127.0.0.1 {self.primary.port} 2",
                f"SENTINEL SET main down-after-milliseconds {down_after_ms}",
                "SENTINEL SET main failover-timeout 5000",
                # One that got no CPU for two seconds would do nothing for half a minute, and begin that anew each time.
                "SENTINEL DEBUG tilt-trigger 60000 tilt-period 1000",
            ):
                assert sentinel.ask(told).startswith("+OK"), told
        for sentinel in self.sentinels:  # before that, nobody could be elected, and nobody to replace it
            sentinel.wait_for("SENTINEL MASTER main", "num-other-sentinels\r\n$1\r\n2", 60)
            sentinel.wait_for("SENTINEL MASTER main", "num-slaves\r\n$1\r\n1", 60)

    @property
    def url(self) -> str:
        return "redis+sentinel://" + ",".join(f"127.0.0.1:{one.port}" for one in self.sentinels) + "/main"

    def in_sync(self) -> None:
        """Return when the replica has all that the primary had when this was asked."""
        wanted = _offset(self.primary.ask("INFO replication"))
        wait_until(
            lambda: _offset(self.replica.ask("INFO replication")),
            lambda offset: offset >= wanted,
            what=f"the replica to catch up with offset {wanted}",
        )

    def fail_over(self) -> None:
        """Have primary and replica change places without anybody dying."""
        # A sentinel that has not heard of the replica for a moment refuses.
        self.sentinels[0].wait_for("SENTINEL FAILOVER main", "+OK")

    def promoted(self, seconds: float = 60.0) -> None:
        """Return when the sentinels have made the replica the primary."""
        self.replica.wait_for("INFO replication", "role:master", seconds)
        for sentinel in self.sentinels:
            sentinel.wait_for(
                "SENTINEL GET-MASTER-ADDR-BY-NAME main", f"\r\n{self.replica.port}\r\n", seconds
            )


def _offset(info: str) -> int:
    fields = dict(line.partition(":")[::2] for line in info.splitlines())
    return int(fields.get("slave_repl_offset") or fields.get("master_repl_offset") or 0)


def move_slot(source: ValkeyProcess, target: ValkeyProcess, others: list[ValkeyProcess], slot: int) -> int:
    """Move a slot and its keys while everybody goes on using it; return how many keys that were."""
    from_id, to_id = (node.ask("CLUSTER MYID").split("\r\n")[1] for node in (source, target))
    assert target.ask(f"CLUSTER SETSLOT {slot} IMPORTING {from_id}").startswith("+OK")
    assert source.ask(f"CLUSTER SETSLOT {slot} MIGRATING {to_id}").startswith("+OK")
    moved = 0
    while keys := source.ask(f"CLUSTER GETKEYSINSLOT {slot} 10").split("\r\n")[2::2]:
        # What a move that took too long has left on both servers is replaced: nobody wrote it meanwhile.
        reply = source.ask(f'MIGRATE 127.0.0.1 {target.port} "" 0 5000 REPLACE KEYS {" ".join(keys)}')
        assert reply.startswith(("+OK", "+NOKEY", "-IOERR")), reply
        moved += len(keys)
    for node in (target, source, *others):
        assert node.ask(f"CLUSTER SETSLOT {slot} NODE {to_id}").startswith("+OK")
    return moved
