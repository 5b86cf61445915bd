"""Decoding and encoding of ``message_data``: JSON only, and each error says why."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from holdfast.agents.finite import require_finite
from holdfast.agents.models import dumped, unwritable
from holdfast.agents.unawaited import forgotten
from holdfast.errors import InputError, MalformedMessage, PayloadTooLarge
from holdfast.runs.nesting import DEEPEST, too_deep
from holdfast.runs.run import Envelope, Submission

PARENT_RUN: Final = "Holdfast-Parent-Run"
"""The header that names the run whose agent sends a request."""

_encode = msgspec.json.Encoder(enc_hook=dumped).encode
_decode_envelope = msgspec.json.Decoder(Envelope).decode
_decode = msgspec.json.Decoder().decode

_PICKLE = re.compile(rb"\x80[\x02-\x05]|gA[I-X]")
"""The first bytes of pickles of protocol 2 to 5, raw and in base64."""


def encode_message(submission: Submission, trace: dict[str, str], *, max_bytes: int) -> bytes:
    """Encode the envelope of a submission."""
    envelope = Envelope(
        input=submission.input,
        thread_id=submission.thread_id,
        client_id=submission.client_id,
        project_id=submission.project_id,
        tenant=submission.tenant,
        timeout_seconds=submission.timeout_seconds,
        metadata=submission.metadata,
        webhook=submission.webhook,
        push=submission.push,
        logger_context=submission.logger_context,
        trace=trace,
    )
    message = encode_parts(envelope, f"for agent {submission.agent!r}")
    if len(message) > max_bytes:
        size = f"message for agent {submission.agent!r} has {len(message)} bytes, more than max_payload_bytes"
        advice = "store large data elsewhere and send a reference, or raise HOLDFAST_MAX_PAYLOAD_BYTES"
        raise PayloadTooLarge(f"{size} = {max_bytes}; {advice}")
    return message


def encode_parts(whole: msgspec.Struct, whose: str) -> bytes:
    """Encode a struct; if that fails, raise an InputError that names the field."""
    try:
        return encode_value(whole, f"message {whose}")
    except InputError as exc:
        failed = exc
    for name in whole.__struct_fields__:
        encode_value(getattr(whole, name), f"{name} {whose}")
    raise failed


def encode_value(value: Any, what: str) -> bytes:
    """Encode any value as JSON, or raise an InputError that names ``what`` and the part."""
    try:
        data = _encode(value)
    except (TypeError, ValueError, UnicodeEncodeError, RecursionError, OverflowError) as exc:
        if coroutine := forgotten(value):
            raise InputError(f"{what} {coroutine}") from exc
        raise InputError(f"{what} can't be written as JSON: {exc} ({unwritable(value)})") from exc
    if too_deep(data):
        raise InputError(f"{what} is nested more than {DEEPEST} levels deep")
    require_finite(value, data, what, dumped)
    return data


def decode_message(data: bytes) -> Envelope:
    """Decode an envelope; JSON without an ``input`` is itself the input. Raises only MalformedMessage."""
    if too_deep(data):
        raise MalformedMessage(f"message_data is nested more than {DEEPEST} levels deep")
    try:
        return _read(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as exc:
        raise MalformedMessage(_why_unreadable(data, exc)) from exc


def _read(data: bytes) -> Envelope:
    try:
        envelope = _decode_envelope(data)
    except msgspec.ValidationError as exc:
        value = _decode(data)
        if isinstance(value, dict) and "input" in value:
            raise MalformedMessage(f"message_data is not a valid envelope: {exc}") from exc
        return Envelope(input=value)
    return envelope if envelope.input is not msgspec.UNSET else Envelope(input=_decode(data))


def _why_unreadable(data: bytes, exc: Exception) -> str:
    if _PICKLE.match(data):
        return "message_data is a pickle; pickles run code when they are read and are refused: send JSON"
    return f"message_data is not JSON: {exc}"
