from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.transports.http.sse import Block, Blocks

STREAM = (
    "\ufeff: hello\n\nretry: 1000\n\n"
    "id: 1-0\nevent: submitted\ndata: {}\n\n"
    'id: 2-0\r\nevent: wörd\r\ndata: {"é":\r\ndata:  "…"}\r\n\r\n'
    ": alive\n\n"
    "id: 3-0\revent: succeeded\rdata:{}\r\r"
    "unknown: 1\nid\nevent: empty\n\n"
    "id: 4-0\nevent: half\ndata: no"
).encode()
BLOCKS = [
    Block("1-0", "submitted", "{}"),
    Block("2-0", "wörd", '{"é":\n "…"}'),
    Block("3-0", "succeeded", "{}"),
]


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=30))
def test_however_a_stream_is_cut_its_events_are_the_same(cuts):
    blocks, at = Blocks(), 0
    found: list[Block] = []
    for cut in [*sorted(cuts), len(STREAM)]:
        found += blocks.feed(STREAM[at:cut])
        at = cut
    assert found == BLOCKS


def test_byte_by_byte():
    blocks = Blocks()
    assert [block for byte in STREAM for block in blocks.feed(bytes([byte]))] == BLOCKS


def test_a_long_event_in_many_pieces_takes_no_more_than_its_length():
    blocks = Blocks()
    blocks.feed(b"id: 1-0\ndata: ")
    for _ in range(2000):
        assert blocks.feed(b"x" * 10_000) == []
    [block] = blocks.feed(b"\n\n")
    assert len(block.data) == 20_000_000


@pytest.mark.parametrize("text", ["data\n\n", "data:\n\n", "data: \n\n"])
def test_data_may_be_empty(text):
    assert Blocks().feed(text.encode()) == [Block("", "message", "")]
