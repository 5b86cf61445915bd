"""Server-Sent Events, read as their standard has it, from whatever pieces the network makes of them."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

_BREAK = re.compile("\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Block:
    """One event of the stream."""

    id: str
    event: str
    data: str


class Blocks:
    """Collects pieces of a stream and gives the events that are whole; half of one is never given."""

    def __init__(self) -> None:
        # A character may be cut in two by the network; the standard wants a BOM at the start forgotten.
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._text: list[str] = []
        self._id = self._event = ""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> list[Block]:
        """Take a piece and return the events that end in it."""
        text = self._decoder.decode(piece)
        self._text.append(text)
        # A long event comes in many pieces: they are put together once, when a line ends.
        if "\n" not in text and "\r" not in text:
            return []
        *lines, rest = _BREAK.split("".join(self._text))
        if not rest and lines and text.endswith("\r"):
            # The other half of a \r\n may come with the next piece, and must not look like an empty line.
            lines, rest = lines[:-1], lines[-1] + "\r"
        self._text = [rest]
        blocks = (self._line(line) for line in lines)
        return [block for block in blocks if block is not None]

    def _line(self, line: str) -> Block | None:
        if not line:
            return self._whole()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "id" if "\0" not in value:
                self._id = value
            case "event":
                self._event = value
            case "data":
                self._data.append(value)
            case _:  # a comment, a retry, or what we don't know
                pass
        return None

    def _whole(self) -> Block | None:
        event, data = self._event, self._data
        self._event, self._data = "", []
        return Block(self._id, event or "message", "\n".join(data)) if data else None
