"""Where a request's body ends: by its length, or chunk by chunk. No input or output here, only bytes."""

from __future__ import annotations

import re

from idemproxy.core.messages import Headers
from idemproxy.core.problems import Code
from idemproxy.edge.heads import Head, RefusedError, has_controls, read_fields
from idemproxy.edge.limits import MAX_CHUNK_EXTENSION_BYTES, MAX_CHUNK_LINE_BYTES, ClientLimits

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})((?:;[\t\x20-\x7e]*)?)")
_SIZE_SO_FAR = re.compile(rb"(?:[0-9A-Fa-f]{1,16}(?:;[\t\x20-\x7e]*)?\r?)?")
_NEVER_IN_TRAILERS = frozenset({b"content-length", b"transfer-encoding", b"host", b"content-type", b"trailer"})


class Sized:
    """A body of a known length; without a body, of none."""

    def __init__(self, length: int) -> None:
        self._left = length
        self.trailers: Headers = ()
        self.done = not length
        self.rest = b""
        """What came after the body: the beginning of the next request."""

    def feed(self, data: bytes) -> bytes:
        piece = data[: self._left]
        self._left -= len(piece)
        if not self._left:
            self.done = True
            self.rest = data[len(piece) :]
        return piece


class Chunked:
    """A chunked body. Its chunks are joined as they arrive: a body of one-byte chunks must not cost more to hold."""

    def __init__(self, limits: ClientLimits) -> None:
        self._limits = limits
        self._unread = b""
        self._left = 0
        """Of the chunk under way."""
        self._state = self._size_line
        self._extensions = 0
        self._lines: list[bytes] = []
        self._trailer_bytes = 0
        self._pieces: list[bytes] = []
        self.trailers: Headers = ()
        self.done = False
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        """The content in `data`; raises RefusedError as soon as no valid body can come of it any more."""
        data = self._unread + data
        at = 0
        while not self.done:
            after = self._state(data, at)
            if after is None:
                break
            at = after
        if self.done:
            self.rest, self._unread = data[at:], b""
        else:
            self._unread = data[at:] if self._left == 0 else b""
        piece = b"".join(self._pieces)
        self._pieces.clear()
        return piece

    # Each state reads on from `at` and gives the place where the next one begins, or None when it needs more.

    def _size_line(self, data: bytes, at: int) -> int | None:
        end = data.find(b"\r\n", at, at + MAX_CHUNK_LINE_BYTES)
        if end < 0:
            if len(data) - at >= MAX_CHUNK_LINE_BYTES or not _SIZE_SO_FAR.fullmatch(data, at):
                raise RefusedError(Code.BAD_REQUEST, "chunk size not valid")
            return None
        size = _SIZE.fullmatch(data, at, end)
        if size is None:
            raise RefusedError(Code.BAD_REQUEST, "chunk size not valid")
        self._extensions += len(size[2])
        if self._extensions > MAX_CHUNK_EXTENSION_BYTES:
            raise RefusedError(Code.BAD_REQUEST, "too many chunk extensions")
        self._left = int(size[1], 16)
        self._state = self._content if self._left else self._trailer_line
        return end + 2

    def _content(self, data: bytes, at: int) -> int | None:
        piece = data[at : at + self._left]
        if piece:
            self._pieces.append(piece)
            self._left -= len(piece)
        if self._left:
            return None
        self._state = self._content_end
        return at + len(piece)

    def _content_end(self, data: bytes, at: int) -> int | None:
        end = data[at : at + 2]
        if end == b"\r\n":
            self._state = self._size_line
            return at + 2
        if end in (b"", b"\r"):
            return None
        raise RefusedError(Code.BAD_REQUEST, "chunk longer than its size")

    def _trailer_line(self, data: bytes, at: int) -> int | None:
        end = data.find(b"\r\n", at)
        line = data[at:end] if end >= 0 else data[at:].removesuffix(b"\r")
        if self._trailer_bytes + len(line) > self._limits.max_head_bytes:
            raise RefusedError(Code.REQUEST_HEAD_TOO_LARGE, "trailer section too large")
        if has_controls(line):
            raise RefusedError(Code.BAD_REQUEST, "control character in a trailer")
        if end < 0:
            return None
        if line:
            self._trailer_bytes += len(line)
            self._lines.append(line)
            if len(self._lines) > self._limits.max_headers:
                raise RefusedError(Code.REQUEST_HEAD_TOO_LARGE, "too many trailers")
        else:
            self._end()
        return end + 2

    def _end(self) -> None:
        self.trailers, _ = read_fields(self._lines, self._limits)
        if any(name.lower() in _NEVER_IN_TRAILERS for name, _ in self.trailers):
            raise RefusedError(Code.BAD_REQUEST, "framing or routing in a trailer")
        self.done = True


class Endless:
    """Not a body: whatever a client says after it has switched to another protocol, until it ends the connection."""

    def __init__(self) -> None:
        self.trailers: Headers = ()
        self.done = False
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        return data


def framing_of(head: Head, limits: ClientLimits) -> Sized | Chunked:
    return Chunked(limits) if head.chunked else Sized(head.length or 0)
