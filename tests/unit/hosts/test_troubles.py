"""What a host's error means for its caller, whichever way it comes."""

from __future__ import annotations

import pytest

from holdfast.errors import (
    AgentRefused,
    Conflict,
    HoldfastError,
    InputError,
    NotAllowed,
    NotFound,
    PayloadTooLarge,
    ProcessError,
    ProcessesFull,
    ProcessFailed,
    RedisUnavailable,
    Refused,
)
from holdfast.hosts import servicer
from holdfast.hosts.host import Elsewhere
from holdfast.hosts.local import is_gone, own_name, trouble_of
from holdfast.hosts.remote import TROUBLES
from holdfast.hosts.transport import Trouble

ERRORS = [
    AgentRefused,
    Conflict,
    Elsewhere,
    HoldfastError,
    InputError,
    NotAllowed,
    NotFound,
    PayloadTooLarge,
    ProcessError,
    ProcessFailed,
    ProcessesFull,
    RedisUnavailable,
    Refused,
]


@pytest.mark.parametrize("kind", ERRORS)
def test_a_local_host_refuses_as_one_over_grpc_does(kind):
    error = kind("no")
    code = servicer._code(error)
    assert trouble_of(error) is TROUBLES.get(code, Trouble.INVALID)


def test_a_name_tells_only_of_its_own_machine_whether_its_process_is_gone():
    mine = own_name()
    assert mine != own_name(), "two engines of one process are two hosts"
    assert not is_gone(mine)
    head, pid, end = mine.rsplit(":", 2)
    assert is_gone(f"{head}:{pid}1:{end}"), "the same number, but it began at another time"
    machine = head[-8:]
    other = "0" * 8 if machine != "0" * 8 else "1" * 8
    assert not is_gone(f"{head[:-8]}{other}:{pid}1:{end}"), "nobody knows that from here"
    assert not any(is_gone(name) for name in ("", "a", "local:", "local:a.b:1.2:3", "10.0.0.1:50051"))
