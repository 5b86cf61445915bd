from __future__ import annotations

import os
import random
import socket

import pytest

from holdfast.processes import wire
from holdfast.processes.wire import Lines


def test_lines_are_the_same_however_they_arrive():
    text = b"one\n\ntwo\nthree"
    chance = random.Random(7)
    for _ in range(50):
        lines, whole, rest = Lines(100), [], text
        while rest:
            size = chance.randint(1, 6)
            whole += lines.feed(rest[:size])[0]
            rest = rest[size:]
        assert whole == [(b"one", False), (b"", False), (b"two", False)]
        assert lines.rest() == [(b"three", False)]
        assert lines.rest() == []


def test_a_long_line_is_cut_and_the_next_one_is_whole():
    lines = Lines(4)
    assert lines.feed(b"abc")[0] == []
    assert lines.feed(b"def" * 1000)[0] == []
    assert lines.feed(b"g\nabcd\nabcde\n")[0] == [(b"abcd", True), (b"abcd", False), (b"abcd", True)]


@pytest.mark.parametrize(("most", "kept"), [(0, []), (1, [b"startone"]), (2, [b"startone", b"two"])])
def test_lines_beyond_the_most_are_counted_not_kept(most: int, kept: list[bytes]):
    lines = Lines(100)
    lines.feed(b"start")
    whole, beyond = lines.feed(b"one\ntwo\nthree\nfo", most)
    assert ([line for line, _ in whole], beyond) == (kept, 3 - most)
    assert lines.feed(b"ur\n")[0] == [(b"four", False)]


def test_packets_carry_descriptors_that_do_not_survive_an_exec():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reading, writing = os.pipe()
    with ours, theirs:
        wire.send_packet(ours, {"op": "ü"}, [writing])
        message, (received,) = wire.receive_packet(theirs)
        assert message == {"op": "ü"}
        assert not os.get_inheritable(received)
        os.write(received, b"x")
        assert os.read(reading, 1) == b"x"
        ours.close()
        assert wire.receive_packet(theirs) is None
    wire.close_all([reading, writing, received])


@pytest.mark.parametrize("data", [b"", b"[1]", b"1", b"{", b"\xff"])
def test_only_a_json_object_is_a_message(data: bytes):
    with pytest.raises(ValueError):
        wire.decode(data)
