"""An answer that flows to the client while it is recorded.

What is short is read whole, settled, and only then answered. An event stream, or what does not fit into the buffer,
cannot wait for its end: its client hears it live. What such a client never sees before it has been settled is the
*end*: the last piece of an answer with a length, the last event of a tool call's stream, the last chunk of what has
neither. An answer that looks whole is on record, live or not.

The recording goes on when the client leaves, and waits while the client reads more slowly than the upstream writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from idemproxy.core.messages import Headers, header_value
from idemproxy.core.replies import STORED_FALSE
from idemproxy.pipe import Pipe
from idemproxy.ports import Opened

BUFFER_BYTES: Final = 256 * 1024
"""An answer up to this size is held until it has been settled: nearly all are, and their refusal can still be told."""


NO_BODY = (204, 304)


def framed(opened: Opened) -> bool:
    """Whether an answer says where its body ends."""
    said = (header_value(opened.headers, name) for name in (b"content-length", b"transfer-encoding"))
    return opened.status in NO_BODY or any(value is not None for value in said)


@dataclass(frozen=True, slots=True)
class LiveReply:
    """A reply whose body is still arriving. `length` is the upstream's Content-Length, None when it gave none."""

    status: int
    reason: bytes
    headers: Headers
    length: int | None
    pipe: Pipe

    def with_fields(self, more: Headers) -> LiveReply:
        return LiveReply(self.status, self.reason, self.headers + more, self.length, self.pipe)


class Recording:
    """Reads an answer's body, keeps it as long as it may be kept, and hands it on if it has to go live."""

    def __init__(self, opened: Opened, max_stored_bytes: int) -> None:
        self._opened = opened
        self._max = max_stored_bytes
        length = header_value(opened.headers, b"content-length")
        self._length = int(length) if length is not None else None
        self._size = 0
        self._pieces: list[bytes] = []
        self._held = b""
        self._known_not_to_fit = False
        self.pipe: Pipe
        """From `go_live` on."""

    @property
    def fits(self) -> bool:
        """Whether it can be kept, as far as is known."""
        return max(self._size, self._length or 0) <= self._max

    @property
    def body(self) -> bytes:
        return b"".join(self._pieces)

    async def whole(self) -> bool:
        """Read the answer; False when it has to go live before its end. Raises BodyLost."""
        if self._is_event_stream():
            return False
        body = self._opened.body
        while piece := await body.read():
            self._take(piece)
            if self._size > BUFFER_BYTES:
                return False
            if body.complete:  # most answers come in one piece
                break
        return True

    def _is_event_stream(self) -> bool:
        media_type = (header_value(self._opened.headers, b"content-type") or b"").partition(b";")[0]
        has_body = self._length != 0 and self._opened.status not in NO_BODY
        return has_body and media_type.strip(b" \t").lower() == b"text/event-stream"

    def _take(self, piece: bytes) -> None:
        self._size += len(piece)
        self._pieces.append(piece)

    def go_live(self, headers: Headers) -> LiveReply:
        self.pipe = Pipe()
        self._known_not_to_fit = not self.fits
        if self._known_not_to_fit:
            headers = (*headers, STORED_FALSE)
        return LiveReply(self._opened.status, self._opened.reason, headers, self._length, self.pipe)

    async def play(self) -> None:
        """Hand on everything but the end, and keep it as long as it fits. Raises BodyLost."""
        for n, piece in enumerate(self._pieces):
            await self._hand_on(piece, last=n == len(self._pieces) - 1 and self._ended)
        while True:
            if not self.fits:
                self._pieces.clear()
            piece = await self._opened.body.read()
            if not piece:
                return
            self._take(piece)
            await self._hand_on(piece, last=self._ended)

    @property
    def _ended(self) -> bool:
        return self._size == self._length or self._opened.body.complete

    async def _hand_on(self, piece: bytes, *, last: bool) -> None:
        if last:
            self._held = piece
        else:
            await self.pipe.put(piece)

    def finish(self, *, stored: bool) -> None:
        """Let the client see the end, and in a trailer what the head could not know: that it is not stored."""
        said = self._known_not_to_fit or (stored and self.fits)
        self.pipe.end(last=self._held, trailers=() if said else (STORED_FALSE,))
