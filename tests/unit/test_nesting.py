"""Documents that go too deep are refused where they come in."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InputError, MalformedMessage
from holdfast.runs.message import decode_message, encode_value
from holdfast.runs.nesting import DEEPEST, too_deep

anything = st.recursive(
    st.none() | st.text() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(("levels", "refused"), [(DEEPEST, False), (DEEPEST + 1, True), (900, True)])
def test_the_limit_is_exact(levels, refused):
    assert too_deep(b"[" * levels + b"]" * levels) is refused


def test_brackets_in_text_and_beside_each_other_are_no_nesting():
    assert not too_deep(json.dumps(["[" * 500, '\\"[[' * 300, [[]] * 300]).encode())


@given(anything)
def test_what_people_send_is_never_refused(value):
    assert not too_deep(json.dumps(value).encode())


def test_a_deep_value_is_refused_by_whoever_writes_and_reads_it():
    with pytest.raises(InputError, match="the result is nested more than 200 levels deep"):
        encode_value(nested(400), "the result")
    with pytest.raises(MalformedMessage, match="nested more than 200 levels deep"):
        decode_message(b'{"input":' + b"[" * 400 + b"]" * 400 + b"}")
