"""JSON between host, zygote and child: packets that may carry descriptors, and lines of a bounded length.

Never pickle: a message can only be data. The zygote imports this, so it only uses the standard library.
"""

from __future__ import annotations

import array
import json
import os
import socket
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

Message = dict[str, Any]

MAX_PACKET: Final = 256 * 1024
MAX_PAYLOAD_BYTES: Final = 16 * 1024 * 1024
MAX_REPORT_BYTES: Final = 256 * 1024
_MAX_DESCRIPTORS: Final = 8


def encode(message: Any) -> bytes:
    """Return the JSON of a message on one line."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode()


def decode(data: bytes) -> Message:
    """Return the JSON object that was sent; anything else is a ValueError."""
    message: object = json.loads(data)
    if not isinstance(message, dict):
        raise ValueError(f"expected a JSON object, not {type(message).__name__}")  # noqa: TRY004
    return cast("Message", message)


def send_packet(peer: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """Send one message, with descriptors that are duplicated for the other side."""
    socket.send_fds(peer, [encode(message)], list(descriptors))


def receive_packet(peer: socket.socket) -> tuple[Message, list[int]] | None:
    """Receive one message and its descriptors; None when the other side is gone."""
    # Not socket.recv_fds: on Python 3.11 it ignores its flags, and the descriptors would survive an exec.
    size = socket.CMSG_LEN(_MAX_DESCRIPTORS * array.array("i").itemsize)
    data, ancillary, _, _ = peer.recvmsg(MAX_PACKET, size, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, part in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(part[: len(part) - len(part) % descriptors.itemsize])
    if not data:
        close_all(descriptors)
        return None
    return decode(data), list(descriptors)


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors that are ours alone."""
    for descriptor in descriptors:
        os.close(descriptor)


class Lines:
    """Splits a stream into lines and keeps at most ``limit`` bytes of each."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._cut = False

    def feed(self, data: bytes, most: int | None = None) -> tuple[list[tuple[bytes, bool]], int]:
        """Return the complete lines (each with whether it was cut), and how many were beyond ``most``."""
        beyond = 0
        if most is not None and (beyond := max(0, data.count(b"\n") - most)):
            head, rest = data.split(b"\n", most)[:most], data[data.rfind(b"\n") + 1 :]
            if not most:
                self._forget()
        else:
            *head, rest = data.split(b"\n")
        lines = [self._whole(part) for part in head]
        self._keep(rest)
        return lines, beyond

    def rest(self) -> list[tuple[bytes, bool]]:
        """Return the data after the end of the last line."""
        return [self._whole(b"")] if self._kept else []

    def _whole(self, part: bytes) -> tuple[bytes, bool]:
        self._keep(part)
        line = (bytes(self._kept), self._cut)
        self._forget()
        return line

    def _keep(self, part: bytes) -> None:
        space = self._limit - len(self._kept)
        self._kept += part[:space]
        self._cut = self._cut or len(part) > space

    def _forget(self) -> None:
        self._kept.clear()
        self._cut = False
