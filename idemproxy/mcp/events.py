"""Event streams (`text/event-stream`), as far as MCP uses them: one JSON-RPC message per event."""

from __future__ import annotations

import re

MEDIA_TYPE = b"text/event-stream"

_LINE = re.compile(r"\r\n|\n|\r")
_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_BOM = "\ufeff"


class EventSplitter:
    """Cuts a stream into whole events, byte for byte: what comes out, joined, is what went in."""

    def __init__(self) -> None:
        self.rest = b""
        """The begun event."""

    def feed(self, piece: bytes) -> list[bytes]:
        events: list[bytes] = []
        # An end may straddle two pieces: look again at the last three bytes, the longest part of one.
        at, searched = 0, max(0, len(self.rest) - 3)
        data = self.rest + piece
        while end := _END.search(data, max(at, searched)):
            events.append(data[at : end.end()])
            at = end.end()
        self.rest = data[at:]
        return events


def event_data(event: bytes) -> str | None:
    """What an event says, its data lines joined; None for comments, priming events and bytes that are not text."""
    try:
        lines = _LINE.split(event.decode().removeprefix(_BOM))
    except UnicodeDecodeError:
        return None
    data = [line[5:].removeprefix(" ") for line in lines if line.startswith("data:")]
    return "\n".join(data) or None


def with_data(event: bytes, data: str) -> bytes:
    """The event saying something else, its other fields as they were."""
    lines = [line for line in _LINE.split(event.decode()) if line and not line.startswith("data:")]
    return "".join(f"{line}\n" for line in lines).encode() + _data_lines(data)


def message_event(data: str) -> bytes:
    return b"event: message\n" + _data_lines(data)


def _data_lines(data: str) -> bytes:
    return ("".join(f"data: {line}\n" for line in _LINE.split(data)) + "\n").encode()
